import { clone } from './clone.js'

/** Whoever has something to do: a page, a server process. */
export interface Owner {
  alive: boolean
  frozen: boolean
  /** What came due while it was frozen, in order. */
  parked: (() => void)[]
}

interface Task {
  id: number
  at: number
  owner: Owner | null
  run: () => void
}

/** More tasks than any history needs: something goes on without end. */
const taskLimit = 400_000

/** fake-indexeddb looks again and again whether others have closed their connections: in a time that stands still, for ever. */
const looksAgain = ({ name }: () => void): boolean => name === 'waitForOthersClosed'
const lookInterval = 200

const { setImmediate: realImmediate, structuredClone: realClone } = globalThis

/** Until all that follows from promises has been done. */
const drained = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve))
const turned = (): Promise<void> => new Promise((resolve) => realImmediate(resolve))

/**
 * One time for everybody, and one thing at a time, in an order that depends on nothing but what is asked for. While it is installed,
 * `setImmediate`, by which fake-indexeddb goes from step to step, is one of its tasks, too.
 */
export class Timeline {
  /** ms since 1970. */
  now: number
  steps = 0
  #queue: Task[] = []
  #ids = 0
  #held = 0
  #waiting = new Map<number, Task>()

  constructor(now: number) {
    this.now = now
  }

  install(): () => void {
    globalThis.setImmediate = ((run: () => void) => {
      this.later(null, looksAgain(run) ? lookInterval : 0, run)
    }) as unknown as typeof setImmediate
    globalThis.structuredClone = clone
    return () => {
      globalThis.setImmediate = realImmediate
      globalThis.structuredClone = realClone
    }
  }

  /** In `ms` from now; what its owner does not live to see does not happen. */
  later(owner: Owner | null, ms: number, run: () => void): number {
    const task: Task = { id: ++this.#ids, at: this.now + ms, owner, run }
    let [low, high] = [0, this.#queue.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.#queue[middle]!.at <= task.at) low = middle + 1
      else high = middle
    }
    this.#queue.splice(low, 0, task)
    this.#waiting.set(task.id, task)
    return task.id
  }

  cancel(id: number): void {
    const task = this.#waiting.get(id)
    if (!task) return
    this.#waiting.delete(id)
    task.run = () => {}
    const place = this.#queue.indexOf(task)
    if (place >= 0) this.#queue.splice(place, 1)
  }

  /** As a promise, which does not settle for those who do not live to see it. */
  wait(owner: Owner | null, ms: number): Promise<void> {
    return new Promise((resolve) => this.later(owner, ms, resolve))
  }

  /** What really takes a while: nothing else happens meanwhile. */
  async hold<T>(work: () => Promise<T>): Promise<T> {
    this.#held += 1
    try {
      return await work()
    } finally {
      this.#held -= 1
    }
  }

  async #drain(): Promise<void> {
    await drained()
    while (this.#held > 0) await turned()
  }

  /** Does what is due now, `limit` tasks at most, and what follows from that. */
  async settle(limit = Number.POSITIVE_INFINITY): Promise<void> {
    await this.#drain()
    for (let count = 0; count < limit; ) {
      const [task] = this.#queue
      if (!task || task.at > this.now) return
      this.#queue.shift()
      this.#waiting.delete(task.id)
      const { owner } = task
      if (owner?.alive === false) continue
      if (owner?.frozen) {
        owner.parked.push(() => task.run())
        continue
      }
      count += 1
      this.steps += 1
      if (this.steps > taskLimit) throw new Error('There is no end to it.')
      task.run()
      await this.#drain()
    }
  }

  /** Lets time pass, and does what comes due. */
  async pass(ms: number): Promise<void> {
    const end = this.now + ms
    await this.settle()
    for (let next = this.#queue[0]; next && next.at <= end; next = this.#queue[0]) {
      this.now = Math.max(this.now, next.at)
      await this.settle()
    }
    this.now = end
  }

  /** Lets time pass in which everybody sleeps: what would have come due meanwhile does so now, once. */
  jump(ms: number): void {
    this.now += ms
  }

  /** What was parked is due. */
  thaw(owner: Owner): void {
    owner.frozen = false
    for (const run of owner.parked.splice(0)) this.later(owner, 0, run)
  }
}
