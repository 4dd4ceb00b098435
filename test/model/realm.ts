import { createHash } from 'node:crypto'
import { createRandom } from '../helpers/random.js'
import { CheapAbortController } from './abort.js'
import type { Globals } from './code.js'
import { CheapHeaders } from './headers.js'
import { CheapResponse } from './response.js'
import type { Owner, Timeline } from './timeline.js'

/** A page or a process: what its code takes for the world. It can be frozen, and it can die, and then nothing of it goes on. */
export interface Realm extends Owner {
  name: string
  /** Whether messages that come while it is frozen are lost. */
  isDeaf: boolean
  globals: Globals
  random: () => number
  /** In `ms`, if it lives so long. */
  later(ms: number, run: () => void): void
  /** An event of the page. */
  dispatch(event: Event): void
  freeze(): void
  thaw(): void
  kill(): void
  onKill: (() => void)[]
}

export interface RealmOptions {
  timeline: Timeline
  name: string
  seed: number
  /** What its clock is ahead of the time, ms. */
  ahead?: () => number
}

const hex = (byte: number): string => byte.toString(16).padStart(2, '0')

export function createRealm({ timeline, name, seed, ahead = () => 0 }: RealmOptions): Realm {
  const random = createRandom(seed)
  const start = timeline.now
  const events = new EventTarget()
  const repeating = new Map<number, number>()
  const timers = { last: 0 }
  const now = (): number => timeline.now + ahead()

  const setTimeout = (run: (...args: unknown[]) => void, ms = 0, ...args: unknown[]): number =>
    timeline.later(realm, Math.max(1, Math.ceil(ms)), () => run(...args))
  const setInterval = (run: () => void, ms: number): number => {
    // An interval has a name of its own, below those of all others.
    const id = --timers.last
    const repeat = (): void => {
      repeating.set(id, setTimeout(again, ms))
    }
    const again = (): void => {
      repeat()
      run()
    }
    repeat()
    return id
  }
  const clear = (id: number | undefined): void => {
    if (id === undefined) return
    timeline.cancel(id < 0 ? (repeating.get(id) ?? 0) : id)
    repeating.delete(id)
  }
  const bytes = (length: number): number[] => Array.from({ length }, () => random.integer(0, 255))

  const realm: Realm = {
    name,
    isDeaf: false,
    alive: true,
    frozen: false,
    parked: [],
    random: random.next,
    onKill: [],
    later: (ms, run) => void timeline.later(realm, ms, run),
    dispatch: (event) => void events.dispatchEvent(event),
    freeze() {
      realm.frozen = true
    },
    thaw: () => timeline.thaw(realm),
    kill() {
      realm.alive = false
      realm.parked = []
      for (const told of realm.onKill) told()
    },
    globals: {
      setTimeout,
      setInterval,
      clearTimeout: clear,
      clearInterval: clear,
      Date: class extends Date {
        static override now = now
      },
      performance: { now: () => timeline.now - start },
      crypto: {
        // As the real one, and done at once: a thread pool has an order of its own.
        subtle: {
          digest: async (_algorithm: string, data: ArrayBuffer) =>
            Uint8Array.from(createHash('sha256').update(new Uint8Array(data)).digest()).buffer,
        },
        randomUUID: () =>
          bytes(16)
            .map(hex)
            .join('')
            .replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-'),
      },
      addEventListener: events.addEventListener.bind(events),
      removeEventListener: events.removeEventListener.bind(events),
      navigator: {},
      // As the real one, which keeps track of where it was asked for.
      queueMicrotask: (run: () => void) => void Promise.resolve().then(run),
      AbortController: CheapAbortController,
      Blob,
      Headers: CheapHeaders,
      // Pages make one to see whether it can be made, which takes a while.
      Request: class {},
      Response: CheapResponse,
    },
  }
  return realm
}
