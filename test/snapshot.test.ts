import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { newRecord, type PendingUpload } from '../src/record.js'
import { createSnapshot, type Snapshot } from '../src/snapshot.js'

const record = (id: string, order: number, facts: Partial<PendingUpload> = {}): PendingUpload => ({
  ...newRecord({
    id,
    idempotencyKey: `${id} ${order}`,
    sha256: 'ab'.repeat(32),
    owner: 'ann',
    name: id,
    type: '',
    size: 1,
    lastModified: 0,
    metadata: { album: 'summer' },
    priority: 0,
    order,
    createdAt: 0,
    expiresAt: 1,
    paused: false,
  }),
  ...facts,
})

let snapshot: Snapshot<unknown>
beforeEach(() => {
  snapshot = createSnapshot()
  snapshot.setOwner('ann')
})

const ids = (): string[] => snapshot.list().map(({ id }) => id)
const all = (): string[] => [...snapshot.all()].map(({ id }) => id)

test('the list is the same array, and its uploads the same objects, until something changes', () => {
  const first = snapshot.put(record('a', 1))
  snapshot.put(record('b', 2))
  const before = snapshot.list()
  expect(snapshot.list()).toBe(before)
  expect(snapshot.get('a')).toBe(first)
  snapshot.put(record('b', 2, { revision: 2 }))
  expect(snapshot.list()).not.toBe(before)
  expect(snapshot.list()[0]).toBe(first)
  expect(snapshot.list()[1]).not.toBe(before[1])
})

test('hearing the same again changes nothing', async () => {
  const first = snapshot.put(record('a', 1))
  const before = snapshot.list()
  const listener = vi.fn()
  snapshot.subscribe(listener)
  expect(snapshot.put(record('a', 1))).toBe(first)
  snapshot.merge([record('a', 1)], [], true)
  expect(snapshot.list()).toBe(before)
  await new Promise((resolve) => setImmediate(resolve))
  expect(listener).not.toHaveBeenCalled()
})

test('list, uploads, metadata and progress are frozen', () => {
  snapshot.put(record('a', 1, { status: 'uploading' }))
  const upload = snapshot.progress('a', { loaded: 1, total: 2 })
  for (const value of [snapshot.list(), upload, upload?.metadata, upload?.progress]) expect(Object.isFrozen(value)).toBe(true)
})

test("a record's own objects are neither frozen nor shared", () => {
  const own = record('a', 1)
  snapshot.put(own)
  expect(Object.isFrozen(own.metadata)).toBe(false)
  own.metadata.album = 'winter'
  expect(snapshot.get('a')?.metadata).toEqual({ album: 'summer' })
})

test('the oldest comes first, however they came in', () => {
  for (const [id, order] of [
    ['c', 30],
    ['a', 10],
    ['d', 40],
    ['b', 20],
  ] as const)
    snapshot.put(record(id, order))
  expect(ids()).toEqual(['a', 'b', 'c', 'd'])
  snapshot.put(record('a', 50))
  expect(ids()).toEqual(['b', 'c', 'd', 'a'])
})

test('an older revision is ignored', () => {
  snapshot.put(record('a', 1, { revision: 5, status: 'succeeded' }))
  expect(snapshot.put(record('a', 1, { revision: 4, status: 'uploading' }))).toBeUndefined()
  snapshot.merge([record('a', 1, { revision: 4, status: 'uploading' })], [], true)
  expect(snapshot.get('a')).toMatchObject({ revision: 5, status: 'succeeded' })
})

test('a second upload under an id that has succeeded starts over with its revision', () => {
  snapshot.put(record('a', 1, { revision: 5, status: 'succeeded' }))
  expect(snapshot.put(record('a', 2))).toMatchObject({ revision: 1, status: 'pending' })
})

