import puppeteer, { type Browser, type CDPSession, type Page } from 'puppeteer-core'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Account, createAccount } from '../helpers/account.js'
import { quietArgs } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { run } from '../helpers/engine.js'
import { pageOf } from '../helpers/firefox.js'
import { type Front, startFront } from '../helpers/front.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { buildToolsPages, eventually, type StagePage, stagePage } from '../helpers/stage.js'
import { enqueueAll, expectedOf, storedAt, untilSucceeded } from './engines/delivery.js'

describeWith(programs.chromium, 'what only Chromium can be brought to', () => {
  let server: Server
  let front: Front
  let browser: Browser
  const pageErrors: string[] = []
  let account: Account
  let accounts = 0
  let held: Promise<void> | undefined
  let release = (): void => {}

  const hold = (): void => {
    held = new Promise((resolve) => {
      release = () => {
        held = undefined
        resolve()
      }
    })
  }

  beforeAll(async () => {
    server = await startServer({ LEASE_MS: '3000' })
    front = await startFront(server, await buildToolsPages(), () => held ?? 0)
    // Playwright's pages are always visible, and such pages are never frozen; nor does it leave the back/forward cache on.
    browser = await puppeteer.launch({ executablePath: programs.chromium.path!, headless: true, args: [...quietArgs, '--no-sandbox'] })
  })
  afterAll(async () => {
    await browser?.close()
    await front?.stop()
    await server?.stop()
    expect(pageErrors, 'errors that no one caught in a page').toEqual([])
  })
  beforeEach(() => {
    account = createAccount(server, `account-${++accounts}`)
  })
  afterEach(async () => {
    release()
    const [first, ...pages] = await browser.pages()
    await first?.goto('about:blank')
    for (const page of pages) await page.close()
  })

  interface Tab extends StagePage {
    page: Page
    cdp: CDPSession
  }

  const openTab = async (quotaSize?: number): Promise<Tab> => {
    const page = await browser.newPage()
    page.on('pageerror', (error) => pageErrors.push(String(error)))
    const cdp = await page.createCDPSession()
    if (quotaSize) await cdp.send('Storage.overrideQuotaForOrigin', { origin: front.url, quotaSize })
    const tab = stagePage(pageOf(page), account)
    await tab.goto(`${front.url}/uponce-test/tools.html`)
    await tab.start()
    return { ...tab, page, cdp }
  }
  const rowsOf = (tab: StagePage) => run(tab, (name) => tools.held(name), account.name)
  const eventsOf = (tab: StagePage): Promise<string[]> => run(tab, () => tools.noted.map(({ event }) => event as string))
  const untilArrived = (count: number): Promise<void> => eventually(async () => (await account.state()).media.length).toBe(count)

  test('a full disk: enqueue rejects with quota-exceeded and leaves nothing; a smaller file, and what was there, go on', async () => {
    // From the start: Chromium remembers for a while how much room there was.
    const tab = await openTab(1_000_000)
    await run(tab, () => queue.pause())
    const uploads = await enqueueAll(tab, [{ size: 100_000 }])
    for (const size of [5_000_000, 12_000_000]) {
      const { end, ms } = await run(tab, (size) => tools.settled(tools.enqueue({ size })), size)
      expect(end).toBe('quota-exceeded')
      expect(ms).toBeLessThan(5_000)
    }
    const { rows, bytes } = await rowsOf(tab)
    expect([Object.keys(rows), bytes]).toEqual([[uploads[0]!.id], { [uploads[0]!.id]: 100_000 }])
    uploads.push(...(await enqueueAll(tab, [{ size: 50_000, seed: 1 }])))
    await run(tab, () => queue.resume())
    await untilSucceeded(tab, 2)
    await tab.cdp.send('Storage.overrideQuotaForOrigin', { origin: front.url })
    expect(await storedAt(account)).toEqual(expectedOf(uploads))
    expect((await account.state()).keys).toHaveLength(2)
  })

  test('storage cleared under a running page is told once, what it held is given up, and the next upload is kept', async () => {
    const tab = await openTab()
    const other = await openTab()
    hold()
    await enqueueAll(tab, [{ size: 500 }])
    await untilArrived(1)
    await eventually(() => other.statuses()).toEqual(['uploading'])
    await tab.cdp.send('Storage.clearDataForOrigin', { origin: front.url, storageTypes: 'all' })
    for (const each of [tab, other]) {
      await eventually(() => each.list()).toEqual([])
      await eventually(async () => (await eventsOf(each)).slice(-2)).toEqual(['cancelled', 'warning'])
    }
    release()
    const next = await enqueueAll(other, [{ size: 500, seed: 1 }])
    await untilSucceeded(other, 1)
    await tab.restart()
    await untilSucceeded(tab, 1)
    expect(await storedAt(account)).toMatchObject(expectedOf(next))
    expect((await eventsOf(other)).filter((event) => event === 'warning')).toHaveLength(1)
  })

  test('a page that the back button brings back goes on with what it sent', async () => {
    const tab = await openTab()
    hold()
    const uploads = await enqueueAll(tab, [{ size: 150_000 }])
    await untilArrived(1)
    await tab.page.evaluate(() => addEventListener('pageshow', ({ persisted }) => Object.assign(globalThis, { persisted })))
    await tab.page.goto(`${front.url}/uponce-test/`)
    release()
    await tab.page.goBack()
    await eventually(() => tab.evaluate('globalThis.persisted')).toBe(true)
    await untilSucceeded(tab, 1)
    uploads.push(...(await enqueueAll(tab, [{ size: 500, seed: 1 }])))
    await untilSucceeded(tab, 2)
    expect(await run(tab, () => tools.sent)).toEqual([uploads[0]!.key, uploads[0]!.key, uploads[1]!.key])
    expect(await storedAt(account)).toEqual(expectedOf(uploads))
  })

  test('a page that waits for the back button leaves its turn to another tab, and takes nothing up twice when it is back', async () => {
    const tab = await openTab()
    const other = await openTab()
    hold()
    const uploads = await enqueueAll(tab, [{ size: 150_000 }])
    await untilArrived(1)
    await tab.page.evaluate(() => addEventListener('pageshow', ({ persisted }) => Object.assign(globalThis, { persisted })))
    await tab.page.goto(`${front.url}/uponce-test/`)
    await eventually(() => run(other, () => tools.sent)).toEqual([uploads[0]!.key])
    release()
    await untilSucceeded(other, 1)
    await tab.page.goBack()
    await eventually(() => tab.evaluate('globalThis.persisted')).toBe(true)
    await untilSucceeded(tab, 1)
    uploads.push(...(await enqueueAll(tab, [{ size: 500, seed: 1 }])))
    await Promise.all([untilSucceeded(tab, 2), untilSucceeded(other, 2)])
    expect(await run(tab, () => tools.sent)).toEqual([uploads[0]!.key])
    expect(await storedAt(account)).toEqual(expectedOf(uploads))
  })

  test('a frozen tab loses its turn to another, which sends the same key; thawed, it neither sends nor writes', async () => {
    const tab = await openTab()
    const other = await openTab()
    hold()
    const uploads = await enqueueAll(tab, [{ size: 150_000 }])
    await untilArrived(1)
    // One that is seen is never frozen.
    await other.page.bringToFront()
    await tab.cdp.send('Emulation.setFocusEmulationEnabled', { enabled: false })
    await tab.cdp.send('Page.setWebLifecycleState', { state: 'frozen' })
    await eventually(() => run(other, () => tools.sent)).toEqual([uploads[0]!.key])
    release()
    await untilSucceeded(other, 1)
    const row = (await rowsOf(other)).rows
    await tab.cdp.send('Page.setWebLifecycleState', { state: 'active' })
    await untilSucceeded(tab, 1)
    uploads.push(...(await enqueueAll(tab, [{ size: 500, seed: 1 }])))
    await Promise.all([untilSucceeded(tab, 2), untilSucceeded(other, 2)])
    expect(await run(tab, () => tools.sent)).toEqual([uploads[0]!.key])
    expect((await rowsOf(other)).rows).toMatchObject(row)
    expect(await storedAt(account)).toEqual(expectedOf(uploads))
  })
})
