import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, readFile, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Locator, Page } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { axeFaults, bringAxe } from '../helpers/axe.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

const builtPage = fileURLToPath(new URL('../../.build/page/index.html', import.meta.url))
const longName = `${'A photograph with a name that goes on and on '.repeat(4)}夏 صورة.jpg`

describeWith(programs.chromium, 'the demo page', () => {
  let folder: TempFolder
  let server: Server
  let chromium: Chromium
  let complaints: string[]
  const file = (name: string): string => join(folder.path, name)

  beforeAll(async () => {
    if (!existsSync(builtPage)) throw new Error('These tests open the built page: npm run build && npm run build:page comes first.')
    folder = await makeTempFolder('page')
    server = await startServer()
    chromium = await launchChromium()
    await writeFile(file('notes.txt'), randomBytes(20_000))
    await writeFile(file('more.txt'), randomBytes(30_000))
    await writeFile(file('half a megabyte.bin'), randomBytes(500_000))
    await writeFile(file('ten megabytes.bin'), randomBytes(10_000_000))
    await writeFile(file(longName), randomBytes(1_000))
    await writeFile(file('too large.iso'), '')
    await truncate(file('too large.iso'), 500_000_001)
    await mkdir(file('a folder'))
    await writeFile(file('a folder/inside.txt'), 'inside')
  })

  afterAll(async () => {
    await chromium?.close()
    await server?.stop()
    await folder?.remove()
  })

  beforeEach(() => {
    complaints = []
    return async () => {
      await chromium.context.setOffline(false)
      for (const page of chromium.context.pages()) await page.close()
      expect(complaints, 'errors on the console').toEqual([])
    }
  })

  /** A tab of the page, with its console listened to. That a request failed, as ordered, is what the browser says of it, and no fault. */
  const openTab = async (path = '/', { url: origin } = server): Promise<Page> => {
    const page = await chromium.newPage()
    page.on('console', (message) => {
      const { url } = message.location()
      const isOrdered =
        /^Failed to load resource: .*(\/uploads|ERR_INTERNET_DISCONNECTED|ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET)/.test(
          `${message.text()} ${url}`,
        )
      if ((message.type() === 'error' || message.type() === 'warning') && !isOrdered) complaints.push(`${message.text()} ${url}`)
    })
    await page.addInitScript(() =>
      addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) => console.error(violatedDirective, blockedURI)),
    )
    await page.goto(origin + path)
    return page
  }

  /** The page as somebody sees it who has never been there. */
  const openAsNewVisitor = async (path?: string, at = server): Promise<Page> => {
    await chromium.context.clearCookies()
    const page = await chromium.newPage()
    const cdp = await chromium.context.newCDPSession(page)
    await cdp.send('Storage.clearDataForOrigin', { origin: at.url, storageTypes: 'all' })
    await page.close()
    return openTab(path, at)
  }

  const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 45_000, interval: 50 })
  const rows = (page: Page): Locator => page.locator('#uploads li[data-status]')
  const row = (page: Page, name: string): Locator => rows(page).filter({ hasText: name })
  const state = (locator: Locator): Promise<string | null> => locator.locator('[part=state]').textContent()
  /** What the page adds to a row: it stands in a slot of it. */
  const timeline = (page: Page, name: string): Locator => page.locator(`.timeline[data-name="${name}"]`)
  const openTimeline = (page: Page, name: string): Promise<void> => button(page, `Time line of ${name}`).click()
  /** The names of the buttons that can be seen. */
  const buttonsOf = (locator: Locator): Promise<(string | null)[]> => locator.locator('[part=actions] button:visible').allTextContents()
  const statusOf = (locator: Locator) => eventually(() => locator.getAttribute('data-status'))
  const total = (page: Page, name: string) => eventually(() => page.locator(`[data-total="${name}"]`).textContent())
  const pick = (page: Page, ...names: string[]): Promise<void> => page.setInputFiles('#uploads input', names.map(file))
  const button = (scope: Page | Locator, name: string): Locator => scope.getByRole('button', { name })
  const arm = async (page: Page, fault: string): Promise<void> => {
    await page.click(`[data-fault="${fault}"]`)
    await eventually(() => page.locator(`[data-fault="${fault}"]`).getAttribute('data-armed')).toBe('true')
  }

  /** The name of what has the focus, in the element too. */
  const focused = (page: Page): Promise<string | null | undefined> =>
    page.evaluate(() => {
      const outer = document.activeElement
      const active = outer?.shadowRoot?.activeElement ?? outer
      return active?.getAttribute('aria-label') ?? active?.textContent
    })

  test('a lost answer ends in a replay, and the server holds one row with the same digest', async () => {
    const page = await openAsNewVisitor()
    await arm(page, 'lose-answer')
    expect(await page.locator('[data-fault="lose-answer"]').textContent()).toContain('Armed: next one')
    await pick(page, 'notes.txt')
    const upload = row(page, 'notes.txt')
    await statusOf(upload).toBe('succeeded')
    expect(await state(upload)).toBe('Done')

    await total(page, 'replays').toBe('1')
    await total(page, 'picked').toBe('1')
    await total(page, 'stored').toBe('1')
    await total(page, 'storedTwice').toBe('0')
    await total(page, 'lost').toBe('0')
    const stored = page.locator('#stored > li')
    expect(await stored.count()).toBe(1)
    const text = await stored.textContent()
    for (const part of ['Stored', 'notes.txt', '20 kB', 'same digest as in this browser', 'stored, answer dropped', '201 replayed'])
      expect(text).toContain(part)
    await eventually(() => page.locator('[data-fault="lose-answer"]').textContent()).toContain('Struck 1 ×')

    await openTimeline(page, 'notes.txt')
    const told = timeline(page, 'notes.txt')
    await eventually(() => told.locator('.sentence').textContent()).toMatch(
      /^The answer was lost → .+ → the server replayed its stored answer → one object exists$/,
    )
    expect(await told.locator('.lines li').last().textContent()).toContain('replayed its stored answer')
    // An attempt, a wait, an attempt, and the end; before them, that it was saved.
    const stretches = told.locator('.strip > *')
    expect(await stretches.evaluateAll((all) => all.map((one) => one.dataset.tone))).toEqual(['plain', 'sent', 'waits', 'sent', 'good'])

    const bytes = await readFile(file('notes.txt'))
    const link = await stored.locator('a').getAttribute('href')
    const download = await chromium.context.request.get(server.url + link)
    expect(
      createHash('sha256')
        .update(await download.body())
        .digest('hex'),
    ).toBe(createHash('sha256').update(bytes).digest('hex'))
  })

  test('one click loses an answer, and every step is told as it happens, each long enough to be read', async () => {
    const page = await openAsNewVisitor()
    const begun = performance.now()
    await button(page, 'Show me: lose an answer').click()
    const steps = page.locator('#steps li')
    const states = (): Promise<(string | undefined)[]> => steps.evaluateAll((all) => all.map((step) => (step as HTMLElement).dataset.state))
    for (const place of [0, 1, 2, 3, 4])
      await eventually(states).toEqual([0, 1, 2, 3, 4].map((at) => (at < place ? 'told' : at === place ? 'now' : 'idle')))
    await eventually(() => page.locator('#guide-end').textContent()).toContain('2 attempts, one key, one object on the server')
    expect(performance.now() - begun).toBeGreaterThan(8_000)
    const [key] = (await (await page.request.get(`${server.url}/demo/state`)).json()).keys.map(({ key }: { key: string }) => key)
    expect(await steps.nth(3).textContent()).toContain(key.slice(0, 8))
    await statusOf(rows(page).first()).toBe('succeeded')
    await eventually(() => page.locator('.sentence').textContent()).toContain('one object exists')
    await total(page, 'stored').toBe('1')
    await total(page, 'replays').toBe('1')
    await eventually(() => page.locator('#live').textContent()).toContain('one object on the server')
    expect(await button(page, 'Show me again').getAttribute('aria-disabled')).toBe('false')
  })

  test('an upload is paused, resumed and cancelled by its buttons', async () => {
    const page = await openAsNewVisitor('/?transport=fetch')
    await arm(page, 'slow')
    await pick(page, 'half a megabyte.bin')
    const upload = row(page, 'half a megabyte.bin')
    await statusOf(upload).toBe('uploading')
    expect(await upload.locator('progress').getAttribute('value')).toBeNull()
    await button(upload, 'Pause').click()
    await statusOf(upload).toBe('paused')
    expect(await upload.locator('progress').isVisible()).toBe(false)
    await button(upload, 'Resume').click()
    await statusOf(upload).toBe('succeeded')
    expect(await buttonsOf(upload)).toEqual([])

    await arm(page, 'unavailable')
    await pick(page, 'notes.txt')
    const refused = row(page, 'notes.txt')
    await eventually(() => state(refused)).toMatch(/^Next attempt in \d.*: the server answered 503$/)
    await button(refused, 'Cancel').click()
    await eventually(() => refused.count()).toBe(0)
    await page.reload()
    await eventually(() => rows(page).count()).toBe(1)
    await total(page, 'stored').toBe('1')
  })

  test('the whole queue is paused, resumed and cleared', async () => {
    const page = await openAsNewVisitor()
    await arm(page, 'unavailable')
    await pick(page, 'notes.txt')
    await eventually(() => state(row(page, 'notes.txt'))).toContain('Next attempt in')
    await button(page, 'Pause all').click()
    await statusOf(row(page, 'notes.txt')).toBe('paused')
    await pick(page, 'more.txt')
    await statusOf(row(page, 'more.txt')).toBe('paused')
    await button(page, 'Resume all').click()
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    await statusOf(row(page, 'more.txt')).toBe('succeeded')
    await button(page, 'Clear succeeded').click()
    await eventually(() => rows(page).count()).toBe(0)
    await total(page, 'stored').toBe('2')
    await total(page, 'lost').toBe('0')
    await eventually(() => page.locator('#stored').textContent()).toContain('not in the list here')
  })

  test('what cannot be taken is named with its code, and nothing of it is kept', async () => {
    const page = await openAsNewVisitor()
    await pick(page, 'too large.iso')
    const refusal = page.locator('#uploads [role=alert]')
    await eventually(() => refusal.textContent()).toContain('file-too-large')
    expect(await refusal.textContent()).toContain('too large.iso')
    await button(page, 'Dismiss').click()
    await eventually(() => refusal.textContent()).toBe('')

    const cdp = await chromium.context.newCDPSession(page)
    const data = { items: [], files: [file('a folder'), file('too large.iso'), file('notes.txt')], dragOperationsMask: 1 }
    for (const type of ['dragEnter', 'dragOver', 'drop'] as const) await cdp.send('Input.dispatchDragEvent', { type, x: 300, y: 300, data })
    const notice = page.locator('.notice')
    await eventually(() => notice.textContent()).toContain('file-too-large')
    expect(await notice.textContent()).toContain('too large.iso')
    // A folder is walked.
    for (const name of ['inside.txt', 'notes.txt']) await statusOf(row(page, name)).toBe('succeeded')
    await button(notice, 'Dismiss').click()
    expect(await notice.count()).toBe(0)
    await page.reload()
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    expect(await rows(page).locator('[part=name]').allTextContents()).toEqual(['notes.txt', 'inside.txt'])
  })

  test('a folder that is chosen gives its files', async () => {
    const page = await openAsNewVisitor()
    await page.setInputFiles('#folder', file('a folder'))
    await statusOf(row(page, 'inside.txt')).toBe('succeeded')
  })

  test('a second tab and a reload show the same, and what they count down to happens', async () => {
    const page = await openAsNewVisitor()
    await arm(page, 'too-many')
    await pick(page, 'notes.txt')
    await eventually(() => state(row(page, 'notes.txt'))).toContain('the server answered 429')
    const other = await openTab()
    await eventually(() => state(row(other, 'notes.txt'))).toContain('Next attempt in')
    await page.reload()
    for (const tab of [page, other]) await statusOf(row(tab, 'notes.txt')).toBe('succeeded')
    await openTimeline(page, 'notes.txt')
    expect(await timeline(page, 'notes.txt').locator('.lines').textContent()).toContain('The server answered 429')
    await total(other, 'stored').toBe('1')
  })

  test('while the server is away the page says so, and goes on when it is back', async () => {
    const page = await openAsNewVisitor()
    await total(page, 'stored').toBe('0')
    await arm(page, 'away')
    await pick(page, 'notes.txt')
    await eventually(() => page.locator('#banner').textContent()).toContain('The server cannot be reached')
    await eventually(() => state(row(page, 'notes.txt'))).toContain('Waits until the server can be reached')
    await pick(page, 'more.txt')
    await eventually(() => state(row(page, 'more.txt'))).toMatch(/^Waits until the server can be reached/)
    await button(page, 'Disarm all').click()
    await button(page, 'Try all now').click()
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    await statusOf(row(page, 'more.txt')).toBe('succeeded')
    await eventually(() => page.locator('#banner').isVisible()).toBe(false)
    await total(page, 'stored').toBe('2')
  })

  test('a server that is killed while a file is sent: questions what became of it are one line, and count as nothing', async () => {
    const own = await startServer({ LEASE_MS: '15000' })
    try {
      const page = await openAsNewVisitor('/', own)
      // The first answer says where questions can be asked.
      await pick(page, 'notes.txt')
      await statusOf(row(page, 'notes.txt')).toBe('succeeded')
      await arm(page, 'slow')
      await pick(page, 'ten megabytes.bin')
      const upload = row(page, 'ten megabytes.bin')
      await eventually(
        async () => (await (await page.request.get(`${own.url}/demo/state`)).json()).keys.at(-1)?.requests.at(-1)?.bytes,
      ).toBeGreaterThan(100_000)
      await own.restart()
      // Else the first question might come when the lease is over.
      await page.getByRole('button', { name: 'Try all now' }).click()
      await openTimeline(page, 'ten megabytes.bin')
      const told = timeline(page, 'ten megabytes.bin')
      await eventually(() => told.locator('.lines').textContent()).toMatch(
        /The server was asked (\d+ times )?what became of it: still busy/,
      )
      await eventually(() => told.locator('.facts > span').first().textContent()).toMatch(/^\d attempts? counted, \d+ in all$/)
      expect(await told.locator('.facts > span').first().getAttribute('title')).toContain('Counted attempts use up the limit of 10')
      await statusOf(upload).toBe('succeeded')
      const lines = await told.locator('.lines li').allTextContents()
      expect(lines.filter((line) => line.includes('still busy'))).toHaveLength(1)
      expect(lines.slice(-2).join()).toMatch(/The file is sent again, with the same key.*Succeeded: the server stored it/)
      await eventually(() => told.locator('.sentence').textContent()).toMatch(
        /the server was asked (\d+ times )?what became of it → the file was sent again, with the same key → the server stored it → one object exists$/,
      )
    } finally {
      for (const page of chromium.context.pages()) await page.close()
      await own.stop()
    }
  }, 180_000)

  test('offline, a picked file waits and the page says why; online, it is sent', async () => {
    const page = await openAsNewVisitor()
    await total(page, 'stored').toBe('0')
    await chromium.context.setOffline(true)
    await pick(page, 'notes.txt')
    await eventually(() => page.locator('#banner').textContent()).toContain('This browser is offline')
    await eventually(() => state(row(page, 'notes.txt'))).toContain('Waits until the server can be reached')
    await chromium.context.setOffline(false)
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    await eventually(() => page.locator('#banner').isVisible()).toBe(false)
  })

  test('the transport is chosen, kept in the address, and shows bytes where it can', async () => {
    const page = await openAsNewVisitor()
    await page.getByRole('radio', { name: 'fetch' }).check()
    expect(new URL(page.url()).searchParams.get('transport')).toBe('fetch')
    await page.reload()
    expect(await page.getByRole('radio', { name: 'fetch' }).isChecked()).toBe(true)
    await page.getByRole('radio', { name: 'XHR' }).check()
    await arm(page, 'slow')
    await pick(page, 'ten megabytes.bin')
    await eventually(() => state(row(page, 'ten megabytes.bin'))).toMatch(/^\S+ MB of 10 MB$/)
    expect(Number(await row(page, 'ten megabytes.bin').locator('progress').getAttribute('value'))).toBeGreaterThan(0)
    await button(row(page, 'ten megabytes.bin'), 'Cancel').click()
    await eventually(() => rows(page).count()).toBe(0)
  })

  test('everything can be done with the keyboard, and the focus is never lost', async () => {
    const page = await openAsNewVisitor()
    const focusOn = async (wanted: string): Promise<void> => {
      for (let presses = 0; presses < 40; presses++) {
        await page.keyboard.press('Tab')
        if ((await focused(page))?.includes(wanted)) return
      }
      throw new Error(`Tab does not reach ${wanted}`)
    }
    await total(page, 'stored').toBe('0')
    await focusOn('Server away')
    await page.keyboard.press('Enter')
    await eventually(() => page.locator('[data-fault="away"]').getAttribute('data-armed')).toBe('true')
    await pick(page, 'notes.txt')
    const upload = row(page, 'notes.txt')
    await eventually(() => state(upload)).toContain('Waits until the server can be reached')
    await focusOn('Pause notes.txt')
    await page.keyboard.press('Space')
    await statusOf(upload).toBe('paused')
    await eventually(() => focused(page)).toBe('Resume notes.txt')
    await page.keyboard.press('Space')
    await statusOf(upload).toBe('pending')
    await focusOn('Cancel notes.txt')
    await page.keyboard.press('Enter')
    await eventually(() => rows(page).count()).toBe(0)
    await eventually(() => focused(page)).toBe('Choose files')
    await eventually(() => page.locator('#uploads [role=status]').textContent()).toContain('notes.txt: Cancelled')
    await button(page, 'Disarm all').click()
    await eventually(() => page.locator('[data-fault="away"]').getAttribute('data-armed')).toBe('false')
  })

  test('the shown loss begins once, whatever is pressed, and does not wait for an account that is gone', async () => {
    const page = await openAsNewVisitor()
    const showMe = page.locator('#show-me')
    await showMe.evaluate((button: HTMLElement) => {
      button.click()
      button.click()
    })
    await rows(page).first().waitFor()
    await page.locator('#account').selectOption('alice')
    await eventually(() => page.locator('#guide-end').textContent()).toContain('Another account was chosen')
    await page.locator('#account').selectOption('signed-out')
    await eventually(() => showMe.getAttribute('aria-disabled')).not.toBe('true')
    await showMe.click()
    await eventually(() => page.locator('#guide-end').textContent()).toContain('Nobody is signed in')
    await page.locator('#account').selectOption('')
    await statusOf(rows(page).first()).toBe('succeeded')
    expect(await rows(page).count()).toBe(1)
  })

  test('another account sees and sends its own, in every tab; signed out, nothing is taken', async () => {
    const page = await openAsNewVisitor()
    await pick(page, 'notes.txt')
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    const [other] = await Promise.all([page.waitForEvent('popup'), page.getByRole('link', { name: 'Open a second tab' }).click()])
    await eventually(() => rows(other).count()).toBe(1)
    await page.getByLabel('Account').selectOption('alice')
    for (const tab of [page, other]) {
      await eventually(() => rows(tab).count()).toBe(0)
      await total(tab, 'stored').toBe('0')
    }
    await pick(other, 'more.txt')
    for (const tab of [page, other]) await statusOf(row(tab, 'more.txt')).toBe('succeeded')
    await total(page, 'stored').toBe('1')
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'more.txt' }).click()])
    expect(await readFile(await download.path())).toEqual(await readFile(file('more.txt')))

    await page.getByLabel('Account').selectOption('signed-out')
    await eventually(() => page.locator('#banner').textContent()).toContain('Nobody is signed in')
    await pick(page, 'more.txt')
    await eventually(() => page.locator('#uploads [role=alert]').textContent()).toContain('more.txt')
    await page.getByLabel('Account').selectOption('')
    for (const tab of [page, other]) await eventually(() => rows(tab).locator('[part=name]').allTextContents()).toEqual(['notes.txt'])
  })

  test('axe-core finds nothing: empty, busy, broken, stored, light and dark', async () => {
    const page = await openAsNewVisitor()
    await bringAxe(page)
    await page.reload()
    await total(page, 'stored').toBe('0')
    const check = async (state: string): Promise<void> => {
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
        expect(await axeFaults(page), `${state}, ${colorScheme}`).toEqual([])
      }
    }
    await check('empty')
    await arm(page, 'slow')
    await arm(page, 'unavailable')
    await pick(page, 'half a megabyte.bin')
    await statusOf(row(page, 'half a megabyte.bin')).toBe('uploading')
    await pick(page, 'notes.txt', 'too large.iso')
    await eventually(() => state(row(page, 'notes.txt'))).toContain('Next attempt in')
    await openTimeline(page, 'notes.txt')
    await check('busy')
    await arm(page, 'away')
    await eventually(() => page.locator('#banner').isVisible()).toBe(true)
    await check('away')
    await button(page, 'Disarm all').click()
    await button(page, 'Try all now').click()
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    await check('stored')
  })

  test('on a screen 360 px wide nothing is cut off', async () => {
    const page = await openAsNewVisitor()
    await page.setViewportSize({ width: 360, height: 740 })
    // What has nothing to say takes no room.
    expect(await page.locator('.fault-state:visible, .fault-last:visible').count()).toBe(0)
    await pick(page, longName, 'too large.iso')
    await statusOf(rows(page)).toBe('succeeded')
    await openTimeline(page, longName)
    await total(page, 'stored').toBe('1')
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(360)
    for (const list of ['#uploads', '#uploads ul', '#stored', '#faults', '#totals', '#guide', '#notices']) {
      const [inner, outer] = await page.locator(list).evaluate(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])
      expect(inner, list).toBe(outer)
    }
  })
})
