import pRetry from 'p-retry'
import { digest } from './digest.js'
import { UploadError } from './errors.js'
import type { Network } from './network.js'
import { isAskedFirst, learnOutcomeUrl, readOutcome, readRetention } from './outcome.js'
import { type Proven, parseProblem, prove, type ResponseProof } from './proof.js'
import type { Action, PendingUpload } from './record.js'
import type { Upload } from './snapshot.js'
import { type Announced, type Change, sizeOf } from './store.js'
import type { Transport, TransportAnswer, TransportRequest } from './transport.js'
import { fullJitter, type History, judge, type Outcome, parseRetryAfter, type RetryPolicy } from './verdict.js'
import { buildRequest, type WireOptions } from './wire.js'
import { within } from './within.js'

/** How uploads are sent; `UploadQueueOptions` documents each member. */
export interface SendOptions<Result> extends WireOptions {
  endpoint: string | URL | ((upload: Upload<Result>) => string | URL | Promise<string | URL>)
  method: 'POST' | 'PUT' | 'PATCH'
  headers:
    | HeadersInit
    | ((upload: Upload<Result>, context: { attempt: number; refresh: boolean }) => HeadersInit | Promise<HeadersInit>)
    | undefined
  credentials: RequestCredentials
  retry: RetryPolicy & {
    shouldRetry: ((error: UploadError, upload: Upload<Result>) => boolean | undefined | Promise<boolean | undefined>) | undefined
  }
  timeout: (upload: Upload<Result>) => number
  stallTimeout: number
  response: ResponseProof<Result>
  transport: Transport
}

/** What the path of one file needs of the queue around it. */
export interface UploadContext<Result> {
  options: SendOptions<Result>
  network: Network
  now(): number
  random(): number
  /** Aborted when the upload is paused, cancelled, or its queue closed. */
  signal: AbortSignal
  /** Waits, holding nothing, until it is this upload's turn; resolves with the record, or `undefined` where there is nothing left to do. */
  turn(): Promise<PendingUpload | undefined>
  bytes(): Promise<Bytes | undefined>
  /** Whether the account that this record belongs to is signed in now. */
  isSignedIn(record: PendingUpload): Promise<boolean>
  /** Stores what happened and tells everybody; resolves with the record before and after, `undefined` where it is gone. */
  act(action: Action, warning?: string): Promise<Change | undefined>
  /** The record as apps see it. */
  upload(): Upload<Result>
  progress(loaded: number, total: number): void
  /** Its answer is here: others may send while that is being stored. */
  answered(): void
  /** Where this upload goes. */
  located(origin: string): void
  /** Where outcomes can be asked for, as far as that is known. */
  outcomeUrl(): string | undefined
  /** What an answer said about its server. */
  learned(announced: Announced): void
  /** How often the sign-in was renewed, or failed to be. */
  renewals(): number
  /** Runs `renew`, one at a time for the whole queue; where it ended since `since` of `renewals`, for another upload, that end is this one's. */
  refresh(renew: () => Promise<unknown>, since: number): Promise<void>
}

type Bytes = Blob | ArrayBuffer

/** Another attempt is due: the only error that is retried. */
class Again extends Error {}

/** No timer can be longer, ms. */
const timerMax = 2 ** 31 - 1
/** An app's refresh of its sign-in that takes longer, ms, has failed. */
const refreshLimit = 30_000

/** The path of one file, from its turn to its end. p-retry drives the attempts; when the next one is due is the queue's business. */
export async function runUpload<Result>(context: UploadContext<Result>): Promise<void> {
  const history: History & { refreshFrom: number | null } = { attempts: 0, waits: 0, refreshed: false, mismatches: 0, refreshFrom: null }
  await pRetry(() => attempt(context, history), {
    retries: Number.POSITIVE_INFINITY,
    minTimeout: 0,
    signal: context.signal,
    shouldRetry: ({ error }) => error instanceof Again,
  })
}

