import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import type { Site } from '../../helpers/page.js'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const dist = `${root}dist/`
const html = `<!doctype html><html lang="en"><meta charset="utf-8"><title>uponce with</title><link rel="stylesheet" href="page.css">
  <body><script type="module" src="page.js"></script></body></html>`

/** The page of an adapter with its framework, and the built package; what it loads when needed lies beside it. */
export async function buildAdapterPage(name: string): Promise<Site> {
  if (!existsSync(`${dist}index.js`)) throw new Error('These tests use the built package: npm run build comes first.')
  const { outputFiles } = await build({
    entryPoints: [{ in: fileURLToPath(new URL(name, import.meta.url)), out: 'page' }],
    alias: {
      uponce: `${dist}index.js`,
      ...Object.fromEntries(
        ['file-picker', 'react', 'uppy', 'filepond'].map((entry) => [`uponce/${entry}`, `${dist}adapters/${entry}.js`]),
      ),
    },
    define: { 'process.env.NODE_ENV': '"development"' },
    outdir: dist,
    bundle: true,
    splitting: true,
    format: 'esm',
    target: 'es2022',
    write: false,
  })
  const own = readdirSync(dist).filter((file) => file.endsWith('.js'))
  return new Map([
    ['', new TextEncoder().encode(html)],
    ['page.css', new Uint8Array()],
    ...own.map((file): [string, Uint8Array] => [file, readFileSync(dist + file)]),
    ...outputFiles.map(({ path, contents }): [string, Uint8Array] => [path.slice(dist.length), contents]),
  ])
}
