import { createDatabase, failure } from './database.js'
import { UploadError } from './errors.js'
import { type PendingUpload, parseRow } from './record.js'

/** A record on its way in, with its bytes. */
export interface Entry {
  /** What is known of the upload. */
  record: PendingUpload
  /** Its file: a buffer up to 64 KiB, else a Blob. */
  bytes: Blob | ArrayBuffer
  /** Whether its id was made for it, so that no other can have it. */
  isNew?: boolean
}

/** A record before and after; the same one where nothing was to be changed. */
export interface Change {
  /** As it was. */
  before: PendingUpload
  /** As it is stored now. */
  after: PendingUpload
  /** Where they were asked for, and are there. */
  bytes?: Entry['bytes'] | undefined
}

/** What a change may depend on beside its record: the tab that is the runner, and the bytes where they were asked for. */
export interface Surroundings {
  /** Id of the tab that is the runner, as the store knows it. */
  runner: string | undefined
  /** The stored bytes, where they were asked for. */
  bytes: Entry['bytes'] | undefined
}

export const sizeOf = (bytes: Entry['bytes'] | undefined): number | undefined => bytes && ('size' in bytes ? bytes.size : bytes.byteLength)

/** A row that is no record of this version: damaged, or written by a newer one. It is left alone. */
export interface UnreadableRow {
  /** Its key in the database. */
  id: string
  /** As far as the row says. */
  owner: unknown
  /** Whether a newer version wrote it, or it is no record at all. */
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
  /** What the server has said about itself. */
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
  /** Adds records with their bytes. Where a record of that id has not succeeded, it stays and is returned in place of the new one. */
  add(entries: readonly Entry[]): Promise<PendingUpload[]>
  /**
   * Reads, changes and writes one record; the bytes of one that succeeded are removed with it. Resolves `undefined` where it is gone.
   * `change` is called again where the connection was lost and it is not known whether it was stored. `withBytes`: they are read, too.
   */
  change(
    id: string,
    change: (record: PendingUpload, surroundings: Surroundings) => PendingUpload,
    withBytes?: boolean,
  ): Promise<Change | undefined>
  /** The stored bytes, `undefined` where there are none. */
  bytes(id: string): Promise<Entry['bytes'] | undefined>
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
  /** The same for a page that may stop here and now, and keep the others waiting: what is under way is done again. */
  release(): void
}

/** Whether bytes are of the kind that lies in a file of its own. */
const isBlob = (bytes: Entry['bytes']): bytes is Blob => 'size' in bytes

/** So many rows are read in one task: all of 10,000 would keep the page from answering for a fifth of a second. */
const chunkSize = 500
/** Up to so many bytes of small files that were just saved are kept at hand, so that sending them reads none. */
const freshLimit = 8 * 2 ** 20

const recordOf = (row: unknown): PendingUpload | undefined => {
  const parsed = parseRow(row)
  return 'record' in parsed ? parsed.record : undefined
}

/** What stands in the place of a new record of that id. */
const keptOf = (row: unknown): PendingUpload | undefined => {
  const existing = parseRow(row)
  if ('damage' in existing && existing.damage === 'newer')
    throw new UploadError('storage-failed', 'A newer version of this page holds an upload of this id.')
  return 'record' in existing && existing.record.status !== 'succeeded' ? existing.record : undefined
}

