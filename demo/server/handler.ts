import { createHash, randomUUID } from 'node:crypto'
import { type Answer, jsonAnswer, type ProblemCode, REPLAY_MARKERS, Refusal, storableAnswer, toResponse } from './answer.js'
import { type BodyLimits, BodyTimeout, ClientGone, createBody, type RequestBody } from './body.js'
import {
  type Claim,
  createIdempotency,
  type Declined,
  Fenced,
  type IdempotencyEvent,
  type Operation,
  RanTooLong,
  StoreError,
  storedAnswerOf,
} from './idempotency.js'
import type { KeyStore, Media } from './keys.js'
import type { ObjectStore, ObjectWriter } from './objects.js'
import { createOriginRule } from './origin.js'
import { fingerprintOf, parseDigest, parseKey, readUploadRequest, type UploadRequest } from './upload-request.js'

export interface Caller {
  /** Whose keys and files these are: from a verified credential, never from something the client sets freely. */
  owner: string
  /** Known by a cookie or the like, which a browser sends whoever asked it to. */
  ambient?: boolean
}

export interface UploadLimits extends BodyLimits {
  /** Size of one file, in bytes. Default 2 GiB. */
  maxBytes: number
  /** Live uploads of one owner. Default 8. */
  maxInFlightPerOwner: number
  /** Longest time one upload may take, in ms. Default 6 h. */
  maxUploadMs: number
  /** How long a claim outlives its last sign of life, in ms. Default 60 s. */
  leaseMs: number
  /** How long answers are kept, in ms. Default 72 h. */
  retentionMs: number
  /** How long a second request with the same key is held before it is answered 409, in ms. Default 0. */
  waitMs: number
}

/** What a claim ended in, for `respondPolicy`. */
export interface UploadOutcome {
  status: number
  /** Null for the app's own refusal. */
  error: ProblemCode | null
}

export type UploadEvent = IdempotencyEvent | { type: 'answered'; status: number; replayed: boolean; receivedBytes: number }

export interface UploadHandlerOptions {
  keys: KeyStore
  objects: ObjectStore
  /** Null: nobody we know, 401. */
  authenticate: (request: Request) => Caller | null | Promise<Caller | null>
  /** Path of the endpoint; its look-up is below it, at `/outcome`. Default `/uploads`. */
  path?: string
  /** Where `Location` points to, the id follows. Default `/media/`. */
  mediaPath?: string
  /** Exact origins of pages that may use the handler from elsewhere. Default none. */
  allowedOrigins?: readonly string[]
  limits?: Partial<UploadLimits>
  /** A new UUID: for fences, storage keys and upload ids. Time, apart from time-outs, is the key store's. */
  random?: () => string
  /**
   * Called when the bytes are complete, verified and on disk, and before anything is visible. A `Response` (400 to 599) refuses the file; a thrown
   * `Refusal` does so for now (`quota_exceeded`, say), and its key is free again; throwing anything else is a fault. After both the client tries again. May be called more than once for one file, if the process dies or the claim is lost after it.
   */
  onStored?: (media: Media, context: { signal: AbortSignal }) => Response | undefined | Promise<Response | undefined>
  /**
   * Whether a refusal after the claim is stored and repeated, or the key released for another try. Default: stored are the app's own refusals
   * below 500, apart from 408 and 429, and a body that proved too large.
   */
  respondPolicy?: (outcome: UploadOutcome) => 'store' | 'release'
  onEvent?: (event: UploadEvent) => void
  /** Told of every fault behind a 5xx, and of those nobody else hears of. */
  onError?: (error: unknown) => void
}

const MiB = 1_048_576

/** 30 s of silence, 1 KiB/s: judgement. 6 h: a 2 GiB file at 100 KiB/s. */
const defaults = (maxBytes = 2048 * MiB): UploadLimits => ({
  maxBytes,
  maxInFlightPerOwner: 8,
  maxUploadMs: 21_600_000,
  leaseMs: 60_000,
  retentionMs: 259_200_000,
  waitMs: 0,
  idleMs: 30_000,
  minBytesPerSecond: 1024,
  rateGraceMs: 30_000,
  discardBytes: Math.max(2 * maxBytes, 64 * MiB),
})

/** Limits with defaults in place of what is absent. */
export const uploadLimits = (given: Partial<UploadLimits> = {}): UploadLimits => ({ ...defaults(given.maxBytes), ...given })

const defaultPolicy = ({ status, error }: UploadOutcome): 'store' | 'release' => {
  if (error !== null) return error === 'payload_too_large' ? 'store' : 'release'
  return status < 500 && status !== 408 && status !== 429 ? 'store' : 'release'
}

