import { headersToKeep, REPLAY_MARKERS, Refusal, takeAnswer, toResponse } from './answer.js'
import { type BodyLimits, BodyTimeout, ClientGone, createBody, type RequestBody } from './body.js'
import { requestFingerprint } from './fingerprint.js'
import {
  type Claim,
  createIdempotency,
  type Declined,
  Fenced,
  type IdempotencyOptions,
  type Operation,
  type RespondPolicy,
  StoreError,
  storeAllButTooMany,
  storedAnswerOf,
} from './idempotency.js'
import { parseKey } from './upload-request.js'

export interface IdempotentHandlerOptions extends IdempotencyOptions {
  /** How long a handler is waited for, and its claim held, in ms. Default 5 min; then its client gets a 503. */
  maxRunMs?: number
  /** Live claims of one owner. Default: no limit. */
  maxInFlightPerOwner?: number
  /** Whether a request must have a key. Default true: without one it is a 400. False: without one it goes straight to the handler. */
  required?: boolean
  /** Size of a request body, which is held in memory, in bytes. Default 1 MiB; a longer one is a 413. */
  maxRequestBytes?: number
  /** Headers a replay repeats besides Content-Type, -Encoding, -Language, -Disposition, Location and ETag; `Set-Cookie`, say. */
  keepHeaders?: readonly string[]
  /** What becomes of the key. Default `storeAllButTooMany`; `release` what failed only where the handler leaves nothing behind when it fails. */
  respondPolicy?: RespondPolicy
}

export interface Call {
  /** Whose key it is, from a verified credential. Null: nobody we know, 401. */
  owner: string | null
  /** Keys of one scope know nothing of those of another. Default: method and path. */
  scope?: string
}

export type FetchHandler = (request: Request) => Response | Promise<Response>

export interface IdempotentHandler {
  /**
   * The handler's answer, or the stored one of an earlier request, or a refusal (400, 401, 409, 413, 422, 503). GET, HEAD, OPTIONS and TRACE go
   * straight to the handler. The request the handler gets has its body in memory, and a signal that aborts when its work no longer counts, not
   * when the client is gone. Rejects with what the handler throws, or `UnreplayableAnswer`; the key is then free again when the lease has run out.
   */
  handle(request: Request, call: Call, handler: FetchHandler): Promise<Response>
}

const SAFE_METHODS = ['GET', 'HEAD', 'OPTIONS', 'TRACE']

/** A buffered handler has no bytes moving that tell whether it lives, so its lease is renewed for this long and no longer, in ms. */
export const MAX_RUN_MS = 300_000

/** Idle time and pace as for uploads. */
const BODY_LIMITS: BodyLimits = { idleMs: 30_000, minBytesPerSecond: 1024, rateGraceMs: 30_000, discardBytes: 67_108_864 }

/** Long paths would not fit into an index. The fingerprint has all of it. */
const MAX_SCOPE_LENGTH = 200

/** The stored name of a key: no key has a space, so no two scopes share one, nor does any with the uploads. */
export const scopedKey = (scope: string, key: string): string => `${scope.slice(0, MAX_SCOPE_LENGTH)} ${key}`

/** The whole body. Throws `payload_too_large`. */
async function readBody(body: RequestBody, maxBytes: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = []
  for (let chunk = await body.next(); chunk; chunk = await body.next()) {
    if (body.received > maxBytes) throw new Refusal('payload_too_large')
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

/** The refusal for a failure before the handler runs, or beside it. Throws what is none of ours. */
export function refusalFor(error: unknown): Refusal {
  if (error instanceof Refusal) return error
  if (error instanceof ClientGone || error instanceof BodyTimeout) return new Refusal('upload_timeout')
  if (error instanceof StoreError) return new Refusal('store_unavailable', [['Retry-After', '1']])
  throw error
}

const refuse = ({ answer, headers }: Refusal): Response => toResponse({ ...answer, headers: [...answer.headers, ...headers] })

/** The answer to a request that does not run, or whose run does not count. */
function decline(declined: Declined): Response {
  try {
    const answer = storedAnswerOf(declined)
    return toResponse({ ...answer, headers: [...answer.headers, ...REPLAY_MARKERS] })
  } catch (error) {
    return refuse(refusalFor(error))
  }
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }))

