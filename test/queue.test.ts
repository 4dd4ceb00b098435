import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { createUploadQueue, type Locks, type UploadQueue, type UploadQueueOptions } from '../src/index.js'
import { indexedDbStore, type Store } from '../src/store.js'
import type { Channel } from '../src/tabs.js'
import { advance, fakeClock, flush, runUntil, until } from './helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from './helpers/transport.js'

const endpoint = 'http://localhost:3000/uploads'
const file = (text = 'hello', name = 'a.txt'): File => new File([text], name, { type: 'text/plain', lastModified: 7 })

let transport: TransportDouble
const opened: UploadQueue<never>[] = []

/** A queue like those of other tabs: all share this test's database, locks and channels. */
const openQueue = (options: Partial<UploadQueueOptions> = {}): UploadQueue => {
  const queue = createUploadQueue({ endpoint, transport, ...options })
  opened.push(queue as never)
  return queue
}

/** What the page would do to a queue that dies with it. */
const closeAll = async (): Promise<void> => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
}

beforeEach(() => {
  transport = createTransportDouble()
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
})
afterEach(async () => {
  await closeAll()
  vi.unstubAllGlobals()
})

describe('the main path', () => {
  test('of many small files, one ends and the next begins in one transaction, without a read of its bytes', async () => {
    const queue = openQueue({ concurrency: 1 })
    const uploads = await queue.enqueueAll(Array.from({ length: 12 }, (_, place) => file(`number ${place}`)))
    const first = await transport.nextRequest()
    const begun = vi.spyOn(IDBDatabase.prototype, 'transaction')
    first.store()
    for (let sent = 1; sent < uploads.length; sent++) (await transport.nextRequest()).store()
    await Promise.all(uploads.map(({ done }) => done))
    // One more as the last one ends.
    expect(begun.mock.calls.map(([, mode]) => mode)).toEqual(Array(uploads.length).fill('readwrite'))
  })

  test('a file is saved, sent once with its key and digest, and its bytes are let go', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    expect(queue.get(upload.id)).toMatchObject({
      status: 'pending',
      name: 'a.txt',
      type: 'text/plain',
      size: 5,
      lastModified: 7,
      durable: true,
    })
    const request = await transport.nextRequest()
    expect(request.sha256).toBe('2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824')
    expect(request.key).toBe(queue.get(upload.id)?.idempotencyKey)
    expect(await request.text()).toBe('hello')
    expect(queue.get(upload.id)?.status).toBe('uploading')
    request.store()
    expect(await upload.done).toMatchObject({ uploadId: `id-${request.key}` })
    expect(queue.get(upload.id)).toMatchObject({ status: 'succeeded', attempts: 1, requests: 1, result: { uploadId: `id-${request.key}` } })
    expect(transport.requests).toHaveLength(1)
  })

  test('a lost answer is asked for again with the same key and digest, and the replay succeeds', async () => {
    fakeClock()
    const queue = openQueue()
    const events: unknown[] = []
    queue.on('retrying', ({ reason, counted }) => events.push(['retrying', reason, counted]))
    queue.on('succeeded', ({ replayed }) => events.push(['succeeded', replayed]))
    const upload = await queue.enqueue(file())
    const first = await transport.nextRequest()
    first.lose()
    const second = await runUntil(transport.nextRequest())
    expect([second.key, second.sha256]).toEqual([first.key, first.sha256])
    second.respondWith({ status: 201, headers: { 'Idempotent-Replayed': 'true' }, body: { uploadId: 'u', storageKey: 's' } })
    await upload.done
    expect(events).toEqual([
      ['retrying', 'network', true],
      ['succeeded', true],
    ])
    expect(queue.get(upload.id)).toMatchObject({ replayed: true, attempts: 2 })
  })
})

