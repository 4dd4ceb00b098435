import { createHash } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { UploadError } from '../src/errors.js'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../src/index.js'
import type { QueuePorts } from '../src/ports.js'
import { transition } from '../src/record.js'
import { indexedDbStore, type Store } from '../src/store.js'
import { advance, fakeClock, flush, runUntil, until } from './helpers/fake-clock.js'
import { FakeLocks } from './helpers/locks.js'
import { createTransportDouble, type TransportDouble } from './helpers/transport.js'

const endpoint = 'http://localhost:3000/uploads'
const file = (text = 'hello', name = 'a.txt'): File => new File([text], name, { type: 'text/plain', lastModified: 7 })

/** A promise and the test's way to settle it. */
const gate = (): { opened: Promise<void>; open: () => void } => {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open }
}

let transport: TransportDouble
const opened: UploadQueue<never>[] = []
const openQueue = (options: Partial<UploadQueueOptions<never>> = {}, ports?: Partial<QueuePorts>): UploadQueue<never> => {
  const queue = createUploadQueue<never>({ endpoint, transport, ...options }, ports)
  opened.push(queue)
  return queue
}
/** The store with some calls replaced; `this` is the real one. */
const storeWith = (change: (store: Store) => Partial<Store>): Partial<QueuePorts> => ({
  openStore(name) {
    const store = indexedDbStore(name)
    return { ...store, ...change(store) }
  },
})

const noStorage = (): UploadError => new UploadError('storage-failed', 'The disk is away.')

beforeEach(() => {
  transport = createTransportDouble()
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
})
afterEach(async () => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  vi.unstubAllGlobals()
})

describe('accounts that change', () => {
  test('what waits is not sent for the account that signed in meanwhile, and is once its own is back', async () => {
    fakeClock()
    let account: string | null = 'ann'
    const queue = openQueue({ owner: () => account, headers: () => ({ Authorization: `Bearer ${account}` }) })
    await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 503 })
    await until(() => queue.getSnapshot()[0]?.status === 'pending')
    account = 'bob'
    await advance(60_000, 1_000)
    expect(transport.requests).toHaveLength(1)
    account = 'ann'
    await queue.start()
    const again = await runUntil(transport.nextRequest())
    expect(again.headers.get('Authorization')).toBe('Bearer ann')
    again.store()
    await until(() => queue.getSnapshot()[0]?.status === 'succeeded')
  })

  test('an attempt under way ends when another account signs in, and is made again with the same key when its own is back', async () => {
    let account: string | null = 'ann'
    const queue = openQueue({ owner: () => account })
    const upload = await queue.enqueue(file())
    const cut = await transport.nextRequest()
    account = 'bob'
    await queue.start()
    await vi.waitFor(() => expect(cut.signal.aborted).toBe(true))
    await flush(50)
    expect(transport.requests).toHaveLength(1)
    account = 'ann'
    await queue.start()
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    again.store()
    await upload.done
  })

  test('headers made while the account changes are not sent', async () => {
    let account: string | null = 'ann'
    const made = gate()
    const queue = openQueue({
      owner: () => account,
      async headers() {
        await made.opened
        return { Authorization: `Bearer ${account}` }
      },
    })
    const upload = await queue.enqueue(file())
    await vi.waitFor(() => expect(upload.snapshot?.status).toBe('uploading'))
    account = 'bob'
    made.open()
    await flush(50)
    expect(transport.requests).toHaveLength(0)
  })

  test('a file saved for an account that signs out meanwhile gives its handle', async () => {
    let account: string | null = 'ann'
    const adding = gate()
    const queue = openQueue(
      { owner: () => account },
      storeWith((store) => ({
        async add(entries) {
          const added = await store.add(entries)
          await adding.opened
          return added
        },
      })),
    )
    await queue.ready()
    const enqueued = queue.enqueue(file())
    await flush()
    account = null
    await queue.start()
    adding.open()
    expect(await enqueued).toMatchObject({ id: expect.any(String) })
  })

  test('what is enqueued, or cleared, while the database opens is of the account that was signed in then', async () => {
    let account: string | null = 'ann'
    const opening = gate()
    const first = openQueue({ owner: () => account, autoStart: false })
    await first.enqueue(file('of ann'))
    account = 'bob'
    const kept = await first.enqueue(file('of bob'))
    account = 'ann'
    const queue = openQueue(
      { owner: () => account, autoStart: false },
      storeWith((store) => ({
        async list() {
          await opening.opened
          return store.list()
        },
      })),
    )
    const cleared = queue.clear()
    const enqueued = queue.enqueue(file('also of ann'))
    await flush()
    account = 'bob'
    opening.open()
    await Promise.all([cleared, enqueued])
    await queue.start()
    expect(queue.getSnapshot().map(({ id }) => id)).toEqual([kept.id])
    account = 'ann'
    await queue.start()
    expect(queue.get((await enqueued).id)).toMatchObject({ owner: 'ann' })
  })

  test('what is enqueued after clear was called stays, though nobody awaited that', async () => {
    const listing = gate()
    let isSlow = false
    const queue = openQueue(
      { autoStart: false },
      storeWith((store) => ({
        async list() {
          if (isSlow) await listing.opened
          return store.list()
        },
      })),
    )
    const old = await queue.enqueue(file('old'))
    isSlow = true
    const cleared = queue.clear()
    const enqueued = queue.enqueue(file('new'))
    await flush()
    listing.open()
    await cleared
    const { id } = await enqueued
    expect(queue.getSnapshot().map((upload) => upload.id)).toEqual([id])
    await expect(old.done).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }))
  })

  test('flush settles when the account signs out', async () => {
    fakeClock()
    let account: string | null = 'ann'
    const queue = openQueue({ owner: () => account, concurrency: 1 })
    await queue.enqueueAll([file('a'), file('b')])
    const first = await transport.nextRequest()
    const flushed = queue.flush()
    await flush()
    account = null
    first.store()
    expect(await runUntil(flushed, 10_000)).toEqual({ succeeded: 1, failed: 0, left: 1 })
    expect(transport.requests).toHaveLength(1)
  })
})

