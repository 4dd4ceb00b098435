import { Readable } from 'node:stream'
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Answer, answerToStore, headersToKeep, REPLAY_MARKERS, Refusal, takeAnswer } from './answer.js'
import { essenceOf, isJsonType, requestFingerprint } from './fingerprint.js'
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
import type { KeyStore } from './keys.js'
import type { Queryable, SqlKeys } from './keys-sql.js'
import { headersOf, urlOf } from './node-http.js'
import { parseKey } from './upload-request.js'
import { MAX_RUN_MS, refusalFor, scopedKey } from './wrapper.js'

/** What a guarded route can do with the key of its request. */
export interface RequestIdempotency {
  /** Aborts when the work no longer counts: the claim was taken over, or held for too long. */
  readonly signal: AbortSignal
  /**
   * The route's rows and the answer in one transaction: whatever happens, there are both or none. `run` sets status and headers on the reply and
   * returns the body; every statement goes through `tx`. What it throws rolls back and goes the way of any error. The answer is stored whatever
   * its status. Resolves when it is sent. A request without a key gets a plain transaction. Rejects with `TypeError` where the keys are not in a
   * database, and for a request that has been answered: then nothing may be written any more.
   */
  transaction(reply: FastifyReply, run: (tx: Queryable) => Promise<unknown>): Promise<void>
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the idempotency plugin for the routes it guards. */
    idempotency: RequestIdempotency
  }
}

export interface FastifyIdempotencyOptions extends IdempotencyOptions {
  /** For `transaction`, keys of `createSqlKeys`: on the database the route's own rows are in. */
  keys: KeyStore | SqlKeys
  /** The owner, from a verified credential. Null: nobody we know, 401. May throw a `Refusal`. */
  authenticate: (request: FastifyRequest) => string | null | Promise<string | null>
  /** How long a claim is held for a route that does not answer, in ms. Default 5 min. */
  maxRunMs?: number
  /** Live claims of one owner. Default: no limit. */
  maxInFlightPerOwner?: number
  /** Whether a request must have a key. Default true: without one it is a 400. */
  required?: boolean
  /** Headers a replay repeats besides Content-Type, -Encoding, -Language, -Disposition, Location and ETag. */
  keepHeaders?: readonly string[]
  /** Default `storeAllButTooMany`. `release` what was thrown only where nothing is left behind then: routes that write through `transaction` alone. */
  respondPolicy?: RespondPolicy
}

/** A request that runs, from its claim until there is an answer. */
interface Execution {
  claim: Claim
  operation: Operation
  /** Whether the answer comes from an error. */
  thrown: boolean
  isSettled: boolean
}

const GUARDED = ['POST', 'PUT', 'PATCH', 'DELETE']
const NOTHING = new Uint8Array()

const isContent = headersToKeep()

/** Gives the reply the status and headers of an answer. What others have set, CORS say, stays; what described another answer goes. */
function putHead(reply: FastifyReply, { status, headers }: Answer, further: [string, string][]): void {
  for (const name of Object.keys(reply.getHeaders())) {
    if (isContent(name) || name === 'content-length' || name === 'set-cookie') reply.removeHeader(name)
  }
  for (const [name, value] of [...headers, ...further]) reply.header(name, value)
  reply.code(status)
}

const payloadOf = ({ body }: Answer): Buffer | undefined => (body.byteLength === 0 ? undefined : Buffer.from(body))

/** Sends a refusal from a Fastify route. */
export function sendRefusal(reply: FastifyReply, { answer, headers }: Refusal): FastifyReply {
  putHead(reply, answer, headers)
  return reply.send(payloadOf(answer))
}

/** What Fastify itself has against a request, as a refusal. Null: the error is none of that kind. */
function refusalOf(error: unknown): Refusal | null {
  if (error instanceof Refusal) return error
  const { code, statusCode = 500, message } = error as Partial<FastifyError>
  if (!/^FST_ERR_(VALIDATION$|CTP_)/.test(code ?? '') || statusCode >= 500) return null
  if (statusCode === 413) return new Refusal('payload_too_large')
  if (statusCode === 415) return new Refusal('unsupported_media_type')
  return new Refusal('request_invalid', [], { ...(message === undefined ? {} : { detail: message }), cause: error })
}

