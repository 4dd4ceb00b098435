import type { StorageQuota } from './quota.js'
import type { Store } from './store.js'

/** The browser's promise not to evict what is stored. */
export interface Persistence {
  /** Asks for it, if that was not done of late: Firefox asks its user. */
  ask(): Promise<void>
  /** The browser's word; `undefined` until it has answered, or where it has none. */
  readonly granted: boolean | undefined
}

/** The browser is asked no more often, ms. */
const interval = 86_400_000

export function createPersistence(store: () => Store, storage: StorageQuota | undefined, now: () => number): Persistence {
  let granted: boolean | undefined
  let asked = false
  return {
    get granted() {
      return granted
    },
    async ask() {
      if (asked || !store().durable) return
      asked = true
      let due = false
      await store()
        .setting('persistAsked', (at = 0) => {
          due = at + interval <= now() || at > now()
          return due ? now() : undefined
        })
        .catch(() => undefined)
      const answer = async (): Promise<boolean | undefined> => (due ? storage?.persist?.() : storage?.persisted?.())
      granted = await answer().catch(() => undefined)
    },
  }
}