describe('a run that was stopped', () => {
  test('paused and resumed before it has sent anything, an upload is sent', async () => {
    const reading = gate()
    let first = true
    const queue = openQueue(
      {},
      storeWith((store) => ({
        async change(id, change, withBytes) {
          // The start.
          if (withBytes && first) {
            first = false
            await reading.opened
          }
          return store.change(id, change, withBytes)
        },
      })),
    )
    const upload = await queue.enqueue(file())
    await flush()
    const [paused, resumed] = [queue.pause(upload.id), queue.resume(upload.id)]
    reading.open()
    await Promise.all([paused, resumed])
    // Where nothing is sent, this waits for ever.
    const request = await transport.nextRequest()
    request.store()
    await upload.done
  })

  test('what a stopped run still hears does not touch the next one', async () => {
    const probing = gate()
    vi.stubGlobal(
      'fetch',
      vi.fn(async () => {
        await probing.opened
        return new Response()
      }),
    )
    const queue = openQueue({ retry: { limit: 1 } })
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).lose()
    await flush()
    await queue.pause(upload.id)
    await queue.resume(upload.id)
    const second = await transport.nextRequest()
    probing.open()
    await flush()
    expect(upload.snapshot?.status).toBe('uploading')
    second.store()
    await upload.done
  })
})

test('a tab that takes over waits as the one before was told to, though it has not heard of that', async () => {
  fakeClock()
  const first = openQueue({}, { openChannel: undefined })
  await first.ready()
  const reading = gate()
  let isHeld = false
  const second = openQueue(
    {},
    {
      openChannel: undefined,
      ...storeWith((store) => ({
        async list() {
          if (isHeld) await reading.opened
          return store.list()
        },
      })),
    },
  )
  const upload = await second.enqueue(file())
  const request = await runUntil(transport.nextRequest())
  isHeld = true
  request.respondWith({ status: 503, headers: { 'Retry-After': '60' } })
  await until(() => first.getSnapshot()[0]?.status === 'pending')
  await first.close()
  await advance(59_000, 1_000)
  expect(transport.requests).toHaveLength(1)
  const again = await runUntil(transport.nextRequest())
  again.store()
  reading.open()
  await upload.done
})

/** The channel of a page that does not live to tell anything. */
const silent = { postMessage() {}, addEventListener() {}, close() {} }

test('what another page has saved, and did not live to tell, is sent within a minute', async () => {
  fakeClock()
  const queue = openQueue()
  await advance(100)
  const other = openQueue({ autoStart: false }, { openChannel: () => silent })
  await other.enqueue(file())
  await other.close()
  await advance(61_000, 1_000)
  ;(await transport.nextRequest()).store()
  await until(() => queue.getSnapshot()[0]?.status === 'succeeded')
})

