import type { KeyStore } from '../../demo/server/keys.js'
import { createRandom, type Random } from '../helpers/random.js'
import { HOUR } from '../server/fixture.js'
import { CheapAbortController } from './abort.js'
import type { Code } from './code.js'
import { createDevice, type Device } from './device.js'
import { CheapHeaders } from './headers.js'
import { createNetwork, type Network, requestOf } from './network.js'
import { createServer, type Server } from './server.js'
import { ENDPOINT, openTab, startWorker, type Tab, type Worker } from './tab.js'
import { Timeline } from './timeline.js'
import { type Picked, pick, Violation, Witness } from './witness.js'

export const OWNERS = ['ann', 'bob']

/** A day in November. */
const START = 1_700_000_000_000
/** As long as Chromium lets a `sync` event last, ms. */
const WORKER_LIFE = 180_000
/** Within this time of peace, ms, everything has ended: a lease, a lock that hangs, and several of the longest backoffs. */
const PEACE = 900_000

/** Everything there is: devices with their pages, a server, the network between them, and one time for all. */
export class World {
  readonly timeline = new Timeline(START)
  readonly witness = new Witness(this.timeline)
  readonly random: Random
  readonly devices: Device[]
  readonly server: Server
  readonly network: Network
  tabs: Tab[] = []
  /** The service worker of each device, while it runs. */
  readonly workers = new Map<Device, Worker>()
  /** Whose files are being cleared by which page: what another one saves meanwhile may go, or stay. */
  readonly clearing = new Set<{ tab: Tab; owner: string }>()
  readonly #code: Code
  readonly #seed: number
  #opened = 0
  #enqueuing = 0

  constructor(code: Code, seed: number, keysFor?: (timeline: Timeline) => KeyStore) {
    this.#code = code
    this.#seed = seed
    const { timeline, witness } = this
    this.random = createRandom(seed)
    const own = (n: number): Random => createRandom(seed + n)
    this.devices = ['phone', 'laptop'].map((name, n) => createDevice(timeline, name, OWNERS[n]!, own(n + 1)))
    this.server = createServer({ timeline, code, seed: seed + 3, random: own(4), witness, keys: keysFor?.(timeline) })
    this.network = createNetwork({ timeline, server: this.server, random: own(5), witness })
    witness.attach(this.server.keys, this.server.objects)
    this.server.start()
    this.server.start()
    for (const device of this.devices) this.open(device)
  }

  tabsOf(device: Device): Tab[] {
    return this.tabs.filter((tab) => tab.device === device)
  }

