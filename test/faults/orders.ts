import type { RespondPolicy } from '../../demo/server/idempotency.js'
import { storeAllButTooMany } from '../../demo/server/idempotency.js'
import type { Random } from '../helpers/random.js'
import { type Answer, carry } from './delivery.js'
import { must, type Snapshot } from './invariants.js'
import { type Simulation, threads } from './simulation.js'
import type { Worker } from './worker.js'

/** What one client wants a buffered handler to do once. */
export interface Order {
  owner: string
  key: string
  item: string
}

/** How the keys of a buffered handler's answers are dealt with. */
export const policies: RespondPolicy[] = [
  storeAllButTooMany,
  ({ status, thrown }) => (thrown || status >= 500 || status === 429 ? 'release' : 'store'),
  ({ status }) => (status >= 400 ? 'hold' : 'store'),
]

const deeds = ['answer', 'answer', 'answer', 'fail', 'busy', 'throw', 'never'] as const
const STATUS = { answer: 201, fail: 500, busy: 429, throw: 500, never: 0 }

/** One execution of the handler. */
interface Run {
  order: Order
  thread: string
  deed: (typeof deeds)[number]
  status: number
  /** Of its answer; no two runs have the same. */
  text: string
}

/** The name of an order's key row. */
export const rowOf = ({ owner, key }: Order): string => `${owner}/POST /orders ${key}`

export interface OrdersOptions {
  simulation: Simulation
  random: Random
  policy: RespondPolicy
  latest: () => Snapshot
  fail: (error: unknown) => void
  /** What the statements of a request have done. */
  did: (thread: string, what: 'claim' | 'intrude' | 'release') => boolean
  /** Whether the store may have failed a request. */
  mayHaveFailed: (thread: string) => boolean
}

/** A buffered handler behind the wrapper, and what must hold of its answers. */
export function createOrders({ simulation, random, policy, latest, fail, did, mayHaveFailed }: OrdersOptions) {
  const runs: Run[] = []

  async function execute(order: Order): Promise<Response> {
    const thread = threads.getStore()!.name
    if (!did(thread, 'claim')) fail(new Error(`O1: ${rowOf(order)} is carried out by ${thread} without a claim`))
    const deed = simulation.isFree ? 'answer' : random.pick(deeds)
    const run: Run = { order, thread, deed: 'throw', status: STATUS[deed], text: JSON.stringify({ run: runs.length }) }
    runs.push(run)
    await simulation.pass('work', async () => {})
    run.deed = deed
    if (deed === 'throw') throw new Error('the handler has failed')
    if (deed === 'never') await new Promise(() => {})
    return new Response(run.text, { status: run.status, headers: { 'Content-Type': 'application/json' } })
  }

  function check(order: Order, thread: string, { status, error, text, headers }: Answer): void {
    const name = rowOf(order)
    const what = `${name} is answered ${status} ${error ?? ''}`
    const isReplay = headers.get('Idempotent-Replayed') === 'true'
    if (status === 409 || error === 'idempotency_key_reuse') must(!did(thread, 'intrude'), `I12: ${what}, and it has changed something`)
    const own = runs.find((run) => run.thread === thread)
    const isHeld = own?.deed === 'throw' && policy({ status: 500, thrown: true }) === 'hold'
    must(!isHeld || !did(thread, 'release'), `O4: ${what}, and the key of a failed handler is free again`)
    const run = runs.find((one) => one.text === text)
    if (isReplay) {
      must(
        run !== undefined && rowOf(run.order) === name && run.order.item === order.item,
        `O2: ${what} with a replay of nothing it has done`,
      )
      must(policy({ status, thrown: false }) === 'store', `O2: ${what} with a replay of what is not to be kept`)
    } else if (run) {
      must(run === own, `O3: ${what} with the answer of another run, unmarked`)
      const isKept = latest().keys.get(name)?.body === text
      must(isKept || policy({ status, thrown: false }) !== 'store' || mayHaveFailed(thread), `O3: ${what}, and the answer is not kept`)
    }
  }

  /** Carries an order to a worker, and its answer back. */
  function send(
    order: Order,
    worker: Worker,
    name: string,
    onAnswer: (answer: Answer) => void,
  ): { cut(): void; answer: Promise<Answer | null> } {
    const gone = new AbortController()
    const request = new Request('http://localhost/orders', {
      method: 'POST',
      body: JSON.stringify({ item: order.item }),
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': order.key },
      signal: gone.signal,
    })
    const handle = (): Promise<Response> =>
      worker.order(request, order.owner, () => execute(order)).catch(() => new Response('the app answers for its handler', { status: 500 }))
    return { cut: () => gone.abort(), answer: carry({ simulation, process: worker.process, name, gone: gone.signal, handle, onAnswer }) }
  }

  return { send, check }
}
