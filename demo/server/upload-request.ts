import { Refusal } from './answer.js'
import { essenceOf, fingerprint } from './fingerprint.js'

/** What the headers of an upload say. */
export interface UploadRequest {
  key: string
  /** Declared digest of the body: 64 lower-case hexadecimal digits. */
  sha256: string
  /** Without parameters, in lower case. */
  contentType: string
  fileName: string | null
  metadata: Record<string, string>
  /** Null where the body comes without a length. */
  length: number | null
}

/**
 * The key a request names, whichever of its two forms it has. Throws `idempotency_key_required` or `idempotency_key_invalid`.
 * Several header lines arrive joined by a comma, which no key may hold.
 */
export function parseKey(headers: Headers): string {
  const value = headers.get('idempotency-key')?.trim() ?? ''
  const quoted = value.startsWith('"') ? /^"([^"\\]*)"$/.exec(value) : null
  if (value.startsWith('"') && !quoted) throw new Refusal('idempotency_key_invalid')
  const key = quoted?.[1] ?? value
  if (key.length < 16 || key.length > 255) throw new Refusal('idempotency_key_required')
  if (!/^[!-~]+$/.test(key) || /["\\,;]/.test(key)) throw new Refusal('idempotency_key_invalid')
  return key
}

const fromHex = (value: string): string => {
  if (!/^[0-9a-f]{64}$/i.test(value)) throw new Refusal('digest_invalid')
  return value.toLowerCase()
}

/** The SHA-256 values in a field of RFC 9530. */
function fromDigestField(field: string): string[] {
  const digests: string[] = []
  for (const member of field.split(',')) {
    const parts = /^\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):\s*(;.*)?$/.exec(member)
    if (!parts) throw new Refusal('digest_invalid')
    if (parts[1] === 'sha-256') digests.push(fromHex(Buffer.from(parts[2]!, 'base64').toString('hex')))
  }
  if (digests.length === 0) throw new Refusal('digest_unsupported')
  return digests
}

/** The declared SHA-256, null when there is none. Throws `digest_invalid`, `digest_unsupported` or `digest_conflict`. */
export function parseDigest(headers: Headers): string | null {
  const hex = headers.get('x-file-sha256')
  const fields = ['repr-digest', 'content-digest'].flatMap((name) => headers.get(name) ?? [])
  const digests = new Set([...(hex === null ? [] : [fromHex(hex.trim())]), ...fields.flatMap(fromDigestField)])
  if (digests.size > 1) throw new Refusal('digest_conflict')
  return [...digests][0] ?? null
}

const FORMS = /^(multipart\/|application\/x-www-form-urlencoded$)/

function parseContentType(headers: Headers): string {
  const encoding = headers.get('content-encoding')?.trim().toLowerCase() ?? 'identity'
  const essence = essenceOf(headers.get('content-type') ?? 'application/octet-stream')
  const isType = /^[a-z0-9!#$&^_.+-]{1,127}\/[a-z0-9!#$&^_.+-]{1,127}$/.test(essence)
  if (encoding !== 'identity' || !isType || FORMS.test(essence)) throw new Refusal('unsupported_media_type')
  return essence
}

const percentDecoded = (value: string): string => {
  try {
    return decodeURIComponent(value)
  } catch {
    return value
  }
}

/** At most `bytes` of UTF-8, without cutting a character in two. */
function clip(text: string, bytes: number): string {
  let size = 0
  let clipped = ''
  for (const character of text) {
    size += Buffer.byteLength(character)
    if (size > bytes) break
    clipped += character
  }
  return clipped
}

/** A name for people to read: never a path, nothing that could turn the text around it. Null when nothing is left of it. */
export function parseFileName(headers: Headers): string | null {
  const name = percentDecoded(headers.get('x-file-name') ?? '')
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is taken out
    .replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '')
    .split(/[/\\]/)
    .pop()!
    .normalize('NFC')
    .trim()
  return clip(name, 255) || null
}

const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** `Upload-Metadata` as in the tus protocol. Throws `metadata_invalid`. */
export function parseMetadata(headers: Headers): Record<string, string> {
  const entries = new Map<string, string>()
  for (const pair of (headers.get('upload-metadata') ?? '').split(',')) {
    const [key = '', value = '', ...rest] = pair.trim().split(' ')
    if (pair.trim() === '') continue
    if (rest.length > 0 || entries.has(key) || !/^[!-~]+$/.test(key) || !/^[A-Za-z0-9+/]*={0,2}$/.test(value)) {
      throw new Refusal('metadata_invalid')
    }
    entries.set(key, decodeText(value))
  }
  return Object.fromEntries([...entries].sort(([a], [b]) => (a < b ? -1 : 1)))
}

/** NUL is refused here, since a database cannot keep it in text. */
function decodeText(base64: string): string {
  let text: string
  try {
    text = strictUtf8.decode(Buffer.from(base64, 'base64'))
  } catch (cause) {
    throw new Refusal('metadata_invalid', [], { cause })
  }
  if (text.includes('\0')) throw new Refusal('metadata_invalid')
  return text
}

/** Everything the headers say, checked in the order in which refusals win. Throws `Refusal`. */
export function readUploadRequest(request: Request, maxBytes: number): UploadRequest {
  const { headers } = request
  const key = parseKey(headers)
  const sha256 = parseDigest(headers)
  if (sha256 === null) throw new Refusal('digest_required')
  const contentType = parseContentType(headers)
  const metadata = parseMetadata(headers)
  const declared = headers.get('content-length')
  const length = declared === null ? null : Number(declared)
  if (length !== null && length > maxBytes) throw new Refusal('payload_too_large')
  return { key, sha256, contentType, fileName: parseFileName(headers), metadata, length }
}

/**
 * What makes two uploads the same: operation, type, bytes and metadata. Not the length (proxies re-frame), the query or parameters of the type.
 * `fp1` is the version.
 */
export function fingerprintOf(request: Request, upload: UploadRequest): string {
  const { contentType, sha256, fileName, metadata } = upload
  const facts = JSON.stringify([fileName, Object.entries(metadata)])
  return fingerprint(['fp1', request.method, new URL(request.url).pathname, contentType, Buffer.from(sha256, 'hex'), facts])
}