/** An object-store call failed. */
class StorageError extends Error {
  override name = 'StorageError'
}

/** The app's hook said no. */
class Rejected extends Error {
  readonly answer: Answer

  constructor(answer: Answer) {
    super('the app refused the file')
    this.answer = answer
  }
}

const storage = async <Result>(call: () => Promise<Result>): Promise<Result> => {
  try {
    return await call()
  } catch (cause) {
    throw new StorageError('the object store failed', { cause })
  }
}

/** Every failure as the refusal its client gets. */
function refusalOf(error: unknown): Refusal {
  if (error instanceof Refusal) return error
  const options = { cause: error }
  if (error instanceof ClientGone || error instanceof BodyTimeout || error instanceof RanTooLong)
    return new Refusal('upload_timeout', [], options)
  if (error instanceof StorageError) return new Refusal('storage_unavailable', [['Retry-After', '1']], options)
  if (error instanceof StoreError) return new Refusal('store_unavailable', [['Retry-After', '1']], options)
  return new Refusal('internal_error', [], options)
}

/** The object of one attempt. */
interface Staged {
  storageKey: string
  /** Null until it is begun. */
  writer: ObjectWriter | null
}

/** An answer for this exchange. */
interface Reply {
  answer: Answer
  replayed?: boolean
  headers?: [string, string][]
}

const replayOf = (admission: Declined): Reply => ({ answer: storedAnswerOf(admission), replayed: true })

/** Objects of one owner share the beginning of their key, which tells nothing about the owner. */
export const ownerPrefix = (owner: string): string => `${createHash('sha256').update(owner).digest('hex').slice(0, 16)}-`

