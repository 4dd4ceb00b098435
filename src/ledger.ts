import { abortError, UploadError, type UploadErrorFacts } from './errors.js'
import { createEmitter, type Emitter } from './events.js'
import { type Action, type PendingUpload, transition } from './record.js'
import { createSnapshot, type Snapshot, type Upload } from './snapshot.js'
import { type Change, type Store, type Surroundings, sizeOf } from './store.js'

/** What happened, in the words in which tabs of a queue tell each other. */
export type Message =
  | { type: 'changed'; record: PendingUpload; event?: Happening }
  | { type: 'removed'; ids: string[] }
  | { type: 'progress'; id: string; loaded: number; total: number }
  | { type: 'network'; reachable: boolean }
  | { type: 'paused'; paused: boolean }
  | { type: 'warning'; message: string; id?: string; error?: UploadErrorFacts }
  | { type: 'hint' }

type Happening =
  | { name: 'added' | 'started' | 'paused' | 'resumed' }
  | { name: 'retrying'; delay: number; reason: string; counted: boolean }
  | { name: 'succeeded'; replayed: boolean }
  | { name: 'failed' | 'blocked'; error: UploadErrorFacts }

export interface LedgerOptions {
  /** Where records are kept. */
  store(): Store
  /** This tab, as the store knows the runner. */
  tabId: string
  now(): number
  /** Tells the other tabs. */
  announce(message: Message): void
  /** Called after something happened here or elsewhere. */
  onMessage(message: Message): void
  /** Another tab is the runner now: what a run of this one wanted to change was void. */
  onFenced(): void
}

/** What is known of the uploads, and the one way in which that changes: stored first, then told to this tab and the others in the same words. */
export interface Ledger<Result> {
  readonly snapshot: Snapshot<Result>
  readonly on: Emitter<Result>['on']
  /**
   * Does an action to a record; resolves with the record before and after, the same where the action meant nothing; `undefined` where it is
   * gone. A start brings the bytes along, and means nothing without them. `signal`: that of the run whose action it is. An action that is given again, since it failed, happens once.
   */
  act(id: string, action: Action, warning?: string, signal?: AbortSignal): Promise<Change | undefined>
  /** Says what happened, here and in the other tabs. */
  tell(message: Message): void
  /** Takes in what another tab, or the store, says. */
  hear(message: Message): void
  /** Reads the store anew; resolves with how many uploads were lost: gone, and nobody has said so. */
  read(): Promise<number>
  /** Whose uploads are seen. */
  setOwner(owner: string | null): void
  /** The end of an upload: the next one, should it fail and be tried again. */
  done(id: string): Promise<Result>
  /** Fires `idle` when what ran has come to rest. */
  checkIdle(): void
}

const errorOf = (facts: UploadErrorFacts | null): UploadError =>
  new UploadError(facts?.code ?? 'rejected', facts?.message ?? '', facts ?? {})

/** What apps hear of an action, if it changed anything they care about. */
function happeningOf(action: Action, after: PendingUpload, now: number): Happening | undefined {
  switch (action.type) {
    case 'started':
    case 'paused':
    case 'resumed':
      return { name: action.type }
    case 'retried':
    case 'revived':
      return { name: 'resumed' }
    case 'deferred':
      if (after.status !== 'pending') return undefined
      return { name: 'retrying', delay: Math.max(0, (after.notBefore ?? now) - now), reason: action.error.code, counted: action.counted }
    case 'succeeded':
      return { name: 'succeeded', replayed: action.replayed }
    case 'failed':
    case 'blocked':
      return { name: action.type, error: action.error }
    default:
      return undefined
  }
}

/** As far as JSON goes; `null` where it does not go at all. */
function jsonOf(value: unknown): unknown {
  try {
    return JSON.parse(JSON.stringify(value ?? null))
  } catch {
    return null
  }
}

interface Deferred<Result> {
  promise: Promise<Result>
  resolve(result: Result): void
  reject(error: unknown): void
  settled: boolean
}

function createDeferred<Result>(): Deferred<Result> {
  const deferred = { settled: false } as Deferred<Result>
  deferred.promise = new Promise((resolve, reject) => {
    deferred.resolve = (result) => {
      deferred.settled = true
      resolve(result)
    }
    deferred.reject = (error) => {
      deferred.settled = true
      reject(error)
    }
  })
  // Nobody has to look at it.
  deferred.promise.catch(() => {})
  return deferred
}