/** Gives the reply what an earlier request has left, or the refusal. Returns what is to be sent under it. */
function putDeclined(reply: FastifyReply, declined: Declined): Buffer | undefined {
  try {
    const answer = storedAnswerOf(declined)
    putHead(reply, answer, REPLAY_MARKERS)
    return payloadOf(answer)
  } catch (error) {
    const { answer, headers } = refusalFor(error)
    putHead(reply, answer, headers)
    return payloadOf(answer)
  }
}

/** The header lines of a reply, repeated ones one by one. */
const linesOf = (reply: FastifyReply): [string, string][] =>
  Object.entries(reply.getHeaders()).flatMap(([name, value]) => [value ?? []].flat().map((line): [string, string] => [name, String(line)]))

/** The body by which two requests are compared: as the route sees it. Throws `unsupported_media_type` for any but JSON. */
function comparedBody({ body, headers }: FastifyRequest): Uint8Array {
  const isEmpty = headers['transfer-encoding'] === undefined && !(Number(headers['content-length']) > 0)
  if (isEmpty) return NOTHING
  if (body === undefined || !isJsonType(essenceOf(headers['content-type']))) throw new Refusal('unsupported_media_type')
  return Buffer.from(JSON.stringify(body))
}

async function* bytesOf(stream: AsyncIterable<Uint8Array | string>): AsyncGenerator<Uint8Array> {
  for await (const chunk of stream) yield Buffer.from(chunk as string)
}

/** What Fastify is about to send, and what of it is to be stored. Throws `UnreplayableAnswer`. */
async function takePayload(
  reply: FastifyReply,
  payload: unknown,
  isKept: (name: string) => boolean,
): Promise<{ answer: Answer; payload: unknown }> {
  const { statusCode: status } = reply
  const lines = linesOf(reply)
  // Fastify sends no body with a 204, whatever it is given.
  if (payload === undefined || payload === null || status === 204) return { answer: answerToStore(status, lines, NOTHING, isKept), payload }
  if (typeof payload === 'string' || payload instanceof Uint8Array) {
    const bytes = typeof payload === 'string' ? Buffer.from(payload) : payload
    return { answer: answerToStore(status, lines, bytes, isKept), payload }
  }
  if (payload instanceof Response) {
    const { answer, response } = await takeAnswer(payload, isKept)
    return { answer, payload: response }
  }
  const stream = payload instanceof Readable ? Readable.toWeb(Readable.from(bytesOf(payload), { objectMode: false })) : payload
  const { answer, response } = await takeAnswer(new Response(stream as ReadableStream, { status, headers: lines }), isKept)
  return { answer, payload: response.body }
}

/** A failure of the transaction that is the route's, and not the store's. */
class RouteFailure extends Error {}