  open(device: Device): Tab {
    this.#opened += 1
    const { timeline, network, witness } = this
    const name = `${device.name} ${this.#opened}`
    const tab = openTab({ timeline, code: this.#code, network, witness, device, name, seed: this.#seed + 100 + this.#opened })
    this.tabs.push(tab)
    return tab
  }

  /** The browser wakes the service worker, and lets it go when it is done, or after a while. */
  wake(device: Device): void {
    let worker = this.workers.get(device)
    if (!worker) {
      this.#opened += 1
      const { timeline, network, witness } = this
      const name = `worker ${this.#opened} of the ${device.name}`
      worker = startWorker({ timeline, code: this.#code, network, witness, device, name, seed: this.#seed + 100 + this.#opened })
      this.workers.set(device, worker)
      timeline.later(worker.realm, WORKER_LIFE, () => this.endWorker(device))
    }
    const woken = worker
    void woken.wake().then(() => this.workers.get(device) === woken && this.endWorker(device))
  }

  endWorker(device: Device): void {
    this.workers.get(device)?.realm.kill()
    this.workers.delete(device)
  }

  kill(tab: Tab): void {
    tab.realm.kill()
    this.tabs = this.tabs.filter((other) => other !== tab)
  }

  freeze(tab: Tab): void {
    tab.realm.isDeaf = tab.isAway && tab.device.traits.forgetsFrozen
    tab.realm.freeze()
    this.witness.froze(tab)
  }

  thaw(tab: Tab): void {
    tab.wokeAt = this.timeline.now
    tab.realm.thaw()
    if (tab.isAway) tab.realm.dispatch(new Event('resume'))
    tab.isAway = false
  }

  /** `id`: one that an earlier file has, perhaps. `isHeld`: with a signal that may abort. */
  enqueue(tab: Tab, size: number, { isRefused = false, isHeld = false, id = undefined as string | undefined } = {}): Picked {
    const { device } = tab
    const { witness } = this
    const number = witness.files.size + 1
    const file = pick(`${isRefused ? 'refused' : 'file'} ${number}`, size, device.account ?? 'nobody', device)
    witness.files.set(file.name, file)
    for (const clearing of this.clearing)
      if (clearing.tab !== tab && clearing.tab.device === device && clearing.owner === file.owner) file.cancel = 'asked'
    if (isHeld) file.controller = new CheapAbortController()
    file.given = id ?? null
    /** Who has that id: an upload that is on the disk, and has not succeeded. */
    const holder = (): string | undefined => {
      const row = id === undefined ? undefined : device.disk.read()?.uploads.get(id)
      return row?.status === 'succeeded' ? undefined : row?.name
    }
    const held = holder()
    this.#enqueuing += 1
    const lost = device.setAt
    const given = tab.queue.enqueue(new device.blobs.File([file.bytes], file.name, { type: 'image/png' }), {
      metadata: { number: `${number}` },
      ...(id !== undefined && { id }),
      ...(file.controller && { signal: file.controller.signal }),
    })
    given
      .then(
        ({ id, snapshot }) => {
          if (!tab.realm.alive || snapshot === undefined) return
          if (snapshot.name !== file.name) {
            witness.must(witness.files.get(snapshot.name)?.given === id, `${file.name} is said to be saved as ${snapshot.name}`)
            return witness.tell(`${file.name} has the id of ${snapshot.name}, which stays`)
          }
          witness.must(
            !snapshot.durable || held === undefined || holder() !== held,
            `${file.name} is saved beside ${held}, which has its id`,
          )
          file.id ??= id
          // What was saved as the storage was lost may have been lost with it.
          if (snapshot.durable && !file.isEvicted && lost === device.setAt) file.isDue = true
          witness.tell(`${file.name} is saved${snapshot.durable ? '' : ' in memory'}`)
        },
        (error) => {
          if (!tab.realm.alive) return
          witness.tell(`${file.name} is not saved: ${(error as Error).message}`)
          if ((error as Error).name !== 'AbortError' || file.controller?.signal.aborted !== true) return
          // Nothing is left behind.
          file.cancel = 'done'
          file.cancelledAt = this.timeline.now
        },
      )
      .finally(() => {
        this.#enqueuing -= 1
      })
    return file
  }

  /** What the app asks of a queue; it does not wait for the end of it. */
  ask(tab: Tab, what: string, work: () => Promise<unknown>): void {
    work().catch((error) => tab.realm.alive && this.witness.tell(`${tab.name} ${what}: ${(error as Error).message}`))
  }

  /** Lets time pass until the promise settles. */
  async until<T>(promise: Promise<T>, limit = PEACE): Promise<T> {
    let settled = false
    const settle = (): void => {
      settled = true
    }
    promise.then(settle, settle)
    const end = this.timeline.now + limit
    await this.timeline.settle()
    while (!settled && this.timeline.now < end) await this.timeline.pass(100)
    if (!settled) throw new Violation('something does not end')
    return promise
  }

  async check(): Promise<void> {
    await this.witness.check(this.devices)
    if (this.witness.violation !== null) throw new Violation(this.witness.violation)
  }

  /** No more trouble: everything ends as it should. */
  async conclude(): Promise<void> {
    const { timeline, server, network, devices, witness } = this
    server.troubles = []
    for (const { realm } of server.processes) realm.thaw()
    while (server.processes.length < 2) server.start()
    for (const device of devices) {
      this.endWorker(device)
      device.isOffline = false
      device.disk.full = 'no'
      device.canRenew = true
      network.fates.delete(device.name)
      for (const tab of this.tabsOf(device)) this.thaw(tab)
    }
    await timeline.pass(1_000)
    for (const device of devices) {
      // A page that works in memory alone does so until it is loaded again.
      if (device.traits.takesMemory) for (const tab of this.tabsOf(device)) this.kill(tab)
      if (this.tabsOf(device).length === 0) this.open(device)
    }
    for (const owner of OWNERS) await this.#finish(owner)
    for (const tab of [...this.tabs]) this.kill(tab)
    for (const ms of [7 * HOUR, 120_000]) {
      timeline.jump(ms)
      await timeline.settle()
      server.sweep(server.processes[0]!)
      await timeline.pass(1_000)
    }
    await this.check()
    await witness.conclude()
    await this.check()
    await this.#repeat()
    timeline.jump(80 * HOUR)
    await this.#repeat()
    await this.check()
  }

  /** Each device goes on for this owner until all of its files have ended. */
  async #finish(owner: string): Promise<void> {
    const { timeline, devices } = this
    for (const device of devices) device.account = owner
    if (devices.every((device) => this.#left(owner, device).length === 0)) return
    const end = timeline.now + PEACE
    for (let isFirst = true; ; isFirst = false) {
      for (const device of devices) {
        if (isFirst || this.#left(owner, device).some((status) => status === 'failed' || status === 'blocked')) {
          // An app whose account has changed tells all of its pages.
          const [tab] = this.tabsOf(device) as [Tab]
          for (const { queue } of this.tabsOf(device)) await this.until(queue.start())
          for (const work of ['resume', 'retry'] as const) await this.until(tab.queue[work]())
        }
      }
      for (let seconds = 0; seconds < 30 && devices.some((device) => this.#left(owner, device).length > 0); seconds++)
        await timeline.pass(1_000)
      await this.check()
      if (devices.every((device) => this.#left(owner, device).length === 0)) return
      if (timeline.now > end)
        throw new Violation(`not all of ${owner}'s files end: ${devices.flatMap((device) => this.#left(owner, device))}`)
    }
  }

  /** How the files stand that have not ended, or are being written. */
  #left(owner: string, { disk }: Device): string[] {
    const stored = disk.read()
    if (!stored) return ['being written']
    const isOpen = ({ status, reason }: { status: string; reason: string | null }): boolean =>
      status !== 'succeeded' && !(status === 'failed' && reason === 'rejected')
    return [...stored.uploads.values()].filter((row) => row.owner === owner && isOpen(row)).map(({ status }) => status)
  }

  /** Whoever asks again gets the same answer. */
  async #repeat(): Promise<void> {
    const { server, witness } = this
    const done = [...witness.files.values()].filter(({ isDone, key }) => isDone && key !== null)
    for (const file of done.slice(0, 3)) {
      const { key, sha256, owner, name } = file as Picked & { key: string }
      const metadata = Buffer.from(name.split(' ')[1]!).toString('base64')
      const headers = new CheapHeaders({
        'Idempotency-Key': key,
        'X-File-Sha256': sha256,
        'Content-Type': 'image/png',
        'X-File-Name': encodeURIComponent(name),
        'Upload-Metadata': `number ${metadata}`,
        Authorization: `Bearer ${owner}.later`,
      })
      const pieces = [{ done: false, value: file.bytes }, { done: true }]
      const read = async () => pieces.shift() ?? { done: true }
      const { signal } = new CheapAbortController()
      const request = requestOf({ url: ENDPOINT, method: 'POST', headers, signal, size: file.bytes.length, read })
      const response = await this.until(server.processes[0]!.handle(request))
      const text = await response.text()
      witness.must(response.status === 201, `a repeat of ${name} is answered ${response.status} ${text}`)
      witness.answered({ key, method: 'POST' } as never, { status: response.status, headers: response.headers, text })
    }
  }

  /** Nothing of it goes on. */
  end(): void {
    for (const device of this.devices) this.endWorker(device)
    for (const tab of [...this.tabs]) this.kill(tab)
    for (const { realm } of [...this.server.processes]) realm.kill()
  }
}
