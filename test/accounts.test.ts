import { inspect } from 'node:util'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { eventNames } from '../src/events.js'
import { createUploadQueue, type UploadQueue, type UploadQueueEventName, type UploadQueueOptions } from '../src/index.js'
import { indexedDbStore } from '../src/store.js'
import { advance, fakeClock, flush, runUntil, until } from './helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from './helpers/transport.js'

const endpoint = 'https://files.example/uploads'
const file = (name: string): File => new File([name], name)

let transport: TransportDouble
let account: string | null
const opened: UploadQueue<never>[] = []
const openQueue = (options: Partial<UploadQueueOptions<never>> = {}): UploadQueue<never> => {
  const queue = createUploadQueue<never>({ endpoint, transport, owner: () => account, ...options })
  opened.push(queue)
  return queue
}
const closeAll = async (): Promise<void> => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
}
const statuses = (queue: UploadQueue<never>): string[] => queue.getSnapshot().map(({ status }) => status)
/** The names of the files whose bytes are still there. */
const storedBytes = async (...ids: string[]): Promise<(string | undefined)[]> => {
  const store = indexedDbStore('uponce:uploads')
  const textOf = async (id: string): Promise<string | undefined> => {
    const bytes = await store.bytes(id)
    return bytes && new Response(bytes).text()
  }
  const bytes = await Promise.all(ids.map(textOf))
  store.close()
  return bytes
}

