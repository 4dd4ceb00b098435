import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type BuildOptions, build } from 'esbuild'
import type { Page } from 'playwright-core'

declare global {
  /** The built package, in the test page. */
  var uponce: typeof import('uponce')
}

const root = fileURLToPath(new URL('../../', import.meta.url))
const dist = `${root}dist/`
const manifest: { exports: Record<string, { default: string } | string> } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))
const fileOf = (target: (typeof manifest.exports)[string] | undefined): string => root + (target as { default: string }).default.slice(2)
const blank =
  '<!doctype html><meta charset="utf-8"><title>uponce test</title><input type="file" multiple><script type="module" src="page.js"></script>'

/** Files of a site, by path without the leading slash; '' is the page itself. */
export type Site = Map<string, Uint8Array>

/** A script that uses the built package, as an app's bundler makes it. */
export const bundleForSite = async (options: BuildOptions): Promise<Site> => {
  if (!existsSync(`${dist}index.js`)) throw new Error('These tests use the built package: npm run build comes first.')
  const entries = Object.keys(manifest.exports).filter((entry) => entry.startsWith('./') && !entry.endsWith('.json'))
  const { outputFiles = [] } = await build({
    alias: {
      uponce: `${dist}index.js`,
      ...Object.fromEntries(entries.map((entry) => [`uponce${entry.slice(1)}`, fileOf(manifest.exports[entry])])),
    },
    outdir: dist,
    bundle: true,
    splitting: true,
    format: 'esm',
    target: 'es2022',
    write: false,
    ...options,
  })
  return new Map(outputFiles.map(({ path, contents }) => [path.slice(dist.length), contents]))
}

/** A page with its script, `page.js`; what the package loads when needed lies beside it. */
export const buildPage = async (html: string, options: BuildOptions): Promise<Site> => {
  const script = await bundleForSite(options)
  const own = readdirSync(dist).filter((name) => name.endsWith('.js'))
  return new Map([
    ['', new TextEncoder().encode(html)],
    ...own.map((name): [string, Uint8Array] => [name, readFileSync(dist + name)]),
    ...script,
  ])
}

/** A blank page with a file input that exposes the built package as `uponce`. */
export const buildTestPage = (): Promise<Site> =>
  buildPage(blank, {
    stdin: { contents: `import * as uponce from 'uponce'; globalThis.uponce = uponce`, sourcefile: 'page.js', resolveDir: dist },
    entryNames: 'page',
  })

const types: Record<string, string> = { '': 'text/html', '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css' }
const typeOf = (path: string): string => types[extname(path)] ?? 'application/octet-stream'

/**
 * Shows a site below /uponce-test/ on the origin of the real server, and tells which of its paths were asked for. Only these requests are
 * answered here; by CDP and not by `page.route`, which would pass every request of the page, uploads too, through Playwright.
 */
export const openSite = async (page: Page, origin: string, site: Site, headers: Record<string, string> = {}): Promise<string[]> => {
  const prefix = `${origin}/uponce-test/`
  const requests: string[] = []
  const cdp = await page.context().newCDPSession(page)
  cdp.on('Fetch.requestPaused', ({ requestId, request }) => {
    const path = request.url.slice(prefix.length)
    requests.push(path)
    const body = site.get(path)
    const answer = {
      requestId,
      responseCode: body ? 200 : 404,
      responseHeaders: Object.entries({ 'Content-Type': typeOf(path), ...headers }).map(([name, value]) => ({ name, value })),
      body: Buffer.from(body ?? '').toString('base64'),
    }
    cdp.send('Fetch.fulfillRequest', answer).catch(() => {}) // the page is gone
  })
  await cdp.send('Fetch.enable', { patterns: [{ urlPattern: `${prefix}*` }] })
  await page.goto(prefix)
  return requests
}

/** Opens the test page on the origin of the real server. */
export const openTestPage = async (page: Page, origin: string, site: Site): Promise<void> => {
  await openSite(page, origin, site)
  await page.waitForFunction(() => 'uponce' in globalThis)
}

export interface SiteServer {
  url: string
  /** Paths asked for, in order. */
  requests: string[]
  stop(): Promise<void>
}

/** Serves a site on an origin of its own. */
export const serveSite = async (site: Site, headers: Record<string, string> = {}): Promise<SiteServer> => {
  const requests: string[] = []
  const server = createServer((request, response) => {
    const path = new URL(request.url ?? '/', 'http://localhost').pathname.slice(1)
    requests.push(path)
    const body = site.get(path)
    response.writeHead(body ? 200 : 404, { 'Content-Type': typeOf(path), 'Cache-Control': 'no-store', ...headers }).end(body)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://localhost:${(server.address() as AddressInfo).port}`,
    requests,
    async stop() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}
