import { once } from 'node:events'
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { extname } from 'node:path'
import { Transform } from 'node:stream'
import type { Site } from './page.js'
import type { Server } from './server.js'

/** An upload request as it came by. */
export interface Passage {
  key: string
  name: string
  /** Ends with its answer, or with its connection. */
  isOver: boolean
}

/** What goes wrong with a request that passes by; nothing, where it is empty. */
export interface Mishap {
  /** Answered 502: before the server hears of it, or after it has answered. */
  badGateway?: 'before' | 'after'
  /** The connection ends after so many bytes of the request. */
  cutRequest?: number
  /** The answer is lost: with its head, or in the middle of its body. */
  cutAnswer?: 'head' | 'body'
  /** ms that the answer is held back. */
  delay?: number
  /** Bytes of the request that pass in a second. */
  throttle?: number
  /** Nobody is there. */
  away?: boolean
}

/** What stands between browsers and the real server, on one origin with the test page: sees every upload, and what pages tell the test. */
export interface Front {
  url: string
  passages: Passage[]
  /** Keys that came again while an earlier request with them was under way. */
  overlaps: string[]
  /** What pages have posted to /told, oldest first. */
  told: Record<string, unknown>[]
  /** The next thing told of this kind; waits for it. */
  hear(kind: string): Promise<Record<string, unknown>>
  stop(): Promise<void>
}

const types: Record<string, string> = { '': 'text/html', '.html': 'text/html', '.js': 'text/javascript' }

/** Lets so many bytes a second through. */
const throttled = (rate: number): Transform =>
  new Transform({
    transform(chunk: Buffer, _encoding, done) {
      setTimeout(done, (chunk.length / rate) * 1000, null, chunk)
    },
  })

/**
 * `hold` says for how long, ms, an answer to an upload is held back, or until when; `mishap` what goes wrong with a request that is not for
 * the test page's own files.
 */
export async function startFront(
  server: Pick<Server, 'url'>,
  site: Site,
  hold: () => number | Promise<unknown>,
  mishap: (incoming: IncomingMessage) => Mishap = () => ({}),
): Promise<Front> {
  const passages: Passage[] = []
  const overlaps: string[] = []
  const told: Record<string, unknown>[] = []
  const waiting: { kind: string; resolve: (message: Record<string, unknown>) => void }[] = []

  const hearMessage = async (incoming: IncomingMessage, answer: ServerResponse): Promise<void> => {
    let text = ''
    for await (const chunk of incoming) text += chunk
    const message = JSON.parse(text)
    told.push(message)
    const at = waiting.findIndex(({ kind }) => kind === message.kind)
    if (at >= 0) waiting.splice(at, 1)[0]?.resolve(message)
    answer.writeHead(204).end()
  }

  const note = (incoming: IncomingMessage, answer: ServerResponse): void => {
    const key = String(incoming.headers['idempotency-key'])
    if (passages.some((other) => other.key === key && !other.isOver)) overlaps.push(key)
    const passage = { key, name: String(incoming.headers['x-file-name']), isOver: false }
    passages.push(passage)
    answer.once('close', () => {
      passage.isOver = true
    })
  }

  const pass = (incoming: IncomingMessage, answer: ServerResponse): void => {
    const isUpload = incoming.method === 'POST' && 'idempotency-key' in incoming.headers
    if (isUpload) note(incoming, answer)
    const { badGateway, cutRequest, cutAnswer, delay, throttle, away } = mishap(incoming)
    const end = (): void => {
      incoming.socket.destroy()
    }
    if (away) {
      end()
      return
    }
    const fail = (): void => void answer.writeHead(502, { 'Content-Type': 'text/plain' }).end('Bad gateway')
    if (badGateway === 'before') {
      incoming.resume().once('end', fail)
      return
    }
    const { hostname, port } = new URL(server.url)
    const host = new URL(server.url).host
    // The server compares an Origin with the host that was asked.
    const headers = { ...incoming.headers, host, ...(incoming.headers.origin && { origin: server.url }) }
    const onward = request({ hostname, port, method: incoming.method, path: incoming.url, headers, agent: false })
    onward.on('error', () => answer.destroy())
    onward.on('response', (given) => {
      const send = (): void => {
        if (cutAnswer === 'head') end()
        else if (badGateway === 'after') fail()
        else {
          answer.writeHead(given.statusCode ?? 502, given.headers)
          if (cutAnswer === 'body') given.once('data', (chunk: Buffer) => answer.write(chunk.subarray(0, chunk.length / 2), end))
          else given.pipe(answer)
        }
      }
      const held = delay ?? (isUpload ? hold() : 0)
      if (typeof held === 'number') setTimeout(send, held)
      else held.then(send)
    })
    answer.once('close', () => {
      if (!answer.writableFinished) onward.destroy()
    })
    let passed = 0
    if (cutRequest !== undefined)
      incoming.on('data', (chunk: Buffer) => {
        passed += chunk.length
        if (passed >= cutRequest) end()
      })
    if (throttle === undefined) incoming.pipe(onward)
    else incoming.pipe(throttled(throttle)).pipe(onward)
  }

  const front = createServer((incoming, answer) => {
    const { pathname } = new URL(incoming.url ?? '/', 'http://front')
    const [, path] = /^\/uponce-test\/(.*)$/.exec(pathname) ?? []
    if (path !== undefined) {
      const body = site.get(path)
      answer.writeHead(body ? 200 : 404, { 'Content-Type': types[extname(path)] ?? 'application/octet-stream' }).end(body)
    } else if (pathname === '/told') void hearMessage(incoming, answer).catch(() => answer.destroy())
    else pass(incoming, answer)
  })
  front.listen(0, '127.0.0.1')
  await once(front, 'listening')
  return {
    url: `http://localhost:${(front.address() as AddressInfo).port}`,
    passages,
    overlaps,
    told,
    hear: (kind) => new Promise((resolve) => waiting.push({ kind, resolve })),
    async stop() {
      front.closeAllConnections()
      front.close()
      await once(front, 'close')
    },
  }
}
