import { type DBSchema, type IDBPDatabase, type IDBPTransaction, openDB } from 'idb'
import { UploadError } from './errors.js'
import { type PendingUpload, parseRow } from './record.js'

/** A record on its way in, with its bytes. */
export interface Entry {
  record: PendingUpload
  bytes: Blob | ArrayBuffer
}

/** What a queue keeps beside its uploads. */
export interface Settings {
  /** Whether the whole queue is paused: what is enqueued meanwhile is paused too. */
  paused: boolean
  /** Where the server says that outcomes can be asked for. */
  outcomeUrl: string
  /** When the runner without Web Locks last said that it lives, and who it is. */
  runner: { id: string; until: number }
}

/**
 * Where records and bytes live. Every change is one transaction, and every promise settles after it has committed, or rejects with an
 * `UploadError` (`quota-exceeded`, `storage-…`) with nothing changed.
 */
export interface Store {
  /** Whether what it holds survives the page. */
  readonly durable: boolean
  /** All records, oldest first, and how many rows could not be read; reads no bytes. */
  list(): Promise<{ records: PendingUpload[]; damaged: number }>
  get(id: string): Promise<PendingUpload | undefined>
  /** Adds records with their bytes. Where a record of that id has not succeeded, it stays and is returned in place of the new one. */
  add(entries: readonly Entry[]): Promise<PendingUpload[]>
  /** Reads, changes and writes one record; the bytes of one that succeeded are removed with it. Resolves `undefined` where it is gone. */
  change(id: string, change: (record: PendingUpload) => PendingUpload): Promise<{ before: PendingUpload; after: PendingUpload } | undefined>
  /** The stored bytes, `undefined` where there are none. */
  bytes(id: string): Promise<Blob | undefined>
  /** Removes the records that `which` chooses, and their bytes; resolves with their ids. */
  remove(ids: readonly string[], which?: (record: PendingUpload) => boolean): Promise<string[]>
  /** Reads and writes one setting; `undefined` from `change` leaves it as it is. Resolves with what then stands. */
  setting<Name extends keyof Settings>(
    name: Name,
    change?: (value: Settings[Name] | undefined) => Settings[Name] | undefined,
  ): Promise<Settings[Name] | undefined>
  close(): void
}

interface Schema extends DBSchema {
  uploads: { key: string; value: unknown }
  bytes: { key: string; value: Blob | ArrayBuffer }
  settings: { key: string; value: unknown }
}
type Database = IDBPDatabase<Schema>
type Transaction = IDBPTransaction<Schema, ('uploads' | 'bytes')[], 'readwrite'>

/** A database that has not opened for so long, ms, is reported; the next call tries again. */
const openLimit = 8_000

const failure = (cause: unknown): UploadError => {
  if (cause instanceof UploadError) return cause
  const { name } = cause as { name?: unknown }
  return name === 'QuotaExceededError'
    ? new UploadError('quota-exceeded', 'The browser has no room for this file.', { cause })
    : new UploadError('storage-failed', 'The browser could not store or read the upload.', { cause })
}

/** Errors of a handle that is dead while the database is well: WebKit drops connections of pages in the background. */
const isConnectionLost = (error: unknown): boolean => {
  const { name, message } = error as { name?: string; message?: string }
  return name === 'InvalidStateError' || (name === 'UnknownError' && /connection/i.test(message ?? ''))
}