/** The end of a file whose time has run out: what became of its last request is asked for once, and nothing is sent any more. */
export async function runLast<Result>(context: UploadContext<Result>): Promise<void> {
  const { act, now, signal } = context
  const record = await context.turn()
  if (!record) return
  const deadline = startDeadline(context)
  try {
    const url = await findEndpoint(context, deadline.signal)
    const headers = await ownHeaders(context, record.requests, url, { refreshFrom: null }, deadline.signal)
    if (await before(deadline.signal, isSignedIn(context, record))) {
      const request = { headers: buildRequest(record, new ArrayBuffer(0), headers, context.options).headers, signal: deadline.signal }
      const known = await before(deadline.signal, ask(context, record, url, { ...request, credentials: context.options.credentials }))
      if (known?.proven) {
        const { result, replayed, warning } = known.proven
        await act({ type: 'succeeded', result, replayed, at: now() }, warning)
        return
      }
    }
  } catch {
    // Nobody knows.
  } finally {
    deadline.clear()
  }
  if (!signal.aborted) await act({ type: 'failed', error: keyExpired(record.id).toJSON(), counted: false, at: now() })
}

export const keyExpired = (uploadId: string): UploadError =>
  new UploadError('key-expired', 'It was not sent in time: the server may have forgotten the key. The bytes are kept.', { uploadId })

async function attempt<Result>(context: UploadContext<Result>, history: History & { refreshFrom: number | null }): Promise<void> {
  const { act, now, signal } = context
  const record = await context.turn()
  if (!record) return

  try {
    if (record.sha256 === null) {
      const bytes = present(await context.bytes(), record)
      const onProgress = (loaded: number): void => context.progress(loaded, record.size)
      await act({ type: 'hashed', sha256: await hash(bytes, signal, onProgress) })
      throw new Again()
    }
    const start = await act({ type: 'started' })
    if (!start) return
    const bytes = present(start.bytes, record)
    // Paused or gone meanwhile, or under way elsewhere: whoever turned it from pending to uploading sends it, and nobody else.
    if (start.before === start.after) return
    const started = start.after
    if (record.reason === 'network') await checkReadable(bytes)

    const renewals = context.renewals()
    const sent = await send(context, started, bytes, history)
    if (!sent) {
      await act({ type: 'interrupted' })
      return
    }
    const { proven, outcome } = sent
    if (proven) {
      context.answered()
      const { result, replayed, warning } = proven
      await act({ type: 'succeeded', result, replayed, at: now() }, warning)
      return
    }

    history.attempts = started.attempts
    if (outcome.error.code !== 'unauthorized') history.refreshed = false
    const waiting = outcome.error.code === 'in-progress'
    const verdict = judge(outcome, history, context.options.retry, context.random)
    history.waits = waiting ? history.waits + 1 : 0
    const error = outcome.error.with({ uploadId: record.id, attempt: started.requests }).toJSON()
    switch (verdict.type) {
      case 'wait': {
        const notBefore = verdict.delay > 0 ? now() + verdict.delay : null
        if (verdict.gate === 'told' && notBefore !== null) context.network.told(originOf(outcome.url), notBefore)
        await act({ type: 'deferred', notBefore, counted: verdict.counted, error, at: now() })
        throw new Again()
      }
      case 'refresh':
        history.refreshed = true
        history.refreshFrom = renewals
        await act({ type: 'deferred', notBefore: null, counted: false, error, at: now() })
        throw new Again()
      case 'verify':
        if ((await hash(bytes, signal)) !== record.sha256) throw bytesLost()
        history.mismatches += 1
        await act({ type: 'deferred', notBefore: null, counted: false, error, at: now() })
        throw new Again()
      case 'block':
        await act({ type: 'blocked', error })
        return
      case 'fail':
        await act({ type: 'failed', error, counted: verdict.counted, at: now() })
        return
      default:
        verdict satisfies never
    }
  } catch (thrown) {
    if (signal.aborted || thrown instanceof Again) throw thrown
    const error =
      thrown instanceof UploadError
        ? thrown
        : new UploadError('invalid-request', 'Sending failed for an unknown reason.', { cause: thrown })
    if (error.code === 'network' || error.code === 'timeout') {
      // The code that hashes did not load, since the page is offline or a deploy replaced its files, or the bytes could not be read in time.
      const delay = fullJitter(history.attempts++, context.options.retry, context.random)
      await act({ type: 'deferred', notBefore: now() + delay, counted: false, error: error.toJSON(), at: now() })
      throw new Again()
    }
    await act({ type: 'failed', error: error.with({ uploadId: record.id }).toJSON(), counted: false, at: now() })
  }
}

