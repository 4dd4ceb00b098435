import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { type Channel, createTabs, type Locks, leaseBeat, pulseBeat, type Tabs, type TabsOptions } from '../src/tabs.js'
import { advance, fakeClock, flush } from './helpers/fake-clock.js'
import { FakeLocks } from './helpers/locks.js'

interface Tab extends Tabs<string> {
  heardMessages: string[]
  /** What `onRunner` was told. */
  turns: boolean[]
  /** How often it heard that something did not arrive. */
  missed(): number
}

let locks: Locks | undefined
let open: Tab[]
let name: string
let names = 0

/** A lease in a store that all tabs share, as the queue keeps it. */
let lease: { id: number; until: number } | undefined
const leaseLength = 90_000

beforeEach(() => {
  locks = new FakeLocks() as unknown as Locks
  open = []
  lease = undefined
  name = `tabs-test-${process.pid}-${names++}`
})
afterEach(() => {
  for (const tab of open) tab.close()
})

const openTab = (options: Partial<TabsOptions<string>> = {}): Tab => {
  const id = open.length
  let missed = 0
  const heardMessages: string[] = []
  const turns: boolean[] = []
  const tabs = createTabs<string>({
    name,
    id: `tab-${id}`,
    locks,
    random: () => 0.5,
    alive: async () => {},
    onMissed() {
      missed += 1
    },
    openChannel: (channel) => new BroadcastChannel(channel) as Channel,
    async lease() {
      const now = Date.now()
      if (!lease || lease.id === id || lease.until <= now) lease = { id, until: now + leaseLength }
      return lease.id === id
    },
    onMessage: (message) => heardMessages.push(message),
    onRunner: (isRunner) => turns.push(isRunner),
    ...options,
  })
  const tab = Object.assign(tabs, { heardMessages, turns, missed: () => missed })
  open.push(tab)
  return tab
}

test('one tab runs; when it closes the next takes over, in the order of their coming', async () => {
  const [first, second, third] = [openTab(), openTab(), openTab()]
  for (const tab of [first, second, third]) tab.run()
  await flush()
  expect([first.turns, second.turns, third.turns]).toEqual([[true], [], []])
  first.close()
  await flush()
  expect([first.turns, second.turns, third.turns]).toEqual([[true], [true], []])
  second.close()
  await flush()
  expect(third.turns).toEqual([true])
})

test('a tab runs when it is asked to, not before, and only once', async () => {
  const tab = openTab()
  await flush()
  expect(tab.turns).toEqual([])
  tab.run()
  tab.run()
  await flush()
  expect(tab.turns).toEqual([true])
  expect(await (locks as unknown as FakeLocks).query()).toMatchObject({ held: [{ name }], pending: [] })
})

test('a tab that closed while it waited leaves the line', async () => {
  const [first, second, third] = [openTab(), openTab(), openTab()]
  for (const tab of [first, second, third]) tab.run()
  second.close()
  first.close()
  await flush()
  expect([second.turns, third.turns]).toEqual([[], [true]])
})

test('queues of another name have a runner and messages of their own', async () => {
  const [mine, other] = [openTab(), openTab({ name: `${name}-other` })]
  mine.run()
  other.run()
  await flush()
  expect([mine.turns, other.turns]).toEqual([[true], [true]])
  const twin = openTab()
  mine.announce('hello')
  await vi.waitFor(() => expect(twin.heardMessages).toEqual(['hello']))
  expect(other.heardMessages).toEqual([])
})

test('the other tabs hear what one says, and not the one itself; a closed one hears nothing', async () => {
  const [first, second, third] = [openTab(), openTab(), openTab()]
  third.close()
  first.announce('one')
  first.announce('two')
  await vi.waitFor(() => expect(second.heardMessages).toEqual(['one', 'two']))
  expect([first.heardMessages, third.heardMessages]).toEqual([[], []])
  expect(first.heard).toBe(true)
})

test.each<[string, TabsOptions<string>['openChannel']]>([
  ['there are no channels', undefined],
  [
    'an opaque origin has none',
    () => {
      throw new DOMException('opaque origin', 'SecurityError')
    },
  ],
])('%s: it runs all the same, and says that nobody hears', async (_name, openChannel) => {
  const tab = openTab({ openChannel })
  tab.run()
  tab.announce('hello')
  await flush()
  expect([tab.heard, tab.turns]).toEqual([false, [true]])
})

