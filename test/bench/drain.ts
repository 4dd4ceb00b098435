import type { Browser } from './browser.js'
import type { Name } from './contestants.js'
import { type Files, writeFiles } from './files.js'
import { type Hall, openHall } from './hall.js'
import { chosen, type Options } from './options.js'
import { profiled } from './profile.js'
import { figureOf, ratioOf, runRounds } from './rounds.js'
import { type Limit, report } from './table.js'

const MiB = 2 ** 20
const ours = ['uponce, fetch', 'uponce, XHR'] as const
const peers = ['Uppy, XHR, GoldenRetriever', 'tus-js-client', 'Workbox queue'] as const
const loops = ['L', 'Lx', 'L+', 'Lpo', 'Lpx'] as const

interface Drain {
  scenario: string
  title: string
  count: number
  bytes: number
  /** Added to each answer, ms. */
  latency?: number
  names: readonly Name[]
  limits(
    ratio: (figure: Figure, name: Name, against: Name, itsFigure?: Figure) => Limit['value'],
    figure: (figure: Figure, name: Name) => Limit['value'],
  ): Limit[]
}

type Figure = keyof typeof units
const units = {
  drained: 'drained ms',
  durable: 'durable ms',
  processor: 'CPU ms',
  memory: 'extra MiB',
  task: 'longest task ms',
  gap: 'timer gap ms',
}

/** Looking costs time, so it is done when there is a new peak by so much, MiB. */
const noticeable = 4

/** The most memory above what there was at first, MiB. */
async function watchMemory<Result>({ processes }: Browser, work: () => Promise<Result>): Promise<{ result: Result; memory: number }> {
  const before = processes.memory()
  let [most, mostResident] = [before, 0]
  const note = (): void => {
    const resident = processes.resident()
    if (resident < mostResident + noticeable) return
    mostResident = resident
    most = Math.max(most, processes.memory())
  }
  const timer = setInterval(note, 250)
  const result = await work().finally(() => clearInterval(timer))
  note()
  return { result, memory: most - before }
}

const runOnce = (hall: Hall, files: Files, name: Name, { scenario, isProfiled }: { scenario: string; isProfiled: boolean }) =>
  hall.visit(name, files, async (browser) => {
    const { processes, page, tools } = browser
    const drain = () => page.evaluate(() => stage.drain())
    const began = processes.time()
    const { result, memory } = await watchMemory(browser, () => (isProfiled ? profiled(tools, `${scenario} ${name}`, drain) : drain()))
    const { drained, durable, task, gap } = result
    const figures = { drained, durable, processor: processes.time() - began, memory, task, gap }
    return { version: browser.version, figures }
  })

const inTable = (figures: Record<Figure, number | null>): Record<string, number | null> =>
  Object.fromEntries(Object.entries(units).map(([figure, title]) => [title, figures[figure as Figure]]))

async function bench(drain: Drain, options: Options): Promise<void> {
  const { scenario, title, count, bytes, latency = 0 } = drain
  const hall = await openHall({ latency })
  try {
    const files = writeFiles(hall.folder, count, bytes)
    let version = ''
    const rounds = await runRounds(scenario, chosen(drain.names, options), options.rounds, async (name) => {
      const run = await runOnce(hall, files, name, { scenario, isProfiled: options.profile })
      version = run.version
      return inTable(run.figures)
    })
    const limits = drain.limits(
      (figure, name, against, itsFigure = figure) => ratioOf(rounds, units[figure], name, against, units[itsFigure]),
      (figure, name) => figureOf(rounds, name, units[figure]),
    )
    report({ scenario, title, rounds, limits, version })
  } finally {
    await hall.close()
  }
}

type Limits = Drain['limits']
const all =
  (...some: Limits[]): Limits =>
  (ratio, figure) =>
    some.flatMap((limits) => limits(ratio, figure))

const calmOf =
  (names: readonly Name[]): Limits =>
  (_ratio, figure) =>
    names.flatMap((name) => [
      { what: `${name}: longest task of those over 50 ms`, value: figure('task', name), limit: 0, unit: ' ms' },
      { what: `${name}: largest timer gap`, value: figure('gap', name), limit: 50, unit: ' ms' },
    ])

const calm = calmOf(ours)

