import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../src/index.js'
import type { QueuePorts } from '../src/ports.js'
import { serveUploads, syncInBackground } from '../src/service-worker.js'
import type { Channel } from '../src/tabs.js'
import { advance, fakeClock, flush, runUntil, until } from './helpers/fake-clock.js'
import type { FakeLocks } from './helpers/locks.js'
import { createTransportDouble, type TransportDouble } from './helpers/transport.js'

const endpoint = 'http://localhost:3000/uploads'
const tag = 'uponce:uploads'
const file = (text = 'hello'): File => new File([text], 'a.txt')
const locks = navigator as unknown as { locks: FakeLocks }

let transport: TransportDouble
let channels: number
const opened: UploadQueue[] = []
const endings: (() => void)[] = []

beforeEach(() => {
  fakeClock()
  transport = createTransportDouble()
  channels = 0
  // A worker has no screen.
  vi.stubGlobal('requestAnimationFrame', undefined)
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
})
afterEach(async () => {
  for (const end of endings.splice(0)) end()
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  vi.unstubAllGlobals()
})

const openPage = (options: Partial<UploadQueueOptions> = {}): UploadQueue => {
  const queue = createUploadQueue({ endpoint, transport, ...options })
  opened.push(queue)
  return queue
}

/** Saves files in a page that sends nothing, and closes it. Returns their keys. */
const leaveBehind = async (texts: string[], options: Partial<UploadQueueOptions> = {}): Promise<string[]> => {
  const page = openPage({ ...options, autoStart: false })
  const uploads = await page.enqueueAll(texts.map(file))
  const keys = uploads.map(({ snapshot }) => snapshot?.idempotencyKey ?? '')
  await page.close()
  return keys
}

const listStatuses = async (options: Partial<UploadQueueOptions> = {}): Promise<string[]> => {
  const page = openPage({ ...options, autoStart: false })
  await page.ready()
  const statuses = page.getSnapshot().map(({ status }) => status)
  await page.close()
  return statuses
}

const countingChannels = (name: string): Channel => {
  const channel = new BroadcastChannel(name)
  channels += 1
  return {
    postMessage: (message) => channel.postMessage(message),
    addEventListener: (type, listener) => channel.addEventListener(type, listener as never),
    close() {
      channels -= 1
      channel.close()
    },
  }
}

/** The test's own realm is the worker. */
const serve = (options: Partial<UploadQueueOptions> = {}, ports: Partial<QueuePorts> = {}): void => {
  endings.push(serveUploads({ endpoint, transport, ...options }, { openChannel: countingChannels, ...ports }))
}

/** Fires an event as a browser does in a worker. Returns what it is held open with; `undefined` where nobody holds it. */
const fire = (type: string, members: object = {}): Promise<unknown> | undefined => {
  let held: Promise<unknown> | undefined
  const waitUntil = (promise: Promise<unknown>): void => {
    held = promise
    promise.catch(() => {})
  }
  globalThis.dispatchEvent(Object.assign(new Event(type), { waitUntil, ...members }))
  return held
}
const sync = (): Promise<unknown> => fire('sync', { tag }) ?? Promise.reject(new Error('Nobody holds the event.'))
const left = (count: number) => expect.objectContaining({ message: `Uploads that are left: ${count}.` })

/** How many requests an event leads to against a server that answers all of them so. */
const syncAgainst = async (answer: Parameters<Awaited<ReturnType<TransportDouble['nextRequest']>>['respondWith']>[0]): Promise<number> => {
  const before = transport.requests.length
  let over = false
  const event = sync()
    .catch(() => {})
    .then(() => {
      over = true
    })
  void (async () => {
    while (!over) (await transport.nextRequest()).respondWith(answer)
  })()
  await runUntil(event)
  return transport.requests.length - before
}