describe('attempts', () => {
  beforeEach(() => fakeClock())

  test('one that fails for good delays nobody, waits without a slot, and keeps its record at the limit', async () => {
    const queue = openQueue({ concurrency: 1, retry: { limit: 3 } })
    const bad = await queue.enqueue(file('bad'))
    const good = await queue.enqueueAll([file('b'), file('c')])
    ;(await transport.nextRequest()).respondWith({ status: 500 })
    for (const { snapshot } of good) {
      const request = await transport.nextRequest()
      expect(request.key).toBe(snapshot?.idempotencyKey)
      request.store()
    }
    await until(() => good.every(({ snapshot }) => snapshot?.status === 'succeeded'))
    for (let i = 0; i < 2; i++) (await runUntil(transport.nextRequest())).respondWith({ status: 500 })
    await until(() => bad.snapshot?.status === 'failed')
    await expect(bad.done).rejects.toMatchObject({ code: 'http', status: 500, attempt: 3, uploadId: bad.id })
    expect(bad.snapshot).toMatchObject({ status: 'failed', reason: 'http', attempts: 3 })
    expect(transport.mostOpen).toBe(1)
    await advance(3_600_000, 60_000)
    expect(transport.requests).toHaveLength(5)
  })

  test('a failed upload gets a whole new budget from retry, with the same key, and one attempt from each start', async () => {
    const queue = openQueue({ retry: { limit: 2 } })
    const upload = await queue.enqueue(file())
    const answer = async (status: string): Promise<void> => {
      ;(await runUntil(transport.nextRequest())).respondWith({ status: 503 })
      await until(() => upload.snapshot?.status === status)
    }
    await answer('pending')
    await answer('failed')
    await queue.start()
    await answer('failed')
    await queue.retry(upload.id)
    expect(upload.snapshot).toMatchObject({ attempts: 0, error: null })
    await answer('pending')
    const last = await runUntil(transport.nextRequest())
    last.store()
    await upload.done
    expect(new Set(transport.requests.map(({ key }) => key)).size).toBe(1)
    expect(transport.requests).toHaveLength(5)
  })

  test.each([
    [422, { error: 'idempotency_key_reuse' }, 'key-reused'],
    [413, { error: 'payload_too_large' }, 'rejected'],
    [404, 'not here', 'rejected'],
  ])('%i %o fails after one request', async (status, body, code) => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status, body })
    await expect(upload.done).rejects.toMatchObject({ code, status })
    await queue.start()
    await advance(600_000, 60_000)
    expect(transport.requests).toHaveLength(1)
    expect(upload.snapshot?.status).toBe('failed')
  })

  test('503 with Retry-After holds everybody on the origin for so long, and is not counted', async () => {
    const queue = openQueue({ retry: { limit: 1 } })
    const uploads = await queue.enqueueAll([file('a'), file('b')])
    const [one, two] = [await transport.nextRequest(), await transport.nextRequest()]
    const start = Date.now()
    one.respondWith({ status: 503, headers: { 'Retry-After': '60' } })
    await until(() => uploads[0]?.snapshot?.reason === 'http')
    expect(uploads[0]?.snapshot?.notBefore).toBeLessThanOrEqual(start + 61_000)
    two.store()
    uploads.push(await queue.enqueue(file('c')))
    await advance(59_000, 1_000)
    expect(transport.requests).toHaveLength(2)
    for (let i = 0; i < 2; i++) (await runUntil(transport.nextRequest())).store()
    expect(Date.now() - start).toBeGreaterThanOrEqual(60_000)
    expect(Date.now() - start).toBeLessThanOrEqual(65_000)
    await Promise.all(uploads.map(({ done }) => done))
    expect(queue.getSnapshot().map(({ attempts }) => attempts)).toEqual([1, 1, 1])
  })

  test('an upload that began before the origin said to wait does not hold up those who find out afterwards', async () => {
    const queue = openQueue()
    await queue.enqueueAll([file('slow'), file('told')])
    const slow = await transport.nextRequest()
    ;(await transport.nextRequest()).respondWith({ status: 503, headers: { 'Retry-After': '5' } })
    await queue.enqueue(file('next'))
    const again = await runUntil(transport.nextRequest())
    expect(slow.signal.aborted).toBe(false)
    expect(transport.requests).toHaveLength(3)
    again.store()
    ;(await transport.nextRequest()).store()
    slow.store()
    await until(() => queue.getSnapshot().every(({ status }) => status === 'succeeded'))
  })

  test('an empty file is not taken for a stall while the server thinks', async () => {
    transport = createTransportDouble({ reportsBytes: true })
    const upload = await openQueue().enqueue(file(''))
    const request = await transport.nextRequest()
    await advance(100_000)
    expect(request.signal.aborted).toBe(false)
    request.store()
    await upload.done
  })

  test('409 in progress is waited for as told, not counted', async () => {
    const queue = openQueue({ retry: { limit: 1 } })
    const upload = await queue.enqueue(file())
    for (let i = 0; i < 5; i++) {
      const before = Date.now()
      const request = await runUntil(transport.nextRequest())
      if (i > 0) expect(Date.now() - before).toBeGreaterThanOrEqual(5_000)
      request.respondWith({ status: 409, headers: { 'Retry-After': '5' }, body: { error: 'idempotency_in_progress' } })
      await until(() => upload.snapshot?.status === 'pending')
    }
    ;(await runUntil(transport.nextRequest())).store()
    await upload.done
    expect(upload.snapshot).toMatchObject({ attempts: 1, requests: 6 })
  })

  test('409 in progress without Retry-After is asked for ever more rarely', async () => {
    const queue = openQueue({ retry: { limit: 1 } })
    const upload = await queue.enqueue(file())
    const start = Date.now()
    while (Date.now() - start < 300_000) {
      ;(await runUntil(transport.nextRequest())).respondWith({ status: 409, body: { error: 'idempotency_in_progress' } })
      await until(() => upload.snapshot?.status === 'pending')
    }
    // With full jitter up to 30 s: 20 in the long run, and a few at the beginning.
    expect(transport.requests.length).toBeLessThan(60)
    expect(upload.snapshot?.attempts).toBe(0)
  })

  test('an origin that answers no probe is waited for, uncounted, with ever rarer requests; its return sends the file', async () => {
    const probes = vi.fn(() => Promise.reject(new TypeError('no')))
    vi.stubGlobal('fetch', probes)
    const queue = openQueue({ retry: { limit: 2 } })
    const heard: string[] = []
    queue.on('offline', () => heard.push('offline'))
    queue.on('online', () => heard.push('online'))
    const upload = await queue.enqueue(file())
    const losing = (async () => {
      for (;;) (await transport.nextRequest()).lose()
    })()
    void losing
    await advance(1_200_000, 5_000)
    expect(upload.snapshot).toMatchObject({ status: 'pending', attempts: 0, reason: 'network' })
    expect(transport.requests.length).toBeLessThan(20)
    expect(probes.mock.calls.length).toBeLessThan(40)
    expect(heard).toEqual(['offline'])
    vi.stubGlobal(
      'fetch',
      vi.fn(() => Promise.resolve(new Response())),
    )
    const before = transport.requests.length
    dispatchEvent(new Event('online'))
    await advance(1_000, 100)
    expect(transport.requests.length).toBeGreaterThan(before)
    expect(heard).toEqual(['offline', 'online'])
  })

  test('a 2xx that proves nothing is not a success', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({
      status: 200,
      headers: { 'Content-Type': 'text/html' },
      body: '<h1>Welcome to the hotel</h1>',
    })
    await flush()
    expect(upload.snapshot).toMatchObject({ status: 'pending', reason: 'unproven', attempts: 1 })
    ;(await runUntil(transport.nextRequest())).store()
    await upload.done
  })

  test('a 201 that echoes the key is a success though its body broke off, with a warning', async () => {
    const queue = openQueue()
    const warnings: string[] = []
    queue.on('warning', ({ message }) => warnings.push(message))
    const upload = await queue.enqueue(file())
    const request = await transport.nextRequest()
    request.respondWith({ status: 201, headers: { 'Idempotency-Key': request.key }, body: '{"uploadId":"u', broken: true })
    expect(await upload.done).toBe('{"uploadId":"u')
    expect(warnings).toHaveLength(1)
  })

  test.each([
    ['same', 'http://localhost:3000/login', 'failed', 'redirected'],
    ['another', 'https://hotel.example/', 'pending', 'unproven'],
  ])('an answer reached by a redirect on the %s origin', async (_which, url, status, reason) => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 200, body: '<html>', url, redirected: true })
    await until(() => upload.snapshot?.status !== 'uploading')
    expect(upload.snapshot).toMatchObject({ status, reason })
  })

  test('an attempt that lasts longer than its time ends, and is made again', async () => {
    const queue = openQueue({ timeout: 5_000 })
    const upload = await queue.enqueue(file())
    const first = await transport.nextRequest()
    await advance(5_000)
    expect(first.signal.aborted).toBe(true)
    expect(upload.snapshot).toMatchObject({ status: 'pending', reason: 'timeout', attempts: 1 })
    ;(await runUntil(transport.nextRequest())).store()
    await upload.done
  })

  test('bytes that are told of late, when an attempt has ended or its upload is gone, mean nothing', async () => {
    fakeClock()
    transport = createTransportDouble({ reportsBytes: true })
    const queue = openQueue({ stallTimeout: 1_000 })
    const told = vi.fn()
    queue.on('progress', told)
    const lost = await queue.enqueue(file())
    const first = await transport.nextRequest()
    first.respondWith({ status: 500 })
    ;(await runUntil(transport.nextRequest())).onProgress(0, 5)
    told.mockClear()
    await advance(200)
    first.onProgress(4, 5)
    expect([told.mock.calls.length, lost.snapshot?.progress]).toEqual([0, { loaded: 0, total: 5 }])
    await lost.cancel()
    const cancelled = await queue.enqueue(file())
    const second = await transport.nextRequest()
    await cancelled.cancel()
    expect(() => second.onProgress(1, 5)).not.toThrow()
    expect(told).not.toHaveBeenCalled()
  })

  test('silence ends an attempt where bytes are reported; slow but moving bytes never do', async () => {
    transport = createTransportDouble({ reportsBytes: true })
    const queue = openQueue({ timeout: 10_000_000, stallTimeout: 30_000 })
    const seen: number[] = []
    queue.on('progress', ({ loaded }) => seen.push(loaded))
    const upload = await queue.enqueue(file())
    const request = await transport.nextRequest()
    for (let moved = 0; moved < 4; moved++) {
      request.onProgress(moved, 5)
      await advance(29_000)
    }
    expect(request.signal.aborted).toBe(false)
    expect(upload.snapshot?.progress).toEqual({ loaded: 3, total: 5 })
    await advance(1_000)
    expect(request.signal.aborted).toBe(true)
    expect(upload.snapshot).toMatchObject({ status: 'pending', reason: 'timeout', progress: null })
    const second = await runUntil(transport.nextRequest())
    second.onProgress(5, 5)
    await advance(600_000)
    // All bytes have left: the server may think.
    expect(second.signal.aborted).toBe(false)
    second.store()
    await upload.done
    expect(seen).toEqual([0, 1, 2, 3, 5])
  })

  test('a record that ran out of time is not sent by itself, keeps its bytes, and is sent when the app says so', async () => {
    const queue = openQueue({ autoStart: false, maxAge: 1_000 })
    const upload = await queue.enqueue(file())
    await advance(2_000)
    await queue.start()
    await expect(upload.done).rejects.toMatchObject({ code: 'key-expired' })
    await queue.start()
    await advance(60_000)
    expect(transport.requests).toHaveLength(0)
    await queue.retry(upload.id)
    const request = await transport.nextRequest()
    expect(await request.text()).toBe('hello')
    request.store()
    await upload.done
  })

  test('a server that asks for a pause as it is asked for the outcome gets no bytes before that is over', async () => {
    fakeClock()
    const queue = openQueue({ outcome: 'http://localhost:3000/uploads/outcome' })
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 409, headers: { 'Retry-After': '1' } })
    const asked = await runUntil(transport.nextRequest())
    expect(asked.method).toBe('GET')
    asked.respondWith({ status: 503, headers: { 'Retry-After': '60' } })
    await advance(59_900, 1_000)
    expect(transport.requests).toHaveLength(2)
    const again = await runUntil(transport.nextRequest())
    expect(again.method).toBe('POST')
    again.store()
    await upload.done
  })

  describe('a record that ran out of time after it was sent', () => {
    const look = 'http://localhost:3000/uploads/outcome'
    const outcome = (state: object): { status: number; body: object } => ({ status: 200, body: state })
    const stored = {
      state: 'completed',
      status: 201,
      headers: [],
      body: JSON.stringify({ uploadId: 'u', storageKey: 's' }),
      bodyEncoding: 'utf8',
    }
    /** One whose last answer was lost, when its time is over. */
    const runOut = async (options: Partial<UploadQueueOptions> = {}) => {
      fakeClock()
      const queue = openQueue({ maxAge: 60_000, outcome: look, retry: { baseDelay: 100_000, maxDelay: 100_000 }, ...options })
      const upload = await queue.enqueue(file())
      ;(await transport.nextRequest()).lose()
      await until(() => upload.snapshot?.status === 'pending')
      const asked = transport.nextRequest()
      await advance(60_000, 1_000)
      return { upload, asked }
    }

    test('is asked for once, and succeeds if the server says so', async () => {
      vi.spyOn(Math, 'random').mockReturnValue(0.9)
      const { upload, asked } = await runOut()
      const request = await asked
      expect([request.method, request.url, request.key]).toEqual(['GET', look, upload.snapshot?.idempotencyKey])
      request.respondWith(outcome(stored))
      expect(await upload.done).toMatchObject({ uploadId: 'u' })
      expect(upload.snapshot?.replayed).toBe(true)
      expect(transport.requests).toHaveLength(2)
    })

    test('is asked for without what describes the file, whatever its header is named', async () => {
      vi.spyOn(Math, 'random').mockReturnValue(0.9)
      const { asked } = await runOut({ nameHeader: 'X-Own-Name', headers: { Authorization: 'Bearer x' } })
      expect([...transport.requests[0]!.headers.keys()]).toContain('x-own-name')
      const request = await asked
      const names = [...request.headers.keys()]
      expect(names).toEqual(expect.arrayContaining(['authorization', 'idempotency-key']))
      expect(names.filter((name) => /name|content-type|metadata/.test(name))).toEqual([])
      request.respondWith(outcome(stored))
    })

    test.each<[string, (request: Awaited<ReturnType<TransportDouble['nextRequest']>>) => void]>([
      ['the server does not know it', (request) => request.respondWith({ status: 404, body: { error: 'idempotency_key_unknown' } })],
      ['the server is still at work on it', (request) => request.respondWith(outcome({ state: 'in_flight', retryAfter: 2 }))],
      ['the server refused it', (request) => request.respondWith(outcome({ ...stored, status: 413, body: '{}' }))],
      ['nobody answers', (request) => request.lose()],
    ])('fails as key-expired where %s, with its bytes', async (_what, answer) => {
      vi.spyOn(Math, 'random').mockReturnValue(0.9)
      const { upload, asked } = await runOut()
      answer(await asked)
      await expect(upload.done).rejects.toMatchObject({ code: 'key-expired' })
      const store = indexedDbStore('uponce:uploads')
      expect(await new Response(await store.bytes(upload.id)).text()).toBe('hello')
      store.close()
      await advance(300_000, 10_000)
      expect(transport.requests).toHaveLength(2)
    })

    test('fails at once where outcomes cannot be asked for', async () => {
      vi.spyOn(Math, 'random').mockReturnValue(0.9)
      const { upload } = await runOut({ outcome: false })
      await expect(upload.done).rejects.toMatchObject({ code: 'key-expired' })
      expect(transport.requests).toHaveLength(1)
    })

    test('does so when the server forgets its key, should that be sooner; one that was never sent lives on', async () => {
      fakeClock()
      const queue = openQueue({ concurrency: 1, outcome: false, retry: { maxRetryAfter: 1_000_000_000 } })
      const sent = await queue.enqueue(file('a', 'sent'))
      ;(await transport.nextRequest()).respondWith({ status: 503, headers: { 'Retry-After': '4000', 'Idempotency-Retention': '3600' } })
      await until(() => sent.snapshot?.status === 'pending')
      const other = await queue.enqueue(file('b', 'never sent'))
      await closeAll()
      const next = openQueue({ outcome: false, retry: { maxRetryAfter: 1_000_000_000 } })
      await advance(3_500_000, 100_000)
      expect(next.get(sent.id)?.status).toBe('pending')
      await advance(200_000, 10_000)
      expect(next.get(sent.id)?.reason).toBe('key-expired')
      await runUntil(transport.nextRequest(), 4_000_000)
      expect(transport.requests.at(-1)?.key).toBe(next.get(other.id)?.idempotencyKey)
    })
  })

  test('an app that wants a second 401 or a third mismatch tried again has it so, counted', async () => {
    fakeClock()
    const queue = openQueue({ headers: () => ({ Authorization: 'Bearer x' }), retry: { limit: 5, shouldRetry: () => true } })
    for (const answer of [{ status: 401 }, { status: 400, body: { error: 'digest_mismatch' } }]) {
      const upload = await queue.enqueue(file())
      for (let i = 0; i < 4; i++) (await runUntil(transport.nextRequest())).respondWith(answer)
      ;(await runUntil(transport.nextRequest())).store()
      await runUntil(upload.done)
    }
  })

  test('a digest mismatch is checked against the stored bytes, tried twice more, and then fails', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    for (let i = 0; i < 3; i++) (await runUntil(transport.nextRequest())).respondWith({ status: 400, body: { error: 'digest_mismatch' } })
    await expect(upload.done).rejects.toMatchObject({ code: 'digest-mismatch' })
    expect(transport.requests).toHaveLength(3)
  })

  test('shouldRetry overrules the table, both ways; one that throws has no opinion', async () => {
    const opinions: Record<string, () => boolean | undefined> = {
      never: () => false,
      always: () => true,
      broken: () => {
        throw new Error('a bug of the app')
      },
    }
    const queue = openQueue({ concurrency: 9, retry: { shouldRetry: (_error, { name }) => opinions[name]?.() } })
    await queue.enqueueAll(Object.keys(opinions).map((name) => file(name, name)))
    for (const status of [500, 404, 500]) (await transport.nextRequest()).respondWith({ status })
    await until(() => queue.getSnapshot().every(({ status }) => status !== 'uploading'))
    expect(queue.getSnapshot().map(({ status }) => status)).toEqual(['failed', 'pending', 'pending'])
  })
})

