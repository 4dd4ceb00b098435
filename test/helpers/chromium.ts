import { type BrowserContext, chromium, type Page } from 'playwright-core'
import { expect } from 'vitest'
import type { Engine, EnginePage } from './engine.js'
import { programs } from './programs.js'
import { makeTempFolder } from './temp-folder.js'

export interface Chromium {
  /** Changes at each restart. */
  readonly context: BrowserContext
  newPage(): Promise<Page>
  /** Ends the browser and starts it again on the same profile, so with the same IndexedDB. */
  restart(): Promise<void>
  /** Fails when any page has thrown an error that nobody caught, or left a rejection unhandled. */
  close(): Promise<void>
}

/** Without the last ones Chromium knocks at the network by itself. */
export const quietArgs = [
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

export const launchChromium = async (ownArgs: string[] = []): Promise<Chromium> => {
  const profile = await makeTempFolder('chromium')
  const pageErrors: string[] = []
  const launch = (): Promise<BrowserContext> =>
    chromium.launchPersistentContext(profile.path, {
      executablePath: programs.chromium.path!,
      headless: true,
      chromiumSandbox: false,
      args: [...quietArgs, ...ownArgs],
    })
  let context = await launch()
  return {
    get context() {
      return context
    },
    async newPage() {
      const page = await context.newPage()
      page.on('pageerror', (error) => pageErrors.push(error.stack ?? error.message))
      return page
    },
    async restart() {
      await context.close()
      context = await launch()
    },
    async close() {
      await context.close()
      await profile.remove()
      expect(pageErrors, 'errors that no one caught in a page').toEqual([])
    },
  }
}

/** The same as an engine among others. */
export const launchChromiumEngine = async (): Promise<Engine> => {
  const chromium = await launchChromium()
  const newPage = async (): Promise<EnginePage> => pageOf(await chromium.newPage())
  return { ...(await newPage()), newPage, close: () => chromium.close() }
}

const pageOf = (page: Page): EnginePage => ({
  async goto(url) {
    await page.goto(url)
  },
  async reload() {
    await page.reload()
  },
  evaluate: (expression) => page.evaluate(expression),
  close: () => page.close(),
})