const bytesLost = (cause?: unknown): UploadError =>
  new UploadError('bytes-lost', 'The browser no longer has the bytes that were stored for this upload.', { cause })

/** The bytes as they were enqueued: that there are any, and as many, is seen before anything is sent. */
function present(bytes: Bytes | undefined, record: PendingUpload): Bytes {
  if (!bytes || sizeOf(bytes) !== record.size) throw bytesLost()
  return bytes
}

/**
 * Engines report a body that cannot be read as they report a dead network. The next attempt looks, at bytes that were just fetched: those of a
 * page that is about to go cannot be read either, and are not lost.
 */
async function checkReadable(bytes: Bytes): Promise<void> {
  if (!('size' in bytes)) return
  await bytes
    .slice(0, 1)
    .arrayBuffer()
    .catch((cause) => {
      throw bytesLost(cause)
    })
}

async function hash(bytes: Bytes, signal: AbortSignal, onProgress?: (loaded: number) => void): Promise<string> {
  try {
    return await digest(bytes, signal, onProgress)
  } catch (cause) {
    if (signal.aborted) throw signal.reason
    throw cause instanceof UploadError ? cause : bytesLost(cause)
  }
}

/** The app's opinion; one that throws has none. */
async function overrule<Result>({ options, upload }: UploadContext<Result>, error: UploadError): Promise<boolean | undefined> {
  try {
    return await options.retry.shouldRetry?.(error, upload())
  } catch {
    return undefined
  }
}

const originOf = (url: string): string => new URL(url).origin

type Sent<Result> = { proven: Proven<Result>; outcome?: never } | { proven?: never; outcome: Outcome & { url: string } }

/** One request and what it came to; `undefined` where its account is no longer signed in, and nothing was sent. */
async function send<Result>(
  context: UploadContext<Result>,
  record: PendingUpload,
  bytes: Bytes,
  history: History & { refreshFrom: number | null },
): Promise<Sent<Result> | undefined> {
  const { options, network, signal } = context
  const deadline = startDeadline(context)
  let url: string | undefined
  try {
    url = await findEndpoint(context, deadline.signal)
    const origin = originOf(url)
    context.located(origin)
    const own = await ownHeaders(context, record.requests, url, history, deadline.signal)
    // Asked after the headers were made, which may be another account's by now.
    if (!(await before(deadline.signal, isSignedIn(context, record)))) return undefined
    const built = buildRequest(record, bytes, own, options)
    const { method, credentials, transport } = options
    network.entered(origin)
    const request = { headers: built.headers, credentials, signal: deadline.signal }
    const known = isAskedFirst(record) && (await before(deadline.signal, ask(context, record, url, request)))
    if (known) return known
    const answer = await transport.send({
      ...request,
      url,
      method,
      get body() {
        return built.body
      },
      buffer: built.buffer,
      onProgress: deadline.moved,
    })
    return await before(deadline.signal, read(context, record, url, answer))
  } catch (thrown) {
    if (signal.aborted) throw signal.reason
    if (!(thrown instanceof UploadError)) throw thrown
    const silent = url !== undefined && (thrown.code === 'network' || thrown.code === 'timeout')
    return {
      outcome: {
        error: thrown,
        url: url ?? '',
        overruled: await before(signal, overrule(context, thrown)),
        ...(silent && { reachable: await before(signal, network.lost(url as string)) }),
      },
    }
  } finally {
    deadline.clear()
  }
}