describe('a sync event', () => {
  test('sends what a page left behind, with its keys, and is over when nothing is left', async () => {
    const keys = await leaveBehind(['a', 'b'])
    serve()
    const event = sync()
    const requests = [await transport.nextRequest(), await transport.nextRequest()]
    expect(requests.map(({ key }) => key)).toEqual(keys)
    for (const request of requests) request.store()
    await event
    expect(await listStatuses()).toEqual(['succeeded', 'succeeded'])
  })

  test('of another tag is nobody’s business, and of another name another queue’s', async () => {
    await leaveBehind(['a'])
    serve({ name: 'other' })
    expect(fire('sync', { tag })).toBeUndefined()
    expect(fire('sync', { tag: 'uploads' })).toBeUndefined()
    await fire('sync', { tag: 'uponce:other' })
    expect(transport.requests).toHaveLength(0)
  })

  test('makes one attempt at each upload of a server that fails, however long the event lasts, and rejects', async () => {
    await leaveBehind(['a', 'b', 'slow'])
    serve()
    for (const round of [1, 2]) {
      const event = sync()
      const requests = [await transport.nextRequest(), await transport.nextRequest(), await transport.nextRequest()]
      requests[0]?.respondWith({ status: 500 })
      requests[1]?.respondWith({ status: 500 })
      await advance(60_000, 1_000)
      requests[2]?.respondWith({ status: 500 })
      await expect(runUntil(event)).rejects.toEqual(left(3))
      expect(transport.requests).toHaveLength(3 * round)
      await advance(60_000)
    }
    expect(new Set(transport.requests.map(({ key }) => key)).size).toBe(3)
  })

  test('keeps to the time that the server said', async () => {
    await leaveBehind(['a'])
    serve()
    const event = sync()
    ;(await transport.nextRequest()).respondWith({ status: 503, headers: { 'Retry-After': '120' } })
    await expect(runUntil(event)).rejects.toEqual(left(1))
    await advance(60_000)
    await expect(runUntil(sync())).rejects.toEqual(left(1))
    expect(transport.requests).toHaveLength(1)
    await advance(62_000)
    const last = sync()
    ;(await transport.nextRequest()).store()
    await last
    expect(transport.requests).toHaveLength(2)
  })

  test('of a server that is not there is given up, and nothing is counted', async () => {
    vi.mocked(fetch).mockRejectedValue(new TypeError('Failed to fetch'))
    await leaveBehind(['a'])
    serve()
    const start = Date.now()
    const event = sync()
    ;(await transport.nextRequest()).lose()
    await expect(runUntil(event)).rejects.toEqual(left(1))
    expect(Date.now() - start).toBeLessThanOrEqual(5_000)
    expect(transport.requests).toHaveLength(1)
    expect(await listStatuses()).toEqual(['pending'])
  })

  test.each([
    ['is refused', { status: 413 }, 'failed', 1],
    ['is not signed in', { status: 401 }, 'blocked', 2],
  ])('resolves when what is left does not get further by itself: it %s', async (_what, answer, status, requests) => {
    await leaveBehind(['a'])
    serve({ headers: () => ({ Authorization: 'x' }) })
    expect(await syncAgainst(answer)).toBe(requests)
    expect(await listStatuses()).toEqual([status])
    if (status === 'failed') await sync()
    expect(transport.requests).toHaveLength(requests)
  })

  test('sends for the account that the worker says, and for nobody where it is signed out', async () => {
    await leaveBehind(['of a'], { owner: 'a' })
    await leaveBehind(['of b'], { owner: 'b' })
    let account: string | null = null
    serve({ owner: async () => account })
    await sync()
    expect(transport.requests).toHaveLength(0)
    account = 'b'
    const event = sync()
    const request = await transport.nextRequest()
    expect(await request.text()).toBe('of b')
    request.store()
    await event
    expect(await listStatuses({ owner: 'a' })).toEqual(['pending'])
  })

  test('rejects where the storage fails, so that the browser gives another', async () => {
    const { open } = IDBFactory.prototype
    IDBFactory.prototype.open = () => {
      throw new DOMException('not now', 'UnknownError')
    }
    serve()
    await expect(runUntil(sync())).rejects.toMatchObject({ code: 'storage-unavailable' })
    IDBFactory.prototype.open = open
  })

  test('ends before the browser ends it, and the next one sends the same key', async () => {
    await leaveBehind(['a'])
    serve({ timeout: 1_000_000 })
    const start = Date.now()
    const event = sync()
    const silent = await transport.nextRequest()
    await expect(runUntil(event)).rejects.toMatchObject({ name: 'TimeoutError' })
    expect(Date.now() - start).toBe(150_000)
    expect(silent.signal.aborted).toBe(true)
    expect(await listStatuses()).toEqual(['pending'])
    const next = sync()
    const request = await transport.nextRequest()
    expect(request.key).toBe(silent.key)
    request.store()
    await next
  })

  test('leaves neither lock, channel, connection nor timer behind', async () => {
    await leaveBehind(['a'])
    serve()
    const event = sync()
    ;(await transport.nextRequest()).respondWith({ status: 500 })
    await until(() => channels === 1)
    expect((await locks.locks.query()).held).toHaveLength(1)
    await expect(runUntil(event)).rejects.toEqual(left(1))
    expect(await locks.locks.query()).toEqual({ held: [], pending: [] })
    expect([channels, vi.getTimerCount()]).toEqual([0, 0])
    const deleted = new Promise((resolve, reject) => {
      const request = indexedDB.deleteDatabase(tag)
      request.onsuccess = resolve
      request.onblocked = reject
    })
    await deleted
  })

  test('that comes while another is being served shares its work', async () => {
    await leaveBehind(['a'])
    serve()
    const events = [sync(), sync(), fire('message', { data: { type: tag } })]
    const request = await transport.nextRequest()
    expect(channels).toBe(1)
    request.respondWith({ status: 500 })
    expect(await runUntil(Promise.allSettled(events))).toMatchObject([{ reason: left(1) }, { reason: left(1) }, { status: 'fulfilled' }])
    expect(transport.requests).toHaveLength(1)
  })
})

