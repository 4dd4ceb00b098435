import { type DBSchema, type IDBPDatabase, type IDBPTransaction, type OpenDBCallbacks, openDB, unwrap } from 'idb'
import { UploadError } from './errors.js'

interface Schema extends DBSchema {
  uploads: { key: string; value: unknown }
  bytes: { key: string; value: Blob | ArrayBuffer }
  settings: { key: string; value: unknown }
}
const storeNames = ['uploads', 'bytes', 'settings'] as const
export type StoreName = (typeof storeNames)[number]
type Connection = IDBPDatabase<Schema>
export type Reading = IDBPTransaction<Schema, StoreName[], 'readonly'>

/** The rows that a job has asked for, as the jobs before it in the same transaction leave them. */
export interface Rows {
  get(store: StoreName, key: string): unknown
  put(store: StoreName, key: string, value: unknown): void
  delete(store: StoreName, key: string): void
}

/** One piece of writing. Nothing of it is stored where `apply` throws; it is called again where a transaction failed that might have held it. */
export interface Job<T> {
  /** The rows that `apply` looks at. */
  reads: [StoreName, string][]
  apply(rows: Rows): T
  /** Whether it is on the disk itself, and not just in the operating system's hands, when it settles. Default false. */
  isStrict?: boolean
  /** Whether no other job shares its transaction, and so none waits for it. Default false. */
  isAlone?: boolean
  /** Bytes that it writes, which give it more time. Default 0. */
  size?: number
}

/** The queue's database. Every promise settles within 10 s, more where many bytes are written, or rejects with an `UploadError`. */
export interface Database {
  /** Requests that `read` makes at once. */
  read<T>(names: StoreName[], read: (transaction: Reading) => Promise<T>): Promise<T>
  /**
   * Does the job in one transaction with whatever else waits, and settles when it has committed: a transaction for each row is what small
   * files cost most. What fails in company is done again alone.
   */
  write<T>(job: Job<T>): Promise<T>
  /** Lets go of it; the next call opens it again. */
  close(): void
  /** The same for a page that may stop here and now: its half-done transactions would keep all others waiting. They are done again. */
  release(): void
}

/** A database that has not opened for so long, ms, is reported; the next call tries again. */
const openLimit = 8_000
/** A call that has not settled for so long, ms, is given up, and so is the connection; the bytes it writes give it more time. */
const callLimit = 9_500
const waitSteps = 10
/** Bytes that the slowest disk writes in a ms: 4 MB/s, an old memory card's. */
const slowestWrite = 4_000
/** So many jobs share a transaction: more gain nothing, and keep readers waiting. */
const batchSize = 64
/**
 * What is called in one go goes together, and so does what follows on it at once: as one upload ends the next begins. Microtasks that are
 * waited for it; a timer would be late where timers are throttled.
 */
const gatheringTurns = 16

