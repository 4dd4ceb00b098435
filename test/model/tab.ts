import type { UploadQueue } from '../../src/queue.js'
import type { Code } from './code.js'
import type { Device } from './device.js'
import type { Network } from './network.js'
import { createRealm, type Realm } from './realm.js'
import type { Timeline } from './timeline.js'
import type { Witness } from './witness.js'

export const ENDPOINT = 'https://files.example/uploads'
/** Fewer than the default, for an upload to fail now and then. */
export const LIMIT = 4

/** A page with the app in it. */
export interface Tab {
  name: string
  device: Device
  realm: Realm
  queue: UploadQueue
  /** Whether the page was told that it is about to be frozen. */
  isAway: boolean
  /** When it was last thawed. */
  wokeAt: number
}

export interface TabOptions {
  timeline: Timeline
  code: Code
  network: Network
  witness: Witness
  device: Device
  name: string
  seed: number
}

export function openTab({ timeline, code, network, witness, device, name, seed }: TabOptions): Tab {
  const realm = createRealm({ timeline, name, seed, ahead: () => device.ahead })
  const tab = { name, device, realm, isAway: false, wokeAt: 0 } as Tab
  device.equip(realm)
  realm.globals.fetch = network.fetchOf(tab)
  const { createUploadQueue } = code.loadPage(realm.globals)
  const { thought, takesMemory } = device.traits
  const think = async (): Promise<void> => {
    if (thought > 0) await timeline.wait(realm, thought)
  }
  tab.queue = createUploadQueue(
    {
      endpoint: ENDPOINT,
      retry: { limit: LIMIT },
      persist: takesMemory ? 'preferred' : 'required',
      async owner() {
        const { account } = device
        await think()
        return account
      },
      async headers(_upload, { refresh }) {
        if (refresh) device.renew()
        const headers = device.authorization()
        await think()
        return headers
      },
    },
    { random: realm.random },
  )
  witness.watch(tab)
  return tab
}
