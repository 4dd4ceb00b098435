import fc from 'fast-check'
import { HOUR } from '../server/fixture.js'
import type { Device } from './device.js'
import type { Fate } from './network.js'
import type { Arrival } from './response.js'
import type { Tab } from './tab.js'
import { OWNERS, type World } from './world.js'

/** Something happens. What it says is interpreted where it happens, so that a history without some of its commands is one, too. */
export interface Command {
  what: Name
  /** Where. */
  at: number
  /** How. */
  n: number
  /** How much happens until the next one. */
  pace: Pace
}

/** So many steps, or all that there are within so many ms. */
export type Pace = { steps: number } | { ms: number }

interface Scene {
  world: World
  device: Device
  /** A page of the device. */
  tab: Tab | undefined
  /** The same, where its code runs. */
  awake: Tab | undefined
  n: number
}

const pickFrom = <Item>(items: readonly Item[], n: number): Item => items[n % items.length]!

const portal = { type: 'intercepted', status: 200, headers: { 'Content-Type': 'text/html' }, text: '<h1>Accept our terms</h1>' } as const
/** Where a redirect ends: in a place of the same server, or of another. */
const here = { url: 'https://files.example/sign-in', redirected: true }
const elsewhere = { url: 'https://portal.example/', redirected: true }
const refused = (status: number, headers: Record<string, string> = {}): Fate => ({ type: 'intercepted', status, headers, text: 'no' })

const fates = (n: number): Fate[] => [
  { type: 'answer lost', silent: false },
  { type: 'lost' },
  { type: 'body cut', at: n },
  { type: 'answer lost', silent: true },
  { type: 'answer cut', at: n % 130 },
  { type: 'twice', after: n % 90, second: false },
  { type: 'twice', after: n % 90, second: true },
  { type: 'twice', after: 1_000 * (n % 900), second: false },
  { type: 'late', by: 1_000 * (n % 40) },
  { type: 'damaged', at: n },
  { type: 'answer lost', silent: false },
  refused(500),
  refused(502),
  refused(503, { 'Retry-After': `${n % 100}` }),
  refused(429, { 'Retry-After': `${n % 30}` }),
  refused(408),
  portal,
  { ...portal, arrival: elsewhere },
  { ...portal, arrival: here },
  { ...refused(503, { 'Retry-After': `${n % 100}` }), arrival: pickFrom([here, elsewhere], n) } as Fate,
  { ...refused(401), arrival: here } as Fate,
  { ...refused(409, n % 2 === 0 ? {} : { 'Retry-After': `${n % 10}` }), arrival: here } as Fate,
  { ...refused(404), arrival: pickFrom([here, elsewhere], n) } as Fate,
  { type: 'moved' },
  { type: 'busy until', status: pickFrom([429, 503], n), after: n % 100, isDated: n % 3 !== 0 },
]

const sizes = [250, 700, 1_100, 0, 450, 599, 600, 601]