test('a file that cannot be hashed yet, since the code for it does not load, is kept and hashed later', async () => {
  fakeClock()
  vi.stubGlobal('crypto', { getRandomValues: crypto.getRandomValues.bind(crypto) })
  vi.doMock('../src/digest-by-script.js', () => {
    throw new TypeError('Failed to fetch dynamically imported module')
  })
  const queue = openQueue()
  const upload = await queue.enqueue(file())
  await until(() => upload.snapshot?.reason === 'network')
  expect(upload.snapshot).toMatchObject({ status: 'preparing', sha256: null, attempts: 0 })
  vi.doUnmock('../src/digest-by-script.js')
  // While it is being loaded no fake time may pass.
  await import('../src/digest-by-script.js')
  const request = await runUntil(transport.nextRequest())
  expect(request.sha256).toBe('2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824')
  request.store()
  await upload.done
})

describe('headers and sign-in', () => {
  test('headers are made for every attempt; one refresh serves all uploads that got a 401, and is not counted', async () => {
    let token = 1
    const refreshes: boolean[] = []
    const queue = openQueue({
      retry: { limit: 1 },
      headers: async (_upload, { refresh }) => {
        refreshes.push(refresh)
        if (refresh) {
          await Promise.resolve()
          token += 1
        }
        return { Authorization: `Bearer ${token}` }
      },
    })
    const uploads = await queue.enqueueAll([file('a'), file('b'), file('c')])
    for (let i = 0; i < 3; i++) (await transport.nextRequest()).respondWith({ status: 401 })
    for (let i = 0; i < 3; i++) {
      const request = await transport.nextRequest()
      expect(request.headers.get('Authorization')).toBe('Bearer 2')
      request.store()
    }
    await Promise.all(uploads.map(({ done }) => done))
    expect(refreshes.filter(Boolean)).toHaveLength(1)
    expect(queue.getSnapshot().map(({ attempts, requests }) => [attempts, requests])).toEqual([1, 1, 1].map(() => [1, 2]))
  })

  test('a second 401 blocks, keeps everything, and resume revives it with the same key', async () => {
    const queue = openQueue({ headers: () => ({ Authorization: 'Bearer old' }) })
    const blocked = vi.fn()
    queue.on('blocked', blocked)
    const upload = await queue.enqueue(file())
    const first = await transport.nextRequest()
    first.respondWith({ status: 401 })
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await vi.waitFor(() => expect(upload.snapshot).toMatchObject({ status: 'blocked', reason: 'unauthorized' }))
    expect(blocked).toHaveBeenCalledOnce()
    expect(JSON.stringify(upload.snapshot)).not.toContain('Bearer')
    await queue.resume()
    const again = await transport.nextRequest()
    expect(again.key).toBe(first.key)
    again.store()
    await upload.done
  })

  test('the next start revives what is blocked', async () => {
    const queue = openQueue({ headers: () => ({}) })
    const upload = await queue.enqueue(file())
    for (let i = 0; i < 2; i++) (await transport.nextRequest()).respondWith({ status: 401 })
    await vi.waitFor(() => expect(upload.snapshot?.status).toBe('blocked'))
    await queue.start()
    ;(await transport.nextRequest()).store()
    await upload.done
  })

  test('a refresh that rejects blocks at once', async () => {
    const queue = openQueue({ headers: (_upload, { refresh }) => (refresh ? Promise.reject(new Error('signed out')) : {}) })
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await vi.waitFor(() => expect(upload.snapshot?.status).toBe('blocked'))
    expect(transport.requests).toHaveLength(1)
  })

  test('headers that cannot be made while the server cannot be reached are waited for, not a failure; the refresh is made up for', async () => {
    const answering = globalThis.fetch
    const silence = vi.fn(() => Promise.reject(new TypeError('no')))
    let online = true
    const refreshes: boolean[] = []
    const queue = openQueue({
      headers: async (_upload, { refresh }) => {
        if (!online) throw new TypeError('the token cannot be fetched')
        refreshes.push(refresh)
        return {}
      },
    })
    const upload = await queue.enqueue(file())
    const request = await transport.nextRequest()
    online = false
    vi.stubGlobal('fetch', silence)
    request.respondWith({ status: 401 })
    await vi.waitFor(() => expect(upload.snapshot).toMatchObject({ status: 'pending', reason: 'network', attempts: 0 }))
    online = true
    vi.stubGlobal('fetch', answering)
    dispatchEvent(new Event('online'))
    const again = await transport.nextRequest()
    expect(refreshes).toEqual([false, true])
    again.store()
    await upload.done
  })

  test('a timeout that is no number of ms is no limit', async () => {
    fakeClock()
    const upload = await openQueue({ timeout: () => Number.NaN }).enqueue(file())
    const request = await transport.nextRequest()
    await advance(3_600_000, 600_000)
    expect(request.signal.aborted).toBe(false)
    request.store()
    await upload.done
  })

  test.each([
    ['a header that cannot be sent', { headers: () => ({ 'X-Name': 'caf\u00e9\u4e2d' }) }],
    ['a function that throws', { headers: () => Promise.reject(new Error('bug')) }],
    ["the queue's own header", { headers: () => ({ 'idempotency-key': 'mine' }) }],
    ['a URL that is none', { endpoint: () => 'http://' }],
    ['an endpoint that throws', { endpoint: () => Promise.reject(new Error('bug')) }],
    ['an endpoint that is no http', { endpoint: 'ftp://example.com/' }],
  ])('%s: failed invalid-request, and no request', async (_what, options) => {
    const queue = openQueue(options as Partial<UploadQueueOptions>)
    const upload = await queue.enqueue(file())
    await expect(upload.done).rejects.toMatchObject({ code: 'invalid-request' })
    expect(transport.requests).toHaveLength(0)
    expect(upload.snapshot?.status).toBe('failed')
  })
})

