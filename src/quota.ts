import { UploadError } from './errors.js'
import { within } from './within.js'

/** The part of `navigator.storage` that is used here; WebKitGTK has none of it, insecure origins neither. */
export interface StorageQuota {
  /** How many bytes the origin may store, and how many it does, as far as the browser says. */
  estimate?(): Promise<{ quota?: number; usage?: number }>
  /** Asks the browser not to evict what is stored; resolves with whether it promises that. */
  persist?(): Promise<boolean>
  /** Whether it has promised that; asks nobody. */
  persisted?(): Promise<boolean>
}

/** Files below this, bytes, are written without asking first: the database refuses them as quickly. */
const largeFile = 10 * 1_048_576
/** An engine that does not answer in this time, ms, is not waited for. */
const answerLimit = 1_000

const soon = <T>(promise: Promise<T>): Promise<T | undefined> => within(answerLimit, promise).catch(() => undefined)

/** Throws `quota-exceeded` where the browser says that a large file has no room, rather than after most of it was written. */
export async function checkRoom(storage: StorageQuota | undefined, size: number): Promise<void> {
  if (size < largeFile || !storage?.estimate) return
  const { quota, usage = 0 } = (await soon(storage.estimate())) ?? {}
  if (quota !== undefined && size > quota - usage) throw new UploadError('quota-exceeded', 'The browser has no room for this file.')
}
