import { forceCloseDatabase, IDBFactory } from 'fake-indexeddb'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { isUploadError } from '../src/errors.js'
import { newRecord, type PendingUpload, transition } from '../src/record.js'
import { type Entry, indexedDbStore, memoryStore, type Store, type Surroundings, sizeOf } from '../src/store.js'
import { advance, fakeClock, flush, until } from './helpers/fake-clock.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)
const databaseName = 'uponce:store-test'

const upload = (id: string, facts: Partial<PendingUpload> = {}): PendingUpload => ({
  ...newRecord({
    id,
    idempotencyKey: `key of ${id}`,
    sha256: 'ab'.repeat(32),
    owner: 'ann',
    name: '写真 1.bin',
    type: 'application/x-any',
    size: 256,
    lastModified: 1_234,
    metadata: { album: 'summer' },
    priority: 0,
    order: Number(id.replace(/\D/g, '')),
    createdAt: 0,
    expiresAt: 1,
    paused: false,
  }),
  ...facts,
})
const entry = (id: string, facts: Partial<PendingUpload> = {}, bytes: Entry['bytes'] = new Blob([everyByte])): Entry => ({
  record: upload(id, facts),
  bytes,
})
const succeed = (record: PendingUpload): PendingUpload =>
  transition(record, { type: 'succeeded', result: { uploadId: 'x' }, replayed: false, at: 5 })
const start = (record: PendingUpload): PendingUpload => transition(record, { type: 'started' })
const read = async (bytes: Entry['bytes'] | undefined): Promise<Uint8Array | undefined> =>
  bytes && new Uint8Array(await new Response(bytes).arrayBuffer())
const textOf = async (id: string): Promise<string> => new TextDecoder().decode(await read(await store.bytes(id)))

let store: Store
const get = async (id: string): Promise<PendingUpload | undefined> => (await store.list()).records.find((record) => record.id === id)
afterEach(() => {
  store.close()
  vi.restoreAllMocks()
})

