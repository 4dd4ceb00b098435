import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** One request for an upload, as it came; an engine may send one attempt more than once. */
export interface Seen {
  method: string
  path: string
  key: string
  /** The name of its file. */
  name: string
  /** Which attempt of the client's it is, from 1. */
  attempt: number
  authorization: string
  /** ms since 1970. */
  at: number
  /** When its answer had been given, or its connection was gone. */
  endedAt: number
}

interface Asked {
  request: IncomingMessage
  answer: ServerResponse
  seen: Seen
}
/** How a request is dealt with. */
export type Step = (asked: Asked) => void | Promise<void>

/** A server of one origin that does with each attempt what its script says. */
export interface Trouble {
  url: string
  seen: Seen[]
  /** When anybody asked for anything, ms since 1970: preflights and probes, too. */
  contacts: number[]
  /** Nobody listens on its port any more. */
  leave(): Promise<void>
  listen(): Promise<void>
  stop(): Promise<void>
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

const digestOfBody = async (request: IncomingMessage): Promise<string> => {
  const hash = createHash('sha256')
  for await (const chunk of request) hash.update(chunk)
  return hash.digest('hex')
}

const readable = { 'Access-Control-Allow-Origin': '*' }
const exposing = (...names: string[]): Record<string, string> => ({ ...readable, 'Access-Control-Expose-Headers': names.join(', ') })

interface AnswerFacts {
  headers?: Record<string, string>
  body?: string
  /** Names of headers that pages of other origins may read; `false`: they may not even read the answer. */
  exposes?: string[] | false
  /** Whether the body of the request is read before. */
  reads?: boolean
}

export const answers =
  (status: number, { headers, body, exposes = [], reads = true }: AnswerFacts = {}): Step =>
  async ({ request, answer }) => {
    if (reads) await digestOfBody(request)
    answer.writeHead(status, { ...(exposes && exposing(...exposes)), ...headers }).end(body)
  }

const receiptOf = (key: string, sha256: string): string => JSON.stringify({ uploadId: key, storageKey: `of ${key}`, sha256 })

/** Stores what came: the receipt is of those bytes. */
export const stores: Step = async ({ request, answer, seen }) => {
  const receipt = receiptOf(seen.key, await digestOfBody(request))
  answer.writeHead(201, { ...readable, 'Content-Type': 'application/json' }).end(receipt)
}

/** Says first that it is at work. */
export const storesAfter =
  (tell: (answer: ServerResponse) => void): Step =>
  async (asked) => {
    tell(asked.answer)
    await stores(asked)
  }

/** Takes in so many bytes a second. */
export const storesSlowly =
  (rate: number): Step =>
  async ({ request, answer, seen }) => {
    const hash = createHash('sha256')
    for await (const chunk of request) {
      hash.update(chunk)
      await pause((chunk.length / rate) * 1000)
    }
    answer.writeHead(201, readable).end(receiptOf(seen.key, hash.digest('hex')))
  }

/** Reads, and never answers. */
export const keepsSilent: Step = async ({ request }) => {
  await digestOfBody(request)
}

/** Reads nothing, and never answers. */
export const readsNothing: Step = ({ request }) => {
  request.pause()
}

/** Stores, and breaks off in the middle of the receipt. */
export const breaksOff =
  (headers: Record<string, string> = {}, exposes: string[] = []): Step =>
  async ({ request, answer, seen }) => {
    const receipt = receiptOf(seen.key, await digestOfBody(request))
    answer.writeHead(201, { ...exposing(...exposes), 'Content-Type': 'application/json', ...headers })
    answer.write(receipt.slice(0, 20))
    // An engine that learns of the head and of the end at once may tell a page of the end alone.
    await pause(200)
    seen.endedAt = Date.now()
    answer.socket?.end()
  }

/** Stores, and answers with the key alone. */
export const echoesKey =
  (status: number, body: string | undefined, exposes: string[]): Step =>
  async (asked) =>
    answers(status, { headers: { 'Idempotency-Key': asked.seen.key }, exposes, ...(body !== undefined && { body }) })(asked)

/** The same, breaking off in mid body. */
export const echoesKeyAndBreaksOff =
  (exposes: string[]): Step =>
  (asked) =>
    breaksOff({ 'Idempotency-Key': asked.seen.key, 'Content-Length': '200' }, exposes)(asked)

/** Stores, and hangs up without a word. */
export const hangsUp: Step = async ({ request, answer }) => {
  await digestOfBody(request)
  answer.destroy()
}

/** Resets the connection in the middle of the request. */
export const resets: Step = async ({ request, answer }) => {
  await once(request, 'data')
  answer.socket?.resetAndDestroy()
}

export const redirects =
  (status: number, to: string | (() => string)): Step =>
  (asked) =>
    answers(status, { headers: { Location: typeof to === 'string' ? to : to() } })(asked)

const portal = { headers: { 'Content-Type': 'text/html' }, body: '<!doctype html><title>Welcome to the hotel</title>' }
/** The sign-in page of some network. */
export const showsPortal = answers(200, portal)
/** The same, as pages of other origins mostly meet it: they may not read it. */
export const hidesPortal = answers(200, { ...portal, exposes: false })

/** Where redirects within the origin lead to. */
const places: Record<string, Step> = { '/stored': stores, '/portal': showsPortal }

/** `scripts` says what happens to the first, second, … attempt at a file; from then on it is stored. `preflights`: whether they are answered well. */
export async function startTrouble(scripts: (name: string) => Step[], { preflights = true } = {}): Promise<Trouble> {
  const seen: Seen[] = []
  const contacts: number[] = []

  const serve = async (request: IncomingMessage, answer: ServerResponse): Promise<void> => {
    contacts.push(Date.now())
    const { method = '', url: path = '/', headers } = request
    if (method === 'OPTIONS' && preflights) {
      const asked = {
        'Access-Control-Allow-Methods': 'POST',
        'Access-Control-Allow-Headers': headers['access-control-request-headers'] ?? '',
      }
      answer.writeHead(204, { ...readable, ...asked }).end()
      return
    }
    if (method === 'HEAD' || method === 'OPTIONS') {
      answer.writeHead(204).end()
      return
    }
    const one: Seen = {
      method,
      path,
      key: String(headers['idempotency-key']),
      name: decodeURIComponent(String(headers['x-file-name'])),
      attempt: Number(headers['test-attempt']),
      authorization: String(headers.authorization),
      at: Date.now(),
      endedAt: Number.POSITIVE_INFINITY,
    }
    seen.push(one)
    const end = (): void => {
      one.endedAt = Math.min(one.endedAt, Date.now())
    }
    answer.once('finish', end)
    answer.once('close', end)
    await (places[path] ?? scripts(one.name)[one.attempt - 1] ?? stores)({ request, answer, seen: one })
  }

  const create = () => createServer((request, answer) => void serve(request, answer).catch(() => answer.destroy()))
  let server = create()
  const listen = async (port: number): Promise<number> => {
    server = create()
    server.keepAliveTimeout = 60_000
    server.listen(port, '127.0.0.1')
    await once(server, 'listening')
    return (server.address() as AddressInfo).port
  }
  const leave = async (): Promise<void> => {
    if (!server.listening) return
    const closed = once(server, 'close')
    server.close()
    server.closeAllConnections()
    await closed
  }
  const port = await listen(0)
  return {
    url: `http://localhost:${port}`,
    seen,
    contacts,
    leave,
    async listen() {
      await listen(port)
    },
    stop: leave,
  }
}
