import { HttpResponse, http } from 'msw'
import { setupServer } from 'msw/node'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest'
import { createNetwork, type Network } from '../src/network.js'
import { advance, fakeClock, flush } from './helpers/fake-clock.js'

const origin = 'https://files.example'
const url = `${origin}/uploads`
const free = Number.POSITIVE_INFINITY

const server = setupServer()
beforeAll(() => server.listen({ onUnhandledRequest: 'error' }))
afterAll(() => server.close())

/** When probes came, ms since the test began. */
let probes: number[]
let isUp: boolean
let changes: unknown[]
let network: Network

beforeEach(() => {
  fakeClock(0)
  probes = []
  changes = []
  isUp = false
  server.use(
    http.head(url, () => {
      probes.push(Date.now())
      return isUp ? new HttpResponse(null, { status: 404 }) : HttpResponse.error()
    }),
  )
  network = createNetwork({ now: Date.now, random: () => 1, onChange: (change) => changes.push(change) })
})

afterEach(() => {
  network.close()
  server.resetHandlers()
})

const lose = async (): Promise<boolean> => {
  const lost = network.lost(url)
  await flush()
  return lost
}

test('an origin of which nothing is known is open', () => {
  expect(network.capacity(origin)).toBe(free)
  expect(network.opensAt(origin)).toBeNull()
})

test('a lost answer closes the gate only if a probe finds nobody', async () => {
  isUp = true
  expect(await lose()).toBe(true)
  expect(network.capacity(origin)).toBe(free)
  expect(changes).toEqual([])
  isUp = false
  expect(await lose()).toBe(false)
  expect(network.capacity(origin)).toBe(0)
  expect(network.opensAt(origin)).toBeNull()
  expect(changes).toEqual([{ origin, reachable: false }])
})

test('another origin is not concerned', async () => {
  await lose()
  network.told('https://third.example', 5_000)
  expect(network.capacity('https://other.example')).toBe(free)
})

test('a probe asks for no right to read, sends no credentials, and is one that engines let out', async () => {
  const fetches = vi.spyOn(globalThis, 'fetch')
  await lose()
  expect(fetches).toHaveBeenCalledOnce()
  const [target, init] = fetches.mock.calls[0] as [string, RequestInit]
  expect(target).toBe(url)
  expect(init).toMatchObject({ method: 'HEAD', mode: 'no-cors', credentials: 'omit', cache: 'no-store' })
  // Fetch, "main fetch": a no-cors request whose redirect mode is not "follow" is a network error.
  expect(init.redirect ?? 'follow').toBe('follow')
  fetches.mockRestore()
})

test('probes back off from a second to a minute', async () => {
  await lose()
  await advance(400_000, 500)
  const gaps = probes.map((time, index) => time - (probes[index - 1] ?? 0)).slice(1)
  expect(gaps.slice(0, 9)).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000])
})

test('probes are spread: up to half the time earlier', async () => {
  network.close()
  network = createNetwork({ now: Date.now, random: () => 0, onChange: () => {} })
  await lose()
  await advance(499)
  expect(probes).toEqual([0])
  await advance(1)
  expect(probes).toEqual([0, 500])
})

test('a probe that gets an answer, of any status, opens the gate', async () => {
  await lose()
  isUp = true
  await advance(1_000)
  expect(network.capacity(origin)).toBe(1)
  expect(changes).toEqual([
    { origin, reachable: false },
    { origin, reachable: true },
  ])
  await advance(300_000, 10_000)
  expect(network.capacity(origin)).toBe(free)
  expect(probes).toHaveLength(2)
})