describe.each<[string, boolean, () => Store]>([
  ['indexedDbStore', true, () => indexedDbStore(databaseName)],
  ['memoryStore', false, memoryStore],
])('%s', (_name, durable, open) => {
  beforeEach(() => {
    store = open()
  })

  test('it says whether what it holds survives the page', () => {
    expect(store.durable).toBe(durable)
  })

  test.each<[string, Entry['bytes']]>([
    ['a Blob', new Blob([everyByte])],
    ['a File', new File([everyByte], 'other name', { type: 'other/type', lastModified: 9 })],
    ['a buffer', everyByte.slice().buffer],
  ])('%s comes back byte by byte, and the facts as they were stored', async (_kind, bytes) => {
    const record = upload('u1')
    expect(await store.add([{ record, bytes }])).toEqual([record])
    expect(await read(await store.bytes('u1'))).toEqual(everyByte)
    expect(await get('u1')).toEqual(record)
  })

  test('an empty file comes back empty, not absent', async () => {
    await store.add([entry('u1', {}, new Blob([])), entry('u2', {}, new ArrayBuffer(0))])
    expect([await read(await store.bytes('u1')), await read(await store.bytes('u2'))]).toEqual([new Uint8Array(0), new Uint8Array(0)])
  })

  test('many come back, the oldest first', async () => {
    await store.add([entry('u3'), entry('u1')])
    await store.add([entry('u2')])
    expect(await store.list()).toEqual({ records: [upload('u1'), upload('u2'), upload('u3')], unreadable: [] })
  })

  test('nothing is what an empty store holds', async () => {
    expect(await store.list()).toEqual({ records: [], unreadable: [] })
    expect(await get('u1')).toBeUndefined()
    expect(await store.bytes('u1')).toBeUndefined()
    expect(await store.change('u1', start)).toBeUndefined()
    expect(await store.remove(['u1'])).toEqual([])
    expect(await store.add([])).toEqual([])
  })

  test.each(['preparing', 'pending', 'uploading', 'paused', 'blocked', 'failed'] as const)(
    'an upload of that id that is %s stays, and is returned',
    async (status) => {
      const first = upload('u1', { status })
      await store.add([{ record: first, bytes: new Blob(['first']) }])
      expect(await store.add([entry('u1', { idempotencyKey: 'second' }), entry('u2')])).toEqual([first, upload('u2')])
      expect(await get('u1')).toEqual(first)
      expect(await textOf('u1')).toBe('first')
    },
  )

  test('an upload of that id that has succeeded is replaced', async () => {
    await store.add([entry('u1')])
    await store.change('u1', succeed)
    const second = upload('u1', { idempotencyKey: 'second', order: 9 })
    expect(await store.add([{ record: second, bytes: new Blob(['second']) }])).toEqual([second])
    expect(await get('u1')).toEqual(second)
    expect(await textOf('u1')).toBe('second')
  })

  test('a change tells before and after, and is stored', async () => {
    await store.add([entry('u1')])
    const changed = await store.change('u1', start)
    expect(changed).toEqual({ before: upload('u1'), after: start(upload('u1')) })
    expect(await get('u1')).toEqual(changed?.after)
    expect(await read(await store.bytes('u1'))).toEqual(everyByte)
  })

  test('a change that changes nothing gives the same record twice', async () => {
    await store.add([entry('u1')])
    const changed = await store.change('u1', (record) => record)
    expect(changed?.after).toBe(changed?.before)
  })

  test('changes begun at the same time all survive', async () => {
    await store.add([entry('u1')])
    const more = (record: PendingUpload): PendingUpload => ({ ...record, attempts: record.attempts + 1, revision: record.revision + 1 })
    await Promise.all(Array.from({ length: 10 }, () => store.change('u1', more)))
    expect(await get('u1')).toMatchObject({ attempts: 10, revision: 11 })
  })

  test('a change that throws changes nothing, and the next one works', async () => {
    await store.add([entry('u1')])
    const changing = store.change('u1', () => {
      throw new Error('no')
    })
    await expect(changing).rejects.toThrow()
    expect(await get('u1')).toEqual(upload('u1'))
    expect((await store.change('u1', start))?.after.status).toBe('uploading')
  })

  test('success frees the bytes and keeps the record', async () => {
    await store.add([entry('u1'), entry('u2')])
    await store.change('u1', succeed)
    expect(await store.bytes('u1')).toBeUndefined()
    expect(await get('u1')).toMatchObject({ status: 'succeeded', result: { uploadId: 'x' } })
    expect(await read(await store.bytes('u2'))).toEqual(everyByte)
  })

  test('failure keeps the bytes', async () => {
    await store.add([entry('u1')])
    const error = { code: 'rejected', message: 'm', retryable: false } as const
    await store.change('u1', (record) => transition(record, { type: 'failed', error, counted: true, at: 5 }))
    expect(await read(await store.bytes('u1'))).toEqual(everyByte)
  })

  test('removal takes record and bytes, of those that are chosen', async () => {
    await store.add([entry('u1'), entry('u2', { status: 'failed' }), entry('u3')])
    expect(await store.remove(['u1', 'u2', 'unknown'], ({ status }) => status === 'failed')).toEqual(['u2'])
    expect([await get('u2'), await store.bytes('u2')]).toEqual([undefined, undefined])
    expect((await store.list()).records.map(({ id }) => id)).toEqual(['u1', 'u3'])
    expect(await store.remove(['u3', 'u1'])).toEqual(['u3', 'u1'])
    expect((await store.list()).records).toEqual([])
  })

  test('a change hears which tab is the runner', async () => {
    await store.add([entry('u1')])
    const heard: unknown[] = []
    const listen = (record: PendingUpload, { runner }: Surroundings): PendingUpload => {
      heard.push(runner)
      return record
    }
    await store.change('u1', listen)
    await store.setting('runner', () => ({ id: 'a tab', until: 9 }))
    await store.change('u1', listen)
    expect(heard).toEqual([undefined, 'a tab'])
  })

  test('a change that asks for the bytes is given them, before and after', async () => {
    await store.add([entry('u1')])
    let heard: Entry['bytes'] | undefined
    const listen = (record: PendingUpload, { bytes }: Surroundings): PendingUpload => {
      heard = bytes
      return start(record)
    }
    const changed = await store.change('u1', listen, true)
    expect([await read(heard), await read(changed?.bytes)]).toEqual([everyByte, everyByte])
    expect(await store.change('u1', succeed)).not.toHaveProperty('bytes')
    expect((await store.change('u1', (record) => record, true))?.bytes).toBeUndefined()
  })

  test('settings are kept, and changed by what they were', async () => {
    expect(await store.setting('paused')).toBeUndefined()
    expect(await store.setting('paused', () => true)).toBe(true)
    expect(await store.setting('paused')).toBe(true)
    expect(await store.setting('paused', (before) => !before)).toBe(false)
    expect(await store.setting('paused', () => undefined)).toBe(false)
    expect(await store.setting('runner')).toBeUndefined()
  })

  test('of many who take a free lease one gets it', async () => {
    const take = (id: string) => store.setting('runner', (held) => (held ? undefined : { id, until: 9 }))
    const taken = await Promise.all(['a', 'b', 'c'].map(take))
    expect(new Set(taken.map((held) => held?.id)).size).toBe(1)
  })
})