export function createLedger<Result>({ store, tabId, now, announce, onMessage, onFenced }: LedgerOptions): Ledger<Result> {
  const { emit, on } = createEmitter<Result>()
  const snapshot = createSnapshot<Result>()
  const deferreds = new Map<string, Deferred<Result>>()
  let owner: string | null = null
  let reachable = true
  let busy = false
  let unreadable = 0
  /** What actions came to that may have been stored, though nobody could say so. */
  const uncertain = new WeakMap<Action, Change>()

  async function act(id: string, action: Action, warning?: string, signal?: AbortSignal): Promise<Change | undefined> {
    let repeated: Change | undefined
    let fenced = false
    const isStart = action.type === 'started'
    const change =
      (effective: Action) =>
      (record: PendingUpload, { runner, bytes }: Surroundings): PendingUpload => {
        const earlier = uncertain.get(action)
        const isStored = earlier?.after.revision === record.revision && JSON.stringify(earlier.after) === JSON.stringify(record)
        repeated = isStored ? earlier : undefined
        if (repeated) return record
        // A run that was stopped, or that of a tab taken for dead, may still say that its file was stored, and nothing else: another may have begun.
        fenced = signal !== undefined && runner !== undefined && runner !== tabId
        if ((fenced || signal?.aborted) && action.type !== 'succeeded') return record
        // What is not there cannot be sent; and another tab may have been told to wait with it, and this one not heard of that.
        if (isStart && (sizeOf(bytes) !== record.size || (record.notBefore ?? 0) > now())) return record
        const after = transition(record, effective)
        if (after !== record) uncertain.set(action, { before: record, after })
        return after
      }
    const stored = await store()
      .change(id, change(action), isStart)
      .catch((error: UploadError) => {
        const uncloneable = action.type === 'succeeded' && (error.cause as Error | undefined)?.name === 'DataCloneError'
        if (!uncloneable) throw error
        // An app's own result that cannot be stored is stored as far as JSON goes.
        return store().change(id, change({ ...action, result: jsonOf(action.result) }))
      })
    const changed = stored && { ...(repeated ?? stored), bytes: stored.bytes }
    if (fenced) onFenced()
    if (!changed) {
      // Another tab removed it, and its message did not arrive.
      if (snapshot.find(id)) hear({ type: 'removed', ids: [id] })
      return undefined
    }
    const { before, after } = changed
    if (after !== before) {
      const event = happeningOf(action, after, now())
      tell({ type: 'changed', record: after, ...(event && { event }) })
    } else if (snapshot.find(id)?.revision !== after.revision) {
      // Another tab changed it, and its message did not arrive.
      hear({ type: 'changed', record: after })
    }
    if (warning) tell({ type: 'warning', message: warning, id })
    return changed
  }

  function tell(message: Message): void {
    hear(message)
    announce(message)
  }

  function hear(message: Message): void {
    follow(message)
    onMessage(message)
    checkIdle()
  }

  function follow(message: Message): void {
    switch (message.type) {
      case 'changed': {
        const upload = snapshot.put(message.record)
        if (!upload) return
        settle(upload)
        if (message.event && upload.owner === owner) announceEvent(message.event, upload)
        return
      }
      case 'removed':
        for (const id of message.ids) {
          const upload = snapshot.remove(id)
          deferreds.get(id)?.reject(abortError())
          deferreds.delete(id)
          if (upload?.owner === owner) emit('cancelled', { upload })
        }
        return
      case 'progress': {
        const { id, loaded, total } = message
        const upload = snapshot.progress(id, { loaded, total })
        if (upload?.owner === owner) emit('progress', { upload, loaded, total })
        return
      }
      case 'network':
        if (reachable !== message.reachable) emit(message.reachable ? 'online' : 'offline', {})
        reachable = message.reachable
        return
      case 'warning': {
        const upload = message.id === undefined ? undefined : snapshot.get(message.id)
        emit('warning', { message: message.message, ...(upload && { upload }), ...(message.error && { error: errorOf(message.error) }) })
        return
      }
      default:
        return
    }
  }

  function announceEvent(event: Happening, upload: Upload<Result>): void {
    switch (event.name) {
      case 'retrying':
        emit('retrying', { upload, delay: event.delay, reason: event.reason, counted: event.counted })
        break
      case 'succeeded':
        emit('succeeded', { upload, result: upload.result as Result, replayed: event.replayed })
        break
      case 'failed':
      case 'blocked':
        emit(event.name, { upload, error: errorOf(event.error) })
        break
      default:
        emit(event.name, { upload })
    }
  }

  function settle(upload: Upload<Result>): void {
    const deferred = deferreds.get(upload.id)
    if (!deferred) return
    if (upload.status === 'succeeded') deferred.resolve(upload.result as Result)
    else if (upload.status === 'failed') deferred.reject(errorOf(upload.error))
    // Tried again after it failed: a new end is awaited.
    else if (deferred.settled) deferreds.delete(upload.id)
  }

  function checkIdle(): void {
    const was = busy
    busy = snapshot.running() > 0
    if (was && !busy) emit('idle', {})
  }

  return {
    snapshot,
    on,
    act,
    tell,
    hear,
    async read() {
      const asked = Array.from(snapshot.all(), ({ id }) => id)
      const { records, unreadable: rows } = await store().list()
      // Of many it is enough for one task to have read them.
      await (globalThis as { scheduler?: { yield?(): Promise<void> } }).scheduler?.yield?.()
      const held = new Set(records.map(({ id }) => id))
      const missing = asked.filter((id) => !held.has(id))
      // Another tab removed them, and its message did not arrive; old receipts go without a word.
      const lost = missing.filter((id) => snapshot.find(id)?.status !== 'succeeded')
      if (lost.length > 0) hear({ type: 'removed', ids: lost })
      snapshot.merge(records, missing, store().durable)
      for (const upload of snapshot.all()) settle(upload)
      const damaged = rows.filter(({ damage }) => damage === 'damaged').length
      if (damaged > unreadable) tell({ type: 'warning', message: `${damaged} stored uploads cannot be read; they are left alone.` })
      unreadable = damaged
      checkIdle()
      return lost.length
    },
    setOwner(next) {
      owner = next
      snapshot.setOwner(next)
    },
    done(id) {
      let deferred = deferreds.get(id)
      if (!deferred) {
        deferred = createDeferred()
        const upload = snapshot.find(id)
        if (upload) {
          deferreds.set(id, deferred)
          settle(upload)
        } else deferred.reject(abortError())
      }
      return deferred.promise
    },
    checkIdle,
  }
}
