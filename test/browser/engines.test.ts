import { createHash } from 'node:crypto'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import type { Engine } from '../helpers/engine.js'
import { launchFirefox } from '../helpers/firefox.js'
import { buildTestPage, type SiteServer, serveSite } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { launchWebKit } from '../helpers/webkit.js'

const launchChromiumEngine = async (): Promise<Engine> => {
  const chromium = await launchChromium()
  const page = await chromium.newPage()
  return {
    async goto(url) {
      await page.goto(url)
    },
    evaluate: (expression) => page.evaluate(expression),
    close: () => chromium.close(),
  }
}

const engines = [
  { program: programs.chromium, launch: launchChromiumEngine },
  { program: programs.firefox, launch: launchFirefox },
  { program: programs.webKit, launch: launchWebKit },
]

const bytes = Uint8Array.from({ length: 200_000 }, (_, index) => index)
const sha256 = createHash('sha256').update(bytes).digest('hex')

let site: SiteServer
let server: Server

beforeAll(async () => {
  site = await serveSite(await buildTestPage())
  server = await startServer({ ALLOWED_ORIGINS: site.url })
})

afterAll(async () => {
  await server?.stop()
  await site?.stop()
})

for (const { program, launch } of engines)
  describeWith(program, `in ${program.name}, from another origin`, () => {
    let engine: Engine

    beforeAll(async () => {
      engine = await launch()
    })

    afterAll(async () => {
      await engine?.close()
    })

    test('a file of every byte value is stored as it was', async () => {
      await engine.goto(`${site.url}/`)
      const receipt = await engine.evaluate(`(async () => {
        while (!globalThis.uponce) await new Promise((resolve) => setTimeout(resolve, 20))
        const queue = uponce.createUploadQueue({
          endpoint: ${JSON.stringify(`${server.url}/uploads`)},
          headers: { Authorization: 'Bearer ${program.name}' },
        })
        const bytes = Uint8Array.from({ length: ${bytes.length} }, (_, index) => index)
        const upload = await queue.enqueue(new File([bytes], 'every byte.bin'))
        try {
          return await upload.done
        } catch (error) {
          return { failed: error.code, message: error.message }
        } finally {
          await queue.close()
        }
      })()`)
      expect(receipt).toMatchObject({ sha256, bytes: bytes.length })
      const { media } = await createAccount(server, program.name).state()
      expect(media).toMatchObject([{ sha256, bytes: bytes.length, fileName: 'every byte.bin' }])
    })
  })