const request = <T>(asked: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result)
    asked.onerror = () => reject(asked.error)
  })

/** Every connection to a database, the store's own too. */
const watchConnections = (): IDBDatabase[] => {
  const connections: IDBDatabase[] = []
  const { open } = indexedDB
  vi.spyOn(indexedDB, 'open').mockImplementation((...args) => {
    const opened = open.apply(indexedDB, args)
    opened.addEventListener('success', () => connections.push(opened.result))
    return opened
  })
  return connections
}

/** What is in the database, seen past the store. */
const rawRows = async (name: 'uploads' | 'bytes'): Promise<unknown[]> => {
  const database = await request(indexedDB.open(databaseName))
  const rows = await request(database.transaction(name).objectStore(name).getAll())
  database.close()
  return rows
}
const writeRow = async (row: unknown, key: string): Promise<void> => {
  const database = await request(indexedDB.open(databaseName))
  await request(database.transaction('uploads', 'readwrite').objectStore('uploads').put(row, key))
  database.close()
}

interface FailingRequests {
  _execRequestAsync(work: { operation: () => unknown; source: unknown }): IDBRequest
  _abort(name: string | null): void
}
const inside = (transaction: IDBTransaction): FailingRequests => transaction as unknown as FailingRequests

const { put } = IDBObjectStore.prototype
type Put = typeof put
/** Replaces what `put` does while a test runs. */
const replacePut = (replacement: (this: IDBObjectStore, ...args: Parameters<Put>) => IDBRequest<IDBValidKey>): void => {
  vi.spyOn(IDBObjectStore.prototype, 'put').mockImplementation(replacement)
}
/** A put whose request fails with that error. */
const failingPut = (name: string) =>
  function (this: IDBObjectStore): IDBRequest<IDBValidKey> {
    const operation = (): never => {
      throw new DOMException('from the engine', name)
    }
    return inside(this.transaction)._execRequestAsync({ operation, source: this })
  }