test('a tab that has its lease again, which lapsed while it slept, looks at what the others did meanwhile', async () => {
  fakeClock()
  const queue = openQueue({}, { locks: undefined })
  await advance(100)
  const other = openQueue({ autoStart: false }, { locks: undefined, openChannel: () => silent })
  await other.enqueue(file())
  await other.close()
  const store = indexedDbStore('uponce:uploads')
  await store.setting('runner', () => ({ id: 'a tab that has gone', until: 0 }))
  store.close()
  await advance(6_000, 1_000)
  ;(await transport.nextRequest()).store()
  await until(() => queue.getSnapshot()[0]?.status === 'succeeded')
})

test('where tabs cannot hear each other, the queue is resumed, and paused, for all of them', async () => {
  fakeClock()
  const [first, second] = [openQueue({}, { openChannel: undefined }), openQueue({}, { openChannel: undefined })]
  await first.pause()
  const upload = await first.enqueue(file())
  await second.resume()
  const request = await runUntil(transport.nextRequest())
  expect(request.key).toBe(first.get(upload.id)?.idempotencyKey)
  request.store()
  await advance(6_000, 1_000)
  expect((await first.enqueue(file('again'))).snapshot?.status).not.toBe('paused')
  ;(await runUntil(transport.nextRequest())).store()
  await flush()
})

test('what the tab before was sending as it went is sent, though this one was still hashing it', async () => {
  const hashing = gate()
  const queue = openQueue(
    {},
    storeWith((store) => ({
      async bytes(id) {
        await hashing.opened
        return store.bytes(id)
      },
    })),
  )
  const bytes = new Uint8Array(2 ** 20 + 1)
  const upload = await queue.enqueue(new File([bytes], 'large'))
  await flush()
  const store = indexedDbStore('uponce:uploads')
  const sha256 = createHash('sha256').update(bytes).digest('hex')
  await store.change(upload.id, (record) => transition(transition(record, { type: 'hashed', sha256 }), { type: 'started' }))
  store.close()
  hashing.open()
  // Where nothing is sent, this waits for ever.
  const request = await transport.nextRequest()
  request.store()
  await upload.done
})

test('two pages in memory each send their own', async () => {
  const [one, two] = [openQueue({ persist: 'memory' }), openQueue({ persist: 'memory' })]
  await one.enqueue(file('one'))
  await two.enqueue(file('two'))
  await vi.waitFor(() => expect(transport.requests).toHaveLength(2))
})

test('an upload whose bytes are gone is not started: nothing is sent, and nobody is told that it was', async () => {
  const queue = openQueue(
    {},
    storeWith((store) => ({
      async change(id, change, withBytes) {
        const changed = await store.change(id, (record, { runner }) => change(record, { runner, bytes: undefined }), withBytes)
        return changed && { ...changed, bytes: undefined }
      },
    })),
  )
  const told: string[] = []
  queue.on('started', () => told.push('started'))
  queue.on('failed', ({ error }) => told.push(error.code))
  const upload = await queue.enqueue(file())
  await until(() => upload.snapshot?.status === 'failed')
  expect([told, transport.requests.length, upload.snapshot?.requests]).toEqual([['bytes-lost'], 0, 0])
})

test('a body that cannot be read looks like a dead network once; the next attempt sees that the bytes are lost, and sends nothing', async () => {
  fakeClock()
  const unreadable = Object.assign(new Blob(['x'.repeat(100_000)]), {
    slice: () => ({ arrayBuffer: () => Promise.reject(new Error('gone')) }),
  })
  const queue = openQueue(
    {},
    storeWith((store) => ({
      async change(id, change, withBytes) {
        const changed = await store.change(id, change, withBytes)
        return changed && { ...changed, ...(withBytes && { bytes: unreadable }) }
      },
    })),
  )
  const upload = await queue.enqueue(file('x'.repeat(100_000)))
  ;(await runUntil(transport.nextRequest())).lose()
  await until(() => upload.snapshot?.reason === 'network')
  await expect(runUntil(upload.done)).rejects.toMatchObject({ code: 'bytes-lost' })
  expect(transport.requests).toHaveLength(1)
})