test.each<[string, unknown]>([
  ['absent', undefined],
  ['null, as happy-dom has it', null],
  ['without request', {}],
  ['forbidden', { request: () => Promise.reject(new DOMException('opaque origin', 'SecurityError')) }],
])('locks %s: a lease decides', async (_name, none) => {
  fakeClock()
  locks = none as undefined
  const [first, second] = [openTab(), openTab()]
  first.run()
  await flush()
  second.run()
  await flush()
  expect([first.turns, second.turns]).toEqual([[true], []])
  await advance(3 * leaseLength, leaseBeat)
  expect([first.turns, second.turns]).toEqual([[true], []])
})

test('a tab that died without a word is followed once its lease has run out', async () => {
  fakeClock()
  locks = undefined
  const [first, second] = [openTab(), openTab()]
  first.run()
  await flush()
  second.run()
  first.close()
  await advance(leaseLength - leaseBeat, leaseBeat)
  expect(second.turns).toEqual([])
  await advance(2 * leaseBeat, leaseBeat)
  expect(second.turns).toEqual([true])
})

test('a tab that slept through its lease gives way', async () => {
  fakeClock()
  locks = undefined
  const tab = openTab()
  tab.run()
  await flush()
  lease = { id: 99, until: Date.now() + 1_000_000 }
  await advance(leaseBeat)
  expect(tab.turns).toEqual([true, false])
  await advance(leaseBeat)
  expect(tab.turns).toEqual([true, false])
  lease = undefined
  await advance(leaseBeat)
  expect(tab.turns).toEqual([true, false, true])
})

test('a lease that cannot be had or asked for is asked for again', async () => {
  fakeClock()
  locks = undefined
  let isBroken = true
  const tab = openTab({ lease: async () => (isBroken ? Promise.reject(new Error('no database')) : true) })
  tab.run()
  await advance(leaseBeat)
  expect(tab.turns).toEqual([])
  isBroken = false
  await advance(leaseBeat)
  expect(tab.turns).toEqual([true])
})

test('once closed it asks for no lease, and a late one does not make it run', async () => {
  fakeClock()
  locks = undefined
  let grant = (_mine: boolean): void => {}
  const asked = vi.fn(() => new Promise<boolean>((resolve) => (grant = resolve)))
  const tab = openTab({ lease: asked })
  tab.run()
  tab.close()
  grant(true)
  await advance(10 * leaseBeat, leaseBeat)
  expect(tab.turns).toEqual([])
  expect(asked).toHaveBeenCalledOnce()
  expect(vi.getTimerCount()).toBe(0)
})

test('closed between two beats, it asks no more', async () => {
  fakeClock()
  locks = undefined
  const asked = vi.fn(async () => true)
  const tab = openTab({ lease: asked })
  tab.run()
  await flush()
  tab.close()
  expect(vi.getTimerCount()).toBe(0)
  await advance(10 * leaseBeat, leaseBeat)
  expect(asked).toHaveBeenCalledOnce()
})

test('closed before it ran, it takes no lock', async () => {
  const tab = openTab()
  tab.close()
  tab.run()
  await flush()
  expect(tab.turns).toEqual([])
  expect(await (locks as unknown as FakeLocks).query()).toEqual({ held: [], pending: [] })
})

describe('messages that do not arrive', () => {
  /** A tab to which nothing comes through while it is stopped. */
  const openStoppable = (): { tab: Tab; stopped: boolean } => {
    const it = { stopped: false } as { tab: Tab; stopped: boolean }
    it.tab = openTab({
      openChannel(channel) {
        const opened = new BroadcastChannel(channel) as Channel
        return {
          postMessage: (message) => opened.postMessage(message),
          addEventListener: (type, listener) => opened.addEventListener(type, (event) => it.stopped || listener(event)),
          close: () => opened.close(),
        }
      },
    })
    return it
  }

  test('are noticed with the next one that does', async () => {
    const [talker, listener] = [openTab(), openStoppable()]
    talker.announce('one')
    await vi.waitFor(() => expect(listener.tab.heardMessages).toEqual(['one']))
    listener.stopped = true
    talker.announce('two')
    await flush(50)
    listener.stopped = false
    expect(listener.tab.missed()).toBe(0)
    talker.announce('three')
    talker.announce('four')
    await vi.waitFor(() => expect(listener.tab.heardMessages).toEqual(['one', 'three', 'four']))
    expect(listener.tab.missed()).toBe(1)
  })

  test('are noticed with the next sign of life, by the one that runs and by those who wait', async () => {
    fakeClock()
    const [runs, waits] = [openStoppable(), openStoppable()]
    runs.tab.run()
    await flush()
    waits.tab.run()
    for (const it of [runs, waits]) it.stopped = true
    runs.tab.announce('from the one that runs')
    waits.tab.announce('from the one that waits')
    await flush(50)
    for (const it of [runs, waits]) it.stopped = false
    await advance(2 * pulseBeat, pulseBeat)
    await flush(50)
    expect([runs.tab.missed(), waits.tab.missed()]).toEqual([1, 1])
  })

  test('are none where all arrived', async () => {
    fakeClock()
    const [first, second] = [openTab(), openTab()]
    first.run()
    second.run()
    for (let count = 0; count < 10; count++) {
      first.announce(`first ${count}`)
      second.announce(`second ${count}`)
      await advance(pulseBeat)
    }
    expect([first.missed(), second.missed()]).toEqual([0, 0])
  })
})