describe('what the user does', () => {
  test('pause ends the attempt and survives; resume sends with the same key', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    const first = await transport.nextRequest()
    await queue.pause(upload.id)
    expect(first.signal.aborted).toBe(true)
    await closeAll()
    const later = openQueue()
    await later.ready()
    expect(later.get(upload.id)?.status).toBe('paused')
    await later.resume(upload.id)
    const second = await transport.nextRequest()
    expect(second.key).toBe(first.key)
    second.store()
    await later.handle(upload.id)?.done
  })

  test('a paused queue pauses what is enqueued meanwhile, also after a reload; resume runs all', async () => {
    const queue = openQueue()
    const one = await queue.enqueue(file('1'))
    await transport.nextRequest()
    await queue.pause()
    await queue.enqueue(file('2'))
    await closeAll()
    const later = openQueue()
    await later.enqueue(file('3'))
    expect(later.getSnapshot().map(({ status }) => status)).toEqual(['paused', 'paused', 'paused'])
    expect(transport.requests).toHaveLength(1)
    await later.resume()
    for (let i = 0; i < 3; i++) (await transport.nextRequest()).store()
    await vi.waitFor(() => expect(later.getSnapshot().every(({ status }) => status === 'succeeded')).toBe(true))
    expect(later.get(one.id)?.attempts).toBe(1)
  })

  test('cancel in a long wait takes effect at once, in the store too', async () => {
    const queue = openQueue({ retry: { baseDelay: 60_000, maxDelay: 60_000 } })
    const cancelled = vi.fn()
    queue.on('cancelled', cancelled)
    const upload = await queue.enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 500 })
    await vi.waitFor(() => expect(upload.snapshot?.status).toBe('pending'))
    await upload.cancel()
    await expect(upload.done).rejects.toMatchObject({ name: 'AbortError' })
    expect(queue.getSnapshot()).toEqual([])
    expect(cancelled).toHaveBeenCalledOnce()
    await closeAll()
    const later = openQueue()
    await later.ready()
    expect(later.getSnapshot()).toEqual([])
  })

  test('cancel aborts the request; an answer that comes too late changes nothing', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file())
    const request = await transport.nextRequest()
    const cancelling = upload.cancel()
    request.store()
    await cancelling
    await upload.done.catch(() => {})
    const { snapshot } = upload
    // Either it succeeded before it was cancelled, or it is gone; never something between.
    expect(snapshot === undefined || snapshot.status === 'succeeded').toBe(true)
  })

  test('flush ignores the backoff and settles when nothing is left to run', async () => {
    const queue = openQueue({ retry: { baseDelay: 3_600_000, maxDelay: 3_600_000 } })
    const uploads = await queue.enqueueAll([file('a'), file('b')])
    for (let i = 0; i < 2; i++) (await transport.nextRequest()).respondWith({ status: 500 })
    await vi.waitFor(() => expect(uploads.every(({ snapshot }) => snapshot?.reason === 'http')).toBe(true))
    const flushed = queue.flush()
    ;(await transport.nextRequest()).store()
    ;(await transport.nextRequest()).respondWith({ status: 500 })
    expect(await flushed).toEqual({ succeeded: 1, failed: 0, left: 1 })
    expect(await openQueue({ name: 'empty' }).flush()).toEqual({ succeeded: 0, failed: 0, left: 0 })
  })

  test('clear removes by status, and everything', async () => {
    const queue = openQueue()
    const [done, kept] = await queue.enqueueAll([file('a'), file('b')])
    ;(await transport.nextRequest()).store()
    await done?.done
    await queue.clear({ status: 'succeeded' })
    expect(queue.getSnapshot().map(({ id }) => id)).toEqual([kept?.id])
    await queue.clear()
    expect(queue.getSnapshot()).toEqual([])
  })

  test.each([[{ stauts: 'succeeded' }], [{ status: 'done' }], [{ owner: undefined }], [{ owner: null }]])(
    'a slip in clear (%o) is a TypeError, and removes nothing',
    async (which) => {
      const queue = openQueue()
      await queue.enqueue(file())
      await expect(queue.clear(which as never)).rejects.toThrow(TypeError)
      expect(queue.getSnapshot()).toHaveLength(1)
    },
  )

  test('a listener for an event that does not exist is a TypeError', () => {
    expect(() => openQueue().on('suceeded' as never, () => {})).toThrow(/suceeded/)
  })

  test('an aborted signal ends the call, and later the upload', async () => {
    const queue = openQueue()
    await expect(queue.enqueue(file(), { signal: AbortSignal.abort() })).rejects.toMatchObject({ name: 'AbortError' })
    expect(queue.getSnapshot()).toEqual([])
    const controller = new AbortController()
    const upload = await queue.enqueue(file(), { signal: controller.signal })
    controller.abort()
    await expect(upload.done).rejects.toMatchObject({ name: 'AbortError' })
    await vi.waitFor(() => expect(queue.getSnapshot()).toEqual([]))
  })
})