test('while an answer is being stored, others send', async () => {
  const storing = gate()
  const queue = openQueue(
    { concurrency: 1 },
    storeWith((store) => ({
      async change(id, change, withBytes) {
        let status: string | undefined
        const changed = store.change(
          id,
          (record, surroundings) => {
            const after = change(record, surroundings)
            status = after.status
            return after
          },
          withBytes,
        )
        await changed
        if (status === 'succeeded') await storing.opened
        return changed
      },
    })),
  )
  const [first, second] = await queue.enqueueAll([file('a'), file('b')])
  ;(await transport.nextRequest()).store()
  const next = await transport.nextRequest()
  expect([first?.snapshot?.status, second?.snapshot?.status]).toEqual(['uploading', 'uploading'])
  storing.open()
  next.store()
  await Promise.all([first?.done, second?.done])
})

test('a page sends what it knows of before it reads all rows again', async () => {
  await openQueue({ autoStart: false }).enqueue(file())
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  const reading = gate()
  let lists = 0
  const queue = openQueue(
    { autoStart: false },
    {
      ...storeWith((store) => ({
        async list() {
          lists += 1
          if (lists > 1) await reading.opened
          return store.list()
        },
      })),
      // Without one nobody tells it what has changed, so it reads again.
      openChannel: undefined,
    },
  )
  await queue.ready()
  await queue.start()
  const request = await transport.nextRequest()
  expect(lists).toBe(2)
  reading.open()
  request.store()
  await vi.waitFor(() => expect(queue.getSnapshot()[0]?.status).toBe('succeeded'))
})

describe('storage that fails for a while', () => {
  test('as a tab takes over, it is waited for', async () => {
    const left = openQueue()
    const upload = await left.enqueue(file())
    await transport.nextRequest()
    // Dies without a word.
    const dead = indexedDbStore('uponce:uploads')
    await left.close()
    await dead.change(upload.id, (record) => ({ ...record, status: 'uploading', revision: record.revision + 1 }))
    dead.close()
    let failures = 1
    fakeClock()
    openQueue(
      {},
      storeWith((store) => ({
        change: (...args) => (failures-- > 0 ? Promise.reject(noStorage()) : store.change(...args)),
      })),
    )
    await runUntil(transport.nextRequest(), 60_000)
  })

  test.each<[string, Partial<UploadQueueOptions<never>>, Partial<QueuePorts>]>([
    [
      'an owner that is not known yet',
      {
        owner: (() => {
          let calls = 0
          return () => (calls++ === 0 ? Promise.reject(new TypeError('Failed to fetch')) : 'ann')
        })(),
      },
      {},
    ],
    [
      'a database that does not open yet',
      { persist: 'required' },
      storeWith((store) => {
        let calls = 0
        return { list: () => (calls++ === 0 ? Promise.reject(noStorage()) : store.list()) }
      }),
    ],
  ])('%s, and what is enqueued later is sent', async (_what, options, ports) => {
    fakeClock()
    const queue = openQueue(options, ports)
    await flush()
    await queue.enqueue(file())
    await runUntil(transport.nextRequest(), 60_000)
  })
})

test('a database that was only slow is taken up later, and what earlier pages left in it', async () => {
  const left = openQueue()
  const earlier = await left.enqueue(file('earlier'))
  await transport.nextRequest()
  await left.close()
  let isSlow = true
  const slow = storeWith((store) => ({
    list: () => (isSlow ? Promise.reject(new UploadError('storage-unavailable', 'It does not open.')) : store.list()),
  }))
  fakeClock()
  const queue = openQueue({}, slow)
  const upload = await queue.enqueue(file('in memory'))
  expect(upload.snapshot?.durable).toBe(false)
  const request = await transport.nextRequest()
  isSlow = false
  await advance(30_000, 1_000)
  // Not while anything would be lost with the memory.
  expect(queue.get(earlier.id)).toBeUndefined()
  request.store()
  await upload.done
  const again = await runUntil(transport.nextRequest(), 60_000)
  expect(again.key).toBe(queue.get(earlier.id)?.idempotencyKey)
  const durable = await queue.enqueue(file('on disk'))
  expect(durable.snapshot?.durable).toBe(true)
})

test('a result that no store can hold is a success all the same', async () => {
  const circular: Record<string, unknown> = { notCloneable() {} }
  circular.self = circular
  const queue = openQueue({ response: () => circular as never })
  const upload = await queue.enqueue(file())
  ;(await transport.nextRequest()).store()
  await upload.done
  expect(upload.snapshot?.status).toBe('succeeded')
})

