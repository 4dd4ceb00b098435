import { UploadError } from './errors.js'
import type { PendingUpload } from './record.js'

export interface WireOptions {
  body: 'raw' | { field: string }
  digestHeader: 'X-File-Sha256' | 'Repr-Digest' | 'both'
  nameHeader: string | false
}

/** A name fit for a header and a disk: control characters become `_`, lone surrogates U+FFFD. Everything else arrives as it was. */
export const cleanName = (name: string): string =>
  name
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    .replace(/[\u0000-\u001f\u007f-\u009f]/g, '_')
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd')

const base64 = (bytes: Uint8Array): string => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))

const hexToBase64 = (hex: string): string => base64(Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16)))

/** A value for the `Idempotency-Key` header: bare, or a structured-field String (RFC 9651). */
export const newKey = (format: 'bare' | 'quoted', uuid: () => string): string => (format === 'quoted' ? `"${uuid()}"` : uuid())

/** The tus protocol's `Upload-Metadata`: `key base64value`, joined by commas. */
const uploadMetadata = (metadata: Record<string, string>): string =>
  Object.entries(metadata)
    .map(([key, value]) => `${key} ${base64(new TextEncoder().encode(value))}`)
    .join(',')

/** The app's headers must not touch these: they are what makes a repeat recognisable. */
export const reservedHeaders: readonly string[] = ['idempotency-key', 'x-file-sha256', 'repr-digest']

/** An engine's own error would quote the header's value, a token perhaps. */
const parseHeaders = (init: HeadersInit | undefined): Headers => {
  try {
    return new Headers(init)
  } catch (cause) {
    throw new UploadError('invalid-request', 'The app gave a header that cannot be sent.', { cause })
  }
}

/**
 * WebKit has sent a Blob just as it came out of IndexedDB as an empty body, and without an error. Blobs made anew are sent well, but a page that
 * makes many spends more time on that than on anything else. Workers do not say what they run in.
 */
const sendsStoredBlobs = (): boolean => ['Google Inc.', ''].includes(globalThis.navigator?.vendor)

/**
 * Headers and body of a record's request, the same on every attempt but for the app's own headers.
 * Throws `UploadError` `invalid-request` for a header that cannot be sent or that is not the app's to set.
 */
export function buildRequest(
  record: PendingUpload,
  bytes: Blob | ArrayBuffer,
  own: HeadersInit | undefined,
  options: WireOptions,
): { headers: Headers; readonly body: Blob | FormData; buffer?: ArrayBuffer } {
  const sha256 = record.sha256 ?? ''
  const headers = new Headers({ 'Idempotency-Key': record.idempotencyKey })
  const contentType = record.type || 'application/octet-stream'
  const { body: form, digestHeader, nameHeader } = options
  if (digestHeader !== 'Repr-Digest') headers.set('X-File-Sha256', sha256)
  if (digestHeader !== 'X-File-Sha256') headers.set('Repr-Digest', `sha-256=:${hexToBase64(sha256)}:`)
  if (nameHeader !== false) headers.set(nameHeader, encodeURIComponent(record.name))
  if (form === 'raw') {
    headers.set('Content-Type', contentType)
    if (Object.keys(record.metadata).length > 0) headers.set('Upload-Metadata', uploadMetadata(record.metadata))
  }
  for (const [name, value] of parseHeaders(own)) {
    if (reservedHeaders.includes(name)) throw new UploadError('invalid-request', `The header ${name} is the queue's to set, not the app's.`)
    // The browser alone knows the boundary of a form.
    if (form === 'raw' || name !== 'content-type') headers.set(name, value)
  }
  const file = (): Blob => new Blob([bytes], { type: contentType })
  if (form === 'raw') {
    return {
      headers,
      get body() {
        return 'size' in bytes && sendsStoredBlobs() ? bytes : file()
      },
      ...(!('size' in bytes) && { buffer: bytes }),
    }
  }
  const body = new FormData()
  for (const [key, value] of Object.entries(record.metadata)) body.append(key, value)
  body.append(form.field, file(), record.name)
  return { headers, body }
}
