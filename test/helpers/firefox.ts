import puppeteer from 'puppeteer-core'
import type { Engine } from './engine.js'
import { programs } from './programs.js'

/** Firefox over WebDriver BiDi. */
export const launchFirefox = async (): Promise<Engine> => {
  const browser = await puppeteer.launch({ browser: 'firefox', executablePath: programs.firefox.path!, headless: true })
  const page = await browser.newPage()
  return {
    async goto(url) {
      await page.goto(url)
    },
    evaluate: <T>(expression: string) => page.evaluate(expression) as Promise<T>,
    close: () => browser.close(),
  }
}