describe('enqueueing while', () => {
  const slowly = (): { file: File; go: () => void } => {
    const { opened, open } = gate()
    const slow = file()
    const read = slow.arrayBuffer.bind(slow)
    slow.arrayBuffer = async () => {
      await opened
      return read()
    }
    return { file: slow, go: open }
  }
  const held = (): { go: () => void; reached: Promise<void>; ports: Partial<QueuePorts> } => {
    const [reaching, going] = [gate(), gate()]
    return {
      go: going.open,
      reached: reaching.opened,
      ports: storeWith((store) => ({
        async add(entries) {
          reaching.open()
          await going.opened
          return store.add(entries)
        },
      })),
    }
  }

  test('the queue is paused: it is not sent', async () => {
    const { go, reached, ports } = held()
    const queue = openQueue({}, ports)
    const enqueued = queue.enqueue(file())
    await reached
    await queue.pause()
    go()
    const upload = await enqueued
    await flush(50)
    expect(upload.snapshot?.status).toBe('paused')
    expect(transport.requests).toHaveLength(0)
  })

  test('the queue is resumed: it is sent', async () => {
    const { go, reached, ports } = held()
    const queue = openQueue({}, ports)
    await queue.pause()
    const enqueued = queue.enqueue(file())
    await reached
    await queue.resume()
    go()
    const upload = await enqueued
    await vi.waitFor(() => expect(transport.requests).toHaveLength(1))
    transport.requests[0]?.store()
    await upload.done
  })

  test('a later upload of the same id is cancelled: it is sent', async () => {
    const queue = openQueue()
    const { file: slow, go } = slowly()
    const enqueued = queue.enqueue(slow, { id: 'draft' })
    const quick = await queue.enqueue(file('quick'), { id: 'draft' })
    await transport.nextRequest()
    await quick.cancel()
    go()
    const upload = await enqueued
    expect(upload?.snapshot?.status).toBe('pending')
    ;(await transport.nextRequest()).store()
    await upload.done
  })

  test('the queue closes: it is refused and nothing is left', async () => {
    const queue = openQueue()
    const { file: slow, go } = slowly()
    const enqueued = queue.enqueue(slow)
    const refused = expect(enqueued).rejects.toMatchObject({ name: 'AbortError' })
    await flush()
    await queue.close()
    go()
    await refused
    const other = openQueue({ autoStart: false })
    await other.ready()
    expect(other.getSnapshot()).toEqual([])
  })
})

describe('a signal', () => {
  test('of a call that found an upload of its id leaves that upload alone', async () => {
    const controller = new AbortController()
    const queue = openQueue(
      {},
      storeWith((store) => ({
        async add(entries) {
          const added = await store.add(entries)
          if (entries[0]?.record.name === 'second') controller.abort()
          return added
        },
      })),
    )
    const upload = await queue.enqueue(file('first'), { id: 'draft' })
    const request = await transport.nextRequest()
    await expect(queue.enqueue(file('second', 'second'), { id: 'draft', signal: controller.signal })).rejects.toMatchObject({
      name: 'AbortError',
    })
    request.store()
    await upload.done
  })

  test('does not cancel a later upload of the same id', async () => {
    const controller = new AbortController()
    const queue = openQueue()
    const first = await queue.enqueue(file(), { id: 'draft', signal: controller.signal })
    ;(await transport.nextRequest()).store()
    await first.done
    await queue.enqueue(file('next'), { id: 'draft' })
    const second = await transport.nextRequest()
    controller.abort()
    await flush(50)
    expect(second.signal.aborted).toBe(false)
    expect(queue.getSnapshot()).toHaveLength(1)
  })

  test('of a closed queue is heard by nobody', async () => {
    const unhandled = vi.fn()
    process.on('unhandledRejection', unhandled)
    const controller = new AbortController()
    const queue = openQueue()
    await queue.enqueue(file(), { signal: controller.signal })
    await queue.close()
    controller.abort()
    await flush(50)
    process.off('unhandledRejection', unhandled)
    expect(unhandled).not.toHaveBeenCalled()
  })
})

describe("an app's function that never answers", () => {
  test.each<[string, Partial<UploadQueueOptions<never>>]>([
    ['headers', { headers: () => new Promise(() => {}) }],
    ['endpoint', { endpoint: () => new Promise(() => {}) }],
  ])('%s: the attempt ends in its time, and the queue closes', async (_what, options) => {
    fakeClock()
    const queue = openQueue({ ...options, timeout: 5_000 })
    const upload = await queue.enqueue(file())
    await until(() => upload.snapshot?.status === 'uploading')
    await vi.advanceTimersByTimeAsync(5_000)
    await until(() => upload.snapshot?.reason === 'timeout')
    await queue.retry()
    await until(() => upload.snapshot?.status === 'uploading')
    await runUntil(queue.close(), 10_000)
  })

  test.each<[string, Partial<UploadQueueOptions<never>>, number]>([
    ['response', { response: () => new Promise<never>(() => {}) }, 201],
    ['shouldRetry', { retry: { shouldRetry: () => new Promise<never>(() => {}) } }, 500],
  ])('%s: the queue closes', async (_what, options, status) => {
    const queue = openQueue({ ...options, timeout: 100 })
    await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status })
    await flush()
    expect(await Promise.race([queue.close(), flush(500).then(() => 'never')])).toBeUndefined()
  })
})