describe('rows of indexedDbStore', () => {
  beforeEach(async () => {
    store = indexedDbStore(databaseName)
    await store.add([entry('u1'), entry('u2')])
  })

  test('what one store wrote another reads', async () => {
    const other = indexedDbStore(databaseName)
    expect(await other.list()).toEqual({ records: [upload('u1'), upload('u2')], unreadable: [] })
    expect(await read(await other.bytes('u2'))).toEqual(everyByte)
    other.close()
  })

  const everyRecord = (): boolean => true

  test('a damaged row is told, stops no other, and goes when it is named', async () => {
    await writeRow({ v: 1, owner: 'ann' }, 'u3')
    await writeRow('rubbish', 'u4')
    expect(await store.list()).toEqual({
      records: [upload('u1'), upload('u2')],
      unreadable: [
        { id: 'u3', owner: 'ann', damage: 'damaged' },
        { id: 'u4', owner: undefined, damage: 'damaged' },
      ],
    })
    expect(await get('u3')).toBeUndefined()
    expect(await store.change('u3', start)).toBeUndefined()
    expect(await store.remove(['u3', 'u1'], everyRecord)).toEqual(['u1'])
    expect(await rawRows('uploads')).toContainEqual({ v: 1, owner: 'ann' })
    expect(await store.remove(['u3', 'u5'])).toEqual(['u3'])
    expect(await rawRows('uploads')).toEqual([upload('u2'), 'rubbish'])
  })

  test('bytes that belong to no row are swept away; those of a row that cannot be read stay', async () => {
    await writeRow({ v: 2 }, 'u2')
    const database = await request(indexedDB.open(databaseName))
    await request(database.transaction('bytes', 'readwrite').objectStore('bytes').put(new ArrayBuffer(3), 'stray'))
    database.close()
    await store.sweep()
    expect(await store.bytes('stray')).toBeUndefined()
    expect([await read(await store.bytes('u1')), await read(await store.bytes('u2'))]).toEqual([everyByte, everyByte])
  })

  test('thousands of rows are all listed, each once, and damaged ones under their ids, however they are read', async () => {
    const ids = Array.from({ length: 1_600 }, (_, place) => `v${String(place).padStart(4, '0')}`)
    const damaged = ['v0498', 'v0499', 'v0998', 'v1597']
    await store.add(ids.map((id) => entry(id)))
    for (const id of damaged) await writeRow({ v: 1 }, id)
    const { records, unreadable } = await store.list()
    expect(unreadable.map(({ id }) => id)).toEqual(damaged)
    expect(records.map(({ id }) => id).sort()).toEqual(['u1', 'u2', ...ids.filter((id) => !damaged.includes(id))])
  })

  test("a newer version's row is not counted, not changed, not removed and not overwritten", async () => {
    const row = { v: 2, id: 'u3', anything: 'else' }
    await writeRow(row, 'u3')
    const unreadable = [{ id: 'u3', owner: undefined, damage: 'newer' }]
    expect(await store.list()).toEqual({ records: [upload('u1'), upload('u2')], unreadable })
    expect(await store.change('u3', start)).toBeUndefined()
    expect(await store.remove(['u3'], everyRecord)).toEqual([])
    await expect(store.add([entry('u3'), entry('u4')])).rejects.toMatchObject({ code: 'storage-failed' })
    expect(await get('u4')).toBeUndefined()
    expect(await rawRows('uploads')).toContainEqual(row)
  })

  test('unknown members of a row survive a change', async () => {
    await writeRow({ ...upload('u3'), later: { a: 1 } }, 'u3')
    await store.change('u3', start)
    expect(await rawRows('uploads')).toContainEqual({ ...start(upload('u3')), later: { a: 1 } })
  })

  test.each([
    ['of a new id are at hand as they are first asked for, and read after that', { isNew: true }, [0, 1]],
    ['of an id that another page may use as well are read', {}, [1, 2]],
    ['that are a Blob are read', { isNew: true, bytes: new Blob([everyByte]) }, [1, 2]],
  ])('bytes that were just saved, %s', async (_what, facts, counts) => {
    await store.add([{ ...entry('u3', {}, everyByte.slice().buffer), ...facts }])
    const gets = vi.spyOn(IDBObjectStore.prototype, 'get')
    const reads = (): number => gets.mock.contexts.filter((context) => (context as IDBObjectStore).name === 'bytes').length
    const seen: number[] = []
    for (const _ of counts) {
      const changed = await store.change('u3', (record, { bytes }) => ({ ...record, size: sizeOf(bytes) as number }), true)
      expect([changed?.after.size, await read(changed?.bytes)]).toEqual([everyByte.length, everyByte])
      seen.push(reads())
    }
    expect(seen).toEqual(counts)
  })

  test('a list and a change read and write no bytes', async () => {
    const touched = vi.spyOn(IDBDatabase.prototype, 'transaction')
    await store.list()
    expect(touched.mock.calls.every(([names]) => String(names) === 'uploads')).toBe(true)
    const writes = vi.spyOn(IDBObjectStore.prototype, 'put')
    await store.change('u1', start)
    expect(writes.mock.contexts.map((context) => (context as IDBObjectStore).name)).toEqual(['uploads'])
  })

  test('a promise settles after the commit, not before', async () => {
    const events: string[] = []
    const { transaction } = IDBDatabase.prototype
    vi.spyOn(IDBDatabase.prototype, 'transaction').mockImplementation(function (this: IDBDatabase, ...args) {
      const begun = transaction.apply(this, args)
      begun.addEventListener('complete', () => events.push('committed'))
      return begun
    })
    const done = (): number => events.push('settled')
    await store.add([entry('u5')]).then(done)
    await store.change('u5', start).then(done)
    await store.remove(['u5']).then(done)
    await store.setting('paused', () => true).then(done)
    expect(events).toEqual(Array.from({ length: 4 }, () => ['committed', 'settled']).flat())
  })

  test('writes of uploads ask for strict durability', async () => {
    const touched = vi.spyOn(IDBDatabase.prototype, 'transaction')
    await store.add([entry('u5')])
    expect(touched.mock.calls[0]?.[2]).toEqual({ durability: 'strict' })
  })
})

