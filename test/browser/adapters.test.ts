import { createHash, randomBytes } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type Account, createAccount } from '../helpers/account.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { openSite, type Site } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'
import { buildAdapterPage } from './adapters/pages.js'

interface Picture {
  name: string
  path: string
  sha256: string
}

describeWith(programs.chromium, 'with the frameworks that people use', () => {
  let folder: TempFolder
  let server: Server
  let chromium: Chromium
  const files: Picture[] = []
  let accounts = 0

  const makeFile = async (name: string, bytes = 50_000): Promise<Picture> => {
    const path = join(folder.path, name)
    const contents = randomBytes(bytes)
    await mkdir(join(path, '..'), { recursive: true })
    await writeFile(path, contents)
    return { name: name.replace(/.*\//, ''), path, sha256: createHash('sha256').update(contents).digest('hex') }
  }

  beforeAll(async () => {
    folder = await makeTempFolder('adapters')
    for (const name of ['one.txt', 'two.txt']) files.push(await makeFile(name))
    server = await startServer({ LEASE_MS: '3000' })
    chromium = await launchChromium()
  })
  afterEach(async () => {
    for (const page of chromium.context.pages().slice(1)) await page.close()
  })
  afterAll(async () => {
    await chromium?.close()
    await server?.stop()
    await folder?.remove()
  })

  const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 40_000, interval: 50 })
  const statuses = (page: Page): Promise<string[]> => page.evaluate(() => queue.getSnapshot().map(({ status }) => status))
  const newAccount = (): Account => createAccount(server, `adapters-${++accounts}`)

  const open = async (site: Site, { name, headers }: Account): Promise<Page> => {
    const page = await chromium.newPage()
    await page.addInitScript((account) => Object.assign(globalThis, { account }), { name, headers })
    await openSite(page, server.url, site)
    await page.waitForFunction(() => globalThis.queue)
    return page
  }

  /** Sends requests to where nothing takes them, until `mend()` is called in the page. */
  const refuse = (page: Page): Promise<void> =>
    page.evaluate(() => {
      const { open } = XMLHttpRequest.prototype
      XMLHttpRequest.prototype.open = function (this: XMLHttpRequest, method: string) {
        open.call(this, method, '/nowhere', true)
      }
      Object.assign(globalThis, { mend: () => Object.assign(XMLHttpRequest.prototype, { open }) })
    })

  /** One object for each picked file, with its bytes. */
  const expectStoredOnce = async (account: Account, expected: Picture[]): Promise<void> => {
    const { media, objects } = await account.state()
    const stored = await Promise.all(media.map(async ({ id, fileName }) => [fileName, await account.digestOfMedia(id)]))
    expect(stored.sort()).toEqual(expected.map(({ name, sha256 }) => [name, sha256]).sort())
    expect(objects).toBe(media.length)
  }

  /** Picks two files; their answers are lost, and the page is reloaded. Both are stored once. */
  const survive = async (page: Page, account: Account, pick: () => Promise<void>, expectRestored: () => Promise<void>): Promise<void> => {
    // Chromium sends a POST again by itself when a reused connection dies, so all are lost until the page has seen one.
    await account.order({ fault: 'lose-answer', times: 1_000 })
    await pick()
    await eventually(() => page.evaluate(() => queue.getSnapshot().some(({ reason }) => reason === 'network'))).toBe(true)
    await eventually(() => account.state().then(({ objects }) => objects)).toBe(2)
    await page.reload()
    await expectRestored()
    await account.endFaults()
    await eventually(() => statuses(page)).toEqual(['succeeded', 'succeeded'])
    expect(await page.evaluate(() => queue.getSnapshot().map(({ replayed }) => replayed))).toEqual([true, true])
    await expectStoredOnce(account, files)
    expect((await account.state()).keys).toHaveLength(2)
  }

  describe('the file picker', () => {
    let site: Site
    beforeAll(async () => {
      site = await buildAdapterPage('file-picker.page.ts')
    })
    const refusals = (page: Page): Promise<string[]> =>
      page.$eval('output', ({ textContent }) => (textContent ?? '').split('\n').filter(Boolean))
    const pathsOf = (page: Page): Promise<(string | undefined)[]> =>
      page.evaluate(() => queue.getSnapshot().map(({ metadata }) => metadata.path))
    const namesOf = (page: Page): Promise<string[]> => page.evaluate(() => queue.getSnapshot().map(({ name }) => name))

    /** As the desktop does it. */
    const drop = async (page: Page, selector: string, ...paths: string[]): Promise<void> => {
      const cdp = await page.context().newCDPSession(page)
      const box = (await page.locator(selector).boundingBox())!
      const at = { x: box.x + box.width / 2, y: box.y + box.height / 2 }
      const data = { items: [], files: paths, dragOperationsMask: 1 }
      await cdp.send('Input.dispatchDragEvent', { type: 'dragEnter', ...at, data })
      await cdp.send('Input.dispatchDragEvent', { type: 'dragOver', ...at, data })
      expect(await page.locator(selector).getAttribute('data-dragging')).toBe('')
      await cdp.send('Input.dispatchDragEvent', { type: 'drop', ...at, data })
      expect(await page.locator(selector).getAttribute('data-dragging')).toBeNull()
    }

    test('two files of an input, their answers lost, the page reloaded: one object each', async () => {
      const account = newAccount()
      const page = await open(site, account)
      const pick = (): Promise<void> =>
        page.setInputFiles(
          '#files',
          files.map(({ path }) => path),
        )
      await survive(page, account, pick, () => eventually(() => namesOf(page)).toEqual(['one.txt', 'two.txt']))
    })

    test('the same file picked twice in a row is two uploads', async () => {
      const account = newAccount()
      const page = await open(site, account)
      for (const count of [1, 2]) {
        await page.setInputFiles('#files', files[0]!.path)
        await eventually(() => statuses(page)).toEqual(Array(count).fill('succeeded'))
      }
      await expectStoredOnce(account, [files[0]!, files[0]!])
    })

    test('a dropped folder of 150 files and folders within is walked to its end, beside a file, and what may not come is told', async () => {
      const account = newAccount()
      const many = await Promise.all(Array.from({ length: 150 }, (_, at) => makeFile(`dropped/many/${at}.txt`, 20)))
      const deep = await makeFile('dropped/one/two/deep.txt', 20)
      const { path: refused } = await makeFile('dropped/one/program.exe', 20)
      const page = await open(site, account)
      await drop(page, '#zone', files[0]!.path, join(folder.path, 'dropped'), files[1]!.path)
      await eventually(() => statuses(page)).toEqual(Array(153).fill('succeeded'))
      const paths = await pathsOf(page)
      expect([paths[0], paths.at(-1)]).toEqual(['', ''])
      const names = [...many.map(({ name }) => `dropped/many/${name}`), 'dropped/one/two/deep.txt']
      expect(paths.slice(1, -1).sort()).toEqual(names.sort())
      expect(await refusals(page)).toEqual([`${refused.replace(/.*\//, '')}: type-not-accepted`])
      await expectStoredOnce(account, [...files, ...many, deep])
    })

    test('a folder picked by an input comes with its paths', async () => {
      const account = newAccount()
      const picked = [await makeFile('picked/a.txt', 20), await makeFile('picked/inner/b.txt', 20)]
      const page = await open(site, account)
      await page.setInputFiles('#folder', join(folder.path, 'picked'))
      await eventually(() => statuses(page)).toEqual(['succeeded', 'succeeded'])
      expect((await pathsOf(page)).sort()).toEqual(['picked/a.txt', 'picked/inner/b.txt'])
      await expectStoredOnce(account, picked)
    })

    test('a pasted picture is uploaded, a pasted text is not', async () => {
      const page = await open(site, newAccount())
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
      const paste = async (text: boolean): Promise<void> => {
        await page.evaluate(async (text) => {
          const canvas = new OffscreenCanvas(8, 8)
          canvas.getContext('2d')
          const content = text
            ? { 'text/plain': new Blob(['hello'], { type: 'text/plain' }) }
            : { 'image/png': await canvas.convertToBlob() }
          await navigator.clipboard.write([new ClipboardItem(content as Record<string, Blob>)])
        }, text)
        await page.locator('#zone').press('Control+v')
      }
      await page.bringToFront()
      await paste(true)
      await paste(false)
      await eventually(() => statuses(page)).toEqual(['succeeded'])
      expect(await namesOf(page)).toEqual(['image.png'])
      expect(await refusals(page)).toEqual([])
    })

    test("pickFiles takes handles of the browser's picker, or files of an input; a cancelled one gives none", async () => {
      const account = newAccount()
      const page = await open(site, account)
      await page.evaluate(async () => {
        const root = await navigator.storage.getDirectory()
        const handle = await root.getFileHandle('handle.txt', { create: true })
        const stream = await handle.createWritable()
        await stream.write('by a handle')
        await stream.close()
        Object.assign(globalThis, { showOpenFilePicker: async () => [handle] })
      })
      await page.click('button')
      await eventually(() => statuses(page)).toEqual(['succeeded'])

      await page.evaluate(() => Object.assign(globalThis, { showOpenFilePicker: () => Promise.reject(new DOMException('', 'AbortError')) }))
      await page.click('button')
      await eventually(() => page.getAttribute('button', 'title')).toBe('0 picked')

      await page.evaluate(() => Object.assign(globalThis, { showOpenFilePicker: undefined }))
      const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.click('button')])
      expect(chooser.isMultiple()).toBe(true)
      await chooser.setFiles(files.map(({ path }) => path))
      await eventually(() => statuses(page)).toEqual(Array(3).fill('succeeded'))
      expect(await page.getAttribute('button', 'title')).toBe('2 picked')
      expect(await namesOf(page)).toEqual(['handle.txt', 'one.txt', 'two.txt'])
    })
  })

  describe('Uppy', () => {
    let site: Site
    beforeAll(async () => {
      site = await buildAdapterPage('uppy.page.ts')
    })
    const items = (page: Page): Promise<string[]> =>
      page.$$eval('.uppy-Dashboard-Item', (items) =>
        items.map((item) => {
          const state = ['is-complete', 'is-error', 'is-paused', 'is-inprogress'].find((name) => item.classList.contains(name))
          return `${item.querySelector('.uppy-Dashboard-Item-name')?.textContent} ${state ?? 'new'}`
        }),
      )
    const told = (page: Page): Promise<string[]> => page.evaluate('told')
    const pick = async (page: Page): Promise<void> => {
      await page
        .locator('.uppy-Dashboard-input')
        .first()
        .setInputFiles(files.map(({ path }) => path))
      await page.click('.uppy-StatusBar-actionBtn--upload')
    }

    test('two files, their answers lost, the page reloaded: the Dashboard shows both and their end, one object each', async () => {
      const account = newAccount()
      const page = await open(site, account)
      await survive(
        page,
        account,
        () => pick(page),
        () => eventually(async () => (await items(page)).sort()).toEqual(['one.txt is-inprogress', 'two.txt is-inprogress']),
      )
      await eventually(async () => (await items(page)).sort()).toEqual(['one.txt is-complete', 'two.txt is-complete'])
      await eventually(async () => (await told(page)).sort()).toEqual(['complete: 2 and 0', 'one.txt is stored', 'two.txt is stored'])
      expect(await page.textContent('.uppy-StatusBar')).toContain('Complete')
    })

    test('what is refused is shown, and tried again by its button, with the same key', async () => {
      const account = newAccount()
      const page = await open(site, account)
      await refuse(page)
      await pick(page)
      await eventually(async () => (await items(page)).sort()).toEqual(['one.txt is-error', 'two.txt is-error'])
      const keys = await page.evaluate(() => queue.getSnapshot().map(({ idempotencyKey }) => idempotencyKey))
      await page.evaluate('mend()')
      await page.click('.uppy-StatusBar-actionBtn--retry')
      await eventually(async () => (await items(page)).sort()).toEqual(['one.txt is-complete', 'two.txt is-complete'])
      expect((await account.state()).keys.map(({ key }) => key).sort()).toEqual(keys.sort())
      await expectStoredOnce(account, files)
    })

    test('pause, resume and removal are those of the upload, across a reload; a destroyed Uppy leaves it alone', async () => {
      const account = newAccount()
      await account.order({ fault: 'unavailable', times: 1_000, seconds: 1 })
      const page = await open(site, account)
      await pick(page)
      await page.click('.uppy-StatusBar-actionCircleBtn[title="Pause"]')
      await eventually(() => statuses(page)).toEqual(['paused', 'paused'])
      await page.reload()
      await eventually(async () => (await items(page)).length).toBe(2)
      expect(await page.evaluate('uppy.getFiles().map(({ isPaused }) => isPaused)')).toEqual([true, true])
      await page.evaluate(`uppy.removeFile(uppy.getFiles().find(({ name }) => name === 'two.txt').id)`)
      await eventually(() => statuses(page)).toEqual(['paused'])
      await account.endFaults()
      await page.evaluate('uppy.destroy()')
      await page.evaluate(() => queue.resume())
      await eventually(() => statuses(page)).toEqual(['succeeded'])
      await expectStoredOnce(account, [files[0]!])
    })
  })

  describe('FilePond', () => {
    let site: Site
    beforeAll(async () => {
      site = await buildAdapterPage('filepond.page.ts')
    })
    const items = (page: Page): Promise<string[]> =>
      page.$$eval('.filepond--item', (items) =>
        items.map(
          (item) => `${item.querySelector('.filepond--file-info-main')?.textContent} ${item.getAttribute('data-filepond-item-state')}`,
        ),
      )
    const form = (page: Page): Promise<string[]> =>
      page.evaluate(() =>
        new FormData(document.querySelector('form') as HTMLFormElement)
          .getAll('files')
          .filter((value) => typeof value === 'string' && value !== '')
          .map(String),
      )
    const pick = (page: Page): Promise<void> =>
      page.setInputFiles(
        '.filepond--browser',
        files.map(({ path }) => path),
      )

    test('two files, their answers lost, the page reloaded: the pond shows both and their end, one object each, and the form has their ids', async () => {
      const account = newAccount()
      const page = await open(site, account)
      await survive(
        page,
        account,
        () => pick(page),
        () =>
          eventually(async () => (await items(page)).sort()).toEqual([
            expect.stringMatching(/^one.txt /),
            expect.stringMatching(/^two.txt /),
          ]),
      )
      await eventually(async () => (await items(page)).sort()).toEqual(['one.txt processing-complete', 'two.txt processing-complete'])
      const { media } = await account.state()
      await eventually(async () => (await form(page)).sort()).toEqual(media.map(({ id }) => id).sort())
      expect(await page.evaluate('pond.getFiles().map(({ fileSize }) => fileSize)')).toEqual([50_000, 50_000])
    })

    test('what is refused is shown, and tried again, with the same key; removed, it is cancelled', async () => {
      const account = newAccount()
      const page = await open(site, account)
      await refuse(page)
      await pick(page)
      await eventually(async () => (await items(page)).sort()).toEqual(['one.txt processing-error', 'two.txt processing-error'])
      const keys = await page.evaluate(() =>
        queue
          .getSnapshot()
          .filter(({ name }) => name === 'one.txt')
          .map(({ idempotencyKey }) => idempotencyKey),
      )
      await page.evaluate('mend()')
      await page.evaluate(`pond.removeFile(pond.getFiles().find(({ filename }) => filename === 'two.txt'))`)
      await page.evaluate('pond.processFiles()')
      await eventually(() => items(page)).toEqual(['one.txt processing-complete'])
      await eventually(() => statuses(page)).toEqual(['succeeded'])
      expect((await account.state()).keys.map(({ key }) => key)).toEqual(keys)
      await expectStoredOnce(account, [files[0]!])
    })

    test('a destroyed pond leaves its uploads alone, a file removed on its way is cancelled', async () => {
      const account = newAccount()
      await account.order({ fault: 'unavailable', times: 1_000, seconds: 1 })
      const page = await open(site, account)
      await pick(page)
      await eventually(async () => (await statuses(page)).length).toBe(2)
      await page.evaluate(`pond.removeFile(pond.getFiles().find(({ filename }) => filename === 'two.txt'))`)
      await eventually(() => page.evaluate(() => queue.getSnapshot().map(({ name }) => name))).toEqual(['one.txt'])
      await page.evaluate('pond.destroy()')
      await account.endFaults()
      await eventually(() => statuses(page)).toEqual(['succeeded'])
      await expectStoredOnce(account, [files[0]!])
    })
  })
})
