import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { type ProblemCode, problemAnswer } from './answer.js'
import { type BodyLimits, createBody } from './body.js'
import { callerOf } from './caller.js'
import type { Connections } from './connections.js'
import { ownerPrefix } from './handler.js'
import type { KeyStore } from './keys.js'
import { describeMedia, MEDIA_LIST_LIMIT, ownerOf } from './media.js'
import { headersOf, urlOf } from './node-http.js'
import type { ObjectStore } from './objects.js'
import { createOriginRule } from './origin.js'

/** What can be made to go wrong, once or several times. */
const FAULTS = ['lose-answer', 'cut-body', 'unavailable', 'too-many', 'server-error', 'slow', 'away'] as const
export type FaultName = (typeof FAULTS)[number]

/** One request as the server saw it. */
interface SeenRequest {
  at: string
  /** Null while it runs, and when no answer was sent. */
  status: number | null
  bytes: number
  replayed: boolean
  fault: FaultName | null
  /** Sent by the browser itself after the connection had died, within one and the same `fetch()`. */
  copy: boolean
}

interface Armed {
  times: number
  seconds: number
}

/** The fault that strikes one request. */
interface Struck {
  fault: FaultName | null
  seconds: number
  copy: boolean
}

export interface FaultsOptions {
  keys: KeyStore
  objects: ObjectStore
  connections: Connections
  allowedOrigins: readonly string[]
  limits: BodyLimits
}

export interface Faults {
  /** Whether the server plays dead. */
  isAway(): boolean
  /** Carries a request to the handler, past the armed faults. Null: the connection has been destroyed. */
  pass(incoming: IncomingMessage, request: Request, handler: (request: Request) => Promise<Response>): Promise<Response | null>
  /** `GET /demo/state`, `POST` and `DELETE /demo/faults`. */
  addRoutes(app: FastifyInstance): void
}

const KEYS_REMEMBERED = 200
const REQUESTS_REMEMBERED = 100
const SLOW_BYTES_PER_SECOND = 65_536
/**
 * How long after the death of a connection the browser's own copy of its request is waited for. Measured: a few ms. The client's own retry
 * comes 250 ms later at the earliest.
 */
const COPY_MS = 200

const ANSWERED: Partial<Record<FaultName, { code: ProblemCode; status: number }>> = {
  unavailable: { code: 'store_unavailable', status: 503 },
  'too-many': { code: 'too_many_in_flight', status: 429 },
  'server-error': { code: 'internal_error', status: 500 },
}

/** The request with every chunk shown to `tap` first. */
function tapped(request: Request, tap: (chunk: Uint8Array) => void | Promise<void>): Request {
  const reader = request.body?.getReader()
  if (!reader) return request
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const { done, value } = await reader.read()
        if (done) return controller.close()
        await tap(value)
        controller.enqueue(value)
      },
    },
    { highWaterMark: 0 },
  )
  const { method, headers, signal } = request
  return new Request(request.url, { method, headers, signal, body, duplex: 'half' } as RequestInit)
}

const nameOf = (owner: string, key: string): string => JSON.stringify([owner, key])

function parseOrder(body: unknown): { fault: FaultName } & Armed {
  const { fault, times = 1, seconds } = (body ?? {}) as Record<string, unknown>
  if (!FAULTS.includes(fault as FaultName)) throw new TypeError(`fault is ${JSON.stringify(fault)}, expected one of ${FAULTS.join(', ')}`)
  if (!Number.isInteger(times) || (times as number) < 1 || (times as number) > 1000) {
    throw new TypeError(`times is ${JSON.stringify(times)}, expected an integer from 1 to 1000`)
  }
  if (seconds !== undefined && !(typeof seconds === 'number' && seconds >= 0 && seconds <= 3600)) {
    throw new TypeError(`seconds is ${JSON.stringify(seconds)}, expected a number from 0 to 3600`)
  }
  return { fault: fault as FaultName, times: times as number, seconds: seconds ?? (fault === 'away' ? 20 : 5) }
}