/** The store in IndexedDB. Opens on first use, and again whenever the browser has closed or somebody deleted it, of which `onClosed` hears. */
export function indexedDbStore(databaseName: string, onClosed = (): void => {}): Store {
  const database = createDatabase(databaseName, onClosed)
  /** Whether Blobs can be stored: WebKit's private mode refuses them, and takes what is written with them along. */
  let takesBlobs = false
  /** Bytes that were just saved here, of uploads whose ids no other can have: for the first attempt they need not be read. */
  const fresh = new Map<string, ArrayBuffer>()
  let freshSize = 0
  const keepFresh = ({ record: { id }, bytes, isNew }: Entry): void => {
    if (!isNew || isBlob(bytes) || freshSize + bytes.byteLength > freshLimit) return
    fresh.set(id, bytes)
    freshSize += bytes.byteLength
  }
  const takeFresh = (id: string): ArrayBuffer | undefined => {
    const bytes = fresh.get(id)
    fresh.delete(id)
    freshSize -= bytes?.byteLength ?? 0
    return bytes
  }

  const add = async (entries: readonly Entry[]): Promise<PendingUpload[]> => {
    const hasBlobs = entries.some(({ bytes }) => isBlob(bytes))
    const added = await database.write({
      reads: entries.filter(({ isNew }) => !isNew).map(({ record }) => ['uploads', record.id]),
      isStrict: true,
      isAlone: hasBlobs && !takesBlobs,
      size: entries.reduce((sum, { bytes }) => sum + (sizeOf(bytes) as number), 0),
      apply: (rows) =>
        entries.map(({ record, bytes }) => {
          const kept = keptOf(rows.get('uploads', record.id))
          if (kept) return kept
          rows.put('bytes', record.id, bytes)
          rows.put('uploads', record.id, record)
          return record
        }),
    })
    if (hasBlobs) takesBlobs = true
    entries.forEach(keepFresh)
    return added
  }

  return {
    durable: true,
    async list() {
      const ids = await database.read(['uploads'], (transaction) => transaction.objectStore('uploads').getAllKeys())
      const starts = ids.map((id, place) => (place === 0 ? '' : id)).filter((_, place) => place % chunkSize === 0)
      const chunks = await database.read(['uploads'], (transaction) => {
        const uploads = transaction.objectStore('uploads')
        const readChunk = async (start: string, place: number) => {
          // An array is a key beyond all texts.
          const range = IDBKeyRange.bound(start, starts[place + 1] ?? [], false, true)
          const [keys, rows] = await Promise.all([uploads.getAllKeys(range), uploads.getAll(range)])
          return rows.map((row, place) => ({ id: keys[place] as string, row, parsed: parseRow(row) }))
        }
        return Promise.all(starts.map(readChunk))
      })
      const records: PendingUpload[] = []
      const unreadable: UnreadableRow[] = []
      for (const { id, row, parsed } of chunks.flat()) {
        if ('record' in parsed) records.push(parsed.record)
        else unreadable.push({ id, owner: (row as { owner?: unknown } | null)?.owner, damage: parsed.damage })
      }
      return { records: records.sort((a, b) => a.order - b.order), unreadable }
    },
    async add(entries) {
      try {
        return await add(entries)
      } catch (error) {
        const { name } = ((error as UploadError).cause ?? {}) as { name?: unknown }
        if (name !== 'UnknownError' && name !== 'DataCloneError') throw error
      }
      // Buffers can be stored everywhere.
      const buffer = async ({ record, bytes }: Entry): Promise<Entry> => ({
        record,
        bytes: isBlob(bytes) ? await bytes.arrayBuffer() : bytes,
      })
      const buffered = await Promise.all(entries.map(buffer)).catch((cause) => {
        throw failure(cause)
      })
      return add(buffered)
    },
    change(id, change, withBytes = false) {
      const held = withBytes ? takeFresh(id) : undefined
      return database.write({
        reads: [['uploads', id], ['settings', 'runner'], ...(withBytes && !held ? [['bytes', id] as ['bytes', string]] : [])],
        apply(rows) {
          const before = recordOf(rows.get('uploads', id))
          if (!before) return undefined
          const runner = (rows.get('settings', 'runner') as Settings['runner'] | undefined)?.id
          const bytes = held ?? (rows.get('bytes', id) as Entry['bytes'] | undefined)
          const after = change(before, { runner, bytes })
          if (after !== before) {
            rows.put('uploads', id, after)
            if (after.status === 'succeeded') rows.delete('bytes', id)
          }
          return { before, after, ...(withBytes && { bytes }) }
        },
      })
    },
    bytes: (id) => database.read(['bytes'], (transaction) => transaction.objectStore('bytes').get(id)),
    remove(ids, which) {
      for (const id of ids) takeFresh(id)
      return database.write({
        reads: ids.map((id) => ['uploads', id]),
        isStrict: true,
        apply: (rows) =>
          ids.filter((id) => {
            const row = rows.get('uploads', id)
            const record = recordOf(row)
            if (which ? !record || !which(record) : row === undefined) return false
            rows.delete('uploads', id)
            rows.delete('bytes', id)
            return true
          }),
      })
    },
    async setting(name, change) {
      type Value = Settings[typeof name] | undefined
      if (!change) return (await database.read(['settings'], (transaction) => transaction.objectStore('settings').get(name))) as Value
      return database.write({
        reads: [['settings', name]],
        apply(rows) {
          const before = rows.get('settings', name) as Value
          const after = change(before)
          if (after !== undefined) rows.put('settings', name, after)
          return after ?? before
        },
      })
    },
    async sweep() {
      const [ids, held] = await database.read(['uploads', 'bytes'], (transaction) =>
        Promise.all([transaction.objectStore('uploads').getAllKeys(), transaction.objectStore('bytes').getAllKeys()]),
      )
      const known = new Set(ids)
      const stray = held.filter((id) => !known.has(id))
      if (stray.length === 0) return
      await database.write({
        reads: stray.map((id) => ['uploads', id]),
        apply(rows) {
          for (const id of stray) if (rows.get('uploads', id) === undefined) rows.delete('bytes', id)
        },
      })
    },
    close: database.close,
    release: database.release,
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
    async add(entries) {
      return entries.map((entry) => {
        const existing = rows.get(entry.record.id)?.record
        if (existing && existing.status !== 'succeeded') return existing
        rows.set(entry.record.id, entry)
        return entry.record
      })
    },
    async change(id, change, withBytes) {
      const entry = rows.get(id)
      if (!entry) return undefined
      const { record: before, bytes } = entry
      const after = change(before, { runner: (settings.get('runner') as Settings['runner'] | undefined)?.id, bytes })
      rows.set(id, { record: after, bytes: after.status === 'succeeded' ? undefined : bytes })
      return { before, after, ...(withBytes && { bytes }) }
    },
    async bytes(id) {
      return rows.get(id)?.bytes
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
    release() {},
  }
}
