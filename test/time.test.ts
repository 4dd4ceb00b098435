import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../src/index.js'
import { advance, fakeClock, until } from './helpers/fake-clock.js'
import { createTransportDouble, type SentRequest, type TransportDouble } from './helpers/transport.js'

const endpoint = 'https://files.example/uploads'
const minute = 60_000
const hour = 3_600_000
const files = (count: number): File[] => Array.from({ length: count }, (_, index) => new File([`${index}`], `${index}`))

let transport: TransportDouble
const opened: UploadQueue<never>[] = []
const openQueue = (options: Partial<UploadQueueOptions<never>> = {}): UploadQueue<never> => {
  const queue = createUploadQueue<never>({ endpoint, transport, ...options })
  opened.push(queue)
  return queue
}

beforeEach(() => {
  fakeClock()
  transport = createTransportDouble()
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
})
afterEach(async () => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  vi.restoreAllMocks()
  vi.unstubAllGlobals()
})

/** Time that no clock setting changes, ms. */
let steady = 0
/** A second passes. */
const second = async (): Promise<void> => {
  await advance(1_000)
  steady += 1_000
}
/** What came in, and when by the steady clock. */
interface Arrival {
  name: string
  at: number
}
/** Answers the first requests of each file as told, and stores it then. */
const serve = (answer: (request: SentRequest) => void, times = 1): Arrival[] => {
  const arrivals: Arrival[] = []
  const run = async (): Promise<never> => {
    for (;;) {
      const request = await transport.nextRequest()
      const name = request.headers.get('X-File-Name')!
      arrivals.push({ name, at: steady })
      if (arrivals.filter((arrival) => arrival.name === name).length > times) request.store()
      else answer(request)
    }
  }
  void run()
  return arrivals
}
const allAre = (queue: UploadQueue<never>, status: string): boolean => queue.getSnapshot().every((upload) => upload.status === status)

/** What a record may wait for, for how long at least and at most, ms, and how often until all five have waited. */
const waits: [name: string, answer: (request: SentRequest) => void, least: number, most: number, rounds: number][] = [
  ['its backoff', (request) => request.respondWith({ status: 500 }), 250, 1_000, 1],
  ['what it alone was told', (request) => request.respondWith({ status: 409, headers: { 'Retry-After': '100' } }), 100_000, 101_000, 1],
  ['what all were told', (request) => request.respondWith({ status: 503, headers: { 'Retry-After': '100' } }), 100_000, 101_000, 5],
]

describe.each(waits)('the clock changes while records wait for %s', (_what, answer, least, most, rounds) => {
  /** Five uploads, of which those that were sent wait, as the clock changes by so much. */
  const change = async (ms: number): Promise<{ queue: UploadQueue<never>; arrivals: Arrival[] }> => {
    steady = 0
    const arrivals = serve(answer)
    const queue = openQueue({ concurrency: 2 })
    await queue.enqueueAll(files(5))
    await until(() => arrivals.length >= 2 && queue.getSnapshot().every((upload) => upload.status === 'pending'))
    vi.setSystemTime(Date.now() + ms)
    return { queue, arrivals }
  }

  test.each([-hour, -1_000 * hour])('back by %i ms: each starts once, when its wait is over or a minute later', async (ms) => {
    const { queue, arrivals } = await change(ms)
    const before = arrivals.length
    for (let passed = 0; passed < 1_000 && !allAre(queue, 'succeeded'); passed++) await second()
    expect(allAre(queue, 'succeeded')).toBe(true)
    expect(arrivals.length).toBe(2 * 5)
    expect(transport.mostOpen).toBeLessThanOrEqual(2)
    for (const name of new Set(arrivals.slice(0, before).map((arrival) => arrival.name))) {
      const [first, again] = arrivals.filter((arrival) => arrival.name === name).map(({ at }) => at)
      // What waits begins anew when that is noticed.
      expect(again! - first!).toBeGreaterThanOrEqual(Math.floor(least / 1_000) * 1_000)
    }
    expect(steady).toBeLessThanOrEqual(minute + rounds * (most + 2_000))
  })

  test.each([hour, 24 * hour])('forward by %i ms, or a sleep of so long: each starts once, within a minute and the slots', async (ms) => {
    const { queue, arrivals } = await change(ms)
    for (let passed = 0; passed < 1_000 && !allAre(queue, 'succeeded'); passed++) await second()
    expect(allAre(queue, 'succeeded')).toBe(true)
    expect(arrivals.length).toBe(2 * 5)
    expect(transport.mostOpen).toBeLessThanOrEqual(2)
    expect(arrivals.filter(({ name }) => name === '0')[1]!.at).toBeLessThanOrEqual(minute + 2_000)
  })

  test('timers that run once a minute only: each starts once, in the minute after its wait', async () => {
    const { setTimeout } = globalThis
    vi.stubGlobal('setTimeout', (run: () => void, ms = 0) => setTimeout(run, Math.ceil((Date.now() + ms) / minute) * minute - Date.now()))
    const { queue, arrivals } = await change(0)
    const before = arrivals.length
    for (let passed = 0; passed < 2_000 && !allAre(queue, 'succeeded'); passed++) await second()
    expect(allAre(queue, 'succeeded')).toBe(true)
    expect(arrivals.length).toBe(2 * 5)
    for (const name of new Set(arrivals.slice(0, before).map((arrival) => arrival.name))) {
      const [first, again] = arrivals.filter((arrival) => arrival.name === name).map(({ at }) => at)
      expect(again! - first!).toBeGreaterThanOrEqual(Math.floor(least / 1_000) * 1_000)
    }
    expect(steady).toBeLessThanOrEqual(rounds * (most + 2 * minute))
  })
})