test.each([
  ['has failed', 1],
  ['is under way', 0],
])('a sync event that comes when a try %s has one of its own, once that of the earlier event is over', async (_when, failed) => {
  vi.mocked(fetch).mockRejectedValue(new TypeError('Failed to fetch'))
  const [key] = await leaveBehind(['a'])
  serve()
  const offline = sync()
  const lost = await transport.nextRequest()
  if (failed) lost.lose()
  await advance(500)
  const online = sync()
  if (!failed) lost.lose()
  await flush()
  vi.mocked(fetch).mockImplementation(() => Promise.resolve(new Response()))
  await expect(runUntil(offline)).rejects.toEqual(left(1))
  const request = await transport.nextRequest()
  expect(request.key).toBe(key)
  request.store()
  await online
  expect(transport.requests).toHaveLength(2)
})

test('an event that had to wait for another ends no later for that', async () => {
  await leaveBehind(['a'])
  serve({ timeout: 1_000_000 })
  const start = Date.now()
  const first = sync()
  await transport.nextRequest()
  await advance(100_000)
  const second = sync()
  await expect(runUntil(first)).rejects.toMatchObject({ name: 'TimeoutError' })
  await expect(runUntil(second)).rejects.toMatchObject({ name: 'TimeoutError' })
  expect(Date.now() - start).toBe(250_000)
})

