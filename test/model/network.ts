import type { Random } from '../helpers/random.js'
import { CheapAbortController } from './abort.js'
import { CheapHeaders } from './headers.js'
import { type Arrival, CheapResponse } from './response.js'
import type { Process, Server } from './server.js'
import type { Tab } from './tab.js'
import type { Timeline } from './timeline.js'
import type { Witness } from './witness.js'
import type { ReportingFetch } from './xhr.js'

/** What becomes of one request. */
export type Fate =
  /** It arrives, and so does its answer. */
  | { type: 'fine' }
  /** It does not arrive. */
  | { type: 'lost' }
  /** Its answer does not, at once or without a word. */
  | { type: 'answer lost'; silent: boolean }
  /** The connection breaks after so many bytes of its body. */
  | { type: 'body cut'; at: number }
  /** The connection breaks after so many characters of its answer. */
  | { type: 'answer cut'; at: number }
  /** It arrives twice, the second time so much later, ms, and the sender hears the answer to one of them. */
  | { type: 'twice'; after: number; second: boolean }
  /** It arrives so much later, ms. */
  | { type: 'late'; by: number }
  /** A bit of its body changes. */
  | { type: 'damaged'; at: number }
  /** Something in between answers; `arrival` says where from, where that is another place. */
  | { type: 'intercepted'; status: number; headers: Record<string, string>; text: string; arrival?: Arrival }
  /** Something in between asks for a pause, s, by a date: measured against that of its answer, or against the device's clock. */
  | { type: 'busy until'; status: number; after: number; isDated: boolean }
  /** It arrives by a redirect that keeps its body. */
  | { type: 'moved' }

export interface Network {
  /** Of the next requests of a device, probes aside. */
  fates: Map<string, Fate[]>
  /** What a page uses. */
  fetchOf(tab: Tab): ReportingFetch
}

/** One upload request on its way, as its sender knows it. */
export interface Sending {
  tab: Tab
  key: string
  method: string
  begunAt: number
  /** Which attempt of its upload it belongs to, as its page counts them. */
  requests?: number | undefined
  /** Whether its page was frozen meanwhile. */
  wasFrozen: boolean
}

interface Answer {
  status: number
  headers: Headers
  text: string
}

/** Bytes of a body that arrive together. */
const CHUNK = 300

const respond = (...given: ConstructorParameters<typeof CheapResponse>): Response => new CheapResponse(...given) as unknown as Response

type Read = () => Promise<{ done: boolean; value?: Uint8Array }>

/** All of a request that the server looks at: to make a real one takes longer than all that it does with it. */
export function requestOf({
  size,
  read,
  ...facts
}: {
  url: string
  method: string
  headers: Headers
  signal: AbortSignal
  size: number
  read: Read
}): Request {
  const hasBody = facts.method !== 'GET' && facts.method !== 'HEAD'
  const headers = new CheapHeaders(facts.headers)
  if (hasBody) headers.set('Content-Length', String(size))
  return { ...facts, headers, body: hasBody ? { getReader: () => ({ read }) } : null } as unknown as Request
}

const bytesOf = async (body: RequestInit['body']): Promise<Uint8Array<ArrayBuffer>> => {
  if (body === undefined || body === null) return new Uint8Array()
  return new Uint8Array(body instanceof ArrayBuffer ? body.slice(0) : await (body as Blob).arrayBuffer())
}

export interface NetworkOptions {
  timeline: Timeline
  server: Server
  random: Random
  witness: Witness
}