test('flush settles in a tab that hears nobody, once it has looked for itself', async () => {
  fakeClock()
  const one = openQueue({}, { openChannel: undefined })
  await one.enqueue(file())
  const request = await transport.nextRequest()
  const two = openQueue({}, { openChannel: undefined })
  await two.ready()
  const flushed = two.flush()
  await flush(50)
  request.store()
  await until(() => one.getSnapshot()[0]?.status === 'succeeded')
  expect(await runUntil(flushed, 20_000)).toEqual({ succeeded: 1, failed: 0, left: 0 })
})

test('what another tab cancelled unheard is given up, its request too', async () => {
  fakeClock()
  const [one, two] = [openQueue({}, { openChannel: undefined }), openQueue({}, { openChannel: undefined })]
  const upload = await one.enqueue(file())
  const request = await transport.nextRequest()
  await two.ready()
  await two.cancel(upload.id)
  const ended = expect(upload.done).rejects.toMatchObject({ name: 'AbortError' })
  await vi.advanceTimersByTimeAsync(5_000)
  await until(() => request.signal.aborted)
  await ended
})

test('a record that is no longer as this tab believes is looked at anew, not again and again', async () => {
  let asked = 0
  let inner: Store | undefined
  const queue = openQueue(
    { concurrency: 1 },
    storeWith((store) => {
      inner = store
      return {
        change(id, change, withBytes) {
          // A start.
          if (withBytes) asked += 1
          return store.change(id, change, withBytes)
        },
      }
    }),
  )
  const [first, second] = await queue.enqueueAll([file('a'), file('b')])
  const request = await transport.nextRequest()
  await inner?.change(second?.id as string, (record) => ({ ...record, status: 'paused', revision: record.revision + 1 }))
  request.store()
  await first?.done
  await flush(200)
  expect(asked).toBe(2)
  expect(second?.snapshot?.status).toBe('paused')
})

test('one id for many files is refused', async () => {
  await expect(openQueue().enqueueAll([file('a'), file('b')], { id: 'one' } as never)).rejects.toThrow(/id/)
})

describe('a tab that was taken for dead', () => {
  /** Two tabs, the second of which took the lock while the first hung in the middle of a request, and has not heard of it. */
  const takenOver = async () => {
    const locks = new FakeLocks()
    const thawed = gate()
    const frozen = openQueue(
      {},
      {
        locks: {
          request: (name, how, callback) =>
            locks.request(name, how, callback).catch(async (error: unknown) => {
              await thawed.opened
              throw error
            }),
        },
      },
    )
    const upload = await frozen.enqueue(file())
    const cut = await transport.nextRequest()
    const second = openQueue({}, { locks: { request: (name, _how, callback) => locks.request(name, { steal: true }, callback) } })
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    return { frozen, upload, cut, second, again, thaw: thawed.open }
  }

  test('cannot say that its attempt failed, and has no other until it is its turn', async () => {
    const { upload, cut, second, again, thaw } = await takenOver()
    cut.respondWith({ status: 413 })
    thaw()
    await flush(100)
    expect(second.get(upload.id)).toMatchObject({ status: 'uploading', requests: 2 })
    again.store()
    await vi.waitFor(() => expect(second.get(upload.id)?.status).toBe('succeeded'))
    expect(transport.requests).toHaveLength(2)
  })

  test('can say that the file was stored', async () => {
    const { upload, cut, second, again } = await takenOver()
    cut.store()
    await vi.waitFor(() => expect(second.get(upload.id)?.status).toBe('succeeded'))
    await vi.waitFor(() => expect(again.signal.aborted).toBe(true))
  })

  test('starts nothing before it has taken its turn again', async () => {
    const queue = openQueue({}, { locks: new FakeLocks() as never })
    await queue.start()
    await flush(50)
    const store = indexedDbStore('uponce:uploads')
    const turn = await store.setting('runner')
    await store.setting('runner', () => ({ id: 'another tab', until: Number.MAX_SAFE_INTEGER }))
    const upload = await queue.enqueue(file())
    await transport.nextRequest()
    expect(await store.setting('runner')).toMatchObject({ id: turn?.id })
    expect(upload.snapshot).toMatchObject({ status: 'uploading', requests: 1 })
    store.close()
  })
})