describe('beside a page that runs the queue', () => {
  test('the worker sends nothing, and the event is over when the page is done', async () => {
    const page = openPage()
    await page.enqueueAll([file('a'), file('b')])
    const requests = [await transport.nextRequest(), await transport.nextRequest()]
    serve()
    const event = sync()
    await advance(20_000, 1_000)
    for (const request of requests) request.store()
    await event
    expect(transport.requests).toHaveLength(2)
    expect(page.getSnapshot().map(({ status }) => status)).toEqual(['succeeded', 'succeeded'])
  })

  test('the worker does not wait with the page', async () => {
    const page = openPage()
    const upload = await page.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 503, headers: { 'Retry-After': '60' } })
    await until(() => upload.snapshot?.status === 'pending')
    serve()
    const start = Date.now()
    await expect(runUntil(sync())).rejects.toEqual(left(1))
    expect(Date.now() - start).toBe(5_000)
    ;(await runUntil(transport.nextRequest())).store()
    await upload.done
  })

  test('the worker goes on, with the same key, when the page closes in the middle', async () => {
    const page = openPage()
    await page.enqueue(file())
    const cut = await transport.nextRequest()
    serve()
    const event = sync()
    await flush()
    await page.close()
    const request = await transport.nextRequest()
    expect([request.key, cut.signal.aborted]).toEqual([cut.key, true])
    request.store()
    await event
  })
})

describe('without Background Sync', () => {
  test('a message from a page is held until the work is done, and never fails', async () => {
    await leaveBehind(['a'])
    serve()
    for (const data of [undefined, null, 'uponce', { type: 'other' }]) expect(fire('message', { data })).toBeUndefined()
    const event = fire('message', { data: { type: tag } })
    ;(await transport.nextRequest()).respondWith({ status: 500 })
    expect(await runUntil(event as Promise<unknown>)).toBeUndefined()
    expect(await listStatuses()).toEqual(['pending'])
  })

  test('a new worker takes up what was left, without keeping its pages waiting', async () => {
    const [key] = await leaveBehind(['a'])
    serve()
    expect(fire('activate')).toBeUndefined()
    const request = await transport.nextRequest()
    expect(request.key).toBe(key)
    request.store()
    await until(() => channels === 0)
    expect(await listStatuses()).toEqual(['succeeded'])
  })
})

test('options that cannot be throw at once, and nothing listens', () => {
  expect(() => serveUploads({} as never)).toThrow(/^endpoint: undefined is not valid/)
  expect(() => serveUploads({ endpoint, concurrency: 0 })).toThrow(/^concurrency: 0 is not valid/)
  expect(fire('sync', { tag })).toBeUndefined()
})

test('what has ended hears no events any more', async () => {
  await leaveBehind(['a'])
  const end = serveUploads({ endpoint, transport })
  end()
  fire('activate')
  expect([fire('sync', { tag }), fire('message', { data: { type: tag } })]).toEqual([undefined, undefined])
  await flush()
  expect(transport.requests).toHaveLength(0)
})

