import { type DBSchema, type IDBPDatabase, type IDBPObjectStore, type IDBPTransaction, type OpenDBCallbacks, openDB } from 'idb'
import { UploadError } from './errors.js'
import { type PendingUpload, parseRow } from './record.js'

/** A record on its way in, with its bytes. */
export interface Entry {
  record: PendingUpload
  bytes: Blob | ArrayBuffer
}

/** A record before and after; the same one where nothing was to be changed. */
export interface Change {
  before: PendingUpload
  after: PendingUpload
}

/** A row that is no record of this version: damaged, or written by a newer one. It is left alone. */
export interface UnreadableRow {
  id: string
  /** As far as the row says. */
  owner: unknown
  damage: 'newer' | 'damaged'
}

/** What the server has said about itself. */
export interface Announced {
  /** Where outcomes can be asked for. */
  outcomeUrl?: string | undefined
  /** For how long it remembers keys, ms. */
  retention?: number | undefined
}

/** What a queue keeps beside its uploads. */
export interface Settings {
  /** Whether the whole queue is paused: what is enqueued meanwhile is paused too. */
  paused: boolean
  server: Announced
  /** The tab that sends, and, without Web Locks, until when unless it says so again. What another one wants to change as a runner is void. */
  runner: { id: string; until: number }
  /** When the browser was last asked not to evict the data, ms since 1970. */
  persistAsked: number
}

/**
 * Where records and bytes live. Every change is one transaction, and every promise settles after it has committed, or rejects with an
 * `UploadError` (`quota-exceeded`, `storage-…`) with nothing changed.
 */
export interface Store {
  /** Whether what it holds survives the page. */
  readonly durable: boolean
  /** All records, oldest first, and the rows that are none; reads no bytes. */
  list(): Promise<{ records: PendingUpload[]; unreadable: UnreadableRow[] }>
  get(id: string): Promise<PendingUpload | undefined>
  /** Adds records with their bytes. Where a record of that id has not succeeded, it stays and is returned in place of the new one. */
  add(entries: readonly Entry[]): Promise<PendingUpload[]>
  /**
   * Reads, changes and writes one record; the bytes of one that succeeded are removed with it. Resolves `undefined` where it is gone.
   * `change` also hears which tab is the runner, and is called again where the connection was lost and it is not known whether it was stored.
   */
  change(id: string, change: (record: PendingUpload, runner: string | undefined) => PendingUpload): Promise<Change | undefined>
  /** The stored bytes, `undefined` where there are none. */
  bytes(id: string): Promise<Blob | undefined>
  /** Removes the records that `which` chooses, and their bytes; resolves with their ids. Without `which` rows that are no records go too. */
  remove(ids: readonly string[], which?: (record: PendingUpload) => boolean): Promise<string[]>
  /** Reads and writes one setting; `undefined` from `change` leaves it as it is. Resolves with what then stands. */
  setting<Name extends keyof Settings>(
    name: Name,
    change?: (value: Settings[Name] | undefined) => Settings[Name] | undefined,
  ): Promise<Settings[Name] | undefined>
  /** Removes bytes that belong to no row. */
  sweep(): Promise<void>
  /** Lets go of the database; the next call opens it again. */
  close(): void
}

interface Schema extends DBSchema {
  uploads: { key: string; value: unknown }
  bytes: { key: string; value: Blob | ArrayBuffer }
  settings: { key: string; value: unknown }
}
type Database = IDBPDatabase<Schema>
const storeNames = ['uploads', 'bytes', 'settings'] as const
type StoreName = (typeof storeNames)[number]
type Transaction = IDBPTransaction<Schema, StoreName[], 'readwrite'>

/** A database that has not opened for so long, ms, is reported; the next call tries again. */
const openLimit = 8_000
/** A call that has not settled for so long, ms, is given up, and so is the connection; the bytes it writes give it more time. */
const callLimit = 9_500
const waitSteps = 10
/** Bytes that the slowest disk writes in a ms: 4 MB/s, an old memory card's. */
const slowestWrite = 4_000