async function addIdempotency(app: FastifyInstance, options: FastifyIdempotencyOptions): Promise<void> {
  const { keys, authenticate, required = true, respondPolicy = storeAllButTooMany, onError = () => {} } = options
  if (typeof authenticate !== 'function') throw new TypeError('authenticate is missing: expected a function that tells whose request it is')
  const isKept = headersToKeep(options.keepHeaders)
  const engine = createIdempotency({ maxRunMs: MAX_RUN_MS, maxInFlightPerOwner: Number.POSITIVE_INFINITY, ...options })
  const executions = new WeakMap<FastifyRequest, Execution>()

  function settled(execution: Execution | null): void {
    if (!execution) return
    execution.isSettled = true
    execution.claim.end()
  }

  async function transact(reply: FastifyReply, execution: Execution | null, run: (tx: Queryable) => Promise<unknown>): Promise<void> {
    if (!('transaction' in keys)) throw new TypeError('transaction() needs keys in a database: expected those of createSqlKeys')
    if (execution?.isSettled) throw new TypeError('the request has been answered, so nothing may be written for it')

    const runRoute = async (tx: Queryable): Promise<{ answer: Answer; bytes: Uint8Array }> => {
      try {
        const body = await run(tx)
        if (body !== undefined && !reply.hasHeader('Content-Type')) reply.type('application/json; charset=utf-8')
        const bytes = body === undefined ? NOTHING : Buffer.from(reply.serialize(body) as string)
        return { answer: answerToStore(reply.statusCode, linesOf(reply), bytes, isKept), bytes }
      } catch (cause) {
        throw new RouteFailure('', { cause })
      }
    }

    let payload: Buffer | undefined
    try {
      payload = await keys.transaction(async (tx, within) => {
        const { answer, bytes } = await runRoute(tx)
        if (execution && !(await execution.claim.store(answer, within))) throw new Fenced('the claim was taken over')
        return payloadOf({ ...answer, body: bytes })
      })
    } catch (error) {
      if (error instanceof RouteFailure) throw error.cause
      if (execution && error instanceof Fenced) {
        settled(execution)
        payload = putDeclined(reply, await engine.afterFence(execution.operation).catch((): Declined => ({ kind: 'contended' })))
      } else {
        // Committed or not: the row knows, and the next request reads it.
        if (!(error instanceof StoreError)) onError(error)
        if (execution) execution.thrown = true
        await sendRefusal(reply, new Refusal('store_unavailable', [['Retry-After', '1']]))
        return
      }
    }
    settled(execution)
    await reply.send(payload)
  }

  /** Lets the request through, with its claim, or answers it. */
  async function admit(request: FastifyRequest, reply: FastifyReply): Promise<Execution | null> {
    const { method } = request
    const headers = headersOf(request.raw)
    if (!GUARDED.includes(method) || (!required && !headers.has('idempotency-key'))) return null
    const owner = await authenticate(request)
    if (!owner) throw new Refusal('unauthorized', [['WWW-Authenticate', 'Bearer']])
    const key = scopedKey(`${method} ${request.routeOptions.url}`, parseKey(headers))
    const contentType = headers.get('content-type')
    const fingerprint = requestFingerprint({ method, url: urlOf(request.raw), contentType, body: comparedBody(request) })
    const operation: Operation = { owner, key, fingerprint, sha256: null }
    const gone = new AbortController()
    reply.raw.on('close', () => gone.abort())
    const admission = await engine.admit(operation, gone.signal)
    if (admission.kind !== 'claimed') throw new Declination(admission)
    admission.claim.finalise()
    return { claim: admission.claim, operation, thrown: false, isSettled: false }
  }

  app.setErrorHandler((error, _request, reply) => {
    const refusal = refusalOf(error)
    // The app's own handler has the others.
    if (!refusal) throw error
    return sendRefusal(reply, refusal)
  })
  app.decorateRequest('idempotency')
  app.addHook('preHandler', async (request, reply) => {
    let execution: Execution | null
    try {
      execution = await admit(request, reply)
    } catch (error) {
      if (error instanceof Declination) return reply.send(putDeclined(reply, error.declined))
      return sendRefusal(reply, refusalFor(error))
    }
    request.idempotency = {
      signal: execution?.claim.signal ?? new AbortController().signal,
      transaction: (to, run) => transact(to, execution, run),
    }
    if (!execution) return
    executions.set(request, execution)
    // Nobody else would end the claim of a hijacked reply. A handler whose client is gone is still at work.
    reply.raw.on('close', () => {
      if (reply.sent) settled(execution)
    })
  })
  app.addHook('onError', async (request) => {
    const execution = executions.get(request)
    if (execution) execution.thrown = true
  })
  app.addHook('onSend', async (request, reply, payload) => {
    const execution = executions.get(request)
    if (!execution || execution.isSettled) return payload
    const { claim, operation, thrown } = execution
    execution.isSettled = true
    try {
      const { answer, payload: sent } = await takePayload(reply, payload, isKept)
      const declined = await engine.settle(claim, operation, answer, respondPolicy({ status: answer.status, thrown }))
      return declined ? (putDeclined(reply, declined) ?? null) : sent
    } finally {
      claim.end()
    }
  })
}

/** A request that does not run, on its way out of `admit`. */
class Declination extends Error {
  readonly declined: Declined

  constructor(declined: Declined) {
    super(declined.kind)
    this.declined = declined
  }
}

/**
 * The plugin for JSON routes: of the requests with one key to one route, one runs, and the others get its answer, or a problem document that says
 * why not. It guards POST, PUT, PATCH and DELETE of the scope it is registered in, where a thrown `Refusal` and what Fastify itself finds wrong with
 * a request are problem documents too. Errors that the app answers are answers as well; what ends in
 * a 5xx by throwing is not stored, and runs again when the lease has run out. A hijacked reply is not stored either.
 */
export const idempotency: typeof addIdempotency = Object.assign(addIdempotency, {
  // Its hooks are for the scope around it, not for one of its own: what fastify-plugin does.
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'idempotency',
})
