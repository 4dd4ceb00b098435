import { createRequire } from 'node:module'
import type { AxeResults } from 'axe-core'
import type { Page } from 'playwright-core'

declare global {
  var axe: { run(): Promise<AxeResults> }
}

/** Brings axe-core along with every document of a page that is opened from now on, whatever its policy says of scripts. */
export const bringAxe = (page: Page): Promise<unknown> =>
  page.addInitScript({ path: createRequire(import.meta.url).resolve('axe-core/axe.min.js') })

/** What axe-core finds wrong with a page as it is now: a line for each place. */
export const axeFaults = (page: Page): Promise<string[]> =>
  page.evaluate(async () => {
    const { violations } = await axe.run()
    return violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target.join(' ')}: ${failureSummary}`))
  })