describe('writes that indexedDbStore cannot make', () => {
  beforeEach(async () => {
    store = indexedDbStore(databaseName)
    await store.add([entry('u1')])
  })

  const nothingLeft = async (): Promise<void> => {
    vi.restoreAllMocks()
    expect(await rawRows('uploads')).toEqual([upload('u1')])
    expect(await rawRows('bytes')).toHaveLength(1)
    expect(await store.add([entry('u9')])).toEqual([upload('u9')])
  }

  const uncloneable: unknown = (): void => {}
  test.each<[string, Entry]>([
    ['a record', entry('u3', { result: uncloneable })],
    ['bytes', entry('u3', {}, uncloneable as ArrayBuffer)],
  ])('%s that cannot be cloned takes the others of its transaction with it', async (_name, bad) => {
    const adding = store.add([entry('u2'), bad, entry('u4')])
    await expect(adding).rejects.toSatisfy(isUploadError)
    await nothingLeft()
  })

  test('a change to what cannot be cloned is none, and its cause is told', async () => {
    const changing = store.change('u1', (record) => ({ ...succeed(record), result: uncloneable }))
    await expect(changing).rejects.toMatchObject({ code: 'storage-failed', cause: { name: 'DataCloneError' } })
    expect(await read(await store.bytes('u1'))).toEqual(everyByte)
    await nothingLeft()
  })

  test.each<[string, string]>([
    ['QuotaExceededError', 'quota-exceeded'],
    ['ConstraintError', 'storage-failed'],
  ])('a request that fails with %s rejects with %s', async (name, code) => {
    replacePut(failingPut(name))
    await expect(store.add([entry('u2'), entry('u3')])).rejects.toMatchObject({ code, cause: { name } })
    await expect(store.change('u1', start)).rejects.toMatchObject({ code })
    await expect(store.setting('paused', () => true)).rejects.toMatchObject({ code })
    await nothingLeft()
    expect(await store.setting('paused')).toBeUndefined()
  })

  test.each<[string | null, string]>([
    ['QuotaExceededError', 'quota-exceeded'],
    ['UnknownError', 'storage-failed'],
    [null, 'storage-failed'],
  ])('a transaction aborted under its requests, with error %s and no error event of its own, rejects with %s', async (name, code) => {
    replacePut(function (...args) {
      const asked = put.apply(this, args)
      if (this.name === 'bytes') queueMicrotask(() => inside(this.transaction)._abort(name))
      return asked
    })
    await expect(store.add([entry('u2', {}, new ArrayBuffer(3))])).rejects.toMatchObject({ code })
    await nothingLeft()
  })

  test.each<[string | null, string]>([
    ['QuotaExceededError', 'quota-exceeded'],
    ['UnknownError', 'storage-failed'],
    [null, 'storage-failed'],
  ])('a transaction aborted at its commit, with error %s, rejects with %s', async (name, code) => {
    const isOpen = new Set<IDBTransaction>()
    replacePut(function (...args) {
      const { transaction } = this
      const asked = put.apply(this, args)
      isOpen.add(transaction)
      asked.addEventListener('success', () => {
        if (this.name !== 'bytes' && this.name !== 'settings') return
        if (isOpen.delete(transaction)) inside(transaction)._abort(name)
      })
      return asked
    })
    await expect(store.add([entry('u2', {}, new ArrayBuffer(3))])).rejects.toMatchObject({ code })
    await expect(store.setting('paused', () => true)).rejects.toMatchObject({ code })
    await nothingLeft()
  })

  test.each<[string, (this: IDBObjectStore) => IDBRequest<IDBValidKey>]>([
    ['as it is put', failingPut('UnknownError')],
    [
      'before it is put',
      () => {
        throw new DOMException('Error preparing Blob/File data to be stored in object store', 'UnknownError')
      },
    ],
    [
      'as uncloneable',
      () => {
        throw new DOMException('blobs cannot be stored', 'DataCloneError')
      },
    ],
  ])('a Blob that is refused %s is stored as a buffer, the whole transaction', async (_name, refuse) => {
    replacePut(function (...args) {
      return args[0] instanceof Blob ? refuse.call(this) : put.apply(this, args)
    })
    const added = await store.add([entry('u2'), entry('u3', {}, everyByte.slice().buffer), entry('u4')])
    expect(added.map(({ id }) => id)).toEqual(['u2', 'u3', 'u4'])
    for (const id of ['u2', 'u3', 'u4']) expect(await read(await store.bytes(id))).toEqual(everyByte)
    expect((await rawRows('bytes')).slice(1).every((bytes) => bytes instanceof ArrayBuffer)).toBe(true)
  })

  test('a Blob is stored as it is, whatever was stored before', async () => {
    await store.add([entry('u2', {}, everyByte.slice().buffer)])
    const blob = new Blob([everyByte])
    vi.spyOn(blob, 'arrayBuffer').mockRejectedValue(new Error('A large file has no place in memory.'))
    await store.add([entry('u3', {}, blob)])
    expect((await rawRows('bytes')).at(-1)).toBeInstanceOf(Blob)
  })

  test('a Blob that is refused and cannot be read rejects, with nothing stored', async () => {
    const gone = new DOMException('gone', 'NotReadableError')
    const blob = Object.assign(new Blob(['x']), { arrayBuffer: () => Promise.reject(gone) })
    replacePut(failingPut('UnknownError'))
    const adding = store.add([entry('u2', {}, blob)])
    await expect(adding).rejects.toSatisfy(isUploadError)
    await expect(adding).rejects.toMatchObject({ cause: gone })
    await nothingLeft()
  })

  test('a read that fails rejects once, and leaves no rejection unhandled', async () => {
    const fail = function (this: IDBObjectStore): IDBRequest {
      return failingPut('DataError').call(this)
    }
    vi.spyOn(IDBObjectStore.prototype, 'get').mockImplementation(fail)
    vi.spyOn(IDBObjectStore.prototype, 'getAll').mockImplementation(fail)
    const code = 'storage-failed'
    await expect(store.list()).rejects.toMatchObject({ code, cause: { name: 'DataError' } })
    await expect(get('u1')).rejects.toMatchObject({ code })
    await expect(store.bytes('u1')).rejects.toMatchObject({ code })
    await expect(store.setting('paused')).rejects.toMatchObject({ code })
    await expect(store.add([entry('u2')])).rejects.toMatchObject({ code })
    await flush()
    await nothingLeft()
  })
})

