import { APP, uploadRequest } from '../server/fixture.js'
import { must, nameOf, type Snapshot } from './invariants.js'
import type { Process, Simulation } from './simulation.js'
import type { Worker } from './worker.js'

export const CHUNK = 700

/** What one client wants to have stored. */
export interface Intent {
  owner: string
  key: string
  body: Uint8Array
  digest: string
  /** Whether the length is declared. */
  hasLength: boolean
}

export interface Answer {
  status: number
  error: string | null
  headers: Headers
  text: string
}

export interface Delivery {
  name: string
  intent: Intent
  process: Process
  /** Bytes the server has taken. */
  pulled: number
  /** Whether the server is done with it. */
  ended: boolean
  /** The client goes away. */
  cut(): void
  /** Null: none came. */
  answer: Promise<Answer | null>
}

export interface CarryOptions {
  simulation: Simulation
  process: Process
  name: string
  /** Aborts when the client goes away. */
  gone: AbortSignal
  handle: () => Promise<Response>
  /** Told what the server has sent, whether or not it arrives. */
  onAnswer: (answer: Answer) => void
}

/** Has a request answered and its answer brought back; null: none came. */
export function carry({ simulation, process, name, gone, handle, onAnswer }: CarryOptions): Promise<Answer | null> {
  return new Promise((resolve, reject) => {
    const lose = (): void => resolve(null)
    gone.addEventListener('abort', lose)
    process.onCrash.push(lose)
    const exchange = async (): Promise<void> => {
      const response = await handle()
      const text = await response.text()
      const isProblem = response.headers.get('Content-Type') === 'application/problem+json'
      const error = isProblem ? (JSON.parse(text) as { error: string }).error : null
      const answer = { status: response.status, error, headers: response.headers, text }
      onAnswer(answer)
      const fate = await simulation.park('answer')
      if (fate === 'crash before' || fate === 'crash after') simulation.crash(process)
      resolve(fate === 'go' ? answer : null)
    }
    simulation.run(name, process, exchange).catch(reject)
  })
}

export interface DeliveryOptions {
  simulation: Simulation
  worker: Worker
  name: string
  intent: Intent
  /** Bytes are changed on the way. */
  corrupt?: boolean
  method?: 'POST' | 'GET'
  /** Told what the server has sent, whether or not it arrives. */
  onAnswer: (answer: Answer) => void
}

/** Carries one request to a worker, chunk by chunk, and its answer back; each of them can be held up or lost. */
export function deliver({ simulation, worker, name, intent, corrupt = false, method = 'POST', onAnswer }: DeliveryOptions): Delivery {
  const { process } = worker
  const gone = new AbortController()
  const inWorker = <Result>(work: () => Promise<Result>): Promise<Result> => simulation.run(name, process, work)
  let at = 0
  const body = new ReadableStream<Uint8Array>(
    {
      pull: (controller) =>
        inWorker(async () => {
          const fate = await simulation.park('chunk', { canFail: false })
          if (gone.signal.aborted || fate !== 'go') return
          if (at >= intent.body.byteLength) return controller.close()
          const chunk = intent.body.slice(at, at + CHUNK)
          if (corrupt && at === 0) chunk[0]! ^= 1
          at += chunk.byteLength
          delivery.pulled += chunk.byteLength
          controller.enqueue(chunk)
        }),
      start(controller) {
        gone.signal.addEventListener('abort', () => controller.error(new Error('connection reset')))
      },
    },
    { highWaterMark: 0 },
  )
  const { owner, key, digest } = intent
  const request = uploadRequest({
    owner,
    key,
    digest,
    method,
    ...(method === 'POST' ? { body } : { path: '/uploads/outcome' }),
    signal: gone.signal,
    headers: { Origin: APP, ...(intent.hasLength ? { 'Content-Length': String(intent.body.byteLength) } : {}) },
  })

  const delivery: Delivery = {
    name,
    intent,
    process,
    pulled: 0,
    ended: false,
    cut: () => gone.abort(),
    answer: carry({
      simulation,
      process,
      name,
      gone: gone.signal,
      handle: () => worker.handle(request),
      onAnswer: (answer) => {
        delivery.ended = true
        onAnswer(answer)
      },
    }),
  }
  return delivery
}

export interface AnswersOptions {
  maxBytes: number
  discardBytes: number
  latest: () => Snapshot
}

/** Holds every answer against the invariants of the server. */
export function createAnswers({ maxBytes, discardBytes, latest }: AnswersOptions) {
  const successes = new Map<string, { text: string; location: string | null; type: string | null; firsts: number }>()

  function checkSuccess(intent: Intent, { headers, text, status }: Answer, isReplay: boolean): void {
    const name = nameOf(intent)
    const stored = JSON.parse(text) as { uploadId: string; sha256: string; bytes: number }
    must(status === 201 && stored.sha256 === intent.digest, `G2: ${name} is answered ${status} for a file with another digest`)
    const media = latest().media.find((row) => nameOf(row) === name)
    must(media !== undefined, `G4: ${name} is answered ${status}, and there is no media row`)
    must(media!.id === stored.uploadId, `I3: ${name} is answered with an id that is not its media row's`)
    const known = successes.get(name) ?? { text, location: headers.get('Location'), type: headers.get('Content-Type'), firsts: 0 }
    successes.set(name, known)
    if (!isReplay) known.firsts++
    must(known.firsts <= 1, `I4: ${name} got two answers without the marks of a replay`)
    const isSame = known.text === text && known.location === headers.get('Location') && known.type === headers.get('Content-Type')
    must(isSame, `I4: two successes of ${name} differ`)
  }

  return {
    /** An answer to an upload. `intruded`: its request has changed a row that it had not claimed. */
    check(delivery: Delivery, answer: Answer, intruded: boolean): void {
      const { intent, pulled } = delivery
      const { status, error, headers } = answer
      const what = `${nameOf(intent)} is answered ${status} ${error ?? ''}`
      const isReplay = headers.get('Idempotent-Replayed') === 'true'
      must(headers.get('Access-Control-Allow-Origin') === APP, `I16: ${what} without CORS headers`)
      must((headers.get('Idempotent-Replay') === 'true') === isReplay, `I4: ${what} with one mark of a replay`)
      must(pulled <= maxBytes + CHUNK + discardBytes + CHUNK, `I15: ${what} after ${pulled} bytes`)
      if (status === 409 || error === 'idempotency_key_reuse') must(!intruded, `I12: ${what}, and it has changed something`)
      const isFault = status >= 500 || status === 408 || status === 429 || error === 'digest_mismatch'
      must(!(isReplay && isFault), `I10: ${what} as a replay`)
      if (status < 300) checkSuccess(intent, answer, isReplay)
    },
    /** An answer of the look-up. */
    checkOutcome(intent: Intent, { status, text, headers }: Answer): void {
      must(headers.get('Access-Control-Allow-Origin') === APP, 'I16: a look-up without CORS headers')
      if (status !== 200) return
      const outcome = JSON.parse(text) as { state: string; status?: number; body?: string }
      if (outcome.state !== 'completed' || outcome.status !== 201) return
      const { uploadId } = JSON.parse(outcome.body!) as { uploadId: string }
      const media = latest().media.find((row) => nameOf(row) === nameOf(intent))
      must(media?.id === uploadId, `I3: a look-up of ${nameOf(intent)} names an id that is not its media row's`)
    },
  }
}