test.each([
  [0, 0],
  [0.5, 2_500],
  [1, 5_000],
])(
  'an origin that is back gets one upload at a time, for a while that differs from client to client: drawn %d, %i ms',
  async (drawn, ms) => {
    network.close()
    network = createNetwork({ now: Date.now, random: () => drawn, onChange: (change) => changes.push(change) })
    await lose()
    isUp = true
    await network.hint()
    const back = Date.now()
    expect(network.since(origin)).toBe(ms > 0 ? back : network.since(origin))
    for (const passed of [0, ms - 1].filter((time) => time >= 0 && time < ms)) {
      await advance(back + passed - Date.now())
      network.entered(origin)
      network.answered(origin)
      expect([network.capacity(origin), network.opensAt(origin)]).toEqual([1, back + ms])
    }
    await advance(back + ms - Date.now())
    expect([network.capacity(origin), network.opensAt(origin)]).toEqual([free, null])
    expect(changes.slice(-1)).toEqual([{ origin, reachable: true }])
  },
)

test('an origin that is hardly back and says to wait, or is gone again, is closed', async () => {
  await lose()
  isUp = true
  await network.hint()
  network.told(origin, 60_000)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 60_000])
  isUp = false
  await lose()
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, null])
  isUp = true
  await network.hint()
  isUp = false
  expect(await lose()).toBe(false)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, null])
})

test('an answer to an upload opens the gate as well, and probing ends', async () => {
  await lose()
  network.answered(origin)
  expect(network.capacity(origin)).toBe(1)
  expect(changes).toContainEqual({ origin, reachable: true })
  await advance(300_000, 10_000)
  expect(probes).toHaveLength(1)
})

test('every second probe in vain lets one upload find out, and only one', async () => {
  await lose()
  await advance(1_000)
  expect(network.capacity(origin)).toBe(0)
  await advance(2_000)
  expect(network.capacity(origin)).toBe(1)
  expect(changes.at(-1)).toBeUndefined()
  network.entered(origin)
  expect(network.capacity(origin)).toBe(0)
  await lose()
  expect(network.capacity(origin)).toBe(0)
  expect(changes.filter((change) => change !== undefined)).toEqual([{ origin, reachable: false }])
})

test('one that was let through and lost before it was sent has found out as well: the next waits for two more probes', async () => {
  await lose()
  await advance(3_000)
  expect(network.capacity(origin)).toBe(1)
  expect(await lose()).toBe(false)
  expect(network.capacity(origin)).toBe(0)
  expect(probes).toHaveLength(3)
  await advance(11_999)
  expect(network.capacity(origin)).toBe(0)
  await advance(1)
  expect(network.capacity(origin)).toBe(1)
})

test('one that is lost late does not make the next go at once', async () => {
  await lose()
  await advance(3_000)
  network.entered(origin)
  await advance(12_000)
  expect(network.capacity(origin)).toBe(1)
  expect(await lose()).toBe(false)
  expect(network.capacity(origin)).toBe(0)
})

test.each(['online', 'visibilitychange', 'pageshow', 'focus'])('%s probes at once', async (type) => {
  await lose()
  await advance(10_000, 1_000)
  const before = probes.length
  isUp = true
  window.dispatchEvent(new Event(type))
  await flush()
  expect(probes).toHaveLength(before + 1)
  expect(network.capacity(origin)).toBe(1)
})

test('hints that come together are one probe, and put off the next no more than one does', async () => {
  await lose()
  for (const type of ['online', 'visibilitychange', 'pageshow', 'focus']) window.dispatchEvent(new Event(type))
  await network.hint()
  expect(probes).toEqual([0, 0])
  await advance(2_000)
  expect(probes).toEqual([0, 0, 2_000])
})

test('a hint while nothing is closed asks nobody', async () => {
  await network.hint()
  expect(probes).toEqual([])
})

test('the word of the browser is no proof: offline closes nothing', async () => {
  Object.defineProperty(navigator, 'onLine', { value: false, configurable: true })
  window.dispatchEvent(new Event('offline'))
  await flush()
  expect(network.capacity(origin)).toBe(free)
})

test('answers lost at the same time are asked about once', async () => {
  const lost = [network.lost(url), network.lost(url), network.lost(url)]
  await flush()
  expect(await Promise.all(lost)).toEqual([false, false, false])
  expect(probes).toHaveLength(1)
  expect(changes).toHaveLength(1)
})

