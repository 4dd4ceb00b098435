import puppeteer, { type Page } from 'puppeteer-core'
import type { Engine, EnginePage } from './engine.js'
import { programs } from './programs.js'

/** Nobody is there to answer when a page asks to keep its data. */
const extraPrefsFirefox = { 'dom.storageManager.prompt.testing': true, 'dom.storageManager.prompt.testing.allow': true }

/** Firefox over WebDriver BiDi. */
export const launchFirefox = async (): Promise<Engine> => {
  const browser = await puppeteer.launch({ browser: 'firefox', executablePath: programs.firefox.path!, headless: true, extraPrefsFirefox })
  const newPage = async (): Promise<EnginePage> => pageOf(await browser.newPage())
  return { ...(await newPage()), newPage, close: () => browser.close() }
}

/** A page that puppeteer drives. */
export const pageOf = (page: Page): EnginePage => ({
  async goto(url) {
    await page.goto(url)
  },
  async reload() {
    await page.reload()
  },
  evaluate: <T>(expression: string) => page.evaluate(expression) as Promise<T>,
  close: () => page.close(),
})