/** Time where others are at work, too, says less than the processor's. */
const near =
  (limit: number, fetchAgainst: Name, xhrAgainst: Name): Limits =>
  (ratio) =>
    (
      [
        ['uponce, fetch', fetchAgainst],
        ['uponce, XHR', xhrAgainst],
      ] as const
    ).flatMap(([name, against]) => [
      { what: `${name}: drained, against ${against}`, value: ratio('drained', name, against), limit },
      { what: `${name}: CPU, against ${against}`, value: ratio('processor', name, against), limit },
    ])

/** Done is done when the bytes would have survived, too: with Uppy that may be later. */
const ahead: Limits = (ratio) =>
  ours.flatMap((name) =>
    peers.map((peer) => {
      const ratios = [ratio('drained', name, peer), ratio('drained', name, peer, 'durable')].filter((value) => value !== null)
      return { what: `${name}: drained, against ${peer}`, value: ratios.length > 0 ? Math.min(...ratios) : null, limit: 1 }
    }),
  )

export async function benchSmall(options: Options): Promise<void> {
  const [count, bytes] = [1_000, 10_000]
  const names = [...loops, ...ours, ...peers]
  await bench(
    { scenario: 'small', title: '1,000 × 10 KB, 6 at once', count, bytes, names, limits: all(near(1.15, 'Lpo', 'Lpx'), ahead, calm) },
    options,
  )
}

export async function benchLatency(options: Options): Promise<void> {
  const [count, bytes, latency] = [1_000, 10_000, 30]
  // What the best of persistent queues takes: the cores are busy with more than waiting.
  const names = ['L', 'Lx', 'Lpo', ...ours] as const
  const title = '1,000 × 10 KB, 6 at once, each answered 30 ms later'
  await bench({ scenario: 'latency', title, count, bytes, latency, names, limits: all(near(1.1, 'L', 'Lx'), calm) }, options)
}

export async function benchMedium(options: Options): Promise<void> {
  const [count, bytes] = [200, MiB]
  const names = [...loops, ...ours, ...peers]
  await bench(
    { scenario: 'medium', title: '200 × 1 MiB, 6 at once', count, bytes, names, limits: all(near(1.15, 'Lpo', 'Lpx'), ahead, calm) },
    options,
  )
}

export async function benchBig(options: Options): Promise<void> {
  const [count, bytes] = [1, 1_024 * MiB]
  const names = [...loops, ...ours, ...peers, 'bare put'] as const
  const small: Limits = (ratio, figure) =>
    ours.flatMap((name) => [
      { what: `${name}: extra memory`, value: figure('memory', name), limit: 40, unit: ' MiB' },
      { what: `${name}: durable, against a bare put`, value: ratio('durable', name, 'bare put'), limit: 1.2 },
    ])
  await bench(
    {
      scenario: 'big',
      title: '1 × 1 GiB (Lpo and Lpx: kept and hashed at once, as Lpz)',
      count,
      bytes,
      names,
      limits: all(near(1.05, 'Lpo', 'Lpx'), small, calm),
    },
    options,
  )
}

export async function benchHashing(options: Options): Promise<void> {
  const [count, bytes] = [1, 1_024 * MiB]
  const [whole, digest] = ['whole-file crypto.subtle', 'uponce digest'] as const
  const quick: Limits = (ratio, figure) => [
    { what: 'speed of our digest, against whole-file crypto.subtle', value: ratio('drained', whole, digest), limit: 0.9, least: true },
    { what: 'extra memory of our digest', value: figure('memory', digest), limit: 40, unit: ' MiB' },
  ]
  const names = [whole, 'hash-wasm, one buffer', digest] as const
  await bench({ scenario: 'hashing', title: 'SHA-256 of 1 GiB', count, bytes, names, limits: all(quick, calmOf([digest])) }, options)
}

/** Whether the main thread of a page stays free, whatever we have to do. */
export async function benchJank(options: Options): Promise<void> {
  for (const [work, count, bytes] of [
    ['small', 1_000, 10_000],
    ['medium', 200, MiB],
    ['big', 1, 1_024 * MiB],
  ] as const)
    await bench(
      { scenario: `jank-${work}`, title: `${count} × ${bytes} bytes, ours alone`, count, bytes, names: ours, limits: calm },
      options,
    )
}