describe('the transactions of indexedDbStore', () => {
  let begun: IDBTransaction[]
  const watch = (): void => {
    begun = []
    const { transaction } = IDBDatabase.prototype
    vi.spyOn(IDBDatabase.prototype, 'transaction').mockImplementation(function (this: IDBDatabase, ...args) {
      const one = transaction.apply(this, args)
      begun.push(one)
      return one
    })
  }
  beforeEach(async () => {
    store = indexedDbStore(databaseName)
    await store.add([entry('u1'), entry('u2'), entry('u3')])
    watch()
  })

  test('what is asked for while one runs goes into the next, all of it, and each hears of its own', async () => {
    const changing = store.change('u1', start)
    await flush(2)
    expect(begun).toHaveLength(1)
    const more = [store.change('u2', start), store.add([entry('u4')]), store.change('u9', start), store.remove(['u3'])]
    expect(await Promise.all([changing, ...more])).toEqual([
      { before: upload('u1'), after: start(upload('u1')) },
      { before: upload('u2'), after: start(upload('u2')) },
      [upload('u4')],
      undefined,
      ['u3'],
    ])
    expect(begun).toHaveLength(2)
    expect((await store.list()).records.map(({ id }) => id)).toEqual(['u1', 'u2', 'u4'])
  })

  test('at most 64 share one', async () => {
    await Promise.all(Array.from({ length: 130 }, (_, place) => store.add([entry(`n${place}`, {}, new ArrayBuffer(1))])))
    expect(begun).toHaveLength(3)
  })

  test('in one transaction each sees what those before it did', async () => {
    const second = upload('u5', { idempotencyKey: 'second' })
    const [added, kept, changed, removed, again] = await Promise.all([
      store.add([entry('u5')]),
      store.add([{ record: second, bytes: new ArrayBuffer(1) }]),
      store.change('u5', start),
      store.remove(['u5'], ({ status }) => status === 'uploading'),
      store.change('u5', start),
    ])
    expect(begun).toHaveLength(1)
    expect([added, kept]).toEqual([[upload('u5')], [upload('u5')]])
    expect(changed?.after.status).toBe('uploading')
    expect([removed, again]).toEqual([['u5'], undefined])
  })

  test('one that cannot be written takes no other with it, in whatever company', async () => {
    const ends = await Promise.allSettled([
      store.change('u1', start),
      store.change('u2', (record) => ({ ...record, result: () => {} })),
      store.change('u3', () => {
        throw new Error('no')
      }),
      store.add([entry('u4')]),
    ])
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'rejected', 'fulfilled'])
    const { records } = await store.list()
    expect(records.map(({ id, status }) => [id, status])).toEqual([
      ['u1', 'uploading'],
      ['u2', 'pending'],
      ['u3', 'pending'],
      ['u4', 'pending'],
    ])
  })

  test.each<[string, () => Promise<unknown>]>([
    ['a change', () => store.change('u1', start)],
    ['a list', () => store.list()],
  ])('%s that a page was stopped in keeps nobody waiting, and is done when the page goes on', async (_name, call) => {
    const { get: read, getAll } = IDBObjectStore.prototype
    const stopped = (asked: IDBRequest): IDBRequest => {
      // No answer reaches a page that is stopped.
      asked.addEventListener('success', (event) => event.stopImmediatePropagation(), { capture: true })
      return asked
    }
    const commit = vi.spyOn(IDBTransaction.prototype, 'commit').mockImplementation(() => {})
    vi.spyOn(IDBObjectStore.prototype, 'get').mockImplementation(function (this: IDBObjectStore, key) {
      return stopped(read.call(this, key))
    })
    vi.spyOn(IDBObjectStore.prototype, 'getAll').mockImplementation(function (this: IDBObjectStore) {
      return stopped(getAll.call(this))
    })
    const calling = call()
    await until(() => begun.length > 0)
    const [transaction] = begun as [IDBTransaction]
    const aborted = new Promise((resolve) => transaction.addEventListener('abort', resolve))
    vi.mocked(IDBObjectStore.prototype.get).mockRestore()
    vi.mocked(IDBObjectStore.prototype.getAll).mockRestore()
    commit.mockRestore()
    store.release()
    await aborted
    expect(await calling).toBeTruthy()
    const other = indexedDbStore(databaseName)
    expect((await other.list()).records).toHaveLength(3)
    other.close()
  })

  test('a reader is never waited for: its transaction ends without it', async () => {
    const commit = vi.spyOn(IDBTransaction.prototype, 'commit')
    await store.list()
    await store.bytes('u1')
    await store.setting('paused')
    expect(commit.mock.contexts).toEqual(begun)
  })
})