/** Does it and says so; says nothing where it cannot happen. */
const commands = {
  enqueue({ world, device, awake: tab, n }) {
    if (!tab || device.account === null || world.witness.files.size >= 12) return undefined
    const file = world.enqueue(tab, pickFrom(sizes, n), { isRefused: n % 11 === 10, isHeld: n % 5 >= 3 })
    return `${tab.name} enqueues ${file.name} of ${file.owner}, ${file.bytes.length} bytes`
  },
  'enqueue again'({ world, device, awake: tab, n }) {
    if (!tab || device.account === null || world.witness.files.size >= 12) return undefined
    // The ids that an app has for its files: some are in use, of some the upload has ended, and some are new.
    const id = `own ${n % 3} of ${device.account}`
    const file = world.enqueue(tab, pickFrom(sizes, n), { id })
    return `${tab.name} enqueues ${file.name} as ${id}, ${file.bytes.length} bytes`
  },
  abort({ world, device, n }) {
    const held = [...world.witness.files.values()].filter((file) => file.device === device && file.controller?.signal.aborted === false)
    if (held.length === 0) return undefined
    const file = pickFrom(held, n)
    if (file.cancel === 'no') file.cancel = 'asked'
    file.controller?.abort(new DOMException('Enough.', 'AbortError'))
    return `${file.name} is aborted`
  },
  worker({ world, device, n }) {
    const isRunning = world.workers.has(device)
    if (isRunning && n % 2 === 0) {
      world.endWorker(device)
      return `the service worker of the ${device.name} dies`
    }
    world.wake(device)
    return `the service worker of the ${device.name} is woken${isRunning ? ' once more' : ''}`
  },
  trouble({ world, device, n }) {
    const next = world.network.fates.get(device.name) ?? []
    const all = fates(Math.floor(n / 64))
    const some = Array.from({ length: 1 + (n % 4 === 3 ? 3 : 0) }, (_, place) => pickFrom(all, n + 7 * place))
    world.network.fates.set(device.name, [...next, ...some])
    return `next requests of the ${device.name}: ${some
      .map((fate) =>
        Object.values(fate)
          .map((value) => (typeof value === 'object' ? (value as Arrival).url : value))
          .filter((value) => value !== undefined)
          .join(' '),
      )
      .join(', ')}`
  },
  wait: () => 'nothing',
  die({ world, tab }) {
    if (!tab) return undefined
    world.kill(tab)
    return `${tab.name} dies`
  },
  open({ world, device }) {
    if (world.tabsOf(device).length >= 3) return undefined
    return `${world.open(device).name} opens`
  },
  reload({ world, device, tab, n }) {
    if (!tab || tab.realm.frozen) return undefined
    if (n % 2 === 0) tab.realm.dispatch(new Event('pagehide'))
    world.kill(tab)
    return `${tab.name} is loaded again, as ${world.open(device).name}`
  },
  freeze({ world, tab, n }) {
    if (!tab || tab.realm.frozen) return undefined
    tab.isAway = n % 2 === 0
    if (tab.isAway) tab.realm.dispatch(new Event('freeze'))
    world.freeze(tab)
    return `${tab.name} ${tab.isAway ? 'is frozen' : 'hangs'}`
  },
  thaw({ world, tab, device }) {
    const frozen = tab?.realm.frozen ? tab : world.tabsOf(device).find(({ realm }) => realm.frozen)
    if (!frozen) return undefined
    world.thaw(frozen)
    return `${frozen.name} goes on`
  },
  offline({ device }) {
    if (device.isOffline) return undefined
    device.isOffline = true
    return `the ${device.name} is offline`
  },
  online({ world, device, n }) {
    if (!device.isOffline) return undefined
    device.isOffline = false
    if (n % 3 !== 2) for (const { realm } of world.tabsOf(device)) if (!realm.frozen) realm.dispatch(new Event('online'))
    return `the ${device.name} is online${n % 3 === 2 ? ', and does not know it' : ''}`
  },
  clock({ world, device, n }) {
    const by = pickFrom([-90_000, 90_000, -2 * HOUR, 2 * HOUR, -50 * HOUR, 50 * HOUR], n)
    device.ahead += by
    device.setAt = world.timeline.now
    return `the clock of the ${device.name} is set ${Math.abs(by) / 1000} s ${by < 0 ? 'back' : 'ahead'}`
  },
  sleep({ world, n }) {
    const ms = pickFrom([70_000, 600_000, 2 * HOUR, 7 * HOUR, 30 * HOUR, 49 * HOUR, 73 * HOUR], n)
    // Long gaps are no time in which anybody runs.
    world.timeline.jump(ms)
    return `${ms / 1000} s in which everybody sleeps`
  },
  'server dies'({ world, n }) {
    if (world.server.processes.length === 0) return undefined
    const { realm } = pickFrom(world.server.processes, n)
    realm.kill()
    return `${realm.name} of the server dies`
  },
  'server returns'({ world }) {
    if (world.server.processes.length >= 2) return undefined
    world.server.start()
    return 'a process of the server starts'
  },
  'server hangs'({ world, n }) {
    const process = world.server.processes[n % 2]
    if (!process || process.realm.frozen) return undefined
    process.realm.freeze()
    return `${process.realm.name} of the server hangs`
  },
  'server goes on'({ world }) {
    const frozen = world.server.processes.filter(({ realm }) => realm.frozen)
    for (const { realm } of frozen) realm.thaw()
    return frozen.length > 0 ? 'the server goes on' : undefined
  },
  'store fails'({ world, n }) {
    const troubles = Array.from({ length: 1 + (n % 3) }, (_, place) =>
      (n >> place) % 2 === 0 ? ('fail before' as const) : ('fail after' as const),
    )
    world.server.troubles.push(...troubles)
    return `the next calls of the server's stores ${troubles.join(', ')}`
  },
  sweep({ world, n }) {
    const process = world.server.processes[n % 2]
    if (!process || process.realm.frozen) return undefined
    world.server.sweep(process)
    return `${process.realm.name} of the server sweeps`
  },
  'sign in'({ world, device, n }) {
    device.account = pickFrom(OWNERS, n)
    const tabs = world.tabsOf(device).filter(({ realm }) => !realm.frozen)
    for (const tab of n % 3 === 2 ? tabs.slice(0, 1) : tabs) world.ask(tab, 'starts', () => tab.queue.start())
    return `${device.account} signs in on the ${device.name}`
  },
  'sign out'({ world, device, n }) {
    if (device.account === null) return undefined
    device.account = null
    if (n % 2 === 0) for (const tab of world.tabsOf(device)) if (!tab.realm.frozen) world.ask(tab, 'starts', () => tab.queue.start())
    return `nobody is signed in on the ${device.name}`
  },
  'token expires'({ world, device, n }) {
    const token = device.authorization().Authorization
    if (token === undefined) return undefined
    device.canRenew = n % 3 !== 2
    world.server.revoked.add(token.slice('Bearer '.length))
    return `the sign-in of the ${device.name} is over${device.canRenew ? '' : ', and cannot be renewed'}`
  },
  full({ device, n }) {
    device.disk.full = n % 3 === 2 ? 'all' : 'bytes'
    return `the ${device.name} has no room for ${device.disk.full === 'all' ? 'anything' : 'more files'}`
  },
  room({ device }) {
    if (device.disk.full === 'no') return undefined
    device.disk.full = 'no'
    return `the ${device.name} has room`
  },
  'storage lost'({ world, device, n }) {
    if (n % 4 !== 3) return undefined
    device.disk.lose()
    for (const file of world.witness.files.values()) {
      if (file.device !== device) continue
      file.isEvicted = true
      file.told = null
    }
    return `the ${device.name} loses all that it has stored`
  },
  cancel: (scene) =>
    toOne(scene, 'cancels', async ({ queue }, id, name) => {
      const file = scene.world.witness.files.get(name)
      // Another one of its id may be there by then.
      for (const other of scene.world.witness.files.values())
        if ((other === file || other.given === id) && other.cancel === 'no') other.cancel = 'asked'
      await queue.cancel(id)
      if (!file || file.isDone || scene.tab?.realm.alive !== true) return
      const row = file.device.disk.read()?.uploads.get(id)
      if (row?.status === 'succeeded') return
      file.cancel = 'done'
      file.cancelledAt = scene.world.timeline.now
    }),
  clear({ world, device, awake: tab }) {
    const owner = device.account
    if (!tab || owner === null) return undefined
    // What is being saved meanwhile may go, or stay.
    for (const file of world.witness.files.values())
      if (file.device === device && file.owner === owner && file.cancel === 'no') file.cancel = 'asked'
    const clearing = { tab, owner }
    world.clearing.add(clearing)
    world.ask(tab, 'clears', () => tab.queue.clear().finally(() => world.clearing.delete(clearing)))
    return `${tab.name} clears all of ${owner}'s`
  },
  close({ world, awake: tab }) {
    if (!tab) return undefined
    world.ask(tab, 'closes', async () => {
      await tab.queue.close()
      world.kill(tab)
    })
    return `${tab.name} closes its queue`
  },
  retry: (scene) => toOne(scene, 'retries', ({ queue }, id) => queue.retry(id)),
  pause: (scene) => toOne(scene, 'pauses', ({ queue }, id) => queue.pause(id)),
  resume: (scene) => toOne(scene, 'resumes', ({ queue }, id) => queue.resume(id)),
  all({ world, awake: tab, n }) {
    if (!tab) return undefined
    const work = pickFrom(['flush', 'resume', 'retry', 'start', 'pause'] as const, n)
    world.ask(tab, `${work}s all`, () => tab.queue[work]())
    return `${tab.name} ${work}s all`
  },
} satisfies Record<string, (scene: Scene) => string | undefined>