beforeEach(() => {
  fakeClock()
  account = 'ann'
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

/** Headers whose renewal is the test's to give; and how often that was asked for. */
const tokens = (renew: () => Promise<string> | string) => {
  const seen = { renewals: 0, token: 'first' }
  const headers = async (_upload: unknown, { refresh }: { refresh: boolean }): Promise<HeadersInit> => {
    if (refresh) {
      seen.renewals += 1
      seen.token = await renew()
    }
    return { Authorization: `Bearer ${seen.token}` }
  }
  return { seen, headers }
}

describe('a sign-in that is no longer accepted', () => {
  test('a renewal that hangs blocks after 30 s, once for all, and keeps everything', async () => {
    const { seen, headers } = tokens(() => new Promise<never>(() => {}))
    const queue = openQueue({ headers })
    const blocked: string[] = []
    queue.on('blocked', ({ upload, error }) => blocked.push(`${upload.name} ${error.code}`))
    const uploads = await queue.enqueueAll(['a', 'b', 'c'].map(file))
    for (let count = 0; count < 3; count++) (await transport.nextRequest()).respondWith({ status: 401 })
    await advance(29_900, 1_000)
    expect(blocked).toEqual([])
    await advance(200)
    expect(blocked.sort()).toEqual(['a unauthorized', 'b unauthorized', 'c unauthorized'])
    expect([seen.renewals, transport.requests.length]).toEqual([1, 3])
    await advance(3_600_000, 60_000)
    expect(transport.requests).toHaveLength(3)
    expect(await storedBytes(...uploads.map(({ id }) => id))).toEqual(['a', 'b', 'c'])
  })

  test('a 401 to what was sent before the renewal needs no other; one to what was sent after it does', async () => {
    let count = 1
    const { seen, headers } = tokens(() => `renewed ${count++}`)
    const queue = openQueue({ headers, retry: { limit: 1 } })
    await queue.enqueueAll(['a', 'b'].map(file))
    const [a, b] = [await transport.nextRequest(), await transport.nextRequest()]
    a.respondWith({ status: 401 })
    const again = await transport.nextRequest()
    expect(again.headers.get('Authorization')).toBe('Bearer renewed 1')
    b.respondWith({ status: 401 })
    const late = await transport.nextRequest()
    expect([late.headers.get('Authorization'), seen.renewals]).toEqual(['Bearer renewed 1', 1])
    again.store()
    late.store()
    await until(() => statuses(queue).every((status) => status === 'succeeded'))
    await advance(60_000)
    await queue.enqueue(file('c'))
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    const third = await transport.nextRequest()
    expect([third.headers.get('Authorization'), seen.renewals]).toEqual(['Bearer renewed 2', 2])
    third.store()
    await until(() => statuses(queue).every((status) => status === 'succeeded'))
    expect(queue.getSnapshot().map(({ attempts }) => attempts)).toEqual([1, 1, 1])
  })

  test('what is blocked is so on the next page too, until that starts; key and digest stay', async () => {
    const { headers } = tokens(() => 'as bad')
    const queue = openQueue({ headers })
    const upload = await queue.enqueue(file('a'))
    const first = await transport.nextRequest()
    first.respondWith({ status: 401 })
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await until(() => upload.snapshot?.status === 'blocked')
    await closeAll()
    const next = openQueue({ headers, autoStart: false })
    await next.ready()
    expect(statuses(next)).toEqual(['blocked'])
    await next.start()
    const again = await transport.nextRequest()
    expect([again.key, again.sha256, await again.text()]).toEqual([first.key, first.sha256, 'a'])
    again.store()
    await until(() => statuses(next)[0] === 'succeeded')
  })

  test.each([
    ['headers that cannot be made', { headers: () => Promise.reject(new TypeError('no network')) }],
    ['an account that cannot be found out', {}],
  ])('%s while the server is away: asked for no more often than requests are let through', async (what, options) => {
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
    let asked = 0
    const queue = openQueue({
      ...options,
      ...(what.startsWith('an account') && {
        owner: () => {
          asked += 1
          if (asked > 3) throw new TypeError('no network')
          return 'ann'
        },
      }),
      endpoint: () => {
        tries += 1
        // One that is tried without end would keep the test from ending.
        return tries > 500 ? new Promise<never>(() => {}) : endpoint
      },
    })
    let tries = 0
    await queue.enqueue(file('a'))
    await advance(600_000, 1_000)
    expect(tries).toBeGreaterThan(2)
    expect(tries).toBeLessThan(25)
    expect(transport.requests).toHaveLength(0)
    expect(statuses(queue)).toEqual(['pending'])
  })
})

describe('a token', () => {
  const plain = 'plain-token-4711'
  const events = [...eventNames] as UploadQueueEventName[]
  /** Everything that a database holds. */
  const dump = async (): Promise<string> => {
    const all: unknown[] = []
    for (const { name } of await indexedDB.databases()) {
      const database = await new Promise<IDBDatabase>((resolve) => {
        const asked = indexedDB.open(name!)
        asked.onsuccess = () => resolve(asked.result)
      })
      for (const store of database.objectStoreNames) {
        const rows = database.transaction(store).objectStore(store)
        for (const asked of [rows.getAll(), rows.getAllKeys()])
          all.push(
            await new Promise((resolve) => {
              asked.onsuccess = () => resolve(asked.result)
            }),
          )
      }
      database.close()
    }
    return inspect(all, { depth: null, maxStringLength: null, maxArrayLength: null })
  }

  test.each<[string, string, (refresh: boolean) => HeadersInit | Promise<HeadersInit>]>([
    ['of many attempts', plain, () => ({ Authorization: `Bearer ${plain}` })],
    ['that no header can hold', plain, () => ({ Authorization: `Bearer ${plain}\n${plain}` })],
    [
      'that its renewal tells',
      plain,
      (refresh) => (refresh ? Promise.reject(new Error(`${plain} is over`)) : { Authorization: `Bearer ${plain}` }),
    ],
    ['in an error of the app', plain, () => Promise.reject(new Error(`${plain} is none`))],
  ])('%s is neither stored nor told', async (_what, token, make) => {
    const told: unknown[] = []
    const channel = new BroadcastChannel('uponce:uploads')
    channel.addEventListener('message', ({ data }) => told.push(data))
    const queue = openQueue({ headers: (_upload, { refresh }) => make(refresh), retry: { limit: 3 } })
    for (const name of events) queue.on(name, (payload) => told.push([name, payload]))
    const upload = await queue.enqueue(file('a'))
    upload.done.catch((error) => told.push(error))
    const answers = [{ status: 401 }, { status: 500 }, { status: 503, headers: { 'Retry-After': '5' } }, { status: 401 }, { status: 401 }]
    const serve = async (): Promise<void> => {
      for (const answer of answers) {
        const request = await transport.nextRequest()
        expect(request.headers.get('Authorization')).toBe(`Bearer ${plain}`)
        request.respondWith(answer)
      }
    }
    void serve()
    await advance(60_000, 500)
    expect(['blocked', 'failed']).toContain(upload.snapshot?.status)
    told.push(queue.getSnapshot(), upload.snapshot)
    expect(told.length).toBeGreaterThan(4)
    const everything = inspect(told, { depth: null, maxStringLength: null, maxArrayLength: null, showHidden: true })
    expect(everything).toContain('uploadId')
    expect(everything).not.toContain(token)
    const stored = await dump()
    expect(stored).toContain(upload.id)
    expect(stored).not.toContain(token)
    channel.close()
  })
})

describe('accounts', () => {
  test('signed out in the middle of an attempt, it ends, record and bytes stay, and nothing runs', async () => {
    const queue = openQueue()
    const upload = await queue.enqueue(file('a'))
    const cut = await transport.nextRequest()
    account = null
    await queue.start()
    await until(() => cut.signal.aborted)
    await advance(3_600_000, 60_000)
    await queue.retry()
    await queue.resume()
    expect(await runUntil(queue.flush())).toEqual({ succeeded: 0, failed: 0, left: 0 })
    expect([transport.requests.length, queue.getSnapshot()]).toEqual([1, []])
    expect(await storedBytes(upload.id)).toEqual(['a'])
    account = 'ann'
    await queue.start()
    const again = await transport.nextRequest()
    expect(again.key).toBe(cut.key)
    again.store()
    await until(() => statuses(queue)[0] === 'succeeded')
  })

  test('what one account left offline goes out under no other, not on the next page either, and does when it is back', async () => {
    const away = (): Promise<never> => Promise.reject(new TypeError('Failed to fetch'))
    vi.stubGlobal('fetch', away)
    const headers = () => ({ Authorization: `Bearer ${account}` })
    const queue = openQueue({ headers })
    await queue.enqueueAll(['a', 'b'].map(file))
    for (let count = 0; count < 2; count++) (await transport.nextRequest()).lose()
    await until(() => statuses(queue).every((status) => status === 'pending'))
    account = 'bob'
    await queue.start()
    vi.stubGlobal('fetch', () => Promise.resolve(new Response()))
    dispatchEvent(new Event('online'))
    await advance(120_000, 1_000)
    expect([queue.getSnapshot(), transport.requests.length]).toEqual([[], 2])
    await closeAll()
    const next = openQueue({ headers })
    const own = await next.enqueue(file('of bob'))
    const request = await transport.nextRequest()
    expect([await request.text(), request.headers.get('Authorization')]).toEqual(['of bob', 'Bearer bob'])
    request.store()
    await until(() => own.snapshot?.status === 'succeeded')
    await advance(120_000, 1_000)
    expect(transport.requests).toHaveLength(3)
    account = 'ann'
    await next.start()
    for (const text of ['a', 'b']) {
      const again = await transport.nextRequest()
      expect([await again.text(), again.headers.get('Authorization')]).toEqual([text, 'Bearer ann'])
      again.store()
    }
    await until(() => statuses(next).every((status) => status === 'succeeded'))
  })

  test("a renewal that ends after another account has signed in sends nothing under that account's token", async () => {
    let finish = (): void => {}
    const queue = openQueue({
      async headers(_upload, { refresh }) {
        if (refresh)
          await new Promise<void>((resolve) => {
            finish = resolve
          })
        return { Authorization: `Bearer ${account}` }
      },
    })
    await queue.enqueue(file('a'))
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await flush()
    account = 'bob'
    finish()
    await advance(60_000, 1_000)
    expect(transport.requests).toHaveLength(1)
  })

  test('clear({ owner }) removes records and bytes of that account alone, its attempt under way too', async () => {
    const queue = openQueue()
    const mine = await queue.enqueueAll(['a', 'b'].map(file))
    const cut = await transport.nextRequest()
    await transport.nextRequest()
    account = 'bob'
    await queue.start()
    const his = await queue.enqueue(file('of bob'))
    await until(() => transport.requests.length === 3)
    await queue.clear({ owner: 'ann' })
    expect(cut.signal.aborted).toBe(true)
    expect(await storedBytes(...mine.map(({ id }) => id), his.id)).toEqual([undefined, undefined, 'of bob'])
    expect(statuses(queue)).toEqual(['uploading'])
    expect(transport.requests[2]!.signal.aborted).toBe(false)
    await queue.clear({ owner: 'carol' })
    expect(statuses(queue)).toEqual(['uploading'])
    account = 'ann'
    await queue.start()
    await advance(60_000, 1_000)
    expect([queue.getSnapshot(), transport.requests.length]).toEqual([[], 3])
  })

  test('clear({ owner }) at sign-out ends the attempt of that account', async () => {
    const queue = openQueue()
    const { id } = await queue.enqueue(file('a'))
    const request = await transport.nextRequest()
    await queue.clear({ owner: 'ann' })
    expect(request.signal.aborted).toBe(true)
    expect(await storedBytes(id)).toEqual([undefined])
    await advance(60_000, 1_000)
    expect(transport.requests).toHaveLength(1)
  })
})

describe('a renewal of the sign-in', () => {
  test('a renewal that fails is asked for once, and blocks all', async () => {
    const { seen, headers } = tokens(() => Promise.reject(new Error('signed out elsewhere')))
    const queue = openQueue({ headers })
    await queue.enqueueAll(['a', 'b', 'c'].map(file))
    for (let count = 0; count < 3; count++) (await transport.nextRequest()).respondWith({ status: 401 })
    await until(() => statuses(queue).every((status) => status === 'blocked'))
    expect([seen.renewals, transport.requests.length]).toEqual([1, 3])
  })

  test('a clock that is set back does not keep a later 401 from asking for a new token', async () => {
    let count = 1
    const { seen, headers } = tokens(() => `renewed ${count++}`)
    const queue = openQueue({ headers })
    for (const name of ['a', 'b']) {
      await queue.enqueue(file(name))
      ;(await transport.nextRequest()).respondWith({ status: 401 })
      const again = await transport.nextRequest()
      expect(again.headers.get('Authorization')).toBe(`Bearer renewed ${seen.renewals}`)
      again.store()
      await until(() => statuses(queue).every((status) => status === 'succeeded'))
      expect(seen.renewals).toBe(name === 'a' ? 1 : 2)
      vi.setSystemTime(Date.now() - 3_600_000)
    }
  })

  test("one account's renewal that hangs is not waited for by another's", async () => {
    const asked: (string | null)[] = []
    const queue = openQueue({
      async headers(_upload, { refresh }) {
        if (refresh) asked.push(account)
        if (refresh && account === 'ann') await new Promise<never>(() => {})
        return { Authorization: `Bearer ${account}` }
      },
    })
    await queue.enqueue(file('a'))
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await until(() => asked.length === 1)
    account = 'bob'
    await queue.start()
    const his = await queue.enqueue(file('of bob'))
    ;(await transport.nextRequest()).respondWith({ status: 401 })
    await advance(40_000, 1_000)
    expect(asked).toEqual(['ann', 'bob'])
    expect(his.snapshot?.status).toBe('uploading')
  })

  test('progress goes on when the clock is set back in the middle of an attempt', async () => {
    transport = createTransportDouble({ reportsBytes: true })
    const queue = openQueue()
    const seen: number[] = []
    queue.on('progress', ({ loaded }) => seen.push(loaded))
    await queue.enqueue(file('abcdef'))
    const request = await transport.nextRequest()
    request.onProgress(1, 6)
    vi.setSystemTime(Date.now() - 3_600_000)
    await advance(200)
    request.onProgress(2, 6)
    expect(seen).toEqual([1, 2])
    request.store()
    await flush()
  })
})

test('a sign-out in the middle of many files: those that are saved stay the account’s, and the error says which the others are', async () => {
  const queue = openQueue({ autoStart: false })
  queue.on('added', () => {
    account = null
  })
  const names = Array.from({ length: 40 }, (_, index) => `file ${index}`)
  const error = await queue.enqueueAll(names.map(file)).catch((error: unknown) => error)
  const { errors, indexes } = error as { errors: { code: string }[]; indexes: number[] }
  expect(new Set(errors.map(({ code }) => code))).toEqual(new Set(['unauthorized']))
  account = 'ann'
  await queue.start()
  const saved = queue.getSnapshot().map(({ name }) => name)
  expect(saved.length).toBeGreaterThan(0)
  expect([...saved, ...indexes.map((index) => names[index])]).toEqual(names)
})