describe('enqueue', () => {
  test('the same id twice, in one tick, is one upload; after its success it is a new one', async () => {
    const queue = openQueue()
    const [one, two] = await Promise.all([queue.enqueue(file(), { id: 'draft' }), queue.enqueue(file(), { id: 'draft' })])
    expect(two.id).toBe(one.id)
    expect(queue.getSnapshot()).toHaveLength(1)
    const first = await transport.nextRequest()
    first.store()
    await one.done
    await queue.enqueue(file('new'), { id: 'draft' })
    const second = await transport.nextRequest()
    expect(second.key).not.toBe(first.key)
    expect(await second.text()).toBe('new')
  })

  test.each([
    ['a string', 'text', 'not-a-file'],
    ['a file over the limit', new File(['too long'], 'x'), 'file-too-large'],
    ['null', null, 'not-a-file'],
  ])('%s is refused with its code, and nothing is left behind', async (_what, value, code) => {
    const queue = openQueue({ maxFileSize: 5 })
    await expect(queue.enqueue(value as never)).rejects.toMatchObject({ code })
    await expect(queue.enqueueAll([value as never, file('ok')])).rejects.toMatchObject({ errors: [{ code }], indexes: [0] })
    expect(queue.getSnapshot()).toHaveLength(1)
  })

  test('wrong options of one call are a TypeError', async () => {
    await expect(openQueue().enqueue(file(), { metadata: { 'a b': 'c' } })).rejects.toThrow(/metadata/)
  })

  test('signed out, nothing is taken in or sent', async () => {
    const queue = openQueue({ owner: null })
    await expect(queue.enqueue(file())).rejects.toMatchObject({ code: 'unauthorized' })
  })

  test("another account neither sees nor sends one account's uploads", async () => {
    let owner: string | null = 'alice'
    const queue = openQueue({ autoStart: false, owner: () => owner })
    await queue.enqueue(file())
    owner = 'bob'
    await queue.start()
    expect(queue.getSnapshot()).toEqual([])
    await queue.enqueue(file('of bob'))
    const request = await transport.nextRequest()
    expect(await request.text()).toBe('of bob')
    expect(transport.requests).toHaveLength(1)
    owner = 'alice'
    await queue.start()
    expect(await (await transport.nextRequest()).text()).toBe('hello')
  })

  test('without IndexedDB it runs in memory and says so, or rejects where the app demands a disk', async () => {
    Reflect.deleteProperty(globalThis, 'indexedDB')
    const queue = openQueue()
    const warnings: string[] = []
    queue.on('warning', ({ message }) => warnings.push(message))
    const upload = await queue.enqueue(file())
    expect(upload.snapshot?.durable).toBe(false)
    expect(warnings).toHaveLength(1)
    ;(await transport.nextRequest()).store()
    await upload.done
    await expect(openQueue({ persist: 'required', autoStart: false }).ready()).rejects.toMatchObject({ code: 'storage-unavailable' })
  })
})