type Name = keyof typeof commands

/** Asks something of one of the uploads that a page shows. */
function toOne(
  { world, awake: tab, n }: Scene,
  verb: string,
  work: (tab: Tab, id: string, name: string) => Promise<unknown>,
): string | undefined {
  const uploads = tab?.queue.getSnapshot() ?? []
  if (!tab || uploads.length === 0) return undefined
  const { id, name } = pickFrom(uploads, n)
  world.ask(tab, verb, () => work(tab, id, name))
  return `${tab.name} ${verb} ${name}`
}

/** Does the command; resolves with what was done, `undefined` where it could not be. */
export async function carryOut(world: World, { what, at, n, pace }: Command): Promise<string | undefined> {
  const device = pickFrom(world.devices, at)
  const tabs = world.tabsOf(device)
  const tab = tabs.length > 0 ? pickFrom(tabs, Math.floor(at / world.devices.length)) : undefined
  const awake = tab?.realm.frozen === false ? tab : undefined
  const done = commands[what]({ world, device, tab, awake, n })
  if (done === undefined) return undefined
  if ('ms' in pace) await world.timeline.pass(pace.ms)
  else await world.timeline.settle(pace.steps)
  return done
}

/** How often each is drawn. What all of them shrink to comes first. */
const weights: Record<Name, number> = {
  wait: 6,
  enqueue: 12,
  'enqueue again': 4,
  abort: 5,
  worker: 4,
  trouble: 14,
  die: 4,
  open: 5,
  reload: 3,
  freeze: 3,
  thaw: 4,
  offline: 2,
  online: 3,
  clock: 2,
  sleep: 2,
  'server dies': 3,
  'server returns': 3,
  'server hangs': 2,
  'server goes on': 2,
  'store fails': 3,
  sweep: 1,
  'sign in': 3,
  'sign out': 1,
  'token expires': 2,
  full: 1,
  room: 2,
  'storage lost': 1,
  cancel: 3,
  clear: 1,
  close: 1,
  retry: 2,
  pause: 1,
  resume: 2,
  all: 3,
}

const names = (Object.keys(weights) as Name[]).flatMap((name) => Array<Name>(weights[name]).fill(name))

// What fails is made shorter by fewer things that happen, and less time between them.
const paces: Pace[] = [
  ...[0, 1, 5, 30, 100, 400, 1_500, 4_000, 10_000, 30_000, 70_000].map((ms) => ({ ms })),
  ...Array.from({ length: 20 }, (_, n) => ({ steps: n * 3 })),
]

const command: fc.Arbitrary<Command> = fc.record({
  what: fc.constantFrom(...names),
  at: fc.noShrink(fc.nat({ max: 5 })),
  n: fc.noShrink(fc.nat({ max: 65_535 })),
  pace: fc.constantFrom(...paces),
})

/** Histories of at least 30 commands. */
export const histories: fc.Arbitrary<{ seed: number; commands: Command[] }> = fc.record({
  seed: fc.noShrink(fc.nat({ max: 1_000_000 })),
  commands: fc.array(command, { minLength: 30, maxLength: 45, size: 'max' }),
})