/** Faults on order, for people and tests that want to see what a retry does. Each caller orders for itself, except `away`, which is for all. */
export function createFaults({ keys, objects, connections, allowedOrigins, limits }: FaultsOptions): Faults {
  const origins = createOriginRule(allowedOrigins)
  const armed = new Map<string, Map<FaultName, Armed>>()
  const seen = new Map<string, { owner: string; key: string; requests: SeenRequest[] }>()
  const copiesDue = new Map<string, { struck: Struck; until: number }>()
  let awayUntil = 0
  const isAway = (): boolean => performance.now() < awayUntil

  /** A copy by the browser is the same request and meets the same fault, else a person would never see the client's own retry. */
  function strike(owner: string, key: string): Struck {
    const due = copiesDue.get(nameOf(owner, key))
    copiesDue.delete(nameOf(owner, key))
    if (due && performance.now() < due.until) return { ...due.struck, copy: true }
    const own = armed.get(owner)
    const [next] = own ?? []
    if (!own || !next) return { fault: null, seconds: 0, copy: false }
    const [fault, order] = next
    order.times--
    if (order.times === 0) own.delete(fault)
    return { fault, seconds: order.seconds, copy: false }
  }

  function remember(owner: string, key: string, { fault, copy }: Struck): SeenRequest {
    const name = nameOf(owner, key)
    const entry = seen.get(name) ?? { owner, key, requests: [] }
    const request: SeenRequest = { at: new Date().toISOString(), status: null, bytes: 0, replayed: false, fault, copy }
    entry.requests = [...entry.requests.slice(1 - REQUESTS_REMEMBERED), request]
    seen.delete(name)
    seen.set(name, entry)
    const [oldest] = seen.keys()
    if (seen.size > KEYS_REMEMBERED) seen.delete(oldest!)
    return request
  }

  const describeFaults = (owner: string) => ({
    ...Object.fromEntries(armed.get(owner) ?? []),
    ...(isAway() ? { away: { seconds: Math.ceil((awayUntil - performance.now()) / 1000) } } : {}),
  })

  async function refuse(request: Request, { code, status }: { code: ProblemCode; status: number }, seconds: number): Promise<Response> {
    await createBody(request, limits).drain()
    const { headers, body } = problemAnswer(code, status)
    const retryAfter: [string, string][] = status === 500 ? [] : [['Retry-After', String(seconds)]]
    return new Response(body as Uint8Array<ArrayBuffer>, {
      status,
      headers: [...headers, ...retryAfter, ...origins.headers(request), ['Content-Length', String(body.byteLength)]],
    })
  }

  return {
    isAway,
    async pass(incoming, request, handler) {
      const owner = callerOf(request.headers)?.owner
      const key = request.headers.get('idempotency-key')?.trim().slice(0, 255)
      if (request.method !== 'POST' || owner === undefined || !key) return handler(request)
      const struck = strike(owner, key)
      const { fault, seconds } = struck
      const entry = remember(owner, key, struck)
      const cutAt = Number(request.headers.get('content-length') ?? 131_072) / 2

      const destroy = (): null => {
        incoming.socket.destroy()
        // A copy may have a copy.
        if (connections.isProven(incoming)) copiesDue.set(nameOf(owner, key), { struck, until: performance.now() + COPY_MS })
        return null
      }
      const watched = tapped(request, async (chunk) => {
        entry.bytes += chunk.byteLength
        if (fault === 'slow') await new Promise((resolve) => setTimeout(resolve, (chunk.byteLength / SLOW_BYTES_PER_SECOND) * 1000))
        // What was buffered when the client went is not worth the wait.
        if (fault === 'slow' && incoming.socket.destroyed) throw new Error('the client is gone')
        if (fault === 'cut-body' && entry.bytes >= cutAt) {
          destroy()
          throw new Error('the connection was cut on order')
        }
      })
      const refusal = fault && ANSWERED[fault]
      const response = await (refusal ? refuse(watched, refusal, seconds) : handler(watched))
      if (fault === 'cut-body') return incoming.socket.destroyed ? null : destroy()
      if (fault === 'lose-answer') return destroy()
      if (incoming.socket.destroyed) return null
      entry.status = response.status
      entry.replayed = response.headers.get('idempotent-replayed') === 'true'
      return response
    },
    addRoutes(app) {
      /** Arming a fault is a change, so the rule for cookies holds here too. */
      const checkedOwner = (request: FastifyRequest): string => {
        const headers = headersOf(request.raw)
        origins.check(new Request(urlOf(request.raw), { method: request.method, headers }), callerOf(headers)?.ambient === true)
        return ownerOf(request)
      }

      app.get('/demo/state', async (request, reply) => {
        const owner = ownerOf(request)
        const media = await keys.listMedia(owner, MEDIA_LIST_LIMIT)
        const own = [...seen.values()].filter((entry) => entry.owner === owner)
        return reply.header('Cache-Control', 'no-store').send({
          media: media.map(describeMedia),
          keys: own.map(({ key, requests }) => ({ key, requests })),
          objects: (await objects.list(ownerPrefix(owner))).length,
          faults: describeFaults(owner),
        })
      })
      app.post('/demo/faults', async (request, reply) => {
        const owner = checkedOwner(request)
        let order: ReturnType<typeof parseOrder>
        try {
          order = parseOrder(request.body)
        } catch (error) {
          return reply.code(400).send({ message: (error as Error).message })
        }
        const { fault, times, seconds } = order
        if (fault === 'away') {
          awayUntil = performance.now() + seconds * 1000
          connections.destroy(request.raw.socket)
        } else {
          const own = armed.get(owner) ?? new Map<FaultName, Armed>()
          armed.set(owner, own.set(fault, { times, seconds }))
        }
        return reply.send(describeFaults(owner))
      })
      app.delete('/demo/faults', async (request, reply) => {
        const owner = checkedOwner(request)
        armed.delete(owner)
        awayUntil = 0
        return reply.send(describeFaults(owner))
      })
    },
  }
}
