import type { UploadError } from './errors.js'
import type { Upload } from './snapshot.js'

/** What each event carries. All are fired in every tab of the queue. */
export interface UploadQueueEvents<Result> {
  /** Saved; it survives from now on. */
  added: { upload: Upload<Result> }
  /** A request goes out. */
  started: { upload: Upload<Result> }
  /** Bytes that were hashed or have left, of how many; at most every 100 ms per upload. */
  progress: { upload: Upload<Result>; loaded: number; total: number }
  /** Another attempt in `delay` ms; `reason` is an error code. `counted`: it uses up one of `retry.limit`. */
  retrying: { upload: Upload<Result>; delay: number; reason: string; counted: boolean }
  /** The server has proven that the file is stored. `result`: what `response` made of its answer; `replayed`: it was the answer to an earlier attempt. */
  succeeded: { upload: Upload<Result>; result: Result; replayed: boolean }
  /** Given up; record and bytes are kept. Where `error` is retryable the next `start` makes one more attempt. */
  failed: { upload: Upload<Result>; error: UploadError }
  /** Waits for something only the app can change: a sign-in. */
  blocked: { upload: Upload<Result>; error: UploadError }
  /** By `pause`, in any tab. */
  paused: { upload: Upload<Result> }
  /** By `resume`, `retry` or a new start: it runs again after it was paused, blocked or failed. */
  resumed: { upload: Upload<Result> }
  /** Removed by `cancel` or `clear`: it is gone, and this is how it last was. */
  cancelled: { upload: Upload<Result> }
  /** Nothing is left that runs by itself. */
  idle: Record<never, never>
  /** The server's origin cannot be reached, whatever the browser says of its network. */
  offline: Record<never, never>
  /** It can be reached again. */
  online: Record<never, never>
  /** Something is odd but nothing is lost. */
  warning: { message: string; upload?: Upload<Result>; error?: UploadError }
}

/** Every event there is. */
export const eventNames: ReadonlySet<string> = new Set<UploadQueueEventName>([
  'added',
  'started',
  'progress',
  'retrying',
  'succeeded',
  'failed',
  'blocked',
  'paused',
  'resumed',
  'cancelled',
  'idle',
  'offline',
  'online',
  'warning',
])

/** The name of an event, for `queue.on`. */
export type UploadQueueEventName = keyof UploadQueueEvents<unknown>

export interface Emitter<Result> {
  on<Name extends UploadQueueEventName>(name: Name, listener: (payload: UploadQueueEvents<Result>[Name]) => void): () => void
  emit<Name extends UploadQueueEventName>(name: Name, payload: UploadQueueEvents<Result>[Name]): void
}

/** A listener that throws stops neither the queue nor other listeners; the page hears of its error as of any uncaught one. */
export function createEmitter<Result>(): Emitter<Result> {
  const listeners = new Map<string, Set<(payload: never) => void>>()
  return {
    on(name, listener) {
      if (!eventNames.has(name)) throw new TypeError(`on: there is no event "${name}".`)
      const set = listeners.get(name) ?? new Set()
      listeners.set(name, set.add(listener))
      return () => set.delete(listener)
    },
    emit(name, payload) {
      for (const listener of [...(listeners.get(name) ?? [])]) {
        try {
          listener(payload as never)
        } catch (error) {
          queueMicrotask(() => {
            throw error
          })
        }
      }
    },
  }
}
