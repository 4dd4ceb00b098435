import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { openPostgres } from '../../demo/server/database.js'
import { buildProgram, type Program, startProgram } from '../faults/program.js'
import { launchChromiumEngine } from '../helpers/chromium.js'
import { type Engine, type EnginePage, run } from '../helpers/engine.js'
import { launchFirefox } from '../helpers/firefox.js'
import { startFront } from '../helpers/front.js'
import { bytesOf } from '../helpers/page-tools.js'
import { startPostgres } from '../helpers/postgres.js'
import { createRandom } from '../helpers/random.js'
import { buildToolsPages } from '../helpers/stage.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { launchWebKit } from '../helpers/webkit.js'
import { createTimeline } from './timeline.js'
import { createWeather } from './weather.js'

export const engines = { chromium: launchChromiumEngine, firefox: launchFirefox, webkit: launchWebKit as () => Promise<Engine> }
export type EngineName = keyof typeof engines

export interface ChaosOptions {
  engine: EngineName
  /** How long things go wrong; then everything is healed, and what is left has to finish. */
  minutes: number
  seed: number
}

export interface ChaosReport {
  /** Files that the queue said were saved, and those of them that were cancelled later. */
  saved: number
  cancelled: number
  /** Files that the server holds. */
  stored: number
  /** Upload requests that went by. */
  requests: number
  /** What went wrong, and how often. */
  faults: ReadonlyMap<string, number>
  /** Names of files that were saved, not cancelled, and are not stored. */
  lost: string[]
  /** Names of files that are stored more than once. */
  twice: string[]
  /** Names of files of which the server has other bytes. */
  wrong: string[]
  /** Names of files that are stored under another key than the one they were saved with. */
  rekeyed: string[]
  /** Uploads that had used up their attempts and were tried again at the end. */
  revived: number
  /** An SVG. */
  picture: string
}

const TABS = 3
const OWNER = 'chaos'
/** What is left when everything is healed has to be done in so long, ms. */
const finishLimit = 240_000

