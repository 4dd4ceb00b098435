import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { launchChromiumEngine } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { type Engine, type EnginePage, run } from '../helpers/engine.js'
import { launchFirefox } from '../helpers/firefox.js'
import { buildTestPage, type SiteServer, serveSite } from '../helpers/page.js'
import { bytesOf } from '../helpers/page-tools.js'
import { type Program, programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { eventually } from '../helpers/stage.js'

/** Done in the page before anything else: the feature is not there. */
const missing = {
  'crypto.subtle': `Object.defineProperty(Crypto.prototype, 'subtle', { value: undefined })`,
  randomUUID: `delete Crypto.prototype.randomUUID`,
  'navigator.locks': `Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })`,
  BroadcastChannel: `delete globalThis.BroadcastChannel`,
  'navigator.serviceWorker': `delete Navigator.prototype.serviceWorker`,
  SyncManager: `delete globalThis.SyncManager; if ('ServiceWorkerRegistration' in globalThis) delete ServiceWorkerRegistration.prototype.sync`,
  'navigator.storage': `delete Navigator.prototype.storage`,
  Worker: `delete globalThis.Worker`,
} satisfies Record<string, string>

/** What the page on it tells of, in its order, and how a large file is hashed under each. */
const guide = readFileSync(new URL('../../demo/docs/content-security-policy.md', import.meta.url), 'utf8')
const policies = [...guide.matchAll(/^```http\nContent-Security-Policy: (.+)\n```$/gm)].map(([, policy]) => policy!)
const underPolicies: [name: string, isWasmAllowed: boolean, way: string][] = [
  ['without wasm-unsafe-eval: a large file is hashed in the worker, by script', false, 'digest.worker'],
  ['with wasm-unsafe-eval: a large file is hashed in the worker', true, 'digest.worker'],
  ['without workers: a large file is hashed on the page', false, 'digest-by-script'],
  ['with Trusted Types: a large file is hashed on the page, where the browser knows them', false, 'trusted'],
]

test('every policy of the page on them is tried', () => {
  expect(policies).toHaveLength(underPolicies.length)
})

const sizes = [200, 3_000_000]
const digests = sizes.map((size) => createHash('sha256').update(bytesOf(size)).digest('hex'))

const testEngine = (program: Program, name: string, launch: () => Promise<Engine>): void =>
  describeWith(program, `a page in ${name} that may not do everything`, () => {
    let engine: Engine
    let server: Server
    let plain: SiteServer
    let accounts = 0
    const headers = policies.map((): Record<string, string> => ({}))
    const strict: SiteServer[] = []

    beforeAll(async () => {
      const site = await buildTestPage()
      const page = new TextDecoder().decode(site.get(''))
      for (const [feature, script] of Object.entries(missing))
        site.set(`${feature}.html`, new TextEncoder().encode(page.replace('<title>', `<script>${script}</script><title>`)))
      plain = await serveSite(site, {})
      for (const own of headers) strict.push(await serveSite(site, own))
      server = await startServer({ ALLOWED_ORIGINS: [plain, ...strict].map(({ url }) => url).join(',') })
      for (const [at, policy] of policies.entries()) headers[at]!['Content-Security-Policy'] = `${policy}; connect-src 'self' ${server.url}`
      engine = await launch()
    })
    afterAll(async () => {
      await engine?.close()
      await server?.stop()
      for (const site of [plain, ...strict]) await site?.stop()
    })

    const open = async (url: string): Promise<EnginePage> => {
      await engine.goto(url)
      await eventually(() => engine.evaluate<boolean>(`'uponce' in globalThis`)).toBe(true)
      return engine
    }

    /** A small and a large file arrive as they were, hashed as told. */
    const expectUploads = async (page: EnginePage, site: SiteServer, expectedWays: string[]): Promise<void> => {
      const before = site.requests.length
      const account = createAccount(server, `account-${++accounts}`)
      const results = await run(
        page,
        async ({ endpoint, name, headers, sizes }) => {
          const queue = uponce.createUploadQueue({ endpoint, name, headers })
          const uploads = sizes.map(async (size) => {
            const bytes = Uint8Array.from({ length: size }, (_, at) => at * 31 + (at >> 8))
            return (await queue.enqueue(new File([bytes], `${size}.bin`))).done
          })
          const results = await Promise.all(uploads)
          await queue.close()
          return results.map((result) => (result as unknown as { sha256: string }).sha256)
        },
        { endpoint: `${server.url}/uploads`, name: account.name, headers: account.headers, sizes },
      )
      expect(results).toEqual(digests)
      const { media, objects } = await account.state()
      expect(objects).toBe(2)
      for (const { id, bytes } of media) expect(await account.digestOfMedia(id)).toBe(digests[sizes.indexOf(bytes)])
      const loaded = site.requests.slice(before)
      const ways = ['digest.worker', 'digest-by-script'].filter((way) => loaded.some((path) => path.startsWith(way)))
      expect(ways).toEqual(expectedWays)
    }

    test.each(underPolicies)('a Content-Security-Policy %s', async (name, isWasmAllowed, way) => {
      const site = strict[underPolicies.findIndex(([each]) => each === name)]!
      const page = await open(site.url)
      const compiling = run(page, () => WebAssembly.compile(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0)).then(() => 'allowed', String))
      expect(await compiling).toMatch(isWasmAllowed ? /^allowed/ : /^CompileError/)
      const trusted = (await run(page, () => 'trustedTypes' in globalThis)) ? 'digest-by-script' : 'digest.worker'
      await expectUploads(page, site, [way === 'trusted' ? trusted : way])
    })

    test.each(Object.keys(missing))('a page without %s has a queue that works', async (feature) => {
      const page = await open(`${plain.url}/${feature}.html`)
      const ways: Record<string, string[]> = { Worker: ['digest-by-script'], 'crypto.subtle': ['digest.worker', 'digest-by-script'] }
      await expectUploads(page, plain, ways[feature] ?? ['digest.worker'])
    })
  })

testEngine(programs.chromium, 'Chromium', launchChromiumEngine)
testEngine(programs.firefox, 'Firefox', launchFirefox)
