import type { UploadQueueOptions } from '../../src/options.js'
import type { UploadReceipt } from '../../src/proof.js'
import type { UploadQueue } from '../../src/queue.js'
import type { Code } from './code.js'
import type { Device } from './device.js'
import type { Network } from './network.js'
import { createRealm, type Realm } from './realm.js'
import type { Timeline } from './timeline.js'
import type { Witness } from './witness.js'
import { xhrOf } from './xhr.js'

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

export function openTab(options: TabOptions): Tab {
  const { witness, device } = options
  const { tab, page, queueOptions } = load(options)
  const { takesMemory, reportsBytes } = device.traits
  tab.queue = page.createUploadQueue(
    { ...queueOptions, persist: takesMemory ? 'preferred' : 'required', ...(reportsBytes && { transport: page.xhrTransport() }) },
    { random: tab.realm.random },
  )
  witness.watch(tab)
  return tab
}

/** A service worker, which sends what pages have left behind once the browser wakes it. */
export interface Worker {
  realm: Realm
  /** An event by which the browser asks it to; resolves when it has ended. */
  wake(): Promise<void>
}

export function startWorker(options: TabOptions): Worker {
  const { tab, page, queueOptions } = load(options)
  const { realm } = tab
  page.serveUploads(queueOptions, { random: realm.random })
  return {
    realm,
    wake() {
      let held: Promise<unknown> = Promise.resolve()
      const waitUntil = (promise: Promise<unknown>): void => {
        held = promise
      }
      realm.dispatch(Object.assign(new Event('sync'), { tag: 'uponce:uploads', waitUntil }))
      return held.then(
        () => {},
        () => {},
      )
    },
  }
}

/** The app's code in a page or a worker, and what it says of its queue. */
function load({ timeline, code, network, device, name, seed }: TabOptions) {
  const realm = createRealm({ timeline, name, seed, ahead: () => device.ahead })
  const tab = { name, device, realm, isAway: false, wokeAt: 0 } as Tab
  device.equip(realm)
  const fetch = network.fetchOf(tab)
  realm.globals.fetch = fetch
  realm.globals.XMLHttpRequest = xhrOf(realm, fetch)
  const { thought } = device.traits
  const think = async (): Promise<void> => {
    if (thought > 0) await timeline.wait(realm, thought)
  }
  const queueOptions: UploadQueueOptions<UploadReceipt> = {
    endpoint: ENDPOINT,
    retry: { limit: LIMIT },
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
  }
  return { tab, page: code.loadPage(realm.globals), queueOptions }
}
