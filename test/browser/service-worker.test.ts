import { fileURLToPath } from 'node:url'
import type { CDPSession, Page } from 'playwright-core'
import type { UploadQueueOptions } from 'uponce'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { syncInBackground } from '../../src/service-worker.js'
import { type Account, createAccount } from '../helpers/account.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { type Front, startFront } from '../helpers/front.js'
import { buildTestPage, bundleForSite, type Site } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'

declare global {
  var serviceWorkerEntry: { syncInBackground: typeof syncInBackground }
}

const resolveDir = fileURLToPath(new URL('.', import.meta.url))
const tagOf = ({ name }: Account): string => `uponce:${name}`

/** An app's worker, which tells the test what it sends. As a module whose parts are loaded when needed: a worker must not need any later. */
const worker = `
  import { serveUploads } from 'uponce/service-worker'
  const name = new URL(location.href).searchParams.get('account')
  const tell = (message) => fetch('/told', { method: 'POST', body: JSON.stringify({ account: name, ...message }) })
  addEventListener('sync', () => void tell({ kind: 'sync' }))
  serveUploads({
    endpoint: '/uploads',
    name,
    async headers(upload) {
      await tell({ kind: 'worker', key: upload.idempotencyKey })
      return { Authorization: 'Bearer ' + name }
    },
  })
`
const page = `
  import * as entry from 'uponce/service-worker'
  globalThis.serviceWorkerEntry = entry
`

const html =
  '<!doctype html><base href="/uponce-test/"><meta charset="utf-8"><script type="module" src="page.js"></script><script type="module" src="own-page.js"></script>'

/** The test page with both sides of the entry on top. */
const buildSite = async (): Promise<Site> => {
  const site = await buildTestPage()
  for (const [name, contents] of Object.entries({ worker, page })) {
    const script = await bundleForSite({
      stdin: { contents, sourcefile: `${name}.js`, resolveDir },
      entryNames: `own-${name}`,
      chunkNames: `own-${name}-[hash]`,
    })
    for (const [path, text] of script) site.set(path, text)
  }
  return site
}

const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 30_000, interval: 50 })

