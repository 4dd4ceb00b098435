import { createHash, randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import type { TransportRequest } from 'uponce'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type Account, createAccount } from '../helpers/account.js'
import { axeFaults, bringAxe } from '../helpers/axe.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { openSite, type Site } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'
import { buildAdapterPage } from './adapters/pages.js'

declare global {
  /** The requests that the page has parked, of uploads and others. */
  var parked: TransportRequest[]
}

describeWith(programs.chromium, '<upload-queue>', () => {
  let folder: TempFolder
  let server: Server
  let chromium: Chromium
  let site: Site
  let accounts = 0
  const digests: string[] = []
  const path = (name: string): string => join(folder.path, name)

  beforeAll(async () => {
    folder = await makeTempFolder('element')
    for (const name of ['one.txt', 'two.txt']) {
      const contents = randomBytes(50_000)
      await writeFile(path(name), contents)
      digests.push(createHash('sha256').update(contents).digest('hex'))
    }
    await writeFile(path('large.bin'), randomBytes(2_000_000))
    server = await startServer({ LEASE_MS: '3000' })
    chromium = await launchChromium()
    site = await buildAdapterPage('element.page.ts')
  })
  afterEach(async () => {
    await chromium.context.setOffline(false)
    for (const page of chromium.context.pages().slice(1)) await page.close()
  })
  afterAll(async () => {
    await chromium?.close()
    await server?.stop()
    await folder?.remove()
  })

  const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 40_000, interval: 50 })
  const newAccount = (): Account => createAccount(server, `element-${++accounts}`)
  /** Where an attempt that failed is made again after a minute, nothing moves while a test looks. */
  const patient = { options: { retry: { baseDelay: 60_000, maxDelay: 60_000 } } }
  const open = async ({ name, headers }: Account, globals: object = {}): Promise<Page> => {
    const page = await chromium.newPage()
    await bringAxe(page)
    await page.addInitScript((globals) => Object.assign(globalThis, globals), { account: { name, headers }, ...globals })
    await openSite(page, server.url, site)
    await page.waitForFunction(() => globalThis.queue)
    return page
  }
  const pick = (page: Page, ...names: string[]): Promise<void> => page.setInputFiles('upload-queue input', names.map(path))
  const states = (page: Page): Promise<string[]> =>
    page.$$eval('upload-queue li', (rows) =>
      rows.map((row) => ['name', 'state'].map((part) => row.querySelector(`[part=${part}]`)?.textContent).join(': ')),
    )
  /** The name of what has the focus. */
  const focused = (page: Page): Promise<string | null | undefined> =>
    page.evaluate(() => {
      const inner = document.querySelector('upload-queue')?.shadowRoot?.activeElement
      return inner?.getAttribute('aria-label') ?? inner?.textContent
    })

  test('two files, an answer lost, the page reloaded: both are shown and end done, one object each', async () => {
    const account = newAccount()
    // A browser may send a request again by itself; all are lost until the page has noticed.
    await account.order({ fault: 'lose-answer', times: 1_000 })
    const page = await open(account)
    await pick(page, 'one.txt', 'two.txt')
    await eventually(() => account.state().then(({ objects }) => objects)).toBe(2)
    await eventually(async () => (await states(page)).join()).toMatch(/Next attempt in .* No readable answer/)
    await page.reload()
    await eventually(async () => (await states(page)).map((state) => state.replace(/: .*/, ''))).toEqual(['two.txt', 'one.txt'])
    await account.endFaults()
    await eventually(() => states(page)).toEqual(['two.txt: Done', 'one.txt: Done'])
    const { media, objects } = await account.state()
    expect(media.map(({ sha256 }) => sha256).sort()).toEqual([...digests].sort())
    expect(objects).toBe(2)
    expect(await page.textContent('upload-queue [part=totals]')).toContain('2 of 2 files done')
  })

  test('everything is done by the keyboard: pick, pause, resume, cancel, retry, clear', async () => {
    const account = newAccount()
    await account.order({ fault: 'server-error', times: 1_000 })
    const page = await open(account, patient)
    const tabTo = async (name: string, key = 'Tab'): Promise<void> => {
      for (let presses = 0; presses < 20; presses++) {
        await page.keyboard.press(key)
        if ((await focused(page)) === name) return
      }
      throw new Error(`${key} does not reach ${name}, but ${await focused(page)}`)
    }
    const readOut = (): Promise<string | null> => page.textContent('upload-queue [role=status]')
    // Asked for in time: the browser is told to pass it on only then.
    const chooser = page.waitForEvent('filechooser')
    await tabTo('Choose files')
    await page.keyboard.press('Enter')
    await (await chooser).setFiles(['one.txt', 'two.txt'].map(path))
    await eventually(async () => (await states(page)).join()).toMatch(/two.txt: Next attempt .*one.txt: Next attempt/)
    await tabTo('Pause two.txt')
    await page.keyboard.press('Space')
    await eventually(() => focused(page)).toBe('Resume two.txt')
    await page.keyboard.press('Space')
    await eventually(() => focused(page)).toBe('Pause two.txt')
    await tabTo('Cancel two.txt')
    await page.keyboard.press('Enter')
    await eventually(async () => (await states(page)).length).toBe(1)
    await eventually(readOut).toContain('two.txt: Cancelled')
    // The row that has taken the place of the one that went.
    await eventually(() => focused(page)).toContain('one.txt')
    await account.endFaults()
    await tabTo('Try now one.txt')
    await page.keyboard.press('Enter')
    await eventually(() => states(page)).toEqual(['one.txt: Done'])
    await eventually(readOut).toContain('one.txt: Done')
    await eventually(() => focused(page)).toContain('one.txt')
    await tabTo('Clear done', 'Shift+Tab')
    await page.keyboard.press('Enter')
    await eventually(() => states(page)).toEqual([])
    await eventually(() => focused(page)).toBe('Choose files')
  })

  test('of 1,000 rows only those are touched whose bytes move, and nothing grows', async () => {
    const page = await open(newAccount(), { isParking: true })
    await page.evaluate(() => queue.enqueueAll(Array.from({ length: 1_000 }, (_, at) => new File([`${at}`], `${at}.txt`))))
    await eventually(() => page.locator('upload-queue li').count()).toBe(1_000)
    await eventually(() => page.evaluate(() => parked.length)).toBe(5)
    await eventually(() => page.locator('upload-queue li[data-status=uploading]').count()).toBe(5)
    const cdp = await chromium.context.newCDPSession(page)
    await cdp.send('Performance.enable')
    const counts = async (): Promise<Record<string, number>> => {
      await cdp.send('HeapProfiler.collectGarbage')
      const { metrics } = await cdp.send('Performance.getMetrics')
      return Object.fromEntries(metrics.map(({ name, value }) => [name, value]))
    }
    const before = await counts()
    const { touched, renders, longest } = await page.evaluate(async () => {
      const list = document.querySelector('upload-queue')?.shadowRoot?.querySelector('ul') as HTMLElement
      const touched = new Set<string | undefined>()
      let renders = 0
      const observer = new MutationObserver((records) => {
        renders++
        for (const { target } of records)
          touched.add((target instanceof HTMLElement ? target : target.parentElement)?.closest('li')?.dataset.status)
      })
      observer.observe(list, { subtree: true, childList: true, attributes: true, characterData: true })
      const tasks: number[] = []
      new PerformanceObserver((entries) => tasks.push(...entries.getEntries().map(({ duration }) => duration))).observe({
        type: 'longtask',
      })
      for (let step = 1; step <= 40; step++) {
        for (const { onProgress } of parked) onProgress(step, 100)
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
      observer.disconnect()
      return { touched: [...touched], renders, longest: Math.max(0, ...tasks) }
    })
    expect(touched).toEqual(['uploading'])
    expect(renders).toBeGreaterThan(5)
    const after = await counts()
    console.log(
      `1,000 rows, 40 reports of 5 uploads: ${renders} renders, the longest task ${longest} ms, ${JSON.stringify({
        script: (after.ScriptDuration! - before.ScriptDuration!).toFixed(3),
        layout: (after.LayoutDuration! - before.LayoutDuration!).toFixed(3),
        style: (after.RecalcStyleDuration! - before.RecalcStyleDuration!).toFixed(3),
      })} s`,
    )
    expect(after.Nodes! - before.Nodes!).toBeLessThan(100)
    expect(after.JSEventListeners! - before.JSEventListeners!).toBeLessThan(10)
  })

  test("light or dark is the system's, unless the page says otherwise; colours and parts are the page's to set", async () => {
    const page = await open(newAccount())
    const style = (selector: string, property: 'backgroundColor' | 'borderRadius'): Promise<string> =>
      page.locator(selector).evaluate((element, property) => getComputedStyle(element)[property], property)
    const [light, dark] = ['rgb(36, 86, 211)', 'rgb(140, 176, 255)']
    const button = 'upload-queue button[value=pick]'
    for (const [colorScheme, own, color] of [
      ['light', '', light],
      ['dark', '', dark],
      ['light', 'dark', dark],
      ['dark', 'light', light],
    ] as const) {
      await page.emulateMedia({ colorScheme })
      await page.evaluate((own) => Object.assign((document.querySelector('upload-queue') as HTMLElement).style, { colorScheme: own }), own)
      expect(await style(button, 'backgroundColor'), `${colorScheme}, ${own}`).toBe(color)
    }
    await page.addStyleTag({
      content: 'upload-queue { --upload-queue-accent: rgb(1, 2, 3) } upload-queue::part(pick) { border-radius: 1px }',
    })
    expect(await style(button, 'backgroundColor')).toBe('rgb(1, 2, 3)')
    expect(await style(button, 'borderRadius')).toBe('1px')
  })

  test('a long name, shown and read out, makes the page no wider', async () => {
    const page = await open(newAccount())
    await page.setViewportSize({ width: 360, height: 640 })
    await page.evaluate(() => queue.enqueue(new File([], `${'long'.repeat(50)}.txt`)))
    await eventually(() => page.textContent('upload-queue [role=status]')).toContain('longlong')
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(360)
  })

  test('200 files of 2 MB that are dropped on an element which is removed while they are saved are all there after a reload', async () => {
    const page = await open(newAccount())
    /** Nobody answers there: nothing is sent, and all stays in the queue. */
    const show = (): Promise<void> =>
      page.evaluate(() => {
        const element = document.createElement('upload-queue')
        element.id = 'own'
        element.setAttribute('multiple', '')
        element.setAttribute('name', 'own')
        element.setAttribute('endpoint', 'http://127.0.0.1:9/')
        document.body.append(element)
      })
    await show()
    const saved = await page.evaluate(async () => {
      const element = document.querySelector<HTMLElementTagNameMap['upload-queue']>('#own')!
      const bytes = new Uint8Array(2_000_000)
      const data = new DataTransfer()
      for (let at = 0; at < 200; at++) data.items.add(new File([bytes], `${at}.bin`))
      const zone = element.shadowRoot?.querySelector('[part=zone]')
      const { queue } = element
      zone?.dispatchEvent(new DragEvent('drop', { bubbles: true, composed: true, cancelable: true, dataTransfer: data }))
      await new Promise((resolve) => element.addEventListener('added', resolve, { once: true }))
      element.remove()
      return queue?.getSnapshot().length
    })
    expect(saved).toBeLessThan(200)
    const stored = (): Promise<number> =>
      page.evaluate(async () => {
        const database = await new Promise<IDBDatabase>((resolve, reject) => {
          const opening = indexedDB.open('uponce:own')
          opening.onsuccess = () => resolve(opening.result)
          opening.onerror = () => reject(opening.error)
        })
        const counts = await Promise.all(
          [...database.objectStoreNames].map(
            (name) =>
              new Promise<number>((resolve) => {
                const counting = database.transaction(name).objectStore(name).count()
                counting.onsuccess = () => resolve(counting.result)
              }),
          ),
        )
        database.close()
        return Math.max(...counts)
      })
    await eventually(stored).toBe(200)
    await page.reload()
    await page.waitForFunction(() => globalThis.queue)
    await show()
    await eventually(() => page.locator('#own li').count()).toBe(200)
    const names = await page.locator('#own [part=name]').allTextContents()
    expect(new Set(names).size).toBe(200)
  })

  test('moved into an iframe it keeps its style, and its uploads', async () => {
    const page = await open(newAccount())
    await pick(page, 'one.txt')
    await eventually(() => states(page)).toEqual(['one.txt: Done'])
    await page.evaluate(() => {
      const frame = document.body.appendChild(document.createElement('iframe'))
      frame.contentDocument?.body.append(document.querySelector('upload-queue') as Element)
    })
    const inside = page.frameLocator('iframe').locator('upload-queue')
    await eventually(() => inside.locator('[part=state]').allTextContents()).toEqual(['Done'])
    const background = inside.locator('button[value=pick]').evaluate((button) => getComputedStyle(button).backgroundColor)
    expect(await background).toBe('rgb(36, 86, 211)')
  })

  test('axe-core finds nothing: empty, busy, offline, failed, blocked, done, light and dark, from left and from right', async () => {
    const account = newAccount()
    const page = await open(account, patient)
    const check = async (state: string): Promise<void> => {
      for (const colorScheme of ['light', 'dark'] as const)
        for (const dir of ['ltr', 'rtl']) {
          await page.emulateMedia({ colorScheme })
          await page.evaluate((dir) => Object.assign(document.documentElement, { dir }), dir)
          expect(await axeFaults(page), `${state}, ${colorScheme}, ${dir}`).toEqual([])
        }
    }
    await check('empty')

    await account.order({ fault: 'slow', times: 1 })
    await account.order({ fault: 'server-error', times: 1_000 })
    await pick(page, 'large.bin')
    await eventually(async () => (await states(page)).join()).toMatch(/large.bin: .* MB of 2 MB/)
    await pick(page, 'one.txt')
    await eventually(async () => (await states(page)).join()).toContain('one.txt: Next attempt')
    await check('busy')
    await page.evaluate(() => Promise.all(queue.getSnapshot().map(({ id }) => queue.cancel(id))))
    await account.endFaults()

    await chromium.context.setOffline(true)
    await pick(page, 'one.txt', 'two.txt')
    await eventually(() => page.textContent('upload-queue [part=badge]')).toBe('2 waiting for the network')
    await check('offline')
    await page.evaluate(() => Object.assign(globalThis, { signedOut: true }))
    await chromium.context.setOffline(false)
    await eventually(() => states(page)).toEqual(['two.txt: Waiting for a sign-in', 'one.txt: Waiting for a sign-in'])
    await check('blocked')

    await page.evaluate(() => {
      Reflect.deleteProperty(globalThis, 'signedOut')
      const { open } = XMLHttpRequest.prototype
      XMLHttpRequest.prototype.open = function (this: XMLHttpRequest, method: string) {
        open.call(this, method, '/nowhere', true)
      }
      Object.assign(globalThis, { mend: () => Object.assign(XMLHttpRequest.prototype, { open }) })
    })
    await page.getByRole('button', { name: 'Resume all' }).click()
    await eventually(async () => (await states(page)).join()).toMatch(/two.txt: Failed. .*one.txt: Failed. /)
    await check('failed')

    await page.evaluate('mend()')
    await page.getByRole('button', { name: 'Retry one.txt' }).click()
    await page.getByRole('button', { name: 'Retry two.txt' }).click()
    await eventually(() => states(page)).toEqual(['two.txt: Done', 'one.txt: Done'])
    await check('done')
  })
})