/** The upload endpoint as one function of a web-standard `Request`. Throws `TypeError` for options that cannot work. */
export function createUploadHandler(options: UploadHandlerOptions): (request: Request) => Promise<Response> {
  const { keys, objects, authenticate, path = '/uploads', mediaPath = '/media/', allowedOrigins = [] } = options
  const { random = randomUUID, onStored, respondPolicy = defaultPolicy, onEvent = () => {}, onError = () => {} } = options
  if (typeof authenticate !== 'function') throw new TypeError('authenticate is missing: expected a function that tells whose request it is')
  const limits = uploadLimits(options.limits)
  if (!(limits.maxBytes > 0)) throw new TypeError(`limits.maxBytes is ${limits.maxBytes}, expected a number above 0`)
  const { leaseMs, retentionMs, waitMs, maxInFlightPerOwner, maxUploadMs } = limits
  const idempotency = createIdempotency({
    keys,
    random,
    leaseMs,
    retentionMs,
    waitMs,
    maxInFlightPerOwner,
    maxRunMs: maxUploadMs,
    onEvent,
    onError,
  })
  const origins = createOriginRule(allowedOrigins)
  const outcomePath = `${path}/outcome`
  const uploadLimit: [string, string] = ['Upload-Limit', `max-size=${limits.maxBytes}`]

  /** The same bytes whether made when the file is stored or rebuilt from its row after the answer has expired. */
  const storedAnswer = ({ id, storageKey, bytes, sha256 }: Media): Answer =>
    jsonAnswer(201, { uploadId: id, storageKey, bytes, sha256 }, [['Location', mediaPath + id]])

  const afterFence = async (operation: Operation): Promise<Reply> => replayOf(await idempotency.afterFence(operation))

  /** Best effort: what is left is on the list of pending objects, and the sweeper's. */
  async function discard(staged: Staged): Promise<void> {
    try {
      await objects.delete(staged.storageKey)
      // What may come back stays on the list: the sweeper deletes it when it is too old for that.
      if (!staged.writer?.isUnsettled?.()) await idempotency.forget(staged.storageKey)
    } catch (error) {
      onError(error)
    }
  }

  /** Takes the body into a new object. When it resolves, the object is complete, verified and durable, and nobody knows of it. */
  async function receive(claim: Claim, upload: UploadRequest, staged: Staged, body: RequestBody): Promise<void> {
    await claim.intend(staged.storageKey)
    const object = await storage(() => objects.create(staged.storageKey))
    staged.writer = object
    try {
      const hash = createHash('sha256')
      for (let chunk = await body.next(); chunk; chunk = await body.next()) {
        claim.progress(chunk.byteLength)
        if (body.received > limits.maxBytes) throw new Refusal('payload_too_large')
        const bytes = chunk
        const written = storage(() => object.write(bytes))
        hash.update(bytes)
        await written
        claim.signal.throwIfAborted()
      }
      claim.finalise()
      if (upload.length !== null && body.received !== upload.length) throw new ClientGone('the body is shorter than declared')
      if (hash.digest('hex') !== upload.sha256) throw new Refusal('digest_mismatch')
      await storage(() => object.finish())
    } catch (error) {
      await object.abort().catch(onError)
      throw error
    }
  }

  /** The file of an earlier request whose answer is no longer kept: it is kept again. */
  async function replayMedia(claim: Claim, operation: Operation, media: Media): Promise<Reply> {
    if (media.sha256 !== operation.sha256) {
      await claim.release()
      throw new Refusal('idempotency_key_reuse')
    }
    const answer = storedAnswer(media)
    await claim.store(answer)
    return { answer, replayed: true }
  }

  /** Nothing was published. The key is either free again, or remembers the refusal. */
  async function giveUp(claim: Claim, operation: Operation, staged: Staged, error: unknown): Promise<Reply> {
    if (error instanceof Fenced) {
      await discard(staged)
      return afterFence(operation)
    }
    const refusal = error instanceof Rejected ? null : refusalOf(error)
    if (refusal && refusal.status >= 500) onError(refusal.cause)
    const reply: Reply = refusal ? { answer: refusal.answer, headers: refusal.headers } : { answer: (error as Rejected).answer }
    const settle = async (): Promise<boolean> => {
      const isVanished = error instanceof ClientGone
      if (!isVanished && respondPolicy({ status: reply.answer.status, error: refusal?.code ?? null }) === 'store')
        return claim.store(reply.answer)
      await claim.release()
      return true
    }
    const [settled] = await Promise.allSettled([settle(), discard(staged)])
    return settled.status === 'fulfilled' && !settled.value ? afterFence(operation) : reply
  }

  /** The commit may or may not have happened. Never answers success unless the row says so, and never deletes what may be published. */
  async function findOut(claim: Claim, operation: Operation, staged: Staged): Promise<Reply> {
    if (await claim.release()) {
      await discard(staged)
      throw new Refusal('store_unavailable', [['Retry-After', '1']])
    }
    const row = await idempotency.read(operation.owner, operation.key)
    if (row?.answer && row.fence === claim.fence) return { answer: row.answer }
    return afterFence(operation)
  }

  async function publish(claim: Claim, operation: Operation, staged: Staged, media: Media): Promise<Reply> {
    const answer = storedAnswer(media)
    let result: Awaited<ReturnType<Claim['commit']>>
    try {
      result = await claim.commit(answer, media)
    } catch (error) {
      if (error instanceof StoreError) return findOut(claim, operation, staged)
      throw error
    }
    if (result === 'committed') return { answer }
    await discard(staged)
    if (result === 'fenced') return afterFence(operation)
    const earlier = result === 'duplicate' ? await idempotency.mediaByKey(operation.owner, operation.key) : null
    if (earlier) return replayMedia(claim, operation, earlier)
    await claim.release()
    throw new Refusal('storage_unavailable', [['Retry-After', '1']])
  }

  /** The one execution of an upload: bytes, digest, object, hook, commit. */
  async function run(claim: Claim, operation: Operation, upload: UploadRequest, body: RequestBody): Promise<Reply> {
    if (claim.media) return replayMedia(claim, operation, claim.media)
    const staged: Staged = { storageKey: ownerPrefix(operation.owner) + random(), writer: null }
    const { sha256, contentType, fileName, metadata } = upload
    let media: Media
    const unwatch = body.watch(claim.signal)
    try {
      await receive(claim, upload, staged, body)
      media = {
        id: random(),
        owner: operation.owner,
        key: operation.key,
        storageKey: staged.storageKey,
        sha256,
        bytes: body.received,
        contentType,
        fileName,
        metadata,
      }
      const refusal = await onStored?.(media, { signal: claim.signal })
      if (refusal) throw new Rejected(await storableAnswer(refusal))
    } catch (error) {
      return await giveUp(claim, operation, staged, error)
    } finally {
      unwatch()
    }
    return publish(claim, operation, staged, media)
  }

  async function upload(request: Request, owner: string, body: RequestBody): Promise<Reply> {
    const wanted = readUploadRequest(request, limits.maxBytes)
    const operation: Operation = { owner, key: wanted.key, fingerprint: fingerprintOf(request, wanted), sha256: wanted.sha256 }
    const admission = await idempotency.admit(operation, request.signal)
    if (admission.kind !== 'claimed') return replayOf(admission)
    const { claim } = admission
    try {
      return await run(claim, operation, wanted, body)
    } finally {
      claim.end()
    }
  }

  async function lookUp(request: Request, owner: string): Promise<Reply> {
    const outcome = await idempotency.outcome(owner, parseKey(request.headers), parseDigest(request.headers))
    switch (outcome.state) {
      case 'unknown':
        throw new Refusal('idempotency_key_unknown')
      case 'mismatch':
        throw new Refusal('idempotency_key_reuse')
      case 'in_flight': {
        const { retryAfterSeconds, bytesReceived } = outcome
        const body = { state: 'in_flight', retryAfter: retryAfterSeconds, ...(bytesReceived === null ? {} : { bytesReceived }) }
        return { answer: jsonAnswer(200, body), headers: [['Retry-After', String(retryAfterSeconds)]] }
      }
      case 'completed': {
        const { source } = outcome
        const answer = source === 'key' ? outcome.answer : storedAnswer(outcome.media)
        const expiresAt = source === 'key' ? outcome.expiresAt.toISOString() : null
        return { answer: jsonAnswer(200, { state: 'completed', ...describe(answer), expiresAt, source }) }
      }
    }
  }

  async function decide(request: Request, body: RequestBody): Promise<Reply> {
    const { pathname } = new URL(request.url)
    const isUpload = pathname === path
    const isOutcome = pathname === outcomePath
    if (request.method === 'OPTIONS' && (isUpload || isOutcome)) {
      const allow: [string, string] = ['Allow', isUpload ? 'POST, HEAD, OPTIONS' : 'GET, OPTIONS']
      return { answer: { status: 204, headers: [], body: new Uint8Array() }, headers: [allow, uploadLimit, ...origins.preflight(request)] }
    }
    // The client's probe: whether anybody answers here. It comes without credentials, and a refusal would show as an error in the console.
    if (request.method === 'HEAD' && isUpload) return { answer: { status: 204, headers: [], body: new Uint8Array() } }
    const caller = await authenticate(request)
    if (!caller) throw new Refusal('unauthorized', [['WWW-Authenticate', 'Bearer']])
    origins.check(request, caller.ambient === true)
    if (isUpload && request.method === 'POST') return upload(request, caller.owner, body)
    if (isOutcome && request.method === 'GET') return lookUp(request, caller.owner)
    if (isUpload) throw new Refusal('method_not_allowed', [['Allow', 'POST, HEAD, OPTIONS']])
    if (isOutcome) throw new Refusal('method_not_allowed', [['Allow', 'GET, OPTIONS']])
    throw new Refusal('not_found')
  }

  function respond(request: Request, { answer, replayed = false, headers = [] }: Reply): Response {
    const sent = new Headers([...answer.headers, ...headers, ...origins.headers(request), ['X-Content-Type-Options', 'nosniff']])
    sent.set('Cache-Control', 'no-store')
    sent.set('Idempotency-Retention', String(Math.floor(retentionMs / 1000)))
    sent.set('Idempotency-Outcome', outcomePath)
    if (answer.status === 413) sent.set(...uploadLimit)
    if (request.method === 'POST') echoKey(request, sent)
    if (replayed) for (const marker of REPLAY_MARKERS) sent.set(...marker)
    return toResponse({ ...answer, headers: [...sent] })
  }

  return async function handleUpload(request) {
    const body = createBody(request, limits)
    let reply: Reply
    try {
      reply = await decide(request, body)
    } catch (error) {
      const refusal = refusalOf(error)
      if (refusal.code === 'internal_error') onError(refusal.cause)
      reply = { answer: refusal.answer, headers: refusal.headers }
    }
    await body.drain()
    onEvent({ type: 'answered', status: reply.answer.status, replayed: reply.replayed === true, receivedBytes: body.received })
    return respond(request, reply)
  }
}

/** The echo proves to the client that the answer is this endpoint's, and not that of some network in between. */
function echoKey(request: Request, headers: Headers): void {
  try {
    parseKey(request.headers)
    headers.set('Idempotency-Key', request.headers.get('idempotency-key')!.trim())
  } catch {
    // Not a key, so there is nothing to echo.
  }
}

const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** A stored answer inside another one. */
function describe({ status, headers, body }: Answer): {
  status: number
  headers: [string, string][]
  body: string
  bodyEncoding: 'utf8' | 'base64'
} {
  try {
    return { status, headers, body: strictUtf8.decode(body), bodyEncoding: 'utf8' }
  } catch {
    return { status, headers, body: Buffer.from(body).toString('base64'), bodyEncoding: 'base64' }
  }
}
