import { buildProgram, startProgram } from '../faults/program.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { type Browser, openBrowser } from './browser.js'
import { entrants, type Name } from './contestants.js'
import type { Files } from './files.js'
import { buildSite } from './site.js'

const receiver = 'test/bench/receiver.ts'

/** Uploads under way at once. */
const atOnce = 6

/** Where contestants run: a server, a folder on disk, and for each run a new browser. */
export interface Hall {
  folder: string
  /** With a browser that shows this page of `page/`. */
  show<Figures>(page: string, run: (browser: Browser) => Promise<Figures>): Promise<Figures>
  /** With a browser on whose page a contestant stands ready, these files picked. `reopen` shows it anew, to take up what was left. */
  visit<Figures>(
    name: Name,
    files: Files | null,
    run: (browser: Browser, reopen: () => Promise<void>) => Promise<Figures>,
  ): Promise<Figures>
  close(): Promise<void>
}

/** `latency`, ms, is added to each upload's answer. */
export async function openHall({ latency = 0 } = {}): Promise<Hall> {
  const site = await buildSite()
  await buildProgram(receiver)
  const { path: folder, remove } = await makeTempFolder('bench')
  const server = await startProgram({ SITE: site, FOLDER: folder, LATENCY: String(latency) }, receiver)

  const show: Hall['show'] = async (page, run) => {
    const browser = await openBrowser()
    try {
      await browser.page.goto(`${server.url}/page/${page}`)
      return await run(browser)
    } finally {
      await browser.close()
    }
  }

  return {
    folder,
    show,
    visit(name, files, run) {
      const { page: script, transport } = entrants[name]
      const setting = { endpoint: `${server.url}/uploads`, transport, atOnce, digests: files?.digests ?? {} }
      return show(script, async (browser) => {
        const { page } = browser
        const input = (await page.$('input'))!
        if (files) await input.uploadFile(...files.paths)
        await page.evaluate((setting) => stage.create(setting), setting)
        return run(browser, async () => {
          await page.goto(`${server.url}/page/${script}?resume=${encodeURIComponent(JSON.stringify(setting))}`)
        })
      })
    },
    async close() {
      await server.kill()
      await remove()
    },
  }
}
