import { createHash, randomUUID } from 'node:crypto'
import { connect, type Socket } from 'node:net'
import { generatedBody, MiB, sha256 } from './fixture.js'

export interface Post {
  key?: string
  body?: Uint8Array | string
  owner?: string
  headers?: Record<string, string>
  /** Declared; by default that of the body. */
  digest?: string
}

/** fetch() of an upload. */
export const post = (
  url: string,
  { key = randomUUID(), body = 'hello', owner = 'alice', headers = {}, digest }: Post = {},
): Promise<Response> =>
  fetch(`${url}/uploads`, {
    method: 'POST',
    body: body as Uint8Array<ArrayBuffer>,
    headers: {
      Authorization: `Bearer ${owner}`,
      'Content-Type': 'image/jpeg',
      'Idempotency-Key': key,
      'X-File-Sha256': digest ?? sha256(body),
      ...headers,
    },
  })

/** fetch() of an upload of zeros, made while they are read. */
export function postStream(url: string, bytes: number, digest?: string): Promise<Response> {
  let declared = digest
  if (declared === undefined) {
    const hash = createHash('sha256')
    const zeros = new Uint8Array(MiB)
    for (let left = bytes; left > 0; left -= MiB) hash.update(zeros.subarray(0, Math.min(left, MiB)))
    declared = hash.digest('hex')
  }
  return fetch(`${url}/uploads`, {
    method: 'POST',
    body: generatedBody(bytes),
    duplex: 'half',
    headers: { Authorization: 'Bearer alice', 'Content-Type': 'image/jpeg', 'Idempotency-Key': randomUUID(), 'X-File-Sha256': declared },
  } as RequestInit)
}

/** The head of an upload, for requests that are sent piece by piece. */
export const headOf = (key: string, body: Uint8Array | string, extra: string[] = []): string =>
  [
    'POST /uploads HTTP/1.1',
    'Host: localhost',
    'Authorization: Bearer alice',
    `Idempotency-Key: ${key}`,
    `X-File-Sha256: ${sha256(body)}`,
    'Content-Type: image/jpeg',
    `Content-Length: ${Buffer.byteLength(body)}`,
    ...extra,
    '',
    '',
  ].join('\r\n')

export interface Wire {
  socket: Socket
  send(data: Uint8Array | string): void
  /** What has come back so far. */
  received(): string
  /** Resolves when the text has come back, rejects when the connection ends before. */
  until(text: string): Promise<string>
  closed: Promise<void>
}

/** A bare connection. */
export async function openWire(url: string): Promise<Wire> {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  let received = ''
  socket.on('error', () => {})
  socket.setEncoding('latin1').on('data', (data: string) => {
    received += data
  })
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()))
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', () => resolve())
    void closed.then(() => reject(new Error('connection refused')))
  })
  return {
    socket,
    send: (data) => void socket.write(data),
    received: () => received,
    until: (text) =>
      new Promise((resolve, reject) => {
        const look = (): void => {
          if (received.includes(text)) resolve(received)
        }
        socket.on('data', look)
        void closed.then(() => reject(new Error(`the connection ended after ${JSON.stringify(received)}`)))
        look()
      }),
    closed,
  }
}