describeWith(programs.chromium, 'a service worker that serves uploads', () => {
  let server: Server
  let site: Site
  let front: Front
  let chromium: Chromium
  /** A page of no site, which keeps the browser open and commands the workers. */
  let cdp: CDPSession
  let account: Account
  let accounts = 0
  let held: Promise<void> | undefined
  let release = (): void => {}
  /** By the account in its script's address. */
  const registrations = new Map<string, string>()

  beforeAll(async () => {
    server = await startServer({ LEASE_MS: '2000' })
    site = await buildSite()
    front = await startFront(server, site, () => held ?? 0)
    chromium = await launchChromium()
    cdp = await chromium.context.newCDPSession(await chromium.newPage())
    cdp.on('ServiceWorker.workerVersionUpdated', ({ versions }) => {
      for (const { scriptURL, registrationId } of versions)
        registrations.set(new URL(scriptURL).searchParams.get('account') ?? '', registrationId)
    })
    await cdp.send('ServiceWorker.enable')
  })

  beforeEach(() => {
    account = createAccount(server, `worker-${++accounts}`)
    site.set(`${account.name}/`, new TextEncoder().encode(html))
  })

  afterEach(async () => {
    release()
    await chromium.context.setOffline(false)
    for (const page of chromium.context.pages().slice(2)) await page.close()
  })

  afterAll(async () => {
    await chromium?.close()
    await front?.stop()
    await server?.stop()
  })

  const hold = (): void => {
    held = new Promise((resolve) => {
      release = () => {
        held = undefined
        resolve()
      }
    })
  }

  /** A page below the account's own address, which is the scope of its worker. */
  const openPage = async (options: Partial<UploadQueueOptions<never>> = {}): Promise<Page> => {
    const page = await chromium.newPage()
    await page.goto(`${front.url}/uponce-test/${account.name}/`)
    const untilLoaded = () => page.waitForFunction(() => 'uponce' in globalThis && 'serviceWorkerEntry' in globalThis)
    await untilLoaded()
    await page.evaluate(async (name) => {
      await navigator.serviceWorker.register(`own-worker.js?account=${name}`, { type: 'module', scope: `${name}/` })
      await navigator.serviceWorker.ready
    }, account.name)
    // Meanwhile what the worker does as it is activated comes to its end, or it would take up what follows.
    await page.reload()
    await untilLoaded()
    await page.evaluate(
      async ({ name, headers, options }) => {
        globalThis.queue = uponce.createUploadQueue({ endpoint: '/uploads', name, headers, ...options })
        serviceWorkerEntry.syncInBackground(queue, { name })
        await queue.ready()
      },
      { name: account.name, headers: account.headers, options },
    )
    return page
  }

  const enqueue = (page: Page, sizes: number[]): Promise<string[]> =>
    page.evaluate(async (sizes) => {
      const uploads = await queue.enqueueAll(sizes.map((size) => new File([new Uint8Array(size).fill(7)], `${size}.bin`)))
      return uploads.map(({ id }) => queue.get(id)!.idempotencyKey)
    }, sizes)

  const dispatchSync = async (): Promise<void> => {
    const { origin } = new URL(front.url)
    const registrationId = registrations.get(account.name) ?? ''
    await cdp.send('ServiceWorker.dispatchSyncEvent', { origin, registrationId, tag: tagOf(account), lastChance: false })
  }

  /** What this account's worker has told. */
  const toldBy = (kind: string): unknown[] =>
    front.told.filter((message) => message.account === account.name && message.kind === kind).map(({ key }) => key)
  const sentByWorker = (): unknown[] => toldBy('worker')
  const stored = async (): Promise<string[]> => (await account.state()).media.map(({ key }) => key)

  test('a page that was closed offline has its files sent by the worker when the network is back, each once', async () => {
    const page = await openPage()
    await chromium.context.setOffline(true)
    const keys = await enqueue(page, [3_000, 200_000])
    await page.waitForFunction(() => {
      const uploads = queue.getSnapshot()
      return uploads.every(({ status }) => status === 'pending') && uploads.some(({ reason }) => reason === 'network')
    })
    // A page that goes before the browser has noted its wish leaves the files to the next page.
    await page.waitForFunction(async () => {
      const { sync } = (await navigator.serviceWorker.ready) as unknown as { sync: { getTags(): Promise<string[]> } }
      return (await sync.getTags()).length > 0
    })
    await page.close()
    expect(front.passages.filter(({ key }) => keys.includes(key))).toEqual([])
    await chromium.context.setOffline(false)
    await eventually(stored).toHaveLength(2)
    expect((await stored()).sort()).toEqual(keys.sort())
    expect(sentByWorker().sort()).toEqual(keys)
    expect((await account.state()).objects).toBe(2)
  })

  test('a page that is closed in the middle leaves the rest to the worker, under the same key', async () => {
    const page = await openPage()
    hold()
    const [key] = await enqueue(page, [3_000])
    await eventually(() => front.passages.some((passage) => passage.key === key)).toBe(true)
    await page.close()
    await eventually(sentByWorker).toEqual([key])
    release()
    const next = await openPage()
    await next.waitForFunction(() => queue.getSnapshot()[0]?.status === 'succeeded')
    const { media, objects, keys } = await account.state()
    expect([media.length, objects, keys.length]).toEqual([1, 1, 1])
  })

  test('a large file that no page has hashed is hashed by the worker, which may load no code any more', async () => {
    const page = await openPage({ autoStart: false })
    const [key] = await enqueue(page, [2_500_000])
    await dispatchSync()
    await eventually(stored).toEqual([key])
    await page.waitForFunction(() => queue.getSnapshot()[0]?.status === 'succeeded')
    expect(sentByWorker()).toEqual([key])
  })

  test('a worker killed in the middle of an upload sends it later under the same key, and one object exists', async () => {
    const page = await openPage({ autoStart: false })
    const [key] = await enqueue(page, [3_000])
    await page.close()
    hold()
    await dispatchSync()
    const passages = () => front.passages.filter((passage) => passage.key === key)
    await eventually(() => passages().length).toBe(1)
    await eventually(stored).toEqual([key])
    await cdp.send('ServiceWorker.stopAllWorkers')
    await eventually(() => passages()[0]?.isOver).toBe(true)
    release()
    await dispatchSync()
    await eventually(() => passages().length).toBe(2)
    const next = await openPage({ autoStart: false })
    await next.waitForFunction(() => queue.getSnapshot()[0]?.status === 'succeeded')
    expect(await next.evaluate(() => queue.getSnapshot()[0]?.replayed)).toBe(true)
    expect([await stored(), (await account.state()).objects]).toEqual([[key], 1])
    expect(sentByWorker()).toEqual([key, key])
  })

  test('a page that runs the queue and a sync event at the same time send each file once', async () => {
    const page = await openPage({ concurrency: 2 })
    hold()
    const keys = await enqueue(page, [1_000, 2_000, 3_000, 4_000, 5_000, 6_000])
    await eventually(() => front.passages.filter((passage) => keys.includes(passage.key)).length).toBe(2)
    await dispatchSync()
    await eventually(() => toldBy('sync').length).toBe(1)
    release()
    await page.waitForFunction(() => queue.getSnapshot().every(({ status }) => status === 'succeeded'))
    expect(front.passages.map(({ key }) => key).filter((key) => keys.includes(key))).toEqual(keys)
    expect([front.overlaps.filter((key) => keys.includes(key)), sentByWorker()]).toEqual([[], []])
    expect([(await stored()).length, (await account.state()).objects]).toEqual([6, 6])
  })
})
