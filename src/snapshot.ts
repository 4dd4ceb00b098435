import { type PendingUpload, runsByItself } from './record.js'

/** Bytes of the current attempt that have left, or, of an upload that is being prepared, were hashed. */
export interface Progress {
  /** Bytes so far. */
  readonly loaded: number
  /** Bytes in all: of the request's body, or of the file where it is hashed. */
  readonly total: number
}

/** One upload as an app sees it. Frozen, and the same object until something about it changes. */
export interface Upload<Result = unknown> extends Readonly<Omit<PendingUpload, 'result'>> {
  /** `null` where the transport does not report bytes, or nothing is under way. */
  readonly progress: Progress | null
  /** Whether it survives the page. */
  readonly durable: boolean
  /** What `response` made of the server's answer; `null` until it has succeeded. */
  readonly result: Result | null
}

export interface Snapshot<Result> {
  /** The uploads of the current owner, oldest first. The same array until something changes. */
  list(): readonly Upload<Result>[]
  get(id: string): Upload<Result> | undefined
  /** One record, whoever owns it. */
  find(id: string): Upload<Result> | undefined
  /** Every record, whoever owns it. */
  all(): Iterable<Upload<Result>>
  /** Takes a record in, unless it is older than what is known here, or known to be gone. */
  put(record: PendingUpload): Upload<Result> | undefined
  progress(id: string, progress: Progress | null): Upload<Result> | undefined
  remove(id: string): Upload<Result> | undefined
  /** Takes in all that a store holds, and forgets what it no longer does. */
  merge(records: readonly PendingUpload[], missing: readonly string[], durable: boolean): void
  /** How many of the current owner's uploads get further by themselves. */
  running(): number
  setOwner(owner: string | null): void
  /** Called soon after a change, and on a page once for all changes of a frame. */
  subscribe(listener: () => void): () => void
}

/** Bytes are hashed, or leave. */
const isAtWork = ({ status }: PendingUpload): boolean => status === 'preparing' || status === 'uploading'

/** Listeners are called no more often, ms: a screen that shows 60 frames a second shows nothing in between. */
const frame = 16

/** What the queue knows, as immutable values that a UI can compare by identity. */
export function createSnapshot<Result>(): Snapshot<Result> {
  const uploads = new Map<string, Upload<Result>>()
  /** The keys of what was removed: a message of another tab may arrive after that. */
  const gone = new Set<string>()
  const listeners = new Set<() => void>()
  let owner: string | null = null
  let durable = true
  let list: readonly Upload<Result>[] | undefined
  let scheduled = false
  let notifiedAt = Number.NEGATIVE_INFINITY

  /** Whether the map's own order is the uploads' order. */
  let sorted = true
  let last = 0
  let running = 0

  const changed = (): void => {
    list = undefined
    if (scheduled || listeners.size === 0) return
    scheduled = true
    const notify = (): void => {
      scheduled = false
      notifiedAt = performance.now()
      // Each in a task of its own: one that throws keeps it from no other.
      for (const listener of [...listeners]) queueMicrotask(listener)
    }
    const wait = notifiedAt + frame - performance.now()
    // A worker has no screen.
    if (wait > 0 && typeof requestAnimationFrame === 'function') setTimeout(notify, wait)
    else queueMicrotask(notify)
  }
  const count = (upload: Upload<Result> | undefined, by: number): void => {
    if (upload?.owner === owner && runsByItself(upload)) running += by
  }
  const set = (upload: Upload<Result>): Upload<Result> => {
    const known = uploads.get(upload.id)
    count(known, -1)
    count(upload, 1)
    if (known?.order !== upload.order) {
      if (known || upload.order < last) sorted = false
      last = Math.max(last, upload.order)
    }
    uploads.set(upload.id, upload)
    return upload
  }
  const drop = (id: string): Upload<Result> | undefined => {
    const upload = uploads.get(id)
    count(upload, -1)
    uploads.delete(id)
    return upload
  }
  const accept = (record: PendingUpload): Upload<Result> | undefined => {
    const known = uploads.get(record.id)
    if (gone.has(record.idempotencyKey)) return undefined
    if (known?.order === record.order) {
      if (known.revision > record.revision) return undefined
      if (known.revision === record.revision && known.durable === durable) return known
    }
    changed()
    const progress = record.status === known?.status && isAtWork(record) ? known.progress : null
    return set(Object.freeze({ ...record, metadata: Object.freeze({ ...record.metadata }), progress, durable }) as Upload<Result>)
  }
  const visible = (upload: Upload<Result> | undefined): Upload<Result> | undefined => (upload?.owner === owner ? upload : undefined)

  return {
    list() {
      if (!list) {
        const visibles = [...uploads.values()].filter((upload) => upload.owner === owner)
        list = Object.freeze(sorted ? visibles : visibles.sort((a, b) => a.order - b.order))
      }
      return list
    },
    running: () => running,
    get: (id) => visible(uploads.get(id)),
    find: (id) => uploads.get(id),
    all: () => uploads.values(),
    put: accept,
    progress(id, progress) {
      const upload = uploads.get(id)
      if (!upload || !isAtWork(upload)) return undefined
      changed()
      return set(Object.freeze({ ...upload, progress: progress && Object.freeze(progress) }))
    },
    remove(id) {
      const upload = drop(id)
      if (!upload) return undefined
      gone.add(upload.idempotencyKey)
      changed()
      return upload
    },
    merge(records, missing, isDurable) {
      durable = isDurable
      for (const id of missing) if (drop(id)) changed()
      for (const record of records) accept(record)
    },
    setOwner(next) {
      if (next === owner) return
      owner = next
      running = 0
      for (const upload of uploads.values()) count(upload, 1)
      changed()
    },
    subscribe(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}
