import { createHash } from 'node:crypto'
import { canonicalJson } from './canonical-json.js'

/** SHA-256 in hexadecimal over parts that are each preceded by their length, so that no two lists of parts read alike. */
export function fingerprint(parts: readonly (string | Uint8Array)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) {
    const bytes = Buffer.from(part as string)
    const length = Buffer.alloc(4)
    length.writeUInt32BE(bytes.length)
    hash.update(length).update(bytes)
  }
  return hash.digest('hex')
}

/** A content type without parameters, in lower case; empty where there is none. */
export const essenceOf = (contentType: string | null | undefined): string => (contentType ?? '').split(';')[0]!.trim().toLowerCase()

export const isJsonType = (essence: string): boolean => /^application\/(.+\+)?json$/.test(essence)

const strictUtf8 = new TextDecoder('utf-8', { fatal: true })

/** The canonical text of a JSON body; of anything else, the bytes. */
function canonicalBody(essence: string, body: Uint8Array): string | Uint8Array {
  if (!isJsonType(essence)) return body
  try {
    return canonicalJson(strictUtf8.decode(body)) ?? body
  } catch {
    return body
  }
}

export interface BufferedRequest {
  method: string
  url: URL
  contentType: string | null | undefined
  body: Uint8Array
}

/**
 * What makes two buffered requests the same: method, path, query, type and body, where JSON is compared by what it says. Not the parameters of
 * the type, nor any other header. `fp1` is the version.
 */
export function requestFingerprint({ method, url, contentType, body }: BufferedRequest): string {
  const essence = essenceOf(contentType)
  return fingerprint(['fp1', method, url.pathname + url.search, essence, canonicalBody(essence, body)])
}