describe('a write that was done, though the connection was lost before anybody could say so', () => {
  /** The `nth` call of this method is carried out, and rejects. */
  const losing = (method: 'change' | 'remove' | 'add', nth = 1): Partial<QueuePorts> => {
    let calls = 0
    return storeWith((store) => ({
      async [method](...args: never[]) {
        const result = await (store[method] as (...all: never[]) => Promise<unknown>)(...args)
        calls += 1
        if (calls === nth) throw noStorage()
        return result as never
      },
    }))
  }

  test('the start of a request: it is sent, once, and its end is told', async () => {
    fakeClock()
    const queue = openQueue({}, losing('change'))
    const events: string[] = []
    for (const name of ['started', 'succeeded'] as const) queue.on(name, () => events.push(name))
    const upload = await queue.enqueue(file())
    ;(await runUntil(transport.nextRequest(), 60_000)).store()
    await runUntil(upload.done, 60_000)
    expect(events).toEqual(['started', 'succeeded'])
    expect(upload.snapshot).toMatchObject({ requests: 1 })
    expect(transport.requests).toHaveLength(1)
  })

  test('success: told once, and not sent again', async () => {
    fakeClock()
    const queue = openQueue({}, losing('change', 2))
    const succeeded = vi.fn()
    queue.on('succeeded', succeeded)
    const upload = await queue.enqueue(file())
    ;(await runUntil(transport.nextRequest(), 60_000)).store()
    await runUntil(upload.done, 60_000)
    expect(succeeded).toHaveBeenCalledOnce()
    expect(transport.requests).toHaveLength(1)
  })

  test('cancel: the next call finds it gone, and says so', async () => {
    const queue = openQueue({}, losing('remove'))
    const upload = await queue.enqueue(file())
    const request = await transport.nextRequest()
    await expect(upload.cancel()).rejects.toMatchObject({ code: 'storage-failed' })
    await upload.cancel()
    await expect(upload.done).rejects.toMatchObject({ name: 'AbortError' })
    expect(request.signal.aborted).toBe(true)
    expect(queue.getSnapshot()).toEqual([])
  })
})

test('what is marked as under way, though nobody sends it, is sent', async () => {
  const queue = openQueue({}, {})
  const upload = await queue.enqueue(file())
  const request = await transport.nextRequest()
  request.respondWith({ status: 503, headers: { 'Retry-After': '9999' } })
  await vi.waitFor(() => expect(upload.snapshot?.status).toBe('pending'))
  const other = indexedDbStore('uponce:uploads')
  const changed = await other.change(upload.id, (record) => ({
    ...record,
    status: 'uploading',
    notBefore: null,
    revision: record.revision + 1,
  }))
  other.close()
  expect(changed?.after.status).toBe('uploading')
  const channel = new BroadcastChannel('uponce:uploads')
  channel.postMessage({ from: 'a test', count: 1, message: { type: 'changed', record: changed?.after } })
  await vi.waitFor(() => expect(upload.snapshot?.status).toBe('pending'))
  channel.close()
})