/** Asks what became of the last request, instead of sending the bytes again; resolves `undefined` where they have to be sent. */
async function ask<Result>(
  context: UploadContext<Result>,
  record: PendingUpload,
  url: string,
  request: Pick<TransportRequest, 'headers' | 'credentials' | 'signal'>,
): Promise<Sent<Result> | undefined> {
  const outcomeUrl = context.outcomeUrl()
  if (outcomeUrl === undefined) return undefined
  const headers = new Headers(request.headers)
  const { nameHeader } = context.options
  for (const name of ['Content-Type', 'Upload-Metadata', ...(nameHeader ? [nameHeader] : [])]) headers.delete(name)
  const answer = await context.options.transport.send({ ...request, url: outcomeUrl, method: 'GET', headers, onProgress() {} })
  const known = readOutcome(answer)
  if (known === undefined) {
    // A server that asks for a pause means the bytes above all.
    const isBusy = (answer.status === 429 || answer.status === 503) && context.options.retry.statusCodes.includes(answer.status)
    return isBusy && !answer.redirected && retryAfterOf(answer, context.now()) !== null ? read(context, record, url, answer) : undefined
  }
  if (known !== 'in-flight') return read(context, record, url, { ...known, url, redirected: false, broken: false })
  const error = new UploadError('in-progress', 'The server is still working on an earlier attempt.', { status: answer.status })
  return { outcome: { error, url, retryAfter: retryAfterOf(answer, context.now()), overruled: await overrule(context, error) } }
}

const retryAfterOf = ({ headers }: TransportAnswer, now: number): number | null =>
  parseRetryAfter(headers.get('Retry-After'), headers.get('Date'), now)

/** Ends an attempt that lasts too long, or in which no byte moves. */
function startDeadline<Result>({ options, signal, upload, progress }: UploadContext<Result>): {
  signal: AbortSignal
  moved(loaded: number, total: number): void
  clear(): void
} {
  const controller = new AbortController()
  const onAbort = (): void => controller.abort(signal.reason)
  const end = (message: string) => (): void => controller.abort(new UploadError('timeout', message))
  const given = options.timeout(upload())
  // What is no number of ms is no limit.
  const whole = setTimeout(end('The attempt took too long.'), given > 0 && given < timerMax ? given : timerMax)
  let silence: ReturnType<typeof setTimeout> | undefined
  let isOver = false
  const listen = (): void => {
    clearTimeout(silence)
    // Of an empty body no byte is reported.
    if (options.transport.reportsBytes && upload().size > 0)
      silence = setTimeout(end('No byte moved any more.'), Math.min(options.stallTimeout, timerMax))
  }
  signal.addEventListener('abort', onAbort)
  if (signal.aborted) onAbort()
  listen()
  return {
    signal: controller.signal,
    moved(loaded, total) {
      // A transport may tell of bytes when nobody waits for them any more.
      if (isOver || controller.signal.aborted) return
      listen()
      // All has left: how long the server thinks about it is the whole deadline's matter.
      if (loaded >= total) clearTimeout(silence)
      progress(loaded, total)
    },
    clear() {
      isOver = true
      clearTimeout(whole)
      clearTimeout(silence)
      signal.removeEventListener('abort', onAbort)
    },
  }
}

async function isSignedIn<Result>(context: UploadContext<Result>, record: PendingUpload): Promise<boolean> {
  try {
    return await context.isSignedIn(record)
  } catch (cause) {
    throw new UploadError('network', 'Whose session this is could not be found out.', { cause })
  }
}

/** What an app's function promises; rejects with the signal's reason should that come first. */
const before = <T>(signal: AbortSignal, promise: T | Promise<T>): Promise<T> => within(undefined, promise, signal)

async function findEndpoint<Result>({ options, upload }: UploadContext<Result>, signal: AbortSignal): Promise<string> {
  const { endpoint } = options
  try {
    const given = typeof endpoint === 'function' ? await before(signal, endpoint(upload())) : endpoint
    const url = new URL(given, globalThis.location?.href)
    if (!/^https?:$/.test(url.protocol) || url.username || url.password)
      throw new TypeError('Expected an http or https URL without a password.')
    return url.href
  } catch (cause) {
    if (signal.aborted) throw signal.reason
    throw new UploadError('invalid-request', 'The endpoint is not a URL that can be requested.', { cause })
  }
}