const failure = (cause: unknown): UploadError => {
  if (cause instanceof UploadError) return cause
  const { name } = cause as { name?: unknown }
  return name === 'QuotaExceededError'
    ? new UploadError('quota-exceeded', 'The browser has no room for this file.', { cause })
    : new UploadError('storage-failed', 'The browser could not store or read the upload.', { cause })
}

/**
 * Errors of a handle that is dead while the database is well: WebKit drops connections of pages in the background, and Chromium, while it
 * clears storage, those that are just being opened.
 */
const isConnectionLost = (error: unknown): boolean => {
  const { name, message, cause } = error as { name?: string; message?: string; cause?: { name?: unknown } }
  if (error instanceof UploadError) return cause?.name === 'AbortError'
  return name === 'InvalidStateError' || (name === 'UnknownError' && /connection/i.test(message ?? ''))
}

/** The store in IndexedDB. Opens on first use, and again whenever the browser has closed or somebody deleted it, of which `onClosed` hears. */
export function indexedDbStore(databaseName: string, onClosed = (): void => {}): Store {
  let opening: Promise<Database> | undefined

  const open = (): Promise<Database> => {
    if (opening) return opening
    const attempt = new Promise<Database>((resolve, reject) => {
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
      const callbacks: OpenDBCallbacks<Schema> = {
        upgrade(database, from) {
          // One step a version; a shipped step never changes, and none drops a store.
          if (from < 1) for (const name of storeNames) database.createObjectStore(name)
        },
        blocked() {
          blocked = true
        },
        blocking(_current, next, event) {
          forget(attempt)
          ;(event.target as IDBDatabase).close()
          // Deleted, not upgraded.
          if (next === null) onClosed()
        },
        terminated() {
          forget(attempt)
          onClosed()
        },
      }
      // Where there is no IndexedDB at all, the call itself throws.
      const request = async (): Promise<Database> => {
        try {
          return await openDB<Schema>(databaseName, 1, callbacks)
        } catch (error) {
          if ((error as Error).name !== 'VersionError') throw error
          // A newer page has been here. It has left what there was in its place, and knows rows of this version.
          const database = await openDB<Schema>(databaseName, undefined, callbacks)
          if (storeNames.every((name) => database.objectStoreNames.contains(name))) return database
          database.close()
          throw error
        }
      }
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
    opening = attempt
    attempt.catch(() => forget(attempt))
    return attempt
  }

  /** The next call opens it again, unless another has done so. */
  const forget = (attempt: Promise<Database>): void => {
    if (opening === attempt) opening = undefined
  }

  const drop = (attempt: Promise<Database>): void => {
    forget(attempt)
    attempt.then((database) => database.close()).catch(() => {})
  }

  /** Settles within `limit` ms, whatever the engine does. `work` is told when it is too late. */
  const use = async <T>(work: (database: Database, late: AbortSignal) => Promise<T>, limit = callLimit): Promise<T> => {
    const late = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const silence = new Promise<never>((_resolve, reject) => {
      // In several steps: a device that slept meanwhile wakes up with one of them done, not with all.
      const wait = (steps: number): void => {
        if (steps > 0) {
          timer = setTimeout(wait, limit / waitSteps, steps - 1)
          return
        }
        if (opening) drop(opening)
        late.abort()
        reject(new UploadError('storage-failed', 'The upload database does not answer.'))
      }
      wait(waitSteps)
    })
    const working = async (): Promise<T> => {
      for (let isRepeat = false; ; isRepeat = true) {
        const attempt = open()
        try {
          return await work(await attempt, late.signal)
        } catch (error) {
          if (isRepeat || !isConnectionLost(error)) throw failure(error)
          drop(attempt)
        }
      }
    }
    const worked = working()
    worked.catch(() => {})
    return Promise.race([worked, silence]).finally(() => clearTimeout(timer))
  }

  /** Runs `work` in one transaction and waits for its commit: a request that succeeded says nothing about the disk. */
  const transact = <T>(names: StoreName[], work: (transaction: Transaction) => Promise<T>, limit?: number): Promise<T> =>
    use(async (database, late) => {
      const transaction = database.transaction(names, 'readwrite', { durability: 'strict' })
      const abort = (): void => {
        try {
          transaction.abort()
        } catch {
          // It has ended already.
        }
      }
      late.addEventListener('abort', abort)
      // Both are awaited: a failed request rejects them both, and an unhandled rejection would be the app's problem.
      const [worked, ended] = await Promise.allSettled([
        work(transaction).catch((error) => {
          abort()
          throw error
        }),
        transaction.done,
      ])
      late.removeEventListener('abort', abort)
      if (worked.status === 'fulfilled' && ended.status === 'fulfilled') return worked.value
      // Where the browser aborts a transaction, for a full disk say, its requests know no more than that they were aborted.
      throw transaction.error ?? (worked.status === 'rejected' ? worked.reason : (ended as PromiseRejectedResult).reason)
    }, limit)

  const readFrom = <Name extends StoreName, T>(
    name: Name,
    read: (store: IDBPObjectStore<Schema, [Name], Name>) => Promise<T>,
  ): Promise<T> =>
    use((database) => {
      const transaction = database.transaction(name)
      // It rejects when its request does, and nobody else listens.
      transaction.done.catch(() => {})
      return read(transaction.store)
    })

  const read = async (transaction: Transaction, id: string): Promise<PendingUpload | undefined> => {
    const parsed = parseRow(await transaction.objectStore('uploads').get(id))
    return 'record' in parsed ? parsed.record : undefined
  }

  /** An async function, so that what cannot be cloned rejects, and no other write of the transaction is left without a listener. */
  const write = async (transaction: Transaction, name: StoreName, value: unknown, key: string): Promise<void> => {
    await transaction.objectStore(name).put(value as Blob, key)
  }

  const sizeOf = ({ bytes }: Entry): number => ('size' in bytes ? bytes.size : bytes.byteLength)

  const readUnlessSucceeded = async (transaction: Transaction, id: string): Promise<PendingUpload | undefined> => {
    const existing = parseRow(await transaction.objectStore('uploads').get(id))
    if ('damage' in existing && existing.damage === 'newer')
      throw new UploadError('storage-failed', 'A newer version of this page holds an upload of this id.')
    return 'record' in existing && existing.record.status !== 'succeeded' ? existing.record : undefined
  }

  const add = (entries: readonly Entry[]): Promise<PendingUpload[]> =>
    transact(
      ['uploads', 'bytes'],
      async (transaction) => {
        const kept = await Promise.all(entries.map(({ record }) => readUnlessSucceeded(transaction, record.id)))
        const fresh = entries.filter((_entry, place) => !kept[place])
        // Blobs first: WebKit, when it refuses one, never answers what was asked before, and the transaction never ends.
        const blobsFirst = [...fresh.filter(({ bytes }) => 'size' in bytes), ...fresh.filter(({ bytes }) => !('size' in bytes))]
        await Promise.all([
          ...blobsFirst.map(({ record, bytes }) => write(transaction, 'bytes', bytes, record.id)),
          ...fresh.map(({ record }) => write(transaction, 'uploads', record, record.id)),
        ])
        return entries.map(({ record }, place) => kept[place] ?? record)
      },
      callLimit + entries.reduce((bytes, entry) => bytes + sizeOf(entry), 0) / slowestWrite,
    )

  return {
    durable: true,
    async list() {
      const [ids, rows] = await readFrom('uploads', (store) => Promise.all([store.getAllKeys(), store.getAll()]))
      const records: PendingUpload[] = []
      const unreadable: UnreadableRow[] = []
      rows.forEach((row, place) => {
        const parsed = parseRow(row)
        if ('record' in parsed) records.push(parsed.record)
        else unreadable.push({ id: ids[place] as string, owner: (row as { owner?: unknown } | null)?.owner, damage: parsed.damage })
      })
      return { records: records.sort((a, b) => a.order - b.order), unreadable }
    },
    async get(id) {
      const parsed = parseRow(await readFrom('uploads', (store) => store.get(id)))
      return 'record' in parsed ? parsed.record : undefined
    },
    async add(entries) {
      try {
        return await add(entries)
      } catch (error) {
        // WebKit's private mode cannot store Blobs, only buffers.
        const { name } = ((error as UploadError).cause ?? {}) as { name?: unknown }
        if (name !== 'UnknownError' && name !== 'DataCloneError') throw error
        const buffer = async ({ record, bytes }: Entry): Promise<Entry> => ({
          record,
          bytes: 'size' in bytes ? await bytes.arrayBuffer() : bytes,
        })
        const buffered = await Promise.all(entries.map(buffer)).catch((cause) => {
          throw failure(cause)
        })
        return add(buffered)
      }
    },
    change(id, change) {
      return transact([...storeNames], async (transaction) => {
        const [before, runner] = await Promise.all([read(transaction, id), transaction.objectStore('settings').get('runner')])
        if (!before) return undefined
        const after = change(before, (runner as Settings['runner'] | undefined)?.id)
        if (after === before) return { before, after }
        await Promise.all([
          write(transaction, 'uploads', after, id),
          after.status === 'succeeded' ? transaction.objectStore('bytes').delete(id) : undefined,
        ])
        return { before, after }
      })
    },
    async bytes(id) {
      const value = await readFrom('bytes', (store) => store.get(id))
      return value && ('size' in value ? value : new Blob([value]))
    },
    remove(ids, which) {
      return transact(['uploads', 'bytes'], async (transaction) => {
        const removed = await Promise.all(
          ids.map(async (id) => {
            const record = which && (await read(transaction, id))
            if (which ? !record || !which(record) : (await transaction.objectStore('uploads').getKey(id)) === undefined) return undefined
            await Promise.all([transaction.objectStore('uploads').delete(id), transaction.objectStore('bytes').delete(id)])
            return id
          }),
        )
        return removed.filter((id) => id !== undefined)
      })
    },
    async setting(name, change) {
      type Value = Settings[typeof name] | undefined
      if (!change) return (await readFrom('settings', (store) => store.get(name))) as Value
      return transact(['settings'], async (transaction) => {
        const before = (await transaction.objectStore('settings').get(name)) as Value
        const after = change(before)
        if (after !== undefined) await write(transaction, 'settings', after, name)
        return after ?? before
      })
    },
    sweep() {
      return transact(['uploads', 'bytes'], async (transaction) => {
        const bytes = transaction.objectStore('bytes')
        const [ids, held] = await Promise.all([transaction.objectStore('uploads').getAllKeys(), bytes.getAllKeys()])
        const known = new Set(ids)
        await Promise.all(held.filter((id) => !known.has(id)).map((id) => bytes.delete(id)))
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
  const rows = new Map<string, { record: PendingUpload; bytes: Entry['bytes'] | undefined }>()
  const settings = new Map<string, unknown>()
  return {
    durable: false,
    async list() {
      return { records: [...rows.values()].map(({ record }) => record).sort((a, b) => a.order - b.order), unreadable: [] }
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
      const after = change(before, (settings.get('runner') as Settings['runner'] | undefined)?.id)
      rows.set(id, { record: after, bytes: after.status === 'succeeded' ? undefined : entry.bytes })
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
    async sweep() {},
    async setting(name, change) {
      const before = settings.get(name)
      const after = change?.(before as never)
      if (after !== undefined) settings.set(name, after)
      return (after ?? before) as never
    },
    close() {},
  }
}