test('what was removed stays removed, whatever is heard of it later', () => {
  snapshot.put(record('a', 1, { revision: 2 }))
  expect(snapshot.remove('a')).toMatchObject({ id: 'a' })
  expect(snapshot.remove('a')).toBeUndefined()
  expect(snapshot.put(record('a', 1, { revision: 9 }))).toBeUndefined()
  snapshot.merge([record('a', 1, { revision: 9 })], [], true)
  expect([ids(), all(), snapshot.find('a')]).toEqual([[], [], undefined])
})

test('an id that was removed may be used again', () => {
  snapshot.put(record('a', 1))
  snapshot.remove('a')
  expect(snapshot.put(record('a', 2))).toMatchObject({ order: 2 })
})

test('a message about what was removed comes too late, whatever else had its id', () => {
  snapshot.put(record('a', 2))
  snapshot.remove('a')
  expect(snapshot.put(record('a', 2, { revision: 2 }))).toBeUndefined()
  expect(snapshot.put(record('a', 1))).toMatchObject({ order: 1 })
})

test('a reading of the store adds and removes, but forgets nothing that came in while it was read', () => {
  for (const [id, order] of [
    ['a', 1],
    ['b', 2],
  ] as const)
    snapshot.put(record(id, order))
  const missing = all().filter((id) => id !== 'b')
  snapshot.put(record('new', 3))
  snapshot.put(record('b', 2, { revision: 2 }))
  snapshot.merge([record('b', 2), record('c', 4)], missing, true)
  expect(ids()).toEqual(['b', 'new', 'c'])
  expect(snapshot.get('b')?.revision).toBe(2)
})

test('a store that is not durable says so of every upload', () => {
  expect(snapshot.put(record('a', 1))?.durable).toBe(true)
  snapshot.merge([record('a', 1)], [], false)
  expect(snapshot.get('a')?.durable).toBe(false)
  expect(snapshot.put(record('b', 2))?.durable).toBe(false)
})

test("only the owner's are seen, and all are known", () => {
  snapshot.put(record('a', 1))
  snapshot.put(record('b', 2, { owner: 'bob' }))
  expect([ids(), all(), snapshot.get('b'), snapshot.find('b')?.id]).toEqual([['a'], ['a', 'b'], undefined, 'b'])
  snapshot.setOwner('bob')
  expect(ids()).toEqual(['b'])
  snapshot.setOwner(null)
  expect(ids()).toEqual([])
})

test('the same owner again changes nothing', () => {
  snapshot.put(record('a', 1))
  const before = snapshot.list()
  snapshot.setOwner('ann')
  expect(snapshot.list()).toBe(before)
})

test('running counts what gets further by itself, of the owner alone', () => {
  snapshot.put(record('a', 1))
  snapshot.put(record('b', 2, { status: 'preparing' }))
  snapshot.put(record('c', 3, { status: 'uploading' }))
  snapshot.put(record('d', 4, { status: 'paused' }))
  snapshot.put(record('e', 5, { owner: 'bob' }))
  expect(snapshot.running()).toBe(3)
  snapshot.put(record('a', 1, { status: 'succeeded', revision: 2 }))
  expect(snapshot.running()).toBe(2)
  snapshot.put(record('d', 4, { status: 'pending', revision: 2 }))
  snapshot.remove('b')
  expect(snapshot.running()).toBe(2)
  snapshot.merge(
    [record('c', 3, { status: 'uploading' })],
    all().filter((id) => id !== 'c'),
    true,
  )
  expect(snapshot.running()).toBe(1)
  snapshot.setOwner('bob')
  expect(snapshot.running()).toBe(0)
  snapshot.setOwner('ann')
  expect(snapshot.running()).toBe(1)
})

