import { FakeLocks } from '../helpers/locks.js'
import type { Random } from '../helpers/random.js'
import { CheapAbortController } from './abort.js'
import { type Blobs, createBlobs } from './blob.js'
import { createDisk, type Disk } from './disk.js'
import type { Realm } from './realm.js'
import type { Timeline } from './timeline.js'

/** A browser on a device: what its pages share. */
export interface Device {
  name: string
  disk: Disk
  /** Who is signed in, in all of its pages. */
  account: string | null
  isOffline: boolean
  /** What its clock is ahead of the time, ms, and when that was last changed. */
  ahead: number
  setAt: number
  /** Whether a new token can be had when one has expired. */
  canRenew: boolean
  readonly blobs: Blobs
  readonly traits: Traits
  /** The sign-in that it sends for its account. */
  authorization(): Record<string, string>
  renew(): void
  /** Gives a page what the device shares. */
  equip(realm: Realm): void
}

/** What tells one browser from another. */
export interface Traits {
  hasLocks: boolean
  hasChannel: boolean
  /** Whether a page that cannot write to the disk works in memory. */
  takesMemory: boolean
  /** Whether its pages use the transport that reports bytes. */
  reportsBytes: boolean
  /** How long an app needs to find out who is signed in, and to make its headers, ms. */
  thought: number
  /** Whether messages to a page that it has frozen get lost. Those to one that hangs wait. */
  forgetsFrozen: boolean
}

interface Listener {
  realm: Realm
  name: string
  hear?: (event: { data: unknown }) => void
}

export function createDevice(timeline: Timeline, name: string, account: string, random: Random): Device {
  const traits: Traits = {
    hasLocks: random.chance(0.75),
    hasChannel: random.chance(0.85),
    takesMemory: random.chance(0.3),
    reportsBytes: random.chance(0.3),
    thought: random.pick([0, 0, 20]),
    forgetsFrozen: random.chance(0.5),
  }
  const locks = new FakeLocks()
  const tokens = new Map<string, number>()
  let listeners: Listener[] = []

  /** As the browser does it: a page is told of its lock in a task of its own, and one that is gone holds and wants none. */
  const locksOf = (realm: Realm) => {
    const gone = new Promise<void>((resolve) => realm.onKill.push(resolve))
    return {
      request(lock: string, { signal, steal = false }: { signal?: AbortSignal; steal?: boolean }, callback: () => Promise<void>) {
        const controller = new CheapAbortController()
        signal?.addEventListener('abort', () => controller.abort(signal.reason))
        realm.onKill.push(() => controller.abort())
        const granted = async (): Promise<void> => {
          if (!realm.alive) return
          const work = new Promise<void>((resolve, reject) => realm.later(0, () => callback().then(resolve, reject)))
          await Promise.race([work, gone])
        }
        const held = locks.request(lock, steal ? { steal } : { signal: controller.signal }, granted)
        return new Promise<void>((resolve, reject) => {
          held.then(
            () => realm.later(0, resolve),
            (error) => realm.later(0, () => reject(error)),
          )
        })
      },
    }
  }

  const channelOf = (realm: Realm) =>
    class {
      readonly #listener: Listener
      constructor(channel: string) {
        this.#listener = { realm, name: channel }
        listeners.push(this.#listener)
      }
      postMessage(message: unknown): void {
        if (!realm.alive) return
        for (const listener of listeners) {
          if (listener === this.#listener || listener.name !== this.#listener.name) continue
          if (listener.realm.frozen && listener.realm.isDeaf) continue
          const data = structuredClone(message)
          listener.realm.later(1, () => listeners.includes(listener) && listener.hear?.({ data }))
        }
      }
      addEventListener(_type: 'message', hear: (event: { data: unknown }) => void): void {
        this.#listener.hear = hear
      }
      close(): void {
        listeners = listeners.filter((listener) => listener !== this.#listener)
      }
    }

  const device: Device = {
    name,
    disk: createDisk(timeline),
    account,
    isOffline: false,
    ahead: 0,
    setAt: Number.NEGATIVE_INFINITY,
    canRenew: true,
    blobs: createBlobs(timeline),
    traits,
    authorization() {
      const { account } = device
      return account === null ? {} : { Authorization: `Bearer ${account}.${name}.${tokens.get(account) ?? 0}` }
    },
    renew() {
      if (!device.canRenew) throw new Error('The session is over.')
      if (device.account !== null) tokens.set(device.account, (tokens.get(device.account) ?? 0) + 1)
    },
    equip(realm) {
      realm.globals.Blob = device.blobs.Blob
      realm.globals.indexedDB = device.disk.indexedDbOf(realm)
      realm.globals.navigator = traits.hasLocks ? { locks: locksOf(realm) } : {}
      if (traits.hasChannel) realm.globals.BroadcastChannel = channelOf(realm)
      realm.onKill.push(() => {
        listeners = listeners.filter((listener) => listener.realm !== realm)
      })
    },
  }
  return device
}
