import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** All header lines as they came: repeated ones are joined by a comma, so two different lines never pass for one. */
export function headersOf(incoming: IncomingMessage): Headers {
  const headers = new Headers()
  const { rawHeaders } = incoming
  for (let at = 0; at < rawHeaders.length; at += 2) headers.append(rawHeaders[at]!, rawHeaders[at + 1]!)
  return headers
}

/** The address a request was sent to, as far as its Host header makes sense. The target is only ever a path: `//host/path` names no host. */
export function urlOf(incoming: IncomingMessage): URL {
  const origin = `http://${incoming.headers.host ?? 'localhost'}`
  const target = incoming.url?.startsWith('/') ? incoming.url : `/${incoming.url ?? ''}`
  return new URL((URL.canParse(origin) ? new URL(origin).origin : 'http://localhost') + target)
}

const bytesRead = new WeakMap<IncomingMessage, number>()

/** Bytes of a request's body: those that were read through `toRequest`, else what it declares. */
export const bodyBytes = (incoming: IncomingMessage): number => bytesRead.get(incoming) ?? (Number(incoming.headers['content-length']) || 0)

/** Cancelling stops the reading and leaves the connection alone, since an answer is still to be sent on it. */
function bodyOf(incoming: IncomingMessage, beforeFirstRead: () => void): ReadableStream<Uint8Array> {
  const chunks = incoming.iterator({ destroyOnReturn: false })
  let started = false
  let bytes = 0
  bytesRead.set(incoming, 0)
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        if (!started) {
          started = true
          beforeFirstRead()
        }
        const { done, value } = await chunks.next()
        if (!done) {
          bytes += value.byteLength
          bytesRead.set(incoming, bytes)
          controller.enqueue(value)
        } else if (incoming.complete) controller.close()
        else controller.error(new Error('the request ended early'))
      },
    },
    { highWaterMark: 0 },
  )
}

const awaitingContinue = new WeakSet<IncomingMessage>()

/** Marks a request whose client waits for `100 Continue`: it is sent when the body is first read, so a refusal costs no body at all. */
export const expectsContinue = (incoming: IncomingMessage): unknown => awaitingContinue.add(incoming)

/** A Node request as a web-standard one. Its signal aborts when the client is gone before the answer is out. */
export function toRequest(incoming: IncomingMessage, outgoing: ServerResponse): Request {
  const gone = new AbortController()
  // `close` of the request alone means nothing: it comes after every body.
  outgoing.on('close', () => {
    if (!outgoing.writableFinished) gone.abort()
  })
  const beforeFirstRead = (): void => {
    if (awaitingContinue.delete(incoming)) outgoing.writeContinue()
  }
  const method = incoming.method ?? 'GET'
  const hasBody = method !== 'GET' && method !== 'HEAD'
  return new Request(urlOf(incoming), {
    method,
    headers: headersOf(incoming),
    signal: gone.signal,
    ...(hasBody ? { body: bodyOf(incoming, beforeFirstRead), duplex: 'half' } : {}),
  } as RequestInit)
}

/** Sends a web-standard answer. A client that is still sending afterwards has gone past every limit: its connection is closed. */
export async function sendResponse(response: Response, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  if (outgoing.destroyed) return
  const isUnasked = awaitingContinue.has(incoming)
  outgoing.on('finish', () => {
    if (!incoming.complete && !isUnasked) incoming.socket.destroySoon()
  })
  const cookies = response.headers.getSetCookie().flatMap((cookie) => ['Set-Cookie', cookie])
  const headers = [...response.headers].filter(([name]) => name !== 'set-cookie').flat()
  outgoing.writeHead(response.status, [...headers, ...cookies])
  if (response.body) await pipeline(Readable.fromWeb(response.body as never), outgoing)
  else outgoing.end()
}
