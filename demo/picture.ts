import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'
import { startServer } from './server/server.js'

// `npm run picture`: the README's picture of the demo page, taken of what the last build does. CHROMIUM names the browser's program.

const target = fileURLToPath(new URL('../.github/demo.png', import.meta.url))
const dataDir = await mkdtemp(join(tmpdir(), 'uponce-picture-'))
const server = await startServer({ port: 0, host: '127.0.0.1', dataDir, faults: true })
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', chromiumSandbox: false })
try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } })
  await page.goto(server.url)
  await page.getByRole('button', { name: 'Show me: lose an answer' }).click()
  await page.getByText('one object exists').first().waitFor({ timeout: 60_000 })
  await page.screenshot({ path: target, fullPage: true })
} finally {
  await browser.close()
  await server.close()
  await rm(dataDir, { recursive: true, force: true })
}