test('a wait that was told binds other tabs and the next page, and starts once in whichever sends then', async () => {
  steady = 0
  const arrivals = serve((request) => request.respondWith({ status: 409, headers: { 'Retry-After': '3600' } }))
  const first = openQueue()
  await first.enqueueAll(files(3))
  await until(() => arrivals.length === 3 && allAre(first, 'pending'))
  const second = openQueue()
  await second.ready()
  for (let passed = 0; passed < 1_800; passed += 60) await advance(minute)
  // The tab that was told goes; the other takes over; then a new page comes, and the other goes as well.
  await first.close()
  for (let passed = 0; passed < 900; passed += 60) await advance(minute)
  const third = openQueue()
  await third.ready()
  await second.close()
  for (let passed = 0; passed < 840; passed += 60) await advance(minute)
  expect(arrivals).toHaveLength(3)
  await advance(2 * minute, 1_000)
  expect(allAre(third, 'succeeded')).toBe(true)
  expect(arrivals).toHaveLength(6)
})

test('no timer is longer than timers can be, whatever servers and apps say', async () => {
  const delays: number[] = []
  const { setTimeout, setInterval } = globalThis
  const spy = (timer: typeof setTimeout) => (run: () => void, ms?: number) => {
    delays.push(ms ?? 0)
    return timer(run, ms)
  }
  vi.stubGlobal('setTimeout', spy(setTimeout))
  vi.stubGlobal('setInterval', spy(setInterval as never))
  const year = 365 * 24 * hour
  transport = createTransportDouble({ reportsBytes: true })
  const queue = openQueue({
    maxAge: year,
    timeout: Number.POSITIVE_INFINITY,
    stallTimeout: Number.MAX_VALUE,
    retry: { baseDelay: year, maxDelay: year, maxRetryAfter: year, limit: Number.POSITIVE_INFINITY },
  })
  const told = { 'Retry-After': '9999999999' }
  for (const answer of [{ status: 409, headers: told }, { status: 500 }, { status: 503, headers: told }]) {
    const upload = await queue.enqueue(new File(['hello'], 'one'))
    ;(await transport.nextRequest()).respondWith(answer)
    await until(() => upload.snapshot?.status === 'pending')
  }
  await advance(48 * hour, hour)
  expect(transport.requests).toHaveLength(3)
  expect(delays.length).toBeGreaterThan(10)
  for (const delay of delays) expect(delay >= 0 && delay <= 2 ** 31 - 1, `a timer of ${delay} ms`).toBe(true)
})

test('a wait of a day, the longest that is obeyed, ends after a day', async () => {
  steady = 0
  const arrivals = serve((request) => request.respondWith({ status: 409, headers: { 'Retry-After': '9999999999' } }))
  const queue = openQueue()
  await queue.enqueueAll(files(1))
  await until(() => allAre(queue, 'pending') && arrivals.length === 1)
  await advance(24 * hour - 1_000, hour)
  expect(arrivals).toHaveLength(1)
  await advance(3_000, 1_000)
  expect(allAre(queue, 'succeeded')).toBe(true)
})

test('a page that wakes after hours without a network asks once whether anybody is there, and then sends within its slots', async () => {
  const probes = vi.fn(() => Promise.reject(new TypeError('Failed to fetch')))
  vi.stubGlobal('fetch', probes)
  let isAway = true
  const run = async (): Promise<never> => {
    for (;;) {
      const request = await transport.nextRequest()
      if (isAway) request.lose()
      else request.store()
    }
  }
  void run()
  const queue = openQueue({ concurrency: 2 })
  await queue.enqueueAll(files(10))
  await advance(10 * minute, 1_000)
  expect(allAre(queue, 'pending')).toBe(true)
  const before = transport.requests.length
  const asked = probes.mock.calls.length
  vi.setSystemTime(Date.now() + 8 * hour)
  await advance(minute, 1_000)
  expect(probes.mock.calls.length - asked).toBeLessThanOrEqual(2)
  expect(transport.requests.length - before).toBeLessThanOrEqual(1)
  isAway = false
  vi.stubGlobal('fetch', () => Promise.resolve(new Response()))
  dispatchEvent(new Event('online'))
  const sent = transport.requests.length
  await advance(10_000, 100)
  expect(allAre(queue, 'succeeded')).toBe(true)
  expect(transport.requests.length - sent).toBe(10)
  expect(transport.mostOpen).toBeLessThanOrEqual(2)
  expect(queue.getSnapshot().every(({ attempts }) => attempts === 1)).toBe(true)
})

test('an attempt that was asleep for hours ends soon after, once, and is made again with the same key', async () => {
  const queue = openQueue()
  const upload = await queue.enqueue(files(1)[0]!)
  const first = await transport.nextRequest()
  await advance(30_000)
  vi.setSystemTime(Date.now() + 8 * hour)
  await advance(2 * minute, 1_000)
  expect(first.signal.aborted).toBe(true)
  expect(transport.requests).toHaveLength(2)
  expect(transport.requests[1]!.key).toBe(first.key)
  transport.requests[1]!.store()
  await upload.done
  expect(upload.snapshot).toMatchObject({ requests: 2, attempts: 2 })
})
