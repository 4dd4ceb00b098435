import puppeteer, { type CDPSession, type Page } from 'puppeteer-core'
import { programs } from '../helpers/programs.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { createProcesses, type Processes } from './processes.js'

export interface Browser {
  version: string
  processes: Processes
  page: Page
  /** Of the page. */
  tools: CDPSession
  close(): Promise<void>
}

/**
 * Chromium on a profile of its own on disk. It reports no requests: an observed request costs more than a bare one, and those with a buffer
 * as their body many times more.
 */
export async function openBrowser(): Promise<Browser> {
  const profile = await makeTempFolder('bench-profile')
  const browser = await puppeteer.launch({
    executablePath: programs.chromium.path!,
    userDataDir: profile.path,
    pipe: true,
    networkEnabled: false,
    protocolTimeout: 600_000,
    args: ['--no-sandbox', '--disable-quic'],
    ignoreDefaultArgs: ['--disable-dev-shm-usage'],
  })
  const [page = await browser.newPage()] = await browser.pages()
  return {
    version: await browser.version(),
    processes: createProcesses(browser.process()!.pid!),
    page,
    tools: await page.createCDPSession(),
    async close() {
      await browser.close()
      await profile.remove()
    },
  }
}
