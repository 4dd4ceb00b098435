import type { Page } from 'playwright-core'
import type { Upload, UploadQueue } from 'uponce'
import type { Account } from './account.js'
import type { Chromium } from './chromium.js'
import { openTestPage, type Site } from './page.js'
import type { Server } from './server.js'

declare global {
  /** The queue of the tab. */
  var queue: UploadQueue
}

/** An upload request that a page made. */
export interface Attempt {
  key: string | undefined
  sha256: string | undefined
}

/** A tab on the server's own origin, where the account's queue runs. */
export interface Tab {
  page: Page
  attempts: Attempt[]
  /** Picks files by the file input and enqueues them. Returns their keys. */
  enqueue(...paths: string[]): Promise<string[]>
  uploads(): Promise<readonly Upload[]>
  /** Makes the page's line slow for what it sends; -1 lifts the limit. */
  throttle(bytesPerSecond: number): Promise<void>
}

export const openTab = async (chromium: Chromium, server: Server, site: Site, { name, headers }: Account): Promise<Tab> => {
  const page = await chromium.newPage()
  const attempts: Attempt[] = []
  page.on('request', (request) => {
    const sent = request.headers()
    if (request.method() === 'POST') attempts.push({ key: sent['idempotency-key'], sha256: sent['x-file-sha256'] })
  })
  await openTestPage(page, server.url, site)
  const cdp = await page.context().newCDPSession(page)
  const options = { endpoint: '/uploads', name, headers }
  await page.evaluate((options) => {
    globalThis.queue = uponce.createUploadQueue(options)
  }, options)
  return {
    page,
    attempts,
    async enqueue(...paths) {
      await page.setInputFiles('input', paths)
      return page.evaluate(async () => {
        const files = document.querySelector('input')?.files ?? []
        const uploads = await Promise.all(Array.from(files, (file) => queue.enqueue(file)))
        return uploads.map(({ id }) => queue.get(id)!.idempotencyKey)
      })
    },
    uploads: () => page.evaluate(() => queue.getSnapshot()),
    async throttle(uploadThroughput) {
      await cdp.send('Network.enable')
      await cdp.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput })
    },
  }
}
