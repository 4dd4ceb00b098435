import type { StorageQuota } from './quota.js'
import { indexedDbStore, type Store } from './store.js'
import type { Channel, Locks } from './tabs.js'

/** The outside things a queue touches, for tests and unusual hosts. */
export interface QueuePorts {
  /** Milliseconds since 1970. Default `Date.now`. */
  now: () => number
  /** At least 0, below 1: jitter is drawn from it. Default `Math.random`. */
  random: () => number
  /** A new UUID, for ids and keys. Default that of `crypto`. */
  uuid: () => string
  /** Default `navigator.locks`; `undefined`: a lease in the database takes their place. */
  locks: Locks | undefined
  /** How tabs hear of each other. Default `BroadcastChannel`; `undefined`: each tab reads the database every 5 s. */
  openChannel: ((name: string) => Channel) | undefined
  /** Default IndexedDB. `onClosed`: to be called when the browser has closed the database. */
  openStore: (databaseName: string, onClosed: () => void) => Store
  /** Default `navigator.storage`; `undefined`: room is not asked for, nor the promise not to evict. */
  storage: StorageQuota | undefined
  /** Whether each upload is tried once at most, and then left for another tab or worker. Default `false`. */
  once: boolean
}

/** RFC 9562 version 4, also where an insecure origin has no `randomUUID`. */
const uuid = (): string => {
  const { randomUUID } = crypto as Partial<Crypto>
  if (randomUUID) return randomUUID.call(crypto)
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  bytes[6] = ((bytes[6] as number) & 0x0f) | 0x40
  bytes[8] = ((bytes[8] as number) & 0x3f) | 0x80
  return Array.from(bytes, (byte, i) => (i === 4 || i === 6 || i === 8 || i === 10 ? '-' : '') + byte.toString(16).padStart(2, '0')).join(
    '',
  )
}

export const defaultPorts = (): QueuePorts => ({
  now: Date.now,
  random: Math.random,
  uuid,
  locks: globalThis.navigator?.locks as Locks | undefined,
  openChannel: typeof BroadcastChannel === 'undefined' ? undefined : (name) => new BroadcastChannel(name) as Channel,
  openStore: indexedDbStore,
  storage: globalThis.navigator?.storage,
  once: false,
})
