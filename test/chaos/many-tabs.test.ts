import { createHash } from 'node:crypto'
import puppeteer, { type Browser, type CDPSession, type Page } from 'puppeteer-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { quietArgs } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { type Front, startFront } from '../helpers/front.js'
import { buildTestPage } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { createRandom, freshSeed, type Random } from '../helpers/random.js'
import { type Server, startServer } from '../helpers/server.js'

/** How a tab stops. A frozen or a hanging one goes on later. */
type Stop = 'close' | 'crash' | 'freeze' | 'hang'

const TABS = 5
const FILES = 200
const STOPS = 20
/** How all tabs but one stop in the end. `FAULTS_FULL=1`: without a word, so that the last one has to wait for signs of life. */
const LAST_STOP: Stop = process.env.FAULTS_FULL === '1' ? 'hang' : 'freeze'
const seed = Number(process.env.FAULTS_SEED ?? freshSeed())

const contentOf = (name: string): string => `the content of ${name};`.repeat(100)

/** One tab, and the ways in which it stops. */
interface Tab {
  page: Page
  cdp: CDPSession
  /** Settles when its files are saved; never, where it stopped before. */
  saved: Promise<unknown>
}

describeWith(programs.chromium, `${TABS} tabs of one queue, closed, crashed, frozen and hanging at random`, () => {
  let server: Server
  let front: Front
  let browser: Browser
  let random: Random

  beforeAll(async () => {
    random = createRandom(seed)
    const site = await buildTestPage()
    server = await startServer({ LEASE_MS: '2000' })
    front = await startFront(server, site, () => random.integer(20, 200))
    // Playwright's pages are always visible, and such pages are never frozen.
    browser = await puppeteer.launch({ executablePath: programs.chromium.path!, headless: true, args: [...quietArgs, '--no-sandbox'] })
  })

  afterAll(async () => {
    await browser?.close()
    await front?.stop()
    await server?.stop()
  })

  const openTab = async (names: string[]): Promise<Tab> => {
    const page = await browser.newPage()
    await page.goto(`${front.url}/uponce-test/`)
    await page.waitForFunction(() => 'uponce' in globalThis)
    const cdp = await page.createCDPSession()
    await page.evaluate(() => {
      globalThis.queue = uponce.createUploadQueue({ endpoint: '/uploads', headers: { Authorization: 'Bearer tabs' } })
    })
    const contents = names.map((name) => [name, contentOf(name)])
    const saved = page.evaluate(async (files) => {
      for (const [name = '', content = ''] of files) {
        const upload = await queue.enqueue(new File([content], name), { id: name })
        const key = queue.get(upload.id)?.idempotencyKey
        await fetch('/told', { method: 'POST', body: JSON.stringify({ kind: 'saved', name, key }) })
      }
    }, contents)
    saved.catch(() => {}) // the tab stopped before
    return { page, cdp, saved }
  }

  const stop = async ({ page, cdp }: Tab, how: Stop): Promise<void> => {
    if (how === 'close') await page.close()
    if (how === 'crash') {
      const crashed = new Promise((resolve) => page.once('error', resolve))
      cdp.send('Page.crash').catch(() => {}) // no answer comes
      await crashed
    }
    if (how === 'freeze') {
      // One that is seen is never frozen.
      const front = await browser.newPage()
      await cdp.send('Emulation.setFocusEmulationEnabled', { enabled: false })
      await cdp.send('Page.setWebLifecycleState', { state: 'frozen' })
      await front.close()
    }
    if (how === 'hang') {
      await cdp.send('Debugger.enable')
      await cdp.send('Debugger.pause')
    }
  }
  const goOn = async ({ cdp }: Tab, how: Stop): Promise<void> => {
    if (how === 'freeze') await cdp.send('Page.setWebLifecycleState', { state: 'active' })
    if (how === 'hang') await cdp.send('Debugger.disable')
  }

  test('each file is stored once, and no key is under way twice', { timeout: 400_000 }, async () => {
    console.log(`seed ${seed}`)
    const names = Array.from({ length: FILES }, (_, index) => `file-${index}`)
    const account = createAccount(server, 'tabs')
    const isSaved = (name: string): boolean => front.told.some((message) => message.name === name)
    const tabs = new Map<Tab, string[]>()
    const held = new Map<Tab, Stop>()
    const count: Record<Stop, number> = { close: 0, crash: 0, freeze: 0, hang: 0 }
    const running = (): Tab[] => [...tabs.keys()].filter((tab) => !held.has(tab))

    /** A tab that enqueues files which are no other tab's, since the one that had them is gone. */
    const add = async (limit: number): Promise<void> => {
      const taken = new Set([...tabs.values()].flat())
      const own = names.filter((name) => !isSaved(name) && !taken.has(name)).slice(0, limit)
      tabs.set(await openTab(own), own)
    }
    for (let tab = 0; tab < TABS; tab++) await add(FILES / TABS)

    for (let stops = 0; stops < STOPS; stops++) {
      await new Promise((resolve) => setTimeout(resolve, random.integer(100, 500)))
      const how = random.pick<Stop>(['close', 'crash', 'freeze', 'hang'])
      const tab = random.pick(running())
      await stop(tab, how)
      count[how] += 1
      if (how === 'freeze' || how === 'hang') held.set(tab, how)
      else {
        tabs.delete(tab)
        await add(FILES)
      }
      if (held.size > 0 && (running().length < 2 || random.chance(0.3))) {
        const thawed = random.pick([...held.keys()])
        await goOn(thawed, held.get(thawed)!)
        held.delete(thawed)
      }
    }

    // One is left that runs. What it must wait for is the lock, should another have it.
    await add(FILES)
    const last = [...tabs.keys()].at(-1)!
    for (const tab of running())
      if (tab !== last) {
        await stop(tab, LAST_STOP)
        held.set(tab, LAST_STOP)
      }
    await last.saved
    const stored = async (): Promise<number> => (await account.state()).media.length
    const missing = names.filter((name) => !isSaved(name))
    console.log(`${JSON.stringify(count)}; then ${held.size} tabs are held, and ${await stored()} of ${FILES} files are stored`)
    if (missing.length > 0) await add(FILES)
    // A tab that hangs in the middle of a transaction may keep the others out of the database beyond its turn.
    await expect.poll(stored, { timeout: 200_000, interval: 200 }).toBe(FILES)
    for (const [tab, how] of held) await goOn(tab, how)

    const ends = (tab: Tab): Promise<string[]> => tab.page.evaluate(() => queue.getSnapshot().map(({ status }) => status))
    for (const tab of tabs.keys()) await expect.poll(() => ends(tab), { timeout: 60_000 }).toEqual(Array(FILES).fill('succeeded'))
    const { media, objects } = await account.state()
    expect(media.map(({ fileName }) => fileName).sort()).toEqual([...names].sort())
    for (const { fileName, sha256 } of media) expect(sha256).toBe(createHash('sha256').update(contentOf(fileName)).digest('hex'))
    expect(objects).toBe(FILES)
    const keyOf = new Map(media.map(({ fileName, key }) => [fileName, key]))
    for (const { name, key } of front.told) expect([name, key]).toEqual([name, keyOf.get(String(name))])
    expect(front.overlaps).toEqual([])
    console.log(`${front.passages.length} requests for ${FILES} files`)
  })
})