describe('a page that leaves work behind', () => {
  let registered: string[]
  let posted: unknown[]
  let register: ((tag: string) => Promise<void>) | undefined

  beforeEach(() => {
    registered = []
    posted = []
    register = async (tag) => void registered.push(tag)
    setServiceWorker({
      get ready() {
        return Promise.resolve({
          active: { postMessage: (message: unknown) => posted.push(message) },
          ...(register && { sync: { register } }),
        })
      },
    })
  })
  afterEach(() => {
    setServiceWorker(undefined)
    setVisibility('visible')
  })

  const setServiceWorker = (value: unknown): void => {
    Object.defineProperty(navigator, 'serviceWorker', { value, configurable: true })
  }
  const setVisibility = (value: DocumentVisibilityState): void => {
    Object.defineProperty(document, 'visibilityState', { value, configurable: true })
  }
  const show = (value: DocumentVisibilityState): Promise<void> => {
    setVisibility(value)
    document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))
    return flush()
  }
  const watch = (queue: UploadQueue, options?: { name: string }): void => {
    endings.push(syncInBackground(queue, options))
  }

  test('wakes the worker, and asks for a sync, each time it is hidden, and not where nothing is left', async () => {
    const page = openPage()
    watch(page)
    await page.ready()
    await show('hidden')
    expect(registered).toEqual([])
    const upload = await page.enqueue(file())
    await show('visible')
    expect(registered).toEqual([])
    await show('hidden')
    await show('visible')
    await show('hidden')
    expect(registered).toEqual([tag, tag])
    ;(await transport.nextRequest()).store()
    await upload.done
    await show('visible')
    await show('hidden')
    expect([registered, posted]).toEqual([
      [tag, tag],
      [{ type: tag }, { type: tag }],
    ])
  })

  test('asks for one sync when the network fails, and for no other until nothing is left, however often attempts fail', async () => {
    vi.mocked(fetch).mockRejectedValue(new TypeError('Failed to fetch'))
    const page = openPage()
    watch(page)
    const upload = await page.enqueue(file())
    for (let attempt = 0; attempt < 4; attempt++) {
      ;(await runUntil(transport.nextRequest())).lose()
      await flush()
      expect(registered).toEqual([tag])
    }
    vi.mocked(fetch).mockImplementation(() => Promise.resolve(new Response()))
    ;(await runUntil(transport.nextRequest())).store()
    await upload.done
    const next = await page.enqueue(file())
    ;(await transport.nextRequest()).lose()
    await flush()
    expect(registered).toEqual([tag, tag])
    ;(await runUntil(transport.nextRequest())).store()
    await next.done
  })

  test('asks for one when the server is silent and cannot be reached', async () => {
    vi.mocked(fetch).mockRejectedValue(new TypeError('Failed to fetch'))
    const page = openPage({ timeout: 1_000 })
    watch(page)
    await page.enqueue(file())
    await transport.nextRequest()
    expect(registered).toEqual([])
    await advance(1_000)
    expect(registered).toEqual([tag])
  })

  test('hidden, asks for no other sync when the worker fails in its turn', async () => {
    await leaveBehind(['a'])
    const page = openPage({ autoStart: false })
    watch(page)
    await page.ready()
    await show('hidden')
    expect(registered).toEqual([tag])
    serve()
    const event = sync()
    ;(await transport.nextRequest()).lose()
    await expect(runUntil(event)).rejects.toEqual(left(1))
    expect(page.getSnapshot()[0]).toMatchObject({ status: 'pending', reason: 'network' })
    expect([registered, posted]).toEqual([[tag], [{ type: tag }]])
  })

  test.each([
    ['there is no Background Sync', undefined],
    ['it is forbidden', () => Promise.reject(new DOMException('no', 'NotAllowedError'))],
  ])('sends the worker a message where %s', async (_what, found) => {
    register = found
    const page = openPage({ name: 'photos' })
    watch(page, { name: 'photos' })
    await page.enqueue(file())
    await show('hidden')
    expect([registered, posted]).toEqual([[], [{ type: 'uponce:photos' }]])
  })

  test.each([
    ['no service workers', undefined],
    ['none that answers', () => Promise.reject(new DOMException('no', 'SecurityError'))],
    ['none that is active', () => Promise.resolve({ active: null })],
  ])('does nothing where there are %s', async (_what, ready) => {
    setServiceWorker(
      ready && {
        get ready() {
          return ready()
        },
      },
    )
    const page = openPage()
    watch(page)
    await page.enqueue(file())
    await show('hidden')
    ;(await transport.nextRequest()).store()
    await flush()
    expect(page.getSnapshot()[0]?.status).toBe('succeeded')
  })

  test('asks for nothing once that was ended', async () => {
    vi.mocked(fetch).mockRejectedValue(new TypeError('Failed to fetch'))
    const page = openPage()
    const end = syncInBackground(page)
    await page.enqueue(file())
    end()
    await show('hidden')
    ;(await transport.nextRequest()).lose()
    await flush()
    expect(registered).toEqual([])
  })
})