export const failure = (cause: unknown): UploadError => {
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

type Write = [store: StoreName, key: string, value: unknown]
const placeOf = (store: StoreName, key: string): string => `${store}/${key}`

interface Waiting {
  job: Job<unknown>
  resolve(value: unknown): void
  reject(error: unknown): void
  isLate: boolean
}

/** Bare, since a promise for each request would cost more than what it asks for. */
const storesOf = (transaction: IDBTransaction): Record<StoreName, IDBObjectStore> =>
  Object.fromEntries(storeNames.map((name) => [name, transaction.objectStore(name)])) as Record<StoreName, IDBObjectStore>

/** Resolves when the last of these is answered, and so all before it; rejects as soon as one fails. */
const answered = (requests: readonly IDBRequest[]): Promise<void> =>
  new Promise((resolve, reject) => {
    for (const request of requests) request.onerror = () => reject(request.error)
    const last = requests.at(-1)
    if (last) last.onsuccess = () => resolve()
    else resolve()
  })

/** Opens on first use, and again whenever the browser has closed or somebody deleted it, of which `onClosed` hears. */
export function createDatabase(databaseName: string, onClosed: () => void): Database {
  let opening: Promise<Connection> | undefined
  const waiting: Waiting[] = []
  /** The jobs of the transaction under way, and what gives it up. */
  let writing: Waiting[] = []
  let givingUp = new AbortController()
  let isDraining = false
  /** What was under way as the page was told to stop ends with it. */
  const released = new Error('The page stops.')
  /** Ends an open transaction, to be done again or for good. */
  const endings = new Set<(isAgain: boolean) => void>()

  const open = (): Promise<Connection> => {
    if (opening) return opening
    const attempt = new Promise<Connection>((resolve, reject) => {
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
      const request = async (): Promise<Connection> => {
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
  const forget = (attempt: Promise<Connection>): void => {
    if (opening === attempt) opening = undefined
  }

  const drop = (attempt: Promise<Connection>): void => {
    forget(attempt)
    attempt.then((database) => database.close()).catch(() => {})
  }

  /** Calls `onLate` after `limit` ms, unless ended before: in several steps, since a device that slept wakes up with one of them done, not with all. */
  const expect = (limit: number, onLate: () => void): (() => void) => {
    let timer: ReturnType<typeof setTimeout> | undefined
    const wait = (steps: number): void => {
      if (steps === 0) onLate()
      else timer = setTimeout(wait, limit / waitSteps, steps - 1)
    }
    wait(waitSteps)
    return () => clearTimeout(timer)
  }
  const silent = (): UploadError => new UploadError('storage-failed', 'The upload database does not answer.')

  /** Runs a transaction on the connection, and on a new one where that was lost. */
  const connected = async <T>(work: (database: Connection) => Promise<T>): Promise<T> => {
    for (let isRepeat = false; ; isRepeat = true) {
      const attempt = open()
      try {
        return await work(await attempt)
      } catch (error) {
        if (error !== released && (isRepeat || !isConnectionLost(error))) throw failure(error)
        drop(attempt)
      }
    }
  }

  const abort = (transaction: Pick<IDBTransaction, 'abort'>): boolean => {
    try {
      transaction.abort()
      return true
    } catch {
      // It has ended already, or is about to.
      return false
    }
  }

  /** Follows a transaction to its end; rejects with the best that is known of why it failed. */
  const ended = async <T>(transaction: Pick<IDBTransaction, 'abort' | 'error'> & { done: Promise<void> }, work: Promise<T>): Promise<T> => {
    let isReleased = false
    const end = (isAgain: boolean): void => {
      isReleased = abort(transaction) && isAgain
    }
    endings.add(end)
    // Both are awaited: a failed request rejects them both, and an unhandled rejection would be the app's problem.
    const [worked, done] = await Promise.allSettled([
      work.catch((error) => {
        abort(transaction)
        throw error
      }),
      transaction.done,
    ])
    endings.delete(end)
    if (worked.status === 'fulfilled' && done.status === 'fulfilled') return worked.value
    if (isReleased) throw released
    // Where the browser aborts a transaction, for a full disk say, its requests know no more than that they were aborted.
    throw transaction.error ?? (worked.status === 'rejected' ? worked.reason : (done as PromiseRejectedResult).reason)
  }

  /** Says that no more requests come: nobody has to wait until this page has heard of its last answer. */
  const commit = (transaction: { commit?(): void }): void => {
    try {
      transaction.commit?.()
    } catch {
      // It was aborted.
    }
  }

  /** Resolves with what tells each job its end. */
  const transact = (all: readonly Waiting[], givenUp: AbortSignal): Promise<(() => void)[]> =>
    connected((database) => {
      givenUp.throwIfAborted()
      const jobs = all.filter(({ isLate }) => !isLate)
      const durability = jobs.some(({ job }) => job.isStrict) ? 'strict' : 'relaxed'
      const transaction = database.transaction([...storeNames], 'readwrite', { durability })
      const work = async (): Promise<(() => void)[]> => {
        const stores = storesOf(unwrap(transaction))
        const asked = new Map(jobs.flatMap(({ job }) => job.reads.map((read) => [placeOf(...read), read])))
        const requests = new Map(Array.from(asked, ([place, [store, key]]) => [place, stores[store].get(key)]))
        await answered([...requests.values()])
        const changes = new Map<string, Write>()
        const ends = jobs.map(({ job, resolve, reject }) => {
          const own: typeof changes = new Map()
          const put = (store: StoreName, key: string, value: unknown): void => void own.set(placeOf(store, key), [store, key, value])
          try {
            const result = job.apply({
              get(store, key) {
                const place = placeOf(store, key)
                const changed = own.get(place) ?? changes.get(place)
                return changed ? changed[2] : requests.get(place)?.result
              },
              put,
              delete: (store, key) => put(store, key, undefined),
            })
            for (const [place, write] of own) changes.set(place, write)
            return () => resolve(result)
          } catch (error) {
            return () => reject(failure(error))
          }
        })
        // Blobs first: WebKit, when it refuses one, never answers what was asked before, and the transaction never ends.
        const isBlob = ([store, , value]: Write): boolean => store === 'bytes' && value instanceof Blob
        const writes = [...changes.values()]
        const requested = [...writes.filter(isBlob), ...writes.filter((one) => !isBlob(one))].map(([name, key, value]) =>
          value === undefined ? stores[name].delete(key) : stores[name].put(value, key),
        )
        // WebKit commits what is left of a transaction whose last request is refused after `commit()`: it waits for all of them.
        await answered(requested)
        commit(transaction)
        return ends
      }
      return ended(transaction, work())
    })

  const run = async (jobs: readonly Waiting[]): Promise<void> => {
    writing = jobs.filter(({ isLate }) => !isLate)
    if (writing.length === 0) return
    givingUp = new AbortController()
    const { signal } = givingUp
    const givenUp = new Promise<never>((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    try {
      for (const end of await Promise.race([transact(writing, signal), givenUp])) end()
    } catch (error) {
      if (jobs.length === 1) jobs[0]?.reject(error)
      else for (const job of jobs) await run([job])
    }
  }

  /** One transaction at a time: those that wait would each keep the other tabs out, should this one stop. */
  const drain = async (): Promise<void> => {
    isDraining = true
    while (waiting.length > 0) {
      for (let turn = 0; turn < gatheringTurns; turn++) await undefined
      const next = waiting.findIndex(({ job }) => job.isAlone)
      await run(waiting.splice(0, next === 0 ? 1 : Math.min(batchSize, next < 0 ? batchSize : next)))
      writing = []
    }
    isDraining = false
  }

  const close = (): void => {
    opening?.then((database) => database.close()).catch(() => {})
    opening = undefined
  }

  return {
    read(names, read) {
      let end = (): void => {}
      const late = new Promise<never>((_resolve, reject) => {
        end = expect(callLimit, () => {
          if (opening) drop(opening)
          reject(silent())
        })
      })
      const reading = connected((database) => {
        const transaction = database.transaction(names)
        const work = read(transaction)
        commit(transaction)
        return ended(transaction, work)
      })
      reading.catch(() => {})
      return Promise.race([reading, late]).finally(end)
    },
    write<T>(job: Job<T>) {
      return new Promise<T>((resolve, reject) => {
        const size = [...writing, ...waiting].reduce((sum, { job }) => sum + (job.size ?? 0), job.size ?? 0)
        const end = expect(callLimit + size / slowestWrite, () => {
          one.isLate = true
          reject(silent())
          if (!writing.includes(one)) return
          // A transaction that hangs takes its connection with it.
          for (const finish of endings) finish(false)
          if (opening) drop(opening)
          givingUp.abort(silent())
        })
        const one: Waiting = {
          job,
          isLate: false,
          resolve(value) {
            end()
            resolve(value as T)
          },
          reject(error) {
            end()
            reject(error)
          },
        }
        waiting.push(one)
        if (!isDraining) void drain()
      })
    },
    close,
    release() {
      for (const end of endings) end(true)
      close()
    },
  }
}