describe('the connection of indexedDbStore', () => {
  let connections: IDBDatabase[]
  beforeEach(() => {
    connections = watchConnections()
    store = indexedDbStore(databaseName)
  })

  test('it opens on first use, once', async () => {
    expect(connections).toHaveLength(0)
    await Promise.all([store.list(), store.add([entry('u1')]), store.setting('paused')])
    expect(connections).toHaveLength(1)
  })

  test('a handle that the browser closed is opened again, and the call repeated', async () => {
    await store.add([entry('u1')])
    connections[0]?.close()
    expect(await get('u1')).toEqual(upload('u1'))
    connections[1]?.close()
    expect(await store.add([entry('u2')])).toEqual([upload('u2')])
    expect(connections).toHaveLength(3)
  })

  test('a close event is enough', async () => {
    await store.add([entry('u1')])
    forceCloseDatabase(connections[0] as never)
    await flush()
    expect(await get('u1')).toEqual(upload('u1'))
  })

  test('a connection lost to the database process is opened again', async () => {
    await store.add([entry('u1')])
    const lost = new DOMException('Connection to Indexed Database server lost. Refresh the page to try again', 'UnknownError')
    vi.spyOn(connections[0] as IDBDatabase, 'transaction').mockImplementation(() => {
      throw lost
    })
    expect((await store.change('u1', start))?.after.status).toBe('uploading')
    expect(connections).toHaveLength(2)
  })

  test('a connection that is lost each time rejects, and the next call tries again', async () => {
    const lost = new DOMException(
      'Attempt to get records from database without an in-progress transaction; connection is closing',
      'InvalidStateError',
    )
    await store.list()
    const broken = vi.spyOn(IDBDatabase.prototype, 'transaction').mockImplementation(() => {
      throw lost
    })
    await expect(store.list()).rejects.toMatchObject({ code: 'storage-failed', cause: lost })
    expect(connections).toHaveLength(2)
    broken.mockRestore()
    expect(await store.list()).toEqual({ records: [], unreadable: [] })
  })

  test('calls that lose one connection together share the next, and close() leaves none open', async () => {
    await store.add([entry('u1')])
    connections[0]?.close()
    await Promise.all([store.list(), get('u1'), store.bytes('u1'), store.change('u1', start)])
    expect(connections).toHaveLength(2)
    store.close()
    await flush()
    for (const connection of connections) expect(() => connection.transaction('uploads')).toThrow()
  })

  test('a newer page may upgrade: ours lets go at once, and goes on in what it knows', async () => {
    await store.add([entry('u1')])
    const asked = indexedDB.open(databaseName, 2)
    asked.onupgradeneeded = () => asked.result.createObjectStore('of a newer version')
    const newer = await request(asked)
    await store.add([entry('u2')])
    expect(await store.change('u1', start)).toMatchObject({ after: { status: 'uploading' } })
    expect((await store.list()).records.map(({ id }) => id)).toEqual(['u1', 'u2'])
    expect(newer.version).toBe(2)
    newer.close()
  })

  test('a newer database without our stores is left alone, and said to be of no use', async () => {
    const asked = indexedDB.open(databaseName, 2)
    asked.onupgradeneeded = () => asked.result.createObjectStore('uploads')
    const newer = await request(asked)
    await expect(store.list()).rejects.toMatchObject({ code: 'storage-unavailable', cause: { name: 'VersionError' } })
    expect([...newer.objectStoreNames]).toEqual(['uploads'])
    newer.close()
  })

  test('what the browser closed is told', async () => {
    const closed = vi.fn()
    const told = indexedDbStore(databaseName, closed)
    await told.list()
    forceCloseDatabase(connections.at(-1) as never)
    await flush()
    expect(closed).toHaveBeenCalledOnce()
    told.close()
  })

  test('a call that another connection keeps waiting for too long is given up, and changes nothing later either', async () => {
    await store.add([entry('u1')])
    const database = await request(indexedDB.open(databaseName))
    const uploads = database.transaction(['uploads', 'bytes', 'settings'], 'readwrite').objectStore('uploads')
    let isBusy = true
    const occupy = (): void => {
      if (isBusy) uploads.get('u1').onsuccess = occupy
    }
    occupy()
    fakeClock()
    const calls: [string, Promise<unknown>][] = [
      ['list', store.list()],
      ['change', store.change('u1', start)],
      ['remove', store.remove(['u1'])],
      ['setting', store.setting('paused', () => true)],
    ]
    const failed = Promise.all(calls.map(([name, call]) => expect(call, name).rejects.toMatchObject({ code: 'storage-failed' })))
    const adding = store.add([entry('u2', {}, new Blob([new Uint8Array(40_000)]))])
    const late = vi.fn()
    adding.catch(late)
    await advance(9_500, 950)
    await failed
    expect(late).not.toHaveBeenCalled()
    await advance(10)
    expect(late).toHaveBeenCalledWith(expect.objectContaining({ code: 'storage-failed' }))
    isBusy = false
    vi.useRealTimers()
    await flush()
    database.close()
    expect((await store.list()).records).toEqual([upload('u1')])
    expect(await store.setting('paused')).toBeUndefined()
  })

  test('a database that is deleted under us is made anew', async () => {
    await store.add([entry('u1')])
    await request(indexedDB.deleteDatabase(databaseName))
    expect(await store.list()).toEqual({ records: [], unreadable: [] })
  })

  test('after close() a call opens again', async () => {
    await store.add([entry('u1')])
    store.close()
    expect(await get('u1')).toEqual(upload('u1'))
  })

  test('an open that nobody answers rejects within 8 s, lets go should it come late, and the next call works', async () => {
    await store.add([entry('u1')])
    store.close()
    // A connection that ignores versionchange keeps a deletion waiting, and with it everybody.
    const stubborn = await request(indexedDB.open(databaseName))
    const deletion = request(indexedDB.deleteDatabase(databaseName))
    fakeClock()
    const listing = store.list()
    const failed = expect(listing).rejects.toMatchObject({ code: 'storage-unavailable' })
    await advance(7_999)
    const settled = vi.fn()
    void listing.catch(settled)
    await flush()
    expect(settled).not.toHaveBeenCalled()
    await advance(1)
    await failed
    const before = connections.length
    stubborn.close()
    await deletion
    await flush()
    expect(connections).toHaveLength(before + 1)
    expect(() => connections.at(-1)?.transaction('uploads')).toThrow()
    expect(await store.list()).toEqual({ records: [], unreadable: [] })
    expect(vi.getTimerCount()).toBe(0)
  })

  test('an open that another tab blocks says so', async () => {
    const { open } = indexedDB
    const blocked = vi.spyOn(indexedDB, 'open').mockImplementationOnce((...args) => {
      const asked = open.apply(new IDBFactory(), args)
      const { addEventListener } = asked
      asked.addEventListener = (type: string, listener: never) => {
        if (type === 'blocked') queueMicrotask(() => (listener as (event: object) => void)({}))
        else if (type !== 'success') addEventListener.call(asked, type, listener)
      }
      return asked
    })
    fakeClock()
    const failed = expect(store.list()).rejects.toMatchObject({ code: 'storage-blocked' })
    await advance(8_000)
    await failed
    blocked.mockRestore()
    expect(await store.list()).toEqual({ records: [], unreadable: [] })
  })
})

test.each<[string, () => void]>([
  ['is undefined', () => Reflect.deleteProperty(globalThis, 'indexedDB')],
  [
    'throws',
    () => {
      vi.spyOn(indexedDB, 'open').mockImplementation(() => {
        throw new DOMException('forbidden here', 'SecurityError')
      })
    },
  ],
  [
    'fails',
    () => {
      vi.spyOn(indexedDB, 'open').mockImplementation(() => {
        const factory = new IDBFactory()
        factory.open('any', 2)
        return factory.open('any', 1)
      })
    },
  ],
])('where indexedDB %s, every call rejects with storage-unavailable, at once and with no timer left', async (_name, spoil) => {
  const { indexedDB: kept } = globalThis
  spoil()
  fakeClock()
  store = indexedDbStore(databaseName)
  try {
    const calls = [store.list(), get('u1'), store.add([entry('u1')]), store.setting('paused'), store.remove(['u1'])]
    for (const call of calls) await expect(call).rejects.toMatchObject({ code: 'storage-unavailable', retryable: false })
    expect(vi.getTimerCount()).toBe(0)
  } finally {
    globalThis.indexedDB = kept
  }
  vi.restoreAllMocks()
  expect(await store.list()).toEqual({ records: [], unreadable: [] })
})