/** The store in IndexedDB. Opens on first use, and again whenever the browser has closed it. */
export function indexedDbStore(databaseName: string): Store {
  let opening: Promise<Database> | undefined

  const open = (): Promise<Database> => {
    opening ??= new Promise<Database>((resolve, reject) => {
      let blocked = false
      let late = false
      const timer = setTimeout(() => {
        late = true
        reject(
          blocked
            ? new UploadError('storage-blocked', 'Another tab holds an older version of the upload database open.')
            : new UploadError('storage-unavailable', 'The upload database does not open.'),
        )
      }, openLimit)
      const forget = (): void => {
        opening = undefined
      }
      // Where there is no IndexedDB at all, the call itself throws.
      const request = async (): Promise<Database> =>
        openDB<Schema>(databaseName, 1, {
          upgrade(database, from) {
            // One step a version; a shipped step never changes, and none drops a store.
            if (from < 1) {
              database.createObjectStore('uploads')
              database.createObjectStore('bytes')
              database.createObjectStore('settings')
            }
          },
          blocked() {
            blocked = true
          },
          blocking(_current, _next, event) {
            forget()
            ;(event.target as IDBDatabase).close()
          },
          terminated: forget,
        })
      request().then(
        (database) => {
          clearTimeout(timer)
          if (late) database.close()
          resolve(database)
        },
        (cause) => {
          clearTimeout(timer)
          reject(new UploadError('storage-unavailable', 'This page has no usable IndexedDB.', { cause }))
        },
      )
    })
    const attempt = opening
    attempt.catch(() => {
      if (opening === attempt) opening = undefined
    })
    return attempt
  }

  const use = async <T>(work: (database: Database) => Promise<T>): Promise<T> => {
    try {
      return await work(await open())
    } catch (error) {
      if (!isConnectionLost(error)) throw failure(error)
    }
    opening = undefined
    try {
      return await work(await open())
    } catch (error) {
      throw failure(error)
    }
  }

  /** Runs `work` in one transaction and waits for its commit: a request that succeeded says nothing about the disk. */
  const transact = <T>(work: (transaction: Transaction) => Promise<T>): Promise<T> =>
    use(async (database) => {
      const transaction = database.transaction(['uploads', 'bytes'], 'readwrite', { durability: 'strict' })
      // Both are awaited: a failed request rejects them both, and an unhandled rejection would be the app's problem.
      const [result] = await Promise.all([
        work(transaction).catch((error) => {
          try {
            transaction.abort()
          } catch {
            // It has ended already.
          }
          throw error
        }),
        transaction.done,
      ])
      return result
    })

  const read = async (transaction: Transaction, id: string): Promise<PendingUpload | undefined> => {
    const parsed = parseRow(await transaction.objectStore('uploads').get(id))
    return 'record' in parsed ? parsed.record : undefined
  }

  const add = (entries: readonly Entry[]): Promise<PendingUpload[]> =>
    transact((transaction) =>
      Promise.all(
        entries.map(async ({ record, bytes }) => {
          const existing = await read(transaction, record.id)
          if (existing && existing.status !== 'succeeded') return existing
          await Promise.all([
            transaction.objectStore('uploads').put(record, record.id),
            transaction.objectStore('bytes').put(bytes, record.id),
          ])
          return record
        }),
      ),
    )

  return {
    durable: true,
    async list() {
      const rows = await use((database) => database.getAll('uploads'))
      const parsed = rows.map(parseRow)
      return {
        records: parsed.flatMap((row) => ('record' in row ? [row.record] : [])).sort((a, b) => a.order - b.order),
        damaged: parsed.filter((row) => 'damage' in row && row.damage === 'damaged').length,
      }
    },
    async get(id) {
      const parsed = parseRow(await use((database) => database.get('uploads', id)))
      return 'record' in parsed ? parsed.record : undefined
    },
    async add(entries) {
      try {
        return await add(entries)
      } catch (error) {
        // WebKit's private mode cannot store Blobs, only buffers.
        const { name } = ((error as UploadError).cause ?? {}) as { name?: unknown }
        if (name !== 'UnknownError' && name !== 'DataCloneError') throw error
        return add(
          await Promise.all(
            entries.map(async ({ record, bytes }) => ({ record, bytes: 'size' in bytes ? await bytes.arrayBuffer() : bytes })),
          ),
        )
      }
    },
    change(id, change) {
      return transact(async (transaction) => {
        const before = await read(transaction, id)
        if (!before) return undefined
        const after = change(before)
        if (after === before) return { before, after }
        await Promise.all([
          transaction.objectStore('uploads').put(after, id),
          after.status === 'succeeded' ? transaction.objectStore('bytes').delete(id) : undefined,
        ])
        return { before, after }
      })
    },
    async bytes(id) {
      const value = await use((database) => database.get('bytes', id))
      return value && ('size' in value ? value : new Blob([value]))
    },
    remove(ids, which = () => true) {
      return transact(async (transaction) => {
        const removed = await Promise.all(
          ids.map(async (id) => {
            const record = await read(transaction, id)
            if (!record || !which(record)) return undefined
            await Promise.all([transaction.objectStore('uploads').delete(id), transaction.objectStore('bytes').delete(id)])
            return id
          }),
        )
        return removed.filter((id) => id !== undefined)
      })
    },
    setting(name, change) {
      return use(async (database) => {
        const transaction = database.transaction('settings', change ? 'readwrite' : 'readonly')
        const before = (await transaction.store.get(name)) as Settings[typeof name] | undefined
        const after = change?.(before)
        if (after !== undefined) await (transaction.store as { put?: (value: unknown, key: string) => Promise<unknown> }).put?.(after, name)
        await transaction.done
        return after ?? before
      })
    },
    close() {
      opening?.then((database) => database.close()).catch(() => {})
      opening = undefined
    },
  }
}

/** The same without a disk, for pages that have no IndexedDB: lost with the page. */
export function memoryStore(): Store {
  const rows = new Map<string, Entry>()
  const settings = new Map<string, unknown>()
  return {
    durable: false,
    async list() {
      return { records: [...rows.values()].map(({ record }) => record).sort((a, b) => a.order - b.order), damaged: 0 }
    },
    async get(id) {
      return rows.get(id)?.record
    },
    async add(entries) {
      return entries.map((entry) => {
        const existing = rows.get(entry.record.id)?.record
        if (existing && existing.status !== 'succeeded') return existing
        rows.set(entry.record.id, entry)
        return entry.record
      })
    },
    async change(id, change) {
      const entry = rows.get(id)
      if (!entry) return undefined
      const before = entry.record
      const after = change(before)
      rows.set(id, { record: after, bytes: after.status === 'succeeded' ? new ArrayBuffer(0) : entry.bytes })
      return { before, after }
    },
    async bytes(id) {
      const bytes = rows.get(id)?.bytes
      return bytes && ('size' in bytes ? bytes : new Blob([bytes]))
    },
    async remove(ids, which = () => true) {
      return ids.filter((id) => {
        const entry = rows.get(id)
        return entry !== undefined && which(entry.record) && rows.delete(id)
      })
    },
    async setting(name, change) {
      const before = settings.get(name)
      const after = change?.(before as never)
      if (after !== undefined) settings.set(name, after)
      return (after ?? before) as never
    },
    close() {},
  }
}
