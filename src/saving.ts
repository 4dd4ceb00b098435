import { abortError, UploadError } from './errors.js'
import type { Handles, UploadHandle } from './handles.js'
import { blame, type EnqueueOptions, type Intake, takeIn, throwIfAborted } from './intake.js'
import type { Ledger } from './ledger.js'
import type { ResolvedOptions } from './options.js'
import { checkRoom, type StorageQuota } from './quota.js'
import { newRecord, type PendingUpload } from './record.js'
import type { Entry, Store } from './store.js'
import { newKey } from './wire.js'

export interface SavingOptions<Result> {
  settings: Pick<ResolvedOptions<Result>, 'keyFormat' | 'maxAge' | 'maxFileSize'>
  store(): Store
  storage: StorageQuota | undefined
  ledger: Ledger<Result>
  handles: Handles<Result>
  now(): number
  newId(): string
  /** Resolves with who is signed in as it is called, once the store is usable. */
  account(): Promise<string | null>
  isPaused(): boolean
  isClosed(): boolean
  /** Pauses or resumes what was saved while the whole queue was. */
  follow(id: string): Promise<unknown>
  cancel(id: string): Promise<void>
}

/** What became of one file: its upload, or why it could not be saved. */
type Saved<Result> = UploadHandle<Result> | { error: unknown }

/** Takes files in: each gets its one key, and is stored with its record before anybody hears of it. */
export interface Saving<Result> {
  save(file: Blob, options: EnqueueOptions): Promise<UploadHandle<Result>>
  /** All that can be saved; rejects with an `AggregateError` that says which cannot. */
  saveAll(files: readonly Blob[], options: EnqueueOptions): Promise<UploadHandle<Result>[]>
  /** Whether something is being saved. */
  readonly isBusy: boolean
}

/** One transaction takes so many files: more would be a task in which a page of a slow device does not answer. */
const batchSize = 32

export function createSaving<Result>(deps: SavingOptions<Result>): Saving<Result> {
  const { settings, store, storage, ledger, handles, now, newId } = deps
  const { snapshot } = ledger
  let lastOrder = 0
  let busy = 0

  async function saveBatch(files: readonly Blob[], options: EnqueueOptions): Promise<Saved<Result>[]> {
    // Files are sent in the order of the calls, whichever is read first.
    const orders = files.map(() => {
      lastOrder = Math.max(lastOrder + 1, now() * 1000)
      return lastOrder
    })
    const account = await deps.account()
    if (account === null) throw new UploadError('unauthorized', 'Nobody is signed in to own this upload.')
    const { signal } = options
    const take = async (file: Blob, order: number): Promise<Entry | { error: unknown }> => {
      try {
        // Of what is no file at all `takeIn` says so.
        const room = store().durable ? checkRoom(storage, file?.size ?? 0) : undefined
        const [intake] = await Promise.all([takeIn(file, options, settings.maxFileSize), room])
        return entryOf(intake, account, order, options)
      } catch (error) {
        return { error }
      }
    }
    const taken = await Promise.all(files.map((file, place) => take(file, orders[place] as number)))
    throwIfAborted(signal)
    if (deps.isClosed()) throw abortError('The queue was closed.')
    const entries = taken.filter((entry) => 'record' in entry)
    const kept = await add(entries)
    const added = entries.map(({ record }) => record).filter((record, place) => isSame(record, kept[place]))
    if (signal?.aborted) await store().remove(added.map(({ id }) => id))
    throwIfAborted(signal)
    const saved = taken.map((entry) => {
      if ('error' in entry) return entry
      const record = kept[entries.indexOf(entry)] as PendingUpload | { error: unknown }
      if ('error' in record && !('id' in record)) return record
      return welcome(record as PendingUpload, entry, signal)
    })
    const late = added.filter(({ status }) => (status === 'paused') !== deps.isPaused())
    await Promise.all(late.map(({ id }) => deps.follow(id)))
    return saved
  }

  function entryOf(
    { bytes, ...facts }: Intake,
    owner: string,
    order: number,
    { id: given, metadata = {}, priority = 0 }: EnqueueOptions,
  ): Entry {
    const createdAt = now()
    const id = given ?? newId()
    const identity = { id, idempotencyKey: newKey(settings.keyFormat, newId), owner, order }
    const times = { createdAt, expiresAt: createdAt + settings.maxAge }
    return {
      record: newRecord({ ...facts, ...identity, ...times, metadata: { ...metadata }, priority, paused: deps.isPaused() }),
      bytes,
      isNew: given === undefined,
    }
  }

  function welcome(record: PendingUpload, entry: Entry, signal: AbortSignal | undefined): Saved<Result> {
    if (record.owner !== entry.record.owner) return { error: new TypeError('enqueue: id: it belongs to an upload of another owner.') }
    if (isSame(entry.record, record)) ledger.tell({ type: 'changed', record, event: { name: 'added' } })
    else ledger.hear({ type: 'changed', record })
    const onAbort = (): void => {
      // The signal is for this upload, not for a later one of the same id; and a closed queue has none.
      if (snapshot.find(record.id)?.idempotencyKey === record.idempotencyKey) deps.cancel(record.id).catch(() => {})
    }
    signal?.addEventListener('abort', onAbort, { once: true })
    return handles.of(record.id)
  }

  /** Together, or where that fails one by one, so that a file without room does not keep out the others. */
  async function add(entries: readonly Entry[]): Promise<(PendingUpload | { error: unknown })[]> {
    if (entries.length === 0) return []
    try {
      return await store().add(entries)
    } catch (error) {
      const [first, ...others] = entries as [Entry, ...Entry[]]
      if (others.length === 0) return [{ error: await blame(first.bytes, error) }]
      return [...(await add([first])), ...(await add(others))]
    }
  }

  async function whileBusy<T>(work: () => Promise<T>): Promise<T> {
    busy += 1
    try {
      return await work()
    } finally {
      busy -= 1
    }
  }

  return {
    get isBusy() {
      return busy > 0
    },
    async save(file, options) {
      const [saved] = (await whileBusy(() => saveBatch([file], options))) as [Saved<Result>]
      if ('error' in saved) throw saved.error
      return saved
    },
    async saveAll(files, options) {
      const results: Saved<Result>[] = []
      for (let first = 0; first < files.length; first += batchSize) {
        const batch = files.slice(first, first + batchSize)
        const saved = whileBusy(() => saveBatch(batch, options)).catch((error: unknown): Saved<Result>[] => {
          if (first === 0 || options.signal?.aborted) throw error
          // What was saved before has to be told from what was not.
          return batch.map(() => ({ error }))
        })
        results.push(...(await saved))
      }
      const failures = results.flatMap((result, index) => ('error' in result ? [{ index, error: result.error }] : []))
      if (failures.length === 0) return results as UploadHandle<Result>[]
      const indexes = failures.map(({ index }) => index)
      const message = `Of ${files.length} files ${failures.length} could not be saved, number ${indexes.map((index) => index + 1).join(', ')}; the others are.`
      const errors = failures.map(({ error }) => error)
      throw Object.assign(new AggregateError(errors, message), { indexes })
    },
  }
}

/** Whether it was this file that was stored, and not an earlier one of its id. */
const isSame = (record: PendingUpload, kept: PendingUpload | { error: unknown } | undefined): boolean =>
  kept !== undefined && 'idempotencyKey' in kept && kept.idempotencyKey === record.idempotencyKey