describe('a runner that holds the lock', () => {
  /** A page that hangs: what it is told does not reach it. */
  const openFrozen = (): Tab & { thaw(): void } => {
    let isFrozen = true
    const late: (() => void)[] = []
    const tab = openTab({
      openChannel(channel) {
        const opened = new BroadcastChannel(channel) as Channel
        return {
          postMessage: (message) => opened.postMessage(message),
          addEventListener: (type, listener) =>
            opened.addEventListener(type, (event) => (isFrozen ? late.push(() => listener(event)) : listener(event))),
          close: () => opened.close(),
        }
      },
    })
    return Object.assign(tab, {
      thaw() {
        isFrozen = false
        for (const hear of late) hear()
      },
    })
  }

  test('and lives keeps it, however long the others wait', async () => {
    fakeClock()
    const [first, second] = [openTab(), openTab()]
    first.run()
    await flush()
    second.run()
    await advance(40 * pulseBeat, pulseBeat)
    expect([first.turns, second.turns]).toEqual([[true], []])
  })

  test('and hangs loses it to one of those who wait, within a minute; thawed, it waits like the others', async () => {
    fakeClock()
    const frozen = openFrozen()
    const [second, third] = [openTab(), openTab()]
    frozen.run()
    await flush()
    second.run()
    third.run()
    await advance(4 * pulseBeat, pulseBeat)
    expect(frozen.turns).toEqual([true, false])
    expect([second.turns, third.turns].filter((turns) => turns.at(-1) === true)).toHaveLength(1)
    frozen.thaw()
    await advance(20 * pulseBeat, pulseBeat)
    expect(frozen.turns).toEqual([true, false])
    second.close()
    third.close()
    await flush()
    expect(frozen.turns).toEqual([true, false, true])
  })

  test.each<[string, () => Promise<unknown>]>([
    ['does not answer', () => new Promise(() => {})],
    ['fails', () => Promise.reject(new Error('no database'))],
  ])('and hears, but whose database %s, loses it too', async (_what, alive) => {
    fakeClock()
    const [first, second] = [openTab({ alive }), openTab()]
    first.run()
    await flush()
    second.run()
    await advance(4 * pulseBeat, pulseBeat)
    expect([first.turns, second.turns]).toEqual([[true, false], [true]])
  })

  test('is left in peace by those who cannot hear it', async () => {
    fakeClock()
    const [first, deaf] = [openTab(), openTab({ openChannel: undefined })]
    first.run()
    await flush()
    deaf.run()
    await advance(20 * pulseBeat, pulseBeat)
    expect([first.turns, deaf.turns]).toEqual([[true], []])
  })

  test('and is doubted is told once more, a moment later, that it is its turn; one that waits is not', async () => {
    fakeClock()
    const [first, second] = [openTab(), openTab()]
    first.run()
    await flush()
    second.run()
    await flush()
    first.doubt()
    second.doubt()
    await advance(499)
    expect(first.turns).toEqual([true])
    await advance(1)
    expect([first.turns, second.turns]).toEqual([[true, true], []])
  })
})

test('a lease that is doubted is told at the next beat', async () => {
  fakeClock()
  locks = undefined
  const tab = openTab()
  tab.run()
  await flush()
  tab.doubt()
  expect(tab.turns).toEqual([true])
  await advance(leaseBeat)
  expect(tab.turns).toEqual([true, true])
})