/**
 * Any function from `Request` to `Response`, run once for each key. CORS belongs around it, so that refusals and replays have it as well. Throws
 * `TypeError` for options that cannot work.
 */
export function createIdempotentHandler(options: IdempotentHandlerOptions): IdempotentHandler {
  const { required = true, maxRequestBytes = 1_048_576, respondPolicy = storeAllButTooMany, onError = () => {} } = options
  const { leaseMs = 60_000 } = options
  const isKept = headersToKeep(options.keepHeaders)
  const idempotency = createIdempotency({ maxRunMs: MAX_RUN_MS, maxInFlightPerOwner: Number.POSITIVE_INFINITY, ...options })

  async function execute(claim: Claim, operation: Operation, request: Request, handler: FetchHandler): Promise<Response> {
    let given: Response
    try {
      given = await handler(request)
    } catch (error) {
      // A store that fails now has been reported, and the lease runs out.
      if (respondPolicy({ status: 500, thrown: true }) === 'release') await claim.release().catch(() => {})
      throw error
    }
    const { answer, response } = await takeAnswer(given, isKept)
    const declined = await idempotency.settle(claim, operation, answer, respondPolicy({ status: answer.status, thrown: false }))
    return declined ? decline(declined) : response
  }

  /** What is to be said when the work no longer counts: it was taken over, or takes too long. */
  async function giveUp(operation: Operation, reason: unknown): Promise<Response> {
    try {
      if (reason instanceof Fenced) return decline(await idempotency.afterFence(operation))
      throw new Refusal('run_timeout', [['Retry-After', String(Math.ceil(leaseMs / 1000))]])
    } catch (error) {
      return refuse(refusalFor(error))
    }
  }

  async function run(claim: Claim, operation: Operation, request: Request, handler: FetchHandler): Promise<Response> {
    claim.finalise()
    const stopped = aborted(claim.signal)
    // What ends late is still stored, if nobody has taken the key over by then.
    const work = execute(claim, operation, request, handler).finally(() => claim.end())
    try {
      return await Promise.race([work, stopped])
    } catch (error) {
      if (!claim.signal.aborted) throw error
      work.catch(onError)
      return giveUp(operation, claim.signal.reason)
    }
  }

  return {
    async handle(request, { owner, scope }, handler) {
      const { method, headers } = request
      if (SAFE_METHODS.includes(method) || (!required && !headers.has('idempotency-key'))) return handler(request)
      const url = new URL(request.url)
      const body = createBody(request, BODY_LIMITS)
      let operation: Operation
      let bytes: Uint8Array
      let claim: Claim
      try {
        if (!owner) throw new Refusal('unauthorized', [['WWW-Authenticate', 'Bearer']])
        const key = scopedKey(scope ?? `${method} ${url.pathname}`, parseKey(headers))
        bytes = await readBody(body, maxRequestBytes)
        const fingerprint = requestFingerprint({ method, url, contentType: headers.get('content-type'), body: bytes })
        operation = { owner, key, fingerprint, sha256: null }
        const admission = await idempotency.admit(operation, request.signal)
        if (admission.kind !== 'claimed') return decline(admission)
        claim = admission.claim
      } catch (error) {
        const refusal = refusalFor(error)
        await body.drain()
        return refuse(refusal)
      }
      const init = bytes.byteLength > 0 ? { body: bytes as Uint8Array<ArrayBuffer> } : {}
      return run(claim, operation, new Request(url, { method, headers, signal: claim.signal, ...init }), handler)
    },
  }
}