test('progress is kept while it uploads, and gone with the attempt', () => {
  snapshot.put(record('a', 1, { status: 'uploading' }))
  snapshot.progress('a', { loaded: 1, total: 2 })
  snapshot.put(record('a', 1, { status: 'uploading', revision: 2 }))
  expect(snapshot.get('a')?.progress).toEqual({ loaded: 1, total: 2 })
  snapshot.merge([record('a', 1, { status: 'pending', revision: 3 })], [], true)
  expect(snapshot.get('a')?.progress).toBeNull()
  expect(snapshot.progress('unknown', { loaded: 1, total: 2 })).toBeUndefined()
  expect(snapshot.progress('a', { loaded: 2, total: 2 })).toBeUndefined()
})

test('subscribers are told once of a batch, after it', async () => {
  const seen: string[][] = []
  const leave = snapshot.subscribe(() => seen.push(ids()))
  snapshot.put(record('a', 1))
  snapshot.put(record('b', 2))
  snapshot.remove('a')
  expect(seen).toEqual([])
  await vi.waitFor(() => expect(seen).toEqual([['b']]))
  snapshot.put(record('c', 3))
  await vi.waitFor(() => expect(seen).toEqual([['b'], ['b', 'c']]))
  leave()
  snapshot.put(record('d', 4))
  await new Promise((resolve) => setImmediate(resolve))
  expect(seen).toHaveLength(2)
})

test('on a page subscribers are told once a frame, of what came first at once; in a worker, which has no screen, of each batch', async () => {
  const turn = (): Promise<void> => new Promise((resolve) => queueMicrotask(() => queueMicrotask(() => queueMicrotask(resolve))))
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  const told = vi.fn()
  snapshot.subscribe(told)
  snapshot.put(record('a', 1))
  await turn()
  expect(told).toHaveBeenCalledTimes(1)
  for (let order = 2; order < 9; order++) {
    snapshot.put(record(`u${order}`, order))
    await turn()
    vi.advanceTimersByTime(2)
  }
  expect(told).toHaveBeenCalledTimes(1)
  vi.advanceTimersByTime(2)
  await turn()
  expect(told).toHaveBeenCalledTimes(2)
  vi.stubGlobal('requestAnimationFrame', undefined)
  for (let order = 10; order < 13; order++) {
    snapshot.put(record(`u${order}`, order))
    await turn()
  }
  expect(told).toHaveBeenCalledTimes(5)
  vi.unstubAllGlobals()
  vi.useRealTimers()
})

test.each<[string, () => void]>([
  ['put', () => snapshot.put(record('x', 9))],
  ['progress', () => snapshot.progress('a', { loaded: 1, total: 2 })],
  ['remove', () => snapshot.remove('a')],
  ['merge that adds', () => snapshot.merge([record('a', 1), record('x', 9)], [], true)],
  ['merge that forgets', () => snapshot.merge([], ['a'], true)],
  ['setOwner', () => snapshot.setOwner('bob')],
])('%s tells subscribers', async (_name, change) => {
  snapshot.put(record('a', 1, { status: 'uploading' }))
  const listener = vi.fn()
  snapshot.subscribe(listener)
  change()
  await vi.waitFor(() => expect(listener).toHaveBeenCalledOnce())
})

const uncaught: unknown[] = []
const note = (error: unknown): void => void uncaught.push(error)
let others: NodeJS.UncaughtExceptionListener[] = []
afterEach(() => {
  process.off('uncaughtException', note)
  for (const listener of others) process.on('uncaughtException', listener)
  others = []
})

test('a subscriber that throws keeps nothing from the others, and its error is reported', async () => {
  // Vitest's own listener would count it as a failure.
  others = process.listeners('uncaughtException')
  process.removeAllListeners('uncaughtException')
  process.on('uncaughtException', note)
  const listener = vi.fn()
  snapshot.subscribe(() => {
    throw new Error('of the app')
  })
  snapshot.subscribe(listener)
  snapshot.put(record('a', 1))
  await vi.waitFor(() => expect(uncaught).toHaveLength(1))
  expect(uncaught[0]).toMatchObject({ message: 'of the app' })
  expect(listener).toHaveBeenCalledOnce()
})
