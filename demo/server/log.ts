import type { IncomingMessage, ServerResponse } from 'node:http'
import { callerOf } from './caller.js'
import { ownerPrefix } from './handler.js'
import { bodyBytes, headersOf } from './node-http.js'
import { PAGE_ROUTES } from './static.js'

/** One request, as it is logged. No whole key, no credential, no name of a person or a file. */
export interface RequestLine {
  time: string
  level: 'info' | 'error'
  method: string
  /** As the route has it, such as `/media/:id`; `*` where there is no route. */
  path: string
  /** Null: no answer was sent. */
  status: number | null
  /** From the request's head to the end of its answer, in ms. */
  ms: number
  /** Of the request's body. */
  bytes: number
  /** `ok`, `replayed`, the code of the refusal, `refused` or `failed` where it has none, `gone` when the client did not wait for the end. */
  outcome: string
  /** What the keys of the owner's objects begin with. Null: nobody we know. */
  owner: string | null
  /** The first 8 characters of the Idempotency-Key. */
  key: string | null
}

/** A request being followed. */
export interface FollowedRequest {
  path: string
  /** Says more than the status does: `replayed`, or a refusal's code. */
  outcome: string | null
}

export interface Log {
  /** Writes the line of a request when its answer has been sent, or never will be. */
  follow(incoming: IncomingMessage, outgoing: ServerResponse, path: string): FollowedRequest
  /** Writes a failure nobody else hears of. */
  error(error: unknown): void
}

/** What asks how the server is, and what a page loads and polls: of no interest while all is well. */
const QUIET = ['/healthz', '/metrics', '/demo/state', '/media', ...PAGE_ROUTES]
/** A shorter one is no valid key, and would be shown whole. */
const SHORTEST_KEY = 16
/** A cause can be its own. */
const DEEPEST_CAUSE = 5

const beginningOfKey = (headers: Headers): string | null => {
  const key = headers.get('idempotency-key')?.trim().replace(/^"/, '') ?? ''
  return key.length < SHORTEST_KEY ? null : key.slice(0, 8)
}

const outcomeOf = (status: number): string => (status < 400 ? 'ok' : status < 500 ? 'refused' : 'failed')

/** The code in a problem document; null where there is none. */
export function refusalCode(problem: string): string | null {
  try {
    const { error } = JSON.parse(problem) as { error?: unknown }
    return typeof error === 'string' && /^[a-z_]{1,64}$/.test(error) ? error : null
  } catch {
    return null
  }
}

/** A stack with those of its causes. Other members are left out: a database puts rows into them. */
function stackOf(error: unknown, depth = 0): string {
  if (!(error instanceof Error)) return String(error)
  const stack = error.stack ?? error.message
  return error.cause === undefined || depth === DEEPEST_CAUSE ? stack : `${stack}\ncaused by ${stackOf(error.cause, depth + 1)}`
}

/**
 * One JSON object a line, one line a request; what is asked again and again (`QUIET`) only when it is not answered with a 200.
 * Not Fastify's logger, which writes two lines a request, with whole addresses, and knows nothing of answers that are not Fastify's.
 */
export function createLog(write: (line: string) => void): Log {
  return {
    follow(incoming, outgoing, path) {
      const began = performance.now()
      const followed: FollowedRequest = { path, outcome: null }
      const headers = headersOf(incoming)
      const owner = callerOf(headers)?.owner
      outgoing.on('close', () => {
        const status = outgoing.headersSent ? outgoing.statusCode : null
        if (QUIET.includes(followed.path) && status === 200 && outgoing.writableFinished) return
        const line: RequestLine = {
          time: new Date().toISOString(),
          level: status !== null && status >= 500 ? 'error' : 'info',
          method: incoming.method ?? 'GET',
          path: followed.path,
          status,
          ms: Math.round(performance.now() - began),
          bytes: bodyBytes(incoming),
          outcome: status === null || !outgoing.writableFinished ? 'gone' : (followed.outcome ?? outcomeOf(status)),
          owner: owner === undefined ? null : ownerPrefix(owner).slice(0, -1),
          key: beginningOfKey(headers),
        }
        write(JSON.stringify(line))
      })
      return followed
    },
    error(error) {
      write(JSON.stringify({ time: new Date().toISOString(), level: 'error', error: stackOf(error) }))
    },
  }
}
