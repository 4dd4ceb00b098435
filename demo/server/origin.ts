import { Refusal } from './answer.js'

const ALLOWED_HEADERS =
  'authorization, content-type, idempotency-key, x-file-sha256, repr-digest, content-digest, x-file-name, upload-metadata'

const EXPOSED_HEADERS =
  'Retry-After, Location, Date, Idempotency-Key, Idempotency-Retention, Idempotency-Outcome, Idempotent-Replayed, Idempotent-Replay, Upload-Limit'

export interface OriginRule {
  /** CORS headers for any answer to this request, refusals included. */
  headers(request: Request): [string, string][]
  /** Further headers for the answer to a preflight. */
  preflight(request: Request): [string, string][]
  /** Throws `origin_not_allowed`. `ambient`: the caller was known by something the browser sends by itself, so another site may be behind it. */
  check(request: Request, ambient: boolean): void
}

/** CORS with an exact list, and the CSRF rule for cookies. `allowed`: origins such as `https://app.example`; the server's own is allowed anyway. */
export function createOriginRule(allowed: readonly string[]): OriginRule {
  const isListed = (origin: string | null): origin is string => origin !== null && allowed.includes(origin)
  const isOwn = (request: Request, origin: string | null): boolean =>
    request.headers.get('sec-fetch-site') === 'same-origin' || origin === new URL(request.url).origin

  return {
    headers(request) {
      const origin = request.headers.get('origin')
      const vary: [string, string] = ['Vary', 'Origin']
      if (!isListed(origin)) return [vary]
      return [
        vary,
        ['Access-Control-Allow-Origin', origin],
        ['Access-Control-Allow-Credentials', 'true'],
        ['Access-Control-Expose-Headers', EXPOSED_HEADERS],
      ]
    },
    preflight(request) {
      if (!isListed(request.headers.get('origin'))) return []
      return [
        ['Access-Control-Allow-Methods', 'POST, GET'],
        ['Access-Control-Allow-Headers', ALLOWED_HEADERS],
        ['Access-Control-Max-Age', '7200'],
      ]
    },
    check(request, ambient) {
      const origin = request.headers.get('origin')
      const trusted = isListed(origin) || isOwn(request, origin)
      if (origin !== null && !trusted) throw new Refusal('origin_not_allowed')
      const changesSomething = request.method !== 'GET' && request.method !== 'HEAD'
      if (ambient && changesSomething && !trusted && request.headers.get('sec-fetch-site') !== 'same-site')
        throw new Refusal('origin_not_allowed')
    },
  }
}