interface Saved {
  name: string
  key: string
  size: number
  seed: number
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Real pages, a real server on a real PostgreSQL, `kill -9`, and a network between them that does everything networks do. */
export async function runChaos({ engine, minutes, seed }: ChaosOptions): Promise<ChaosReport> {
  const random = createRandom(seed)
  const timeline = createTimeline(() => performance.now())
  const faults = new Map<string, number>()
  const note = (kind: string): void => {
    faults.set(kind, (faults.get(kind) ?? 0) + 1)
    timeline.mark(kind)
  }
  const ends: (() => unknown)[] = []
  try {
    return await play()
  } finally {
    for (const end of ends.reverse()) await end()
  }

  async function play(): Promise<ChaosReport> {
    const postgres = await startPostgres()
    if (!postgres) throw new Error('The chaos run needs PostgreSQL.')
    ends.push(() => postgres.stop())
    const folder = await makeTempFolder('chaos')
    ends.push(() => folder.remove())
    const database = openPostgres({ url: postgres.url, max: 2 })
    ends.push(() => database.close())
    await buildProgram()
    const env = { DATABASE_URL: postgres.url, DATA_DIR: folder.path, LEASE_MS: '3000' }
    let server: Program = await startProgram(env)
    ends.push(() => server.kill())
    const { url } = server
    const restart = async (): Promise<void> => {
      await server.kill()
      await pause(random.integer(0, 2_000))
      server = await startProgram({ ...env, PORT: new URL(url).port })
    }

    const weather = createWeather(random, note)
    const front = await startFront(
      { url },
      await buildToolsPages(),
      () => 0,
      () => weather.next(),
    )
    ends.push(() => front.stop())
    const browser = await engines[engine]()
    ends.push(() => browser.close())

    const start = async (tab: EnginePage): Promise<void> => {
      // WebKit does not wait for scripts of modules.
      await run(tab, async () => {
        while (!('tools' in globalThis && 'uponce' in globalThis)) await new Promise((resolve) => setTimeout(resolve, 20))
      })
      await run(tab, (name) => tools.start(name, { concurrency: 4 }), OWNER)
    }
    const open = async (): Promise<EnginePage> => {
      const tab = await browser.newPage()
      await tab.goto(`${front.url}/uponce-test/tools.html`)
      await start(tab)
      return tab
    }
    const reload = async (tab: EnginePage): Promise<void> => {
      await tab.reload()
      await start(tab)
    }
    const tabs: EnginePage[] = []
    while (tabs.length < TABS) tabs.push(await open())

    let files = 0
    const enqueue = async (tab: EnginePage): Promise<void> => {
      const chosen = Array.from({ length: random.integer(1, 4) }, () => {
        const most = random.pick([2_000, 60_000, 60_000, 500_000, 500_000, 3_000_000])
        return { name: `file-${++files}`, size: random.integer(0, most), seed: random.integer(0, 255) }
      })
      await run(
        tab,
        (chosen) => {
          for (const file of chosen)
            tools.enqueue(file).then(
              ({ key }) => fetch('/told', { method: 'POST', body: JSON.stringify({ kind: 'saved', ...file, key }) }),
              () => {},
            )
        },
        chosen,
      )
    }
    const cancelOne = async (tab: EnginePage): Promise<void> => {
      await run(
        tab,
        async (draw) => {
          const open = queue.getSnapshot().filter(({ status }) => status !== 'succeeded')
          const upload = open[Math.floor(draw * open.length)]
          if (!upload) return
          await fetch('/told', { method: 'POST', body: JSON.stringify({ kind: 'cancelled', name: upload.name }) })
          void queue.cancel(upload.id)
        },
        random.next(),
      )
    }
    const swap = async (tab: EnginePage): Promise<void> => {
      tabs.splice(tabs.indexOf(tab), 1)
      tabs.push(await open())
      await tab.close()
    }
    const leave = async (): Promise<void> => {
      weather.away = true
      await pause(random.integer(500, 5_000))
      weather.away = false
    }
    const actions: [kind: string, weight: number, act: (tab: EnginePage) => Promise<unknown>][] = [
      ['', 50, enqueue],
      ['reload', 12, reload],
      ['tab closed', 8, swap],
      ['server killed', 8, restart],
      ['network gone', 6, leave],
      ['cancelled', 4, cancelOne],
      ['paused', 4, (tab) => run(tab, () => void queue.pause())],
      ['resumed', 8, (tab) => run(tab, () => void queue.resume())],
      ['retried', 4, (tab) => run(tab, () => void queue.retry())],
    ]
    const sum = actions.reduce((sum, [, weight]) => sum + weight, 0)
    const countStored = async (): Promise<number> => Number((await database.query('SELECT count(*) AS count FROM media'))[0]?.count)

    const toldOf = (kind: string): Record<string, unknown>[] => front.told.filter((message) => message.kind === kind)

    const until = performance.now() + minutes * 60_000
    while (performance.now() < until) {
      let draw = random.next() * sum
      const [kind, , act] = actions.find(([, weight]) => {
        draw -= weight
        return draw < 0
      })!
      if (kind) note(kind)
      await act(random.pick(tabs))
      timeline.grow(toldOf('saved').length, await countStored())
      await pause(random.integer(50, 1_000))
    }

    weather.end()
    const revived = await finish(tabs[0]!)
    timeline.grow(toldOf('saved').length, await countStored())

    const saved = toldOf('saved') as unknown as Saved[]
    const cancelled = new Set(toldOf('cancelled').map(({ name }) => name as string))
    const rows = (await database.query(
      `SELECT idempotency_key AS key, file_name AS name, storage_key, encode(sha256, 'hex') AS sha256 FROM media`,
    )) as { key: string; name: string; storage_key: string; sha256: string }[]
    const byName = new Map<string, typeof rows>()
    for (const row of rows) byName.set(row.name, [...(byName.get(row.name) ?? []), row])
    const wrong: string[] = []
    for (const { name, size, seed } of saved)
      for (const { storage_key, sha256 } of byName.get(name) ?? []) {
        const digest = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')
        const held = digest(await readFile(join(folder.path, 'objects', storage_key)))
        if (held !== sha256 || held !== digest(bytesOf(size, seed))) wrong.push(name)
      }
    const title = `uponce: ${minutes} min of chaos, ${engine}, seed ${seed}`
    return {
      saved: saved.length,
      cancelled: saved.filter(({ name }) => cancelled.has(name)).length,
      stored: rows.length,
      requests: front.passages.length,
      faults,
      lost: saved.filter(({ name }) => !byName.has(name) && !cancelled.has(name)).map(({ name }) => name),
      twice: [...byName].filter(([, rows]) => rows.length > 1).map(([name]) => name),
      wrong,
      rekeyed: saved.filter(({ name, key }) => byName.get(name)?.some((row) => row.key !== key)).map(({ name }) => name),
      revived,
      picture: timeline.draw(title),
    }
  }

  /** Waits until nothing is left to do; resolves with how many uploads had given up and were tried again. */
  async function finish(tab: EnginePage): Promise<number> {
    const until = performance.now() + finishLimit
    await run(tab, () => queue.resume())
    let revived = 0
    for (;;) {
      const statuses = await run(tab, () => queue.getSnapshot().map(({ status }) => status))
      const failed = statuses.filter((status) => status === 'failed').length
      const open = statuses.filter((status) => status !== 'succeeded').length
      if (open === 0) return revived
      if (performance.now() > until)
        throw new Error(
          `Not at rest after ${finishLimit} ms: ${await run(tab, () => JSON.stringify(queue.getSnapshot().filter(({ status }) => status !== 'succeeded')))}`,
        )
      if (failed === open) {
        revived += failed
        await run(tab, () => queue.retry())
      }
      await pause(200)
    }
  }
}
