import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, readFile, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Locator, Page } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
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
  const rows = (page: Page): Locator => page.locator('#uploads > li')
  const row = (page: Page, name: string): Locator => rows(page).filter({ hasText: name })
  const statusOf = (locator: Locator) => eventually(() => locator.getAttribute('data-status'))
  const total = (page: Page, name: string) => eventually(() => page.locator(`[data-total="${name}"]`).textContent())
  const pick = (page: Page, ...names: string[]): Promise<void> => page.setInputFiles('#files', names.map(file))
  const button = (scope: Page | Locator, name: string): Locator => scope.getByRole('button', { name })
  const arm = async (page: Page, fault: string): Promise<void> => {
    await page.click(`[data-fault="${fault}"]`)
    await eventually(() => page.locator(`[data-fault="${fault}"]`).getAttribute('data-armed')).toBe('true')
  }

  test('a lost answer ends in a replay, and the server holds one row with the same digest', async () => {
    const page = await openAsNewVisitor()
    await arm(page, 'lose-answer')
    expect(await page.locator('[data-fault="lose-answer"]').textContent()).toContain('Armed: next one')
    await pick(page, 'notes.txt')
    const upload = row(page, 'notes.txt')
    await statusOf(upload).toBe('succeeded')
    expect(await upload.locator('.state').textContent()).toContain('the stored answer was replayed')

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

    await button(upload, 'Story of notes.txt').click()
    await eventually(() => upload.locator('.sentence').textContent()).toMatch(
      /^The answer was lost → .+ → the server replayed its stored answer → one object exists$/,
    )
    expect(await upload.locator('.lines li').last().textContent()).toContain('replayed its stored answer')

    const bytes = await readFile(file('notes.txt'))
    const link = await stored.locator('a').getAttribute('href')
    const download = await chromium.context.request.get(server.url + link)
    expect(
      createHash('sha256')
        .update(await download.body())
        .digest('hex'),
    ).toBe(createHash('sha256').update(bytes).digest('hex'))
  })

  test('one click shows the whole story', async () => {
    const page = await openAsNewVisitor()
    await button(page, 'Show me: lose an answer').click()
    await statusOf(rows(page).first()).toBe('succeeded')
    await eventually(() => rows(page).locator('.sentence').textContent()).toContain('one object exists')
    await total(page, 'stored').toBe('1')
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
    expect(await upload.locator('.buttons button:visible').allTextContents()).toEqual(['Story'])

    await arm(page, 'unavailable')
    await pick(page, 'notes.txt')
    const refused = row(page, 'notes.txt')
    await eventually(() => refused.locator('.state').textContent()).toMatch(/^Next attempt in \d.*: the server answered 503$/)
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
    await eventually(() => row(page, 'notes.txt').locator('.state').textContent()).toContain('Next attempt in')
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
    const alert = page.getByRole('alert')
    await eventually(() => alert.textContent()).toContain('file-too-large')
    expect(await alert.textContent()).toContain('too large.iso')

    const cdp = await chromium.context.newCDPSession(page)
    const data = { items: [], files: [file('a folder'), file('notes.txt')], dragOperationsMask: 1 }
    for (const type of ['dragEnter', 'dragOver', 'drop'] as const) await cdp.send('Input.dispatchDragEvent', { type, x: 300, y: 300, data })
    await eventually(() => alert.textContent()).toContain('file-unreadable')
    expect(await alert.textContent()).toContain('a folder')
    await statusOf(rows(page)).toBe('succeeded')
    await button(alert, 'Dismiss').click()
    expect(await alert.count()).toBe(0)
    await page.reload()
    await statusOf(rows(page)).toBe('succeeded')
    expect(await rows(page).locator('.name').allTextContents()).toEqual(['notes.txt'])
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
    await eventually(() => row(page, 'notes.txt').locator('.state').textContent()).toContain('the server answered 429')
    const other = await openTab()
    await eventually(() => row(other, 'notes.txt').locator('.state').textContent()).toContain('Next attempt in')
    await page.reload()
    for (const tab of [page, other]) await statusOf(row(tab, 'notes.txt')).toBe('succeeded')
    await button(row(page, 'notes.txt'), 'Story').click()
    expect(await row(page, 'notes.txt').locator('.lines').textContent()).toContain('The server answered 429')
    await total(other, 'stored').toBe('1')
  })

  test('while the server is away the page says so, and goes on when it is back', async () => {
    const page = await openAsNewVisitor()
    await total(page, 'stored').toBe('0')
    await arm(page, 'away')
    await pick(page, 'notes.txt')
    await eventually(() => page.locator('#banner').textContent()).toContain('The server cannot be reached')
    await eventually(() => row(page, 'notes.txt').locator('.state').textContent()).toContain('Waits until the server can be reached')
    await pick(page, 'more.txt')
    await eventually(() => row(page, 'more.txt').locator('.state').textContent()).toMatch(/^Waits until the server can be reached/)
    await button(page, 'Disarm all').click()
    await button(page, 'Try all now').click()
    await statusOf(row(page, 'notes.txt')).toBe('succeeded')
    await statusOf(row(page, 'more.txt')).toBe('succeeded')
    await eventually(() => page.locator('#banner').isVisible()).toBe(false)
    await total(page, 'stored').toBe('2')
  })

  test('a server that is killed while a file is sent: questions what became of it are one line, and count as nothing', async () => {
    const own = await startServer({ LEASE_MS: '25000' })
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
      await button(upload, 'Story').click()
      await eventually(() => upload.locator('.lines').textContent()).toMatch(
        /The server was asked (\d+ times )?what became of it: still busy/,
      )
      await eventually(() => upload.locator('.facts > span').first().textContent()).toMatch(/^\d attempts? counted, \d+ in all$/)
      expect(await upload.locator('.facts > span').first().getAttribute('title')).toContain('Counted attempts use up the limit of 10')
      await statusOf(upload).toBe('succeeded')
      const lines = await upload.locator('.lines li').allTextContents()
      expect(lines.filter((line) => line.includes('still busy'))).toHaveLength(1)
      expect(lines.slice(-2).join()).toMatch(/The file is sent again, with the same key.*Succeeded: the server stored it/)
      await eventually(() => upload.locator('.sentence').textContent()).toMatch(
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
    await eventually(() => row(page, 'notes.txt').locator('.state').textContent()).toContain('Waits until the server can be reached')
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
    await eventually(() => row(page, 'ten megabytes.bin').locator('.state').textContent()).toMatch(/^\S+ MB of 10 MB have left$/)
    expect(Number(await row(page, 'ten megabytes.bin').locator('progress').getAttribute('value'))).toBeGreaterThan(0)
    await button(row(page, 'ten megabytes.bin'), 'Cancel').click()
    await eventually(() => rows(page).count()).toBe(0)
  })

  test('everything can be done with the keyboard, and the focus is never lost', async () => {
    const page = await openAsNewVisitor()
    const focusOn = async (wanted: string): Promise<void> => {
      for (let presses = 0; presses < 40; presses++) {
        await page.keyboard.press('Tab')
        const focused = await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent)
        if (focused?.includes(wanted)) return
      }
      throw new Error(`Tab does not reach ${wanted}`)
    }
    await total(page, 'stored').toBe('0')
    await focusOn('Server away')
    await page.keyboard.press('Enter')
    await eventually(() => page.locator('[data-fault="away"]').getAttribute('data-armed')).toBe('true')
    await pick(page, 'notes.txt')
    const upload = row(page, 'notes.txt')
    await eventually(() => upload.locator('.state').textContent()).toContain('Waits until the server can be reached')
    await focusOn('Pause notes.txt')
    await page.keyboard.press('Space')
    await statusOf(upload).toBe('paused')
    expect(await page.evaluate(() => document.activeElement?.getAttribute('aria-label'))).toBe('Resume notes.txt')
    await page.keyboard.press('Space')
    await statusOf(upload).toBe('pending')
    await focusOn('Cancel notes.txt')
    await page.keyboard.press('Enter')
    await eventually(() => rows(page).count()).toBe(0)
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('uploads')
    await eventually(() => page.locator('#live').textContent()).toContain('notes.txt is gone')
    await button(page, 'Disarm all').click()
    await eventually(() => page.locator('[data-fault="away"]').getAttribute('data-armed')).toBe('false')
  })

  test('on a screen 360 px wide nothing is cut off', async () => {
    const page = await openAsNewVisitor()
    await page.setViewportSize({ width: 360, height: 740 })
    // What has nothing to say takes no room.
    expect(await page.locator('.fault-state:visible, .fault-last:visible').count()).toBe(0)
    await pick(page, longName, 'too large.iso')
    await statusOf(rows(page)).toBe('succeeded')
    await button(rows(page), 'Story').click()
    await total(page, 'stored').toBe('1')
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(360)
    for (const list of ['#uploads', '#stored', '#faults', '#totals', '#notices']) {
      const [inner, outer] = await page.locator(list).evaluate(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])
      expect(inner, list).toBe(outer)
    }
  })
})
