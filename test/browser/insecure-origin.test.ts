import { createHash, randomBytes } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { buildTestPage, type Site } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { openTab } from '../helpers/tab.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

describeWith(programs.chromium, 'on an origin without TLS that is not localhost', () => {
  let folder: TempFolder
  let server: Server
  let chromium: Chromium
  let site: Site

  beforeAll(async () => {
    site = await buildTestPage()
    folder = await makeTempFolder('files')
    server = await startServer()
    chromium = await launchChromium([
      '--host-resolver-rules=MAP insecure.example 127.0.0.1',
      // A page that the test itself hands out has no address, and counts as one from the public network.
      '--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests',
    ])
  })
  afterAll(async () => {
    await chromium?.close()
    await server?.stop()
    await folder?.remove()
  })

  test('there is no crypto.subtle, randomUUID or Web Lock, and files arrive all the same, hashed by script', async () => {
    const account = createAccount(server, 'plain')
    const url = server.url.replace(/\/\/[^:]+/, '//insecure.example')
    const tab = await openTab(chromium, { ...server, url }, site, account)
    expect(await tab.page.evaluate(() => [isSecureContext, 'subtle' in crypto, 'randomUUID' in crypto, 'locks' in navigator])).toEqual(
      Array(4).fill(false),
    )
    const files = await Promise.all(
      [70_000, 3_000_000].map(async (size) => {
        const bytes = randomBytes(size)
        const path = join(folder.path, `${size}.bin`)
        await writeFile(path, bytes)
        return { path, sha256: createHash('sha256').update(bytes).digest('hex') }
      }),
    )
    await tab.enqueue(...files.map(({ path }) => path))
    await expect
      .poll(async () => (await account.state()).media.map(({ sha256 }) => sha256).sort(), { timeout: 30_000 })
      .toEqual(files.map(({ sha256 }) => sha256).sort())
  })
})