/** The app's headers for this very attempt, made anew after a 401; one renewal serves all uploads that need it. */
async function ownHeaders<Result>(
  { options, upload, refresh, renewals, network }: UploadContext<Result>,
  attempt: number,
  url: string,
  history: { refreshFrom: number | null },
  signal: AbortSignal,
): Promise<HeadersInit | undefined> {
  const { headers } = options
  if (typeof headers !== 'function') return headers
  const since = history.refreshFrom
  history.refreshFrom = null
  try {
    if (since === null) return await before(signal, headers(upload(), { attempt, refresh: false }))
    let renewed: HeadersInit | undefined
    const renew = async (): Promise<void> => {
      renewed = await within(refreshLimit, Promise.resolve(headers(upload(), { attempt, refresh: true })))
    }
    await before(signal, refresh(renew, since))
    return renewed ?? (await before(signal, headers(upload(), { attempt, refresh: false })))
  } catch (cause) {
    if (signal.aborted) throw signal.reason
    // A token cannot be fetched without a network either: that is no fault of the app's.
    if (!(await before(signal, network.lost(url)))) {
      if (since !== null) history.refreshFrom = renewals()
      throw new UploadError('network', 'The headers could not be made, and the server cannot be reached.', { cause })
    }
    throw since === null
      ? new UploadError('invalid-request', 'The function that makes the headers failed.', { cause })
      : new UploadError('unauthorized', 'The sign-in could not be renewed.', { cause })
  }
}

/** What a readable answer means, by status, redirects and body; nothing here depends on an engine's wording. */
async function read<Result>(
  context: UploadContext<Result>,
  record: PendingUpload,
  url: string,
  answer: TransportAnswer,
): Promise<Sent<Result>> {
  const { options, network, now } = context
  const elsewhere = answer.redirected && originOf(answer.url) !== originOf(url)
  if (!elsewhere) {
    network.answered(originOf(url))
    const outcomeUrl = learnOutcomeUrl(answer.headers.get('Idempotency-Outcome'), answer.url)
    context.learned({ outcomeUrl, retention: readRetention(answer.headers.get('Idempotency-Retention')) })
    const proven = await prove(answer, record, options.response)
    if (proven) return { proven }
  }
  const { status } = answer
  const problem = parseProblem(answer)
  // What a network in between says is not what the origin says.
  const retryAfter = elsewhere ? null : retryAfterOf(answer, now())
  const facts = { status, problem }
  const error = describe()
  return { outcome: { error, url, retryAfter, overruled: await overrule(context, error) } }

  function describe(): UploadError {
    if (elsewhere) return new UploadError('unproven', 'Another origin answered, after a redirect.', facts)
    if (status === 401) return new UploadError('unauthorized', 'The server does not accept the sign-in (HTTP 401).', facts)
    if (status === 409 && (problem?.error === 'idempotency_in_progress' || retryAfter !== null))
      return new UploadError('in-progress', 'The server is still working on an earlier attempt (HTTP 409).', facts)
    if (status === 422 && problem?.error === 'idempotency_key_reuse')
      return new UploadError('key-reused', 'The server knows this idempotency key with other content (HTTP 422).', facts)
    if (status === 400 && problem?.error === 'digest_mismatch')
      return new UploadError('digest-mismatch', 'The bytes that arrived are not the bytes that were hashed (HTTP 400).', facts)
    if (options.retry.statusCodes.includes(status))
      return new UploadError('http', `The server cannot take the upload now (HTTP ${status}).`, facts)
    if (answer.redirected)
      return new UploadError('redirected', 'A redirect led to an answer that proves nothing; 301, 302 and 303 drop the body.', facts)
    if (status >= 200 && status < 300)
      return new UploadError('unproven', `HTTP ${status}, but nothing in it proves that the file was stored.`, facts)
    return new UploadError('rejected', `The server refused the upload (HTTP ${status}).`, facts)
  }
}