export function createNetwork({ timeline, server, random, witness }: NetworkOptions): Network {
  const reset = (): TypeError => new TypeError('Failed to fetch')

  interface Delivery {
    url: string
    method: string
    headers: Headers
    bytes: Uint8Array<ArrayBuffer>
    /** The connection breaks after so many bytes. */
    cutAt: number
    gone: AbortSignal
    onBytes: Parameters<ReportingFetch>[2]
  }

  /** Carries one copy of a request to a process, and resolves with its answer; rejects where the connection breaks. */
  async function deliver(
    sending: Sending,
    process: Process,
    { url, method, headers, bytes, cutAt, gone, onBytes }: Delivery,
  ): Promise<Answer> {
    const { realm } = process
    const cut = new CheapAbortController()
    const broken = new Promise<never>((_resolve, reject) => {
      const onEnd = (): void => reject(reset())
      cut.signal.addEventListener('abort', onEnd)
      gone.addEventListener('abort', () => timeline.later(null, 5, () => cut.abort()))
      realm.onKill.push(onEnd)
    })
    broken.catch(() => {})
    let at = 0
    /** A piece of the body, once it has arrived. */
    const read: Read = () =>
      new Promise((resolve, reject) => {
        const onEnd = (): void => reject(new Error('connection reset'))
        cut.signal.addEventListener('abort', onEnd)
        realm.later(random.integer(1, 20), () => {
          cut.signal.removeEventListener('abort', onEnd)
          if (cut.signal.aborted) return onEnd()
          if (at >= bytes.length && cutAt >= bytes.length) return resolve({ done: true })
          const end = Math.min(at + CHUNK, bytes.length, cutAt)
          if (end > at) resolve({ done: false, value: bytes.slice(at, end) })
          else cut.abort()
          at = end
          onBytes?.(at, bytes.length)
        })
      })
    const answered = process
      .handle(requestOf({ url, method, headers, size: bytes.length, signal: cut.signal, read }))
      .then(async (response) => {
        const answer = { status: response.status, headers: response.headers, text: await response.text() }
        if (realm.alive) witness.answered(sending, answer)
        return answer
      })
    answered.catch(() => {})
    return Promise.race([answered, broken])
  }

  /** What the sender hears in the end; never settles where it hears nothing. */
  async function carry(
    sending: Sending,
    url: string,
    init: RequestInit,
    fate: Fate,
    onBytes: Parameters<ReportingFetch>[2],
  ): Promise<Response> {
    const { tab, method } = sending
    const { device } = tab
    const headers = new CheapHeaders(init.headers)
    const bytes = await bytesOf(init.body)
    const gone = init.signal as AbortSignal
    const pause = (ms: number): Promise<void> => timeline.wait(null, ms)
    await pause(fate.type === 'late' ? fate.by : random.integer(2, 40))
    if (fate.type === 'intercepted') {
      if (device.isOffline) throw reset()
      return respond(fate.text, { status: fate.status, headers: fate.headers }, { url, ...fate.arrival })
    }
    if (fate.type === 'busy until') {
      if (device.isOffline) throw reset()
      const date = (after: number): string => new Date(Math.floor(timeline.now / 1000 + after) * 1000).toUTCString()
      // By a clock that is hours off nobody could tell how long that is.
      const isDated = fate.isDated || Math.abs(device.ahead) > 200_000
      const headers = { 'Retry-After': date(fate.after), ...(isDated && { Date: date(0) }) }
      return respond('no', { status: fate.status, headers }, { url })
    }
    const [first, second = first] = server.processes.length > 1 && random.chance(0.5) ? [...server.processes].reverse() : server.processes
    if (device.isOffline || fate.type === 'lost' || !first || !second) throw reset()
    if (fate.type === 'damaged' && bytes.length > 0) bytes[fate.at % bytes.length]! ^= 1
    const cutAt = fate.type === 'body cut' && bytes.length > 0 ? fate.at % bytes.length : Number.POSITIVE_INFINITY
    const delivery: Delivery = { url, method, headers, bytes, cutAt, gone, onBytes }
    let answer: Answer
    if (fate.type === 'twice') {
      const copy = pause(fate.after).then(() => {
        // What is on its way arrives, though its sender may be gone.
        const there = server.processes.includes(second) ? second : server.processes[0]
        return there
          ? deliver(sending, there, { ...delivery, gone: new CheapAbortController().signal, onBytes: undefined })
          : Promise.reject(reset())
      })
      copy.catch(() => {})
      const original = deliver(sending, first, delivery)
      original.catch(() => {})
      answer = await (fate.second ? copy : original)
    } else answer = await deliver(sending, first, delivery)
    await pause(random.integer(2, 40))
    if (fate.type === 'answer lost' && fate.silent) await new Promise(() => {})
    if (device.isOffline || fate.type === 'answer lost') throw reset()
    const { status, text } = answer
    const isCut = fate.type === 'answer cut'
    const body = status === 204 ? null : isCut ? text.slice(0, fate.at) : text
    const arrival = fate.type === 'moved' ? { url: `${url}/`, redirected: true } : { url }
    return respond(body, { status, headers: answer.headers }, { ...arrival, isCut })
  }

  const network: Network = {
    fates: new Map(),
    fetchOf: (tab) => (url, init, onBytes) =>
      new Promise((resolve, reject) => {
        const { realm, device } = tab
        if (!realm.alive) return
        const { method = 'GET', signal } = init
        const isProbe = method === 'HEAD'
        const fate = (isProbe ? undefined : network.fates.get(device.name)?.shift()) ?? { type: 'fine' }
        const key = new CheapHeaders(init.headers).get('Idempotency-Key') ?? ''
        const sending: Sending = { tab, key, method, begunAt: timeline.now, wasFrozen: false }
        if (!isProbe) witness.begun(sending, new CheapHeaders(init.headers), fate)
        let isOver = false
        const end = (settle: () => void): void => {
          if (isOver) return
          isOver = true
          if (!isProbe) witness.ended(sending)
          settle()
        }
        realm.onKill.push(() => end(() => gone.abort()))
        const gone = new CheapAbortController()
        signal?.addEventListener('abort', () => {
          end(() => reject(signal.reason))
          gone.abort()
        })
        carry(sending, url, { ...init, method, signal: gone.signal }, fate, onBytes).then(
          (response) =>
            realm.later(0, () =>
              end(() => {
                if (!isProbe) witness.heard(sending, response)
                resolve(response)
              }),
            ),
          (error) => realm.later(0, () => end(() => reject(error))),
        )
      }),
  }
  return network
}
