import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium, type Page } from 'playwright-core'
import { startServer } from './server/server.js'

// `npm run picture`: the demo page as the last build makes it, in each of its states, light and dark, wide and narrow: in .build/pictures, to be
// looked at. The README's two are in .github. CHROMIUM names the browser's program.

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url))
const folder = here('../.build/pictures')
const kept: Record<string, string> = { 'done-light': here('../.github/demo.png'), 'done-dark': here('../.github/demo-dark.png') }

const pick = (page: Page, ...files: [name: string, size: number][]): Promise<void> =>
  page.setInputFiles(
    '#uploads input',
    files.map(([name, size]) => ({ name, mimeType: 'application/octet-stream', buffer: Buffer.alloc(size, name) })),
  )
const arm = async (page: Page, fault: string): Promise<void> => {
  await page.locator(`[data-fault="${fault}"]`).click()
  await page.locator(`[data-fault="${fault}"][data-armed="true"]`).waitFor()
}
const untilState = (page: Page, text: RegExp | string): Promise<void> => page.locator('#uploads li').getByText(text).first().waitFor()

/** How the page is brought into each state. */
const states: Record<string, (page: Page) => Promise<void>> = {
  empty: async () => {},
  async busy(page) {
    await arm(page, 'slow')
    await pick(page, ['holiday film.mp4', 8_000_000])
    await untilState(page, / MB of 8 MB/)
    await arm(page, 'unavailable')
    await pick(page, ['boarding pass.pdf', 240_000], ['garden.jpg', 3_100_000])
    await untilState(page, /Next attempt in/)
  },
  async offline(page) {
    await arm(page, 'away')
    // Small ones: for those above 1 MiB the code that hashes them would have to be loaded first.
    await pick(page, ['boarding pass.pdf', 240_000], ['garden.jpg', 310_000], ['notes.txt', 4_000])
    await page.getByText('3 waiting for the network').waitFor()
  },
  async failed(page) {
    const problem = { status: 415, contentType: 'application/problem+json', body: '{"title":"No films"}' }
    await page.route('**/uploads', (route) => route.fulfill(problem))
    await pick(page, ['holiday film.mp4', 800_000])
    await untilState(page, /Failed/)
    await page.unroute('**/uploads')
    await pick(page, ['garden.jpg', 310_000])
    await untilState(page, 'Done')
  },
  async done(page) {
    await page.getByRole('button', { name: 'Show me: lose an answer' }).click()
    await page.locator('#guide-end').waitFor()
  },
}

const dataDir = await mkdtemp(join(tmpdir(), 'uponce-picture-'))
const server = await startServer({ port: 0, host: '127.0.0.1', dataDir, faults: true })
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', chromiumSandbox: false })
try {
  await mkdir(folder, { recursive: true })
  for (const colorScheme of ['light', 'dark'] as const)
    for (const [state, reach] of Object.entries(states)) {
      // Each its own visitor, with nothing stored.
      const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme, reducedMotion: 'reduce' })
      await page.goto(server.url)
      await page.locator('[data-total="stored"]').getByText('0').waitFor()
      await reach(page)
      const name = `${state}-${colorScheme}`
      await page.screenshot({ path: kept[name] ?? join(folder, `${name}.png`), fullPage: true })
      await page.setViewportSize({ width: 360, height: 780 })
      await page.screenshot({ path: join(folder, `${name}-narrow.png`), fullPage: true })
      if (state === 'offline') await page.getByRole('button', { name: 'Disarm all' }).click()
      await page.close()
    }
} finally {
  await browser.close()
  await server.close()
  await rm(dataDir, { recursive: true, force: true })
}