describe('a page that stops and goes on', () => {
  const leave = (type: string): boolean => dispatchEvent(new Event(type))
  const comeBack = (type: string): boolean => dispatchEvent(Object.assign(new Event(type), { persisted: true }))

  test.each([
    ['for the back button', 'pagehide', 'pageshow'],
    ['frozen', 'freeze', 'resume'],
  ])('%s lets go of everything, and takes it up again', async (_why, leaving, returning) => {
    const locks = new FakeLocks()
    const connections: IDBDatabase[] = []
    const { open } = indexedDB
    vi.spyOn(indexedDB, 'open').mockImplementation((...args) => {
      const asked = open.apply(indexedDB, args)
      asked.addEventListener('success', () => connections.push(asked.result))
      return asked
    })
    const channels = new Set<unknown>()
    const queue = openQueue(
      {},
      {
        locks: locks as never,
        openChannel(name) {
          const channel = new BroadcastChannel(name)
          channels.add(channel)
          const { close } = channel
          return Object.assign(channel, {
            close() {
              channels.delete(channel)
              close.call(channel)
            },
          }) as never
        },
      },
    )
    const upload = await queue.enqueue(file())
    const cut = await transport.nextRequest()
    leave(leaving)
    await flush(50)
    expect(cut.signal.aborted).toBe(true)
    expect(await locks.query()).toEqual({ held: [], pending: [] })
    expect(channels.size).toBe(0)
    for (const connection of connections) expect(() => connection.transaction('uploads')).toThrow()
    comeBack(returning)
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    again.store()
    await upload.done
    expect(channels.size).toBe(1)
  })

  test('another tab takes over while it is away, and goes on after it is back', async () => {
    const locks = new FakeLocks() as never
    const away = openQueue({}, { locks })
    const upload = await away.enqueue(file())
    const cut = await transport.nextRequest()
    leave('freeze')
    const other = openQueue({}, { locks })
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    comeBack('resume')
    await flush(50)
    again.store()
    await upload.done
    expect(other.get(upload.id)?.status).toBe('succeeded')
    expect(transport.requests).toHaveLength(2)
  })

  test('a page that was not kept, or a queue that was closed, takes up nothing', async () => {
    const locks = new FakeLocks()
    const queue = openQueue({}, { locks: locks as never })
    await queue.ready()
    dispatchEvent(new Event('pageshow'))
    await queue.close()
    comeBack('pageshow')
    await flush(50)
    expect(await locks.query()).toEqual({ held: [], pending: [] })
  })

  test('without Web Locks the next page sends at once, though the lease has not run out', async () => {
    const left = openQueue({}, { locks: undefined })
    await left.enqueue(file())
    await transport.nextRequest()
    leave('pagehide')
    await flush(50)
    openQueue({}, { locks: undefined })
    await Promise.race([
      transport.nextRequest(),
      new Promise((_resolve, reject) => setTimeout(reject, 3_000, new Error('It waits for the lease.'))),
    ])
  })
})

test('storage that the browser cleared is told, and what it held is given up', async () => {
  let cleared = (): void => {}
  const queue = openQueue(
    {},
    {
      openStore(name, onClosed) {
        cleared = onClosed
        return indexedDbStore(name)
      },
    },
  )
  const warnings: string[] = []
  queue.on('warning', ({ message }) => warnings.push(message))
  const upload = await queue.enqueue(file())
  await transport.nextRequest()
  const other = indexedDbStore('uponce:uploads')
  await other.remove([upload.id])
  other.close()
  cleared()
  await expect(upload.done).rejects.toMatchObject({ name: 'AbortError' })
  await vi.waitFor(() => expect(warnings).toEqual([expect.stringContaining('1 upload')]))
  const next = await queue.enqueue(file('next'))
  ;(await transport.nextRequest()).store()
  await next.done
})

test('damaged rows are told once, and go with the account that they belong to', async () => {
  const owner = 'ann'
  const first = openQueue({ owner })
  await first.ready()
  const database = await new Promise<IDBDatabase>((resolve) => {
    const asked = indexedDB.open('uponce:uploads')
    asked.onsuccess = () => resolve(asked.result)
  })
  const transaction = database.transaction(['uploads', 'bytes'], 'readwrite')
  for (const [id, row] of Object.entries({
    mine: { v: 1, owner: 'ann' },
    newer: { v: 9, owner: 'ann' },
    theirs: { v: 1, owner: 'bob' },
    nobodys: 7,
  })) {
    transaction.objectStore('uploads').put(row, id)
    transaction.objectStore('bytes').put(new ArrayBuffer(1), id)
  }
  await new Promise((resolve) => {
    transaction.oncomplete = resolve
  })
  await first.close()
  const queue = openQueue({ owner })
  const warnings: string[] = []
  queue.on('warning', ({ message }) => warnings.push(message))
  await queue.start()
  await vi.waitFor(() => expect(warnings).toEqual([expect.stringContaining('3 stored uploads')]))
  const upload = await queue.enqueue(file())
  ;(await transport.nextRequest()).store()
  await upload.done
  await queue.clear()
  const left = await Promise.all(
    (['uploads', 'bytes'] as const).map(
      (name) =>
        new Promise((resolve) => {
          const asked = database.transaction(name).objectStore(name).getAllKeys()
          asked.onsuccess = () => resolve(asked.result)
        }),
    ),
  )
  database.close()
  expect(left).toEqual([
    ['nobodys', 'theirs'],
    ['nobodys', 'theirs'],
  ])
  expect(warnings).toHaveLength(1)
})
