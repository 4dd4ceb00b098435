import { createUploadQueue, type Transport, UploadError, type UploadQueue } from '../../src/index.js'
import { createRandom, type Random } from '../helpers/random.js'

export interface Outage {
  clients: number
  /** Of each client. */
  uploads: number
  /** ms from the moment in which the server goes away. */
  length: number
  /** The clients' files are picked in so many first ms of the outage, each client's at a moment of its own. */
  arrivals: number
  /** What becomes of requests meanwhile: refused at once, or never answered. */
  manner: 'refused' | 'silent'
  seed?: number
}

export interface OutageFigures {
  /** Uploads that have succeeded. */
  succeeded: number
  /** What the server has stored, by idempotency key. */
  stored: number
  /** The most probes that one client had in flight. */
  mostProbes: number
  /** The most requests of any kind that one client had in flight while the server was away, once a probe had found nobody. */
  mostInFlight: number
  /** Requests while the server was away. */
  away: number
  /** The most requests in any second before and after its return. */
  peakAway: number
  peakBack: number
  /** From its return to the last success, s. */
  untilDone: number
}

/** One millisecond after another, each when all that the one before has set going is done. Replaces the timers of everybody. */
function createClock(start: number): {
  now(): number
  later(ms: number): Promise<void>
  runUntil(holds: () => boolean): Promise<void>
  restore(): void
} {
  const { setTimeout, clearTimeout } = globalThis
  const due = new Map<number, Map<number, () => void>>()
  const places = new Map<number, number>()
  let now = start
  let count = 0
  const set = (run: () => void, ms = 1): number => {
    const at = now + Math.max(1, Math.ceil(ms))
    count += 1
    const timers = due.get(at) ?? new Map<number, () => void>()
    due.set(at, timers.set(count, run))
    places.set(count, at)
    return count
  }
  const clear = (id: number): void => {
    due.get(places.get(id) ?? 0)?.delete(id)
    places.delete(id)
  }
  Object.assign(globalThis, { setTimeout: set, clearTimeout: clear })
  return {
    now: () => now,
    later: (ms) => new Promise((resolve) => set(resolve, ms)),
    async runUntil(holds) {
      while (!holds()) {
        const timers = due.get(now)
        if (timers) {
          due.delete(now)
          for (const [id, run] of timers) {
            places.delete(id)
            run()
          }
          // The bytes of a Blob come in the next turn of the event loop.
          for (let turn = 0; turn < 3; turn++) await new Promise<void>((resolve) => setImmediate(resolve))
        }
        now += 1
      }
    },
    restore: () => void Object.assign(globalThis, { setTimeout, clearTimeout }),
  }
}

/** The most that lie in any one second. */
function peak(times: readonly number[]): number {
  let most = 0
  let first = 0
  const sorted = [...times].sort((a, b) => a - b)
  sorted.forEach((time, index) => {
    while (time - sorted[first]! >= 1_000) first += 1
    most = Math.max(most, index - first + 1)
  })
  return most
}

/**
 * Many queues, each of a page of its own, in one simulated time, whose server goes away as they begin and comes back. Everything but the time,
 * the network and the server is the real thing.
 */
