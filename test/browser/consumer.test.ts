import { execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { copyFile, mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build as esbuild } from 'esbuild'
import { createServer as createViteServer, build as vite } from 'vite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { openSite, type Site } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

const html =
  '<!doctype html><meta charset="utf-8"><title>app</title><input type="file"><output></output><script type="module" src="./main.js"></script>'
const main = `
import { createUploadQueue } from 'uponce'

const queue = createUploadQueue({ endpoint: '/uploads' })
const show = (value) => { document.querySelector('output').textContent = JSON.stringify(value) }
queue.on('blocked', ({ error }) => show({ error: error.code }))
document.querySelector('input').addEventListener('change', async (event) => {
  const upload = await queue.enqueue(event.target.files[0])
  upload.done.then(show, (error) => show({ error: error.code ?? String(error) }))
})
`

describeWith(programs.chromium, 'an app that installed the packed package', () => {
  let folder: TempFolder
  let server: Server
  let chromium: Chromium
  const app = (path: string): string => join(folder.path, path)

  beforeAll(async () => {
    folder = await makeTempFolder('consumer')
    await installPackage(folder.path)
    await writeFile(app('package.json'), JSON.stringify({ name: 'app', private: true, type: 'module' }))
    await writeFile(app('index.html'), html)
    await writeFile(app('main.js'), main)
    server = await startServer()
    chromium = await launchChromium()
  })

  afterAll(async () => {
    await chromium?.close()
    await server?.stop()
    await folder?.remove()
  })

  const expectUploadThroughWorker = async (site: Site): Promise<void> => {
    const bytes = randomBytes(3_000_000)
    const sha256 = createHash('sha256').update(bytes).digest('hex')
    const page = await chromium.newPage()
    await page.addInitScript(() => {
      const violations: string[] = []
      Object.assign(globalThis, { violations })
      document.addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) =>
        violations.push(`${violatedDirective} ${blockedURI}`),
      )
    })
    await page.goto(server.url) // gives the visitor's cookie
    const requests = await openSite(page, server.url, site, { 'Content-Security-Policy': "default-src 'self'" })
    await page.setInputFiles('input', { name: 'three.bin', mimeType: 'application/octet-stream', buffer: bytes })
    await page.waitForFunction(() => document.querySelector('output')?.textContent)
    const receipt = JSON.parse((await page.textContent('output')) ?? '')
    expect(receipt).toMatchObject({ sha256, bytes: bytes.length })
    expect(requests.filter((path) => /digest\.worker[^/]*\.js$/.test(path))).toHaveLength(1)
    expect(await page.evaluate(() => (globalThis as unknown as { violations: string[] }).violations)).toEqual([])
    await page.close()
  }

  test('built by Vite, under a strict Content-Security-Policy, it hashes a large file in the worker and uploads it', async () => {
    await vite({ root: folder.path, configFile: false, base: './', logLevel: 'warn', build: { outDir: 'vite', modulePreload: false } })
    await expectUploadThroughWorker(await readSite(app('vite')))
  })

  test('built by esbuild, with the worker copied beside the bundle, it does the same', async () => {
    await esbuild({ entryPoints: [app('main.js')], outdir: app('esbuild'), bundle: true, minify: true, splitting: true, format: 'esm' })
    await copyFile(app('index.html'), app('esbuild/index.html'))
    await copyFile(app('node_modules/uponce/dist/digest.worker.js'), app('esbuild/digest.worker.js'))
    await expectUploadThroughWorker(await readSite(app('esbuild')))
  })

  /** What README.md says, from an empty folder on: the packed package, the twelve lines, Vite's server as it comes, its proxy. */
  test('the lines of README.md, in a new app on the development server of Vite: a lost answer, a reload, and one object', async () => {
    const readme = await readFile(join(root, 'README.md'), 'utf8')
    const [, lines = ''] = /^## In an app$.*?^```js\n(.*?)^```$/ms.exec(readme) ?? []
    const [, headers] = /say who you are, `(headers: [^`]+)`/.exec(readme) ?? []
    const [, proxy] = /with Vite\s+`server: (\{[^`]+\})`/.exec(readme) ?? []
    expect([lines, headers, proxy].every(Boolean), 'README.md has changed its form').toBe(true)
    await mkdir(app('new'))
    await writeFile(app('new/main.js'), lines.replace("endpoint: '/uploads' ", `endpoint: '/uploads', ${headers} `))
    await writeFile(app('new/index.html'), '<input type="file" multiple><script type="module" src="main.js"></script>')
    await writeFile(app('new/vite.config.js'), `export default { server: ${proxy?.replace('http://localhost:3000', server.url)} }`)
    const dev = await createViteServer({ root: app('new'), logLevel: 'silent', server: { port: 0 } })
    try {
      await dev.listen()
      const account = createAccount(server, 'me')
      await account.order({ fault: 'lose-answer', times: 1_000 })
      const said: string[] = []
      const page = await chromium.newPage()
      page.on('console', (message) => said.push(message.text()))
      const asked: string[] = []
      page.on('request', (request) => asked.push(request.url()))
      await page.goto(dev.resolvedUrls!.local[0]!)
      await page.waitForLoadState('networkidle')
      await page.setInputFiles('input', { name: 'two.bin', mimeType: 'application/octet-stream', buffer: randomBytes(2_000_000) })
      const objects = async (): Promise<number> => (await account.state()).objects
      await expect.poll(objects, { timeout: 20_000, interval: 50 }).toBe(1)
      await page.reload()
      await account.endFaults()
      await expect.poll(() => said.filter((line) => line.startsWith('two.bin')).length, { timeout: 20_000, interval: 50 }).toBe(1)
      const { media, keys } = await account.state()
      expect(said).toContain(`two.bin is stored as ${media[0]!.id}`)
      expect([await objects(), media.length, keys.length]).toEqual([1, 1, 1])
      expect(keys[0]!.requests.at(-1)).toMatchObject({ replayed: true })
      expect(asked.filter((url) => url.includes('digest.worker'))).toHaveLength(1)
      await page.close()
    } finally {
      await dev.close()
    }
  })
})

/** As npm would: the packed files in node_modules, and the dependencies beside them. */
const installPackage = async (folder: string): Promise<void> => {
  const pack = ['pack', '--silent', '--ignore-scripts', '--pack-destination', folder]
  const tarball = execFileSync('npm', pack, { cwd: root, encoding: 'utf8' }).trim()
  const installed = join(folder, 'node_modules/uponce')
  await mkdir(installed, { recursive: true })
  execFileSync('tar', ['--extract', '--gzip', '--strip-components=1', `--file=${join(folder, tarball)}`, `--directory=${installed}`])
  const { dependencies } = JSON.parse(await readFile(join(installed, 'package.json'), 'utf8'))
  for (const name of Object.keys(dependencies)) {
    const link = join(folder, 'node_modules', name)
    await mkdir(join(link, '..'), { recursive: true })
    await symlink(join(root, 'node_modules', name), link)
  }
}

const readSite = async (folder: string): Promise<Site> => {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const site: Site = new Map()
  for (const path of files) site.set(relative(folder, path).replace(/^index\.html$/, ''), await readFile(path))
  return site
}
