import { once } from 'node:events'
import { createServer, type IncomingMessage, request } from 'node:http'
import type { AddressInfo } from 'node:net'

/** One call on its way to S3. */
export interface S3Call {
  method: string
  /** Path and query. */
  url: string
  body: Buffer
}

/**
 * What becomes of a call. `pass`: it goes through; `lose`: it goes through, and its answer gets lost; `drop`: the connection dies before S3 hears
 * of it; `hang`: no answer, ever; `late`: no answer either, and S3 hears of it when `deliver` is called; else this answer, and S3 hears nothing.
 */
export type Fate = 'pass' | 'lose' | 'drop' | 'hang' | 'late' | { status: number; body?: string; headers?: Record<string, string> }

export interface S3Proxy {
  endpoint: string
  /** Every call so far, as `METHOD url`. */
  calls: string[]
  /** Lets S3 carry out what was held back. Resolves to the answers' status codes, which nobody else gets. */
  deliver(): Promise<number[]>
  close(): Promise<void>
}

/** A proxy that makes calls fail as ordered. It keeps the Host header, so signatures stay valid. */
export async function startS3Proxy(target: string, decide: (call: S3Call) => Fate): Promise<S3Proxy> {
  const calls: string[] = []
  const late: (() => Promise<number>)[] = []
  const forward = async (incoming: IncomingMessage, { method, url, body }: S3Call): Promise<{ answer: IncomingMessage; bytes: Buffer }> => {
    const { hostname, port } = new URL(target)
    const outgoing = request({ hostname, port, method, path: url, headers: incoming.headers, setHost: false })
    outgoing.end(body)
    const [answer] = (await once(outgoing, 'response')) as [IncomingMessage]
    return { answer, bytes: Buffer.concat(await answer.toArray()) }
  }
  const server = createServer(async (incoming, outgoing) => {
    const call: S3Call = { method: incoming.method!, url: incoming.url!, body: Buffer.concat(await incoming.toArray()) }
    calls.push(`${call.method} ${call.url}`)
    const fate = decide(call)
    if (fate === 'hang') return
    if (fate === 'late') return void late.push(async () => (await forward(incoming, call)).answer.statusCode!)
    if (fate === 'drop') return incoming.socket.destroy()
    if (typeof fate === 'object') return outgoing.writeHead(fate.status, fate.headers).end(fate.body)
    const { answer, bytes } = await forward(incoming, call)
    if (fate === 'lose') return incoming.socket.destroy()
    return outgoing.writeHead(answer.statusCode!, answer.headers).end(call.method === 'HEAD' ? undefined : bytes)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    deliver: () => Promise.all(late.splice(0).map((carryOut) => carryOut())),
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

/** An address where nobody listens. */
export async function closedEndpoint(): Promise<string> {
  const { endpoint, close } = await startS3Proxy('', () => 'hang')
  await close()
  return endpoint
}