export async function simulateOutage({ clients, uploads, length, arrivals, manner, seed = 1 }: Outage): Promise<OutageFigures> {
  const random: Random = createRandom(seed)
  const { fetch } = globalThis
  const clock = createClock(1_700_000_000_000)
  const start = clock.now()
  const end = start + length
  const isAway = (): boolean => clock.now() < end
  const times: number[] = []
  const keys = new Set<string>()
  const figures = { mostProbes: 0, mostInFlight: 0 }
  let succeeded = 0
  let lastSuccess = end

  interface Client {
    probes: number
    inFlight: number
    isOffline: boolean
    queue: UploadQueue
  }
  const all: Client[] = []

  /** A request on its way: resolves when it is answered, rejects where nobody is there or it is given up. */
  const arrive = async (client: Client, signal: AbortSignal): Promise<void> => {
    times.push(clock.now())
    client.inFlight += 1
    if (isAway() && client.isOffline) figures.mostInFlight = Math.max(figures.mostInFlight, client.inFlight)
    const aborted = new Promise<never>((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    aborted.catch(() => {})
    try {
      if (!isAway()) return await Promise.race([clock.later(random.integer(50, 500)), aborted])
      if (manner === 'silent') return await aborted
      await clock.later(random.integer(1, 50))
      throw new TypeError('Failed to fetch')
    } finally {
      client.inFlight -= 1
    }
  }

  globalThis.fetch = async (url, init) => {
    const client = all[Number(new URL(String(url)).searchParams.get('client'))]!
    client.probes += 1
    figures.mostProbes = Math.max(figures.mostProbes, client.probes)
    try {
      await arrive(client, init!.signal!)
      return new Response(null, { status: 405 })
    } finally {
      client.probes -= 1
    }
  }

  const transportOf = (index: number): Transport => ({
    reportsBytes: false,
    async send({ url, headers, signal }) {
      await arrive(all[index]!, signal).catch((cause) => {
        throw signal.aborted ? signal.reason : new UploadError('network', 'No readable answer.', { cause })
      })
      const key = headers.get('Idempotency-Key') ?? ''
      keys.add(key)
      const text = JSON.stringify({ uploadId: key, storageKey: key })
      return { status: 201, headers: new Headers(), url, redirected: false, text, broken: false }
    },
  })

  try {
    for (let index = 0; index < clients; index++) {
      const queue = createUploadQueue(
        { endpoint: `https://files.example/uploads?client=${index}`, persist: 'memory', autoStart: false, transport: transportOf(index) },
        { now: clock.now, random: random.next, locks: undefined, openChannel: undefined, storage: undefined },
      )
      const client = { probes: 0, inFlight: 0, isOffline: false, queue }
      all.push(client)
      queue.on('offline', () => {
        client.isOffline = true
      })
      queue.on('succeeded', () => {
        succeeded += 1
        lastSuccess = clock.now()
      })
      await queue.enqueueAll(Array.from({ length: uploads }, (_, place) => new File([`${index} ${place}`], `${place}`)))
    }
    const started = Promise.all(all.map(({ queue }) => clock.later(random.integer(1, arrivals)).then(() => queue.start())))
    await clock.runUntil(() => succeeded === clients * uploads || clock.now() > end + 3_600_000)
    await started
    const back = times.filter((time) => time >= end)
    return {
      ...figures,
      succeeded,
      stored: keys.size,
      away: times.length - back.length,
      peakAway: peak(times.filter((time) => time < end)),
      peakBack: peak(back),
      untilDone: (lastSuccess - end) / 1_000,
    }
  } finally {
    await Promise.all(all.map(({ queue }) => queue.close()))
    clock.restore()
    globalThis.fetch = fetch
  }
}

const CLIENTS = 1_000
const UPLOADS = 10
const LENGTH = 600_000
const SHARE = 0.05

export async function benchOutage(): Promise<void> {
  const all = CLIENTS * UPLOADS
  for (const manner of ['refused', 'silent'] as const) {
    for (const arrivals of [1, 60_000]) {
      const began = performance.now()
      const figures = await simulateOutage({ clients: CLIENTS, uploads: UPLOADS, length: LENGTH, arrivals, manner })
      const { succeeded, stored, mostProbes, away, peakAway, peakBack, untilDone } = figures
      const when = arrivals === 1 ? 'all at the same moment' : `spread over ${arrivals / 1_000} s`
      const share = ((peakBack / all) * 100).toFixed(1)
      const took = ((performance.now() - began) / 1_000).toFixed(0)
      console.log(
        `outage: ${CLIENTS} clients × ${UPLOADS} uploads begin, ${when}, as the server goes away for ${LENGTH / 60_000} min (requests ${manner})`,
      )
      console.log(`outage:   ${succeeded} succeeded (limit: ${all}), ${stored} stored, ${untilDone.toFixed(0)} s after its return`)
      console.log(`outage:   probes in flight per client: ${mostProbes} at most (limit: 1)`)
      console.log(
        `outage:   requests in any second after its return: ${peakBack} at most, ${share} % of all uploads (limit: ${SHARE * 100} %)`,
      )
      console.log(`outage:   requests meanwhile: ${away}, ${peakAway} at most in a second; simulated in ${took} s`)
      if (succeeded < all || stored < all || mostProbes > 1 || peakBack > all * SHARE)
        throw new Error('An outage does not end as it should.')
    }
  }
}