test('a probe that is never answered has found nobody after 10 s', async () => {
  server.use(http.head(url, () => new Promise<never>(() => {})))
  const lost = network.lost(url)
  await advance(9_999)
  expect(network.capacity(origin)).toBe(free)
  await advance(1)
  expect(await lost).toBe(false)
  expect(network.capacity(origin)).toBe(0)
})

test('an origin that said to wait is closed until then, and then open for one', async () => {
  network.told(origin, 5_000)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 5_000])
  await advance(4_999)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 5_000])
  await advance(1)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([1, null])
  network.answered(origin)
  expect(network.capacity(origin)).toBe(free)
  expect(probes).toEqual([])
})

test('answers to what was sent earlier do not shorten the wait', () => {
  network.told(origin, 60_000)
  network.answered(origin)
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 60_000])
  network.told(origin, 5_000)
  expect(network.opensAt(origin)).toBe(60_000)
  network.told(origin, 90_000)
  expect(network.opensAt(origin)).toBe(90_000)
})

test('a clock that is set back makes no wait longer than it was, counted from when that is noticed', async () => {
  network.told(origin, 60_000)
  await advance(20_000)
  vi.setSystemTime(Date.now() - 3_600_000)
  const noticed = Date.now()
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, noticed + 60_000])
  expect(network.since(origin)).toBe(noticed + 60_000)
  await advance(59_999)
  network.answered(origin)
  expect(network.capacity(origin)).toBe(0)
  await advance(1)
  expect(network.capacity(origin)).toBe(1)
  network.answered(origin)
  expect(network.capacity(origin)).toBe(free)
  await lose()
  isUp = true
  await network.hint()
  vi.setSystemTime(Date.now() - 3_600_000)
  expect(network.capacity(origin)).toBe(1)
  await advance(5_000)
  expect(network.capacity(origin)).toBe(free)
})

test('an origin that was unreachable and says to wait is there', async () => {
  await lose()
  network.told(origin, 60_000)
  expect(changes.at(-1)).toEqual({ origin, reachable: true })
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 60_000])
})

test('an origin that said to wait and then is gone is unreachable', async () => {
  network.told(origin, 1_000)
  await lose()
  await advance(999)
  expect(network.opensAt(origin)).toBeNull()
  expect(changes).toEqual([{ origin, reachable: false }])
})

test('once closed it asks, hears and tells nothing more', async () => {
  await lose()
  network.close()
  isUp = true
  changes.length = 0
  window.dispatchEvent(new Event('online'))
  await advance(300_000, 10_000)
  expect(probes).toHaveLength(1)
  expect(changes).toEqual([])
  expect(vi.getTimerCount()).toBe(0)
})

test.each([true, false])('a probe that comes back to another gate, or none, changes nothing: answered %s', async (isAnswered) => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  await lose()
  server.use(
    http.head(url, async () => {
      await held
      return isAnswered ? new HttpResponse(null) : HttpResponse.error()
    }),
  )
  const looked = network.hint()
  network.told(origin, 60_000)
  changes.length = 0
  release()
  await looked
  expect([network.capacity(origin), network.opensAt(origin)]).toEqual([0, 60_000])
  expect(changes).toEqual([])
  expect(vi.getTimerCount()).toBe(0)
})

test('closed during a probe, it closes no gate', async () => {
  const lost = network.lost(url)
  network.close()
  await flush()
  expect(await lost).toBe(false)
  expect(changes).toEqual([])
  expect(vi.getTimerCount()).toBe(0)
})

test('a place without events of a page is one without hints', async () => {
  const { addEventListener, removeEventListener } = globalThis
  Object.assign(globalThis, { addEventListener: undefined, removeEventListener: undefined })
  try {
    createNetwork({ now: Date.now, random: () => 1, onChange: () => {} }).close()
  } finally {
    Object.assign(globalThis, { addEventListener, removeEventListener })
  }
})
