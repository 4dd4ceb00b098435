import type { PendingUpload } from './record.js'

/** Bytes of the current attempt that have left. */
export interface Progress {
  readonly loaded: number
  readonly total: number
}

/** One upload as an app sees it. Frozen, and the same object until something about it changes. */
export interface Upload<Result = unknown> extends Readonly<Omit<PendingUpload, 'result'>> {
  /** `null` where the transport does not report bytes, or nothing is under way. */
  readonly progress: Progress | null
  /** Whether it survives the page. */
  readonly durable: boolean
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
  /** Replaces everything by what a store holds. */
  reset(records: readonly PendingUpload[], durable: boolean): void
  setOwner(owner: string | null): void
  /** Called once after each batch of changes. */
  subscribe(listener: () => void): () => void
}

/** What the queue knows, as immutable values that a UI can compare by identity. */
export function createSnapshot<Result>(): Snapshot<Result> {
  const uploads = new Map<string, Upload<Result>>()
  /** What was removed, by its `order`: a message of another tab may arrive after that. */
  const gone = new Map<string, number>()
  const listeners = new Set<() => void>()
  let owner: string | null = null
  let durable = true
  let list: readonly Upload<Result>[] | undefined
  let scheduled = false

  const changed = (): void => {
    list = undefined
    if (scheduled || listeners.size === 0) return
    scheduled = true
    queueMicrotask(() => {
      scheduled = false
      for (const listener of [...listeners]) listener()
    })
  }
  const place = (record: PendingUpload, progress: Progress | null): Upload<Result> => {
    const upload = Object.freeze({ ...record, metadata: Object.freeze({ ...record.metadata }), progress, durable }) as Upload<Result>
    uploads.set(record.id, upload)
    return upload
  }
  const visible = (upload: Upload<Result> | undefined): Upload<Result> | undefined => (upload?.owner === owner ? upload : undefined)

  return {
    list() {
      list ??= Object.freeze([...uploads.values()].filter((upload) => upload.owner === owner).sort((a, b) => a.order - b.order))
      return list
    },
    get: (id) => visible(uploads.get(id)),
    find: (id) => uploads.get(id),
    all: () => uploads.values(),
    put(record) {
      const known = uploads.get(record.id)
      if (record.order <= (gone.get(record.id) ?? 0)) return undefined
      if (known?.order === record.order && known.revision > record.revision) return undefined
      const upload = place(record, record.status === 'uploading' ? (known?.progress ?? null) : null)
      changed()
      return upload
    },
    progress(id, progress) {
      const upload = uploads.get(id)
      if (!upload) return undefined
      const next = Object.freeze({ ...upload, progress: progress && Object.freeze(progress) })
      uploads.set(id, next)
      changed()
      return next
    },
    remove(id) {
      const upload = uploads.get(id)
      if (!upload) return undefined
      gone.set(id, upload.order)
      uploads.delete(id)
      changed()
      return upload
    },
    reset(records, isDurable) {
      durable = isDurable
      const before = new Map(uploads)
      uploads.clear()
      for (const record of records) place(record, before.get(record.id)?.progress ?? null)
      changed()
    },
    setOwner(next) {
      if (next === owner) return
      owner = next
      changed()
    },
    subscribe(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}
