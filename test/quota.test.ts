import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createUploadQueue, type UploadQueue } from '../src/index.js'
import { createPersistence } from '../src/persistence.js'
import { checkRoom, type StorageQuota } from '../src/quota.js'
import { memoryStore } from '../src/store.js'
import { fakeClock, runUntil } from './helpers/fake-clock.js'
import { createTransportDouble } from './helpers/transport.js'

const MiB = 1_048_576
const room = (quota: number, usage = 0): StorageQuota => ({ estimate: async () => ({ quota, usage }) })

test.each<[string, StorageQuota | undefined, number]>([
  ['there is room', room(20 * MiB, 5 * MiB), 15 * MiB],
  ['the file is small: the database says it as quickly', room(0), 10 * MiB - 1],
  ['nobody can be asked', undefined, 1e12],
  ['the engine has no estimate', {}, 1e12],
  ['the engine fails', { estimate: () => Promise.reject(new TypeError('none')) }, 1e12],
  ['the engine says nothing', { estimate: async () => ({}) }, 1e12],
])('a file goes on where %s', async (_why, storage, size) => {
  await checkRoom(storage, size)
})

test('a large file that has no room is refused before anything is written', async () => {
  await expect(checkRoom(room(20 * MiB, 5 * MiB), 15 * MiB + 1)).rejects.toMatchObject({ code: 'quota-exceeded' })
})

test('an engine that never answers is not waited for', async () => {
  fakeClock()
  await runUntil(checkRoom({ estimate: () => new Promise(() => {}) }, 1e12), 1_500)
})

test('the answer about keeping is the engine’s, and none where it has none', async () => {
  const answerOf = async (storage: StorageQuota | undefined): Promise<boolean | undefined> => {
    const store = memoryStore()
    const persistence = createPersistence(() => ({ ...store, durable: true }), storage, Date.now)
    await persistence.ask()
    return persistence.granted
  }
  expect(await answerOf({ persist: async () => true })).toBe(true)
  const broken = {
    persist: () => {
      throw new TypeError()
    },
  }
  for (const storage of [undefined, {}, broken, { persist: () => Promise.reject(new TypeError()) }])
    expect(await answerOf(storage)).toBe(undefined)
})

const opened: UploadQueue[] = []
const transport = createTransportDouble()
const openQueue = (storage: StorageQuota, persist: 'preferred' | 'memory' = 'preferred'): UploadQueue => {
  const queue = createUploadQueue({ endpoint: 'http://localhost:3000/uploads', transport, persist }, { storage })
  opened.push(queue)
  return queue
}
beforeEach(() => vi.stubGlobal('fetch', () => Promise.resolve(new Response())))
afterEach(async () => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  vi.unstubAllGlobals()
})

test('the browser is asked at the first enqueue, once, and its answer seen; the next page only looks', async () => {
  const storage = { persist: vi.fn(async () => true), persisted: vi.fn(async () => true) }
  const first = openQueue(storage)
  await first.ready()
  expect([first.persisted, storage.persist.mock.calls.length]).toEqual([undefined, 0])
  await Promise.all([first.enqueue(new Blob(['a'])), first.enqueue(new Blob(['b']))])
  await vi.waitFor(() => expect(first.persisted).toBe(true))
  const second = openQueue(storage)
  await second.enqueue(new Blob(['c']))
  await vi.waitFor(() => expect(second.persisted).toBe(true))
  expect([storage.persist.mock.calls.length, storage.persisted.mock.calls.length]).toEqual([1, 1])
})

test('a day later it is asked again', async () => {
  const storage = { persist: vi.fn(async () => false), persisted: vi.fn(async () => false) }
  const now = vi.spyOn(Date, 'now')
  await openQueue(storage).enqueue(new Blob(['a']))
  await vi.waitFor(() => expect(storage.persist).toHaveBeenCalledOnce())
  now.mockReturnValue(Date.now() + 86_400_000)
  const later = openQueue(storage)
  await later.enqueue(new Blob(['b']))
  await vi.waitFor(() => expect(later.persisted).toBe(false))
  expect(storage.persist).toHaveBeenCalledTimes(2)
  now.mockRestore()
})

test('a queue in memory asks for nothing', async () => {
  const storage = { persist: vi.fn(async () => true), estimate: vi.fn(async () => ({ quota: 0 })) }
  const queue = openQueue(storage, 'memory')
  await queue.enqueue(new Blob([new Uint8Array(10 * MiB)]))
  expect([storage.persist.mock.calls.length, storage.estimate.mock.calls.length]).toEqual([0, 0])
})