describe('pages come and go', () => {
  test('what is saved while the queue still opens is not forgotten by the reading of the store', async () => {
    const queue = openQueue({ concurrency: 1 })
    const handles = await Promise.all(Array.from({ length: 20 }, (_, i) => queue.enqueue(file(`${i}`, `${i}`))))
    await transport.nextRequest()
    expect(queue.getSnapshot().map(({ name }) => name)).toEqual(Array.from({ length: 20 }, (_, i) => `${i}`))
    expect(handles.every(({ snapshot }) => snapshot?.durable)).toBe(true)
  })

  test('a page that goes in the middle of a request: the next one sends the same key, once', async () => {
    const upload = await openQueue().enqueue(file())
    const first = await transport.nextRequest()
    await closeAll()
    const queue = openQueue()
    const second = await transport.nextRequest()
    expect(second.key).toBe(first.key)
    second.store()
    await vi.waitFor(() => expect(queue.get(upload.id)?.status).toBe('succeeded'))
    expect(transport.requests).toHaveLength(2)
  })

  test('a record that is gone from the store, though nobody said so, is let go', async () => {
    let inner: Store | undefined
    const queue = createUploadQueue(
      { endpoint, transport, concurrency: 1 },
      {
        openStore: (name) => {
          inner = indexedDbStore(name)
          return inner
        },
      },
    )
    opened.push(queue as never)
    const [first, second] = await queue.enqueueAll([file('a'), file('b')])
    const request = await transport.nextRequest()
    await inner?.remove([second?.id as string])
    request.store()
    await first?.done
    await expect(second?.done).rejects.toMatchObject({ name: 'AbortError' })
    expect(queue.getSnapshot()).toHaveLength(1)
    expect(transport.requests).toHaveLength(1)
  })

  test('what has succeeded is not sent again', async () => {
    const uploads = await openQueue().enqueueAll(['1', '2', '3', '4', '5'].map((text) => file(text)))
    for (let i = 0; i < 2; i++) (await transport.nextRequest()).store()
    await Promise.all(uploads.slice(0, 2).map(({ done }) => done))
    await closeAll()
    const before = transport.requests.length
    const queue = openQueue({ concurrency: 9 })
    await vi.waitFor(() => expect(transport.requests.length - before).toBe(3))
    for (const request of transport.requests.slice(before)) request.store()
    await vi.waitFor(() => expect(queue.getSnapshot().every(({ status }) => status === 'succeeded')).toBe(true))
    expect(transport.requests.length - before).toBe(3)
  })

  test('the stored time of the next attempt survives the page', async () => {
    fakeClock()
    const upload = await openQueue().enqueue(file())
    ;(await transport.nextRequest()).respondWith({ status: 503, headers: { 'Retry-After': '3600' } })
    await until(() => upload.snapshot?.status === 'pending')
    const start = Date.now()
    await closeAll()
    const queue = openQueue()
    await queue.ready()
    expect(queue.get(upload.id)?.notBefore).toBeGreaterThanOrEqual(start + 3_600_000)
    await runUntil(transport.nextRequest())
    expect(Date.now() - start).toBeGreaterThanOrEqual(3_600_000)
  })

  test('two tabs: one sends, both see everything, and the other takes over when it goes', async () => {
    const [one, two] = [openQueue(), openQueue()]
    await one.ready()
    const heard: string[] = []
    one.on('succeeded', ({ upload }) => heard.push(`one ${upload.name}`))
    two.on('succeeded', ({ upload }) => heard.push(`two ${upload.name}`))
    const upload = await two.enqueue(file('hello', 'from-two'))
    ;(await transport.nextRequest()).store()
    await upload.done
    await vi.waitFor(() => expect(heard.sort()).toEqual(['one from-two', 'two from-two']))
    const mine = await one.enqueue(file('x', 'from-one'))
    const cut = await transport.nextRequest()
    opened.splice(opened.indexOf(one as never), 1)
    await one.close()
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    again.store()
    await vi.waitFor(() => expect(two.get(mine.id)?.status).toBe('succeeded'))
    expect(transport.requests).toHaveLength(3)
  })

  test('two tabs that both believe it is their turn send each file once: the store decides', async () => {
    const locks: Locks = { request: (_name, _options, callback) => callback() }
    const [one, two] = [1, 2].map(() => createUploadQueue({ endpoint, transport, concurrency: 9 }, { locks })) as [UploadQueue, UploadQueue]
    opened.push(one as never, two as never)
    await Promise.all([one.start(), two.start()])
    const uploads = await one.enqueueAll(['a', 'b', 'c', 'd', 'e'].map((text) => file(text)))
    for (let i = 0; i < 5; i++) (await transport.nextRequest()).store()
    await Promise.all(uploads.map(({ done }) => done))
    await vi.waitFor(() => expect(two.getSnapshot().every(({ status }) => status === 'succeeded')).toBe(true))
    expect(transport.requests).toHaveLength(5)
  })

  test('what was missed while the database did not answer either is read when it does', async () => {
    const one = openQueue({ autoStart: false })
    let drops = 1
    const openChannel = (name: string): Channel => {
      const channel = new BroadcastChannel(name)
      return {
        postMessage: (message) => channel.postMessage(message),
        addEventListener: (type, listener) => channel.addEventListener(type, (event) => --drops < 0 && listener(event)),
        close: () => channel.close(),
      }
    }
    const two = createUploadQueue({ endpoint, transport, autoStart: false }, { openChannel })
    opened.push(two as never)
    await Promise.all([one.ready(), two.ready()])
    await one.enqueue(file('a'))
    await vi.waitFor(() => expect(drops).toBe(0))
    const broken = vi.spyOn(IDBObjectStore.prototype, 'getAll').mockImplementation(() => {
      throw new DOMException('not now', 'UnknownError')
    })
    await one.enqueue(file('b'))
    await vi.waitFor(() => expect(broken).toHaveBeenCalled())
    expect(two.getSnapshot()).toHaveLength(1)
    broken.mockRestore()
    await vi.waitFor(() => expect(two.getSnapshot()).toHaveLength(2), 3_000)
  })

  test('cancel and pause from the tab that does not send reach the one that does', async () => {
    const [one, two] = [openQueue(), openQueue()]
    await one.ready()
    await two.ready()
    const upload = await one.enqueue(file())
    const request = await transport.nextRequest()
    await vi.waitFor(() => expect(two.get(upload.id)?.status).toBe('uploading'))
    await two.pause(upload.id)
    await vi.waitFor(() => expect(request.signal.aborted).toBe(true))
    await two.resume(upload.id)
    const second = await transport.nextRequest()
    await two.cancel(upload.id)
    await vi.waitFor(() => expect(second.signal.aborted).toBe(true))
    expect(one.getSnapshot()).toEqual([])
    expect(two.getSnapshot()).toEqual([])
  })

  test.each([
    ['Web Locks', () => Object.defineProperty(navigator, 'locks', { value: undefined, configurable: true })],
    ['BroadcastChannel', () => vi.stubGlobal('BroadcastChannel', undefined)],
    ['randomUUID', () => vi.stubGlobal('crypto', { subtle: crypto.subtle, getRandomValues: crypto.getRandomValues.bind(crypto) })],
  ])('without %s it is still a working queue', async (_what, remove) => {
    remove()
    const upload = await openQueue().enqueue(file())
    expect(upload.id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    ;(await transport.nextRequest()).store()
    await upload.done
  })
})
