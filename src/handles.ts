import type { Ledger } from './ledger.js'
import type { Upload } from './snapshot.js'

/** One upload, for whoever waits for its end. */
export interface UploadHandle<Result> {
  /** Id of the upload in the queue. */
  readonly id: string
  /** Resolves with what the server answered; rejects with `UploadError` when the upload fails, with an `AbortError` when it is cancelled. */
  readonly done: Promise<Result>
  /** How it stands now; `undefined` once it is gone. */
  readonly snapshot: Upload<Result> | undefined
  /** As `queue.cancel(id)`. */
  cancel(): Promise<void>
}

/** One handle for each upload, however often it is asked for. */
export interface Handles<Result> {
  of(id: string): UploadHandle<Result>
  forget(id: string): void
}

export function createHandles<Result>({ snapshot, done }: Ledger<Result>, cancel: (id: string) => Promise<void>): Handles<Result> {
  const handles = new Map<string, UploadHandle<Result>>()

  function create(id: string): UploadHandle<Result> {
    let last = done(id)
    return {
      id,
      get done() {
        if (snapshot.find(id)) last = done(id)
        return last
      },
      get snapshot() {
        return snapshot.get(id)
      },
      cancel: () => cancel(id),
    }
  }

  return {
    of(id) {
      const handle = handles.get(id) ?? create(id)
      handles.set(id, handle)
      return handle
    },
    forget: (id) => void handles.delete(id),
  }
}
