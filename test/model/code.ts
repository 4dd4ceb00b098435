import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { build, type Plugin } from 'esbuild'
import type { createUploadHandler } from '../../demo/server/handler.js'
import type { createIdempotency } from '../../demo/server/idempotency.js'
import type { createMemoryKeys } from '../../demo/server/keys.js'
import type { createUploadQueue } from '../../src/queue.js'
import type { serveUploads } from '../../src/serve.js'
import type { xhrTransport } from '../../src/transport.js'

/** In a file of the product `from`, which it says exactly once, becomes `to`. */
export interface Swap {
  /** From the root of the repository. */
  file: string
  from: string
  to: string
}

/** What a page has loaded. */
export interface Page {
  createUploadQueue: typeof createUploadQueue
  xhrTransport: typeof xhrTransport
  serveUploads: typeof serveUploads
}

/** What a server process has loaded. */
export interface Program {
  createUploadHandler: typeof createUploadHandler
  createIdempotency: typeof createIdempotency
  createMemoryKeys: typeof createMemoryKeys
}

/** The product, loaded as often as there are pages and processes: each has its own timers, clock and network. */
export interface Code {
  loadPage(globals: Globals): Page
  loadProgram(globals: Globals): Program
}

/** What the code takes for the global object. */
export type Globals = Record<string, unknown>

/** The names that the code finds in a realm's globals, and nowhere else. */
const names = [
  'Date',
  'addEventListener',
  'clearInterval',
  'clearTimeout',
  'crypto',
  'fetch',
  'indexedDB',
  'navigator',
  'performance',
  'queueMicrotask',
  'removeEventListener',
  'setInterval',
  'setTimeout',
  'AbortController',
  'Blob',
  'BroadcastChannel',
  'Headers',
  'Request',
  'Response',
  'Worker',
  'XMLHttpRequest',
]

const at = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))

const swapping = (swaps: readonly Swap[]): Plugin => ({
  name: 'swapping',
  setup({ onLoad, onEnd }) {
    const left = new Set(swaps)
    onLoad({ filter: /\.ts$/ }, async ({ path }) => {
      const own = swaps.filter(({ file }) => at(file) === path)
      let contents = await readFile(path, 'utf8')
      for (const swap of own) {
        const [before, after, ...more] = contents.split(swap.from)
        if (after === undefined || more.length > 0) throw new Error(`${swap.file} does not say exactly once: ${swap.from}`)
        contents = before + swap.to + after
        left.delete(swap)
      }
      return { contents, loader: 'ts' }
    })
    onEnd(() => {
      for (const { file } of left) throw new Error(`${file} is not part of the code.`)
    })
  },
})

async function compile<Exports>(contents: string, swaps: readonly Swap[]): Promise<(globals: Globals) => Exports> {
  const built = await build({
    stdin: { contents, resolveDir: at(''), loader: 'ts' },
    bundle: true,
    write: false,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    logLevel: 'silent',
    plugins: [swapping(swaps)],
  })
  const run = new Function('module', 'require', 'globalThis', ...names, built.outputFiles[0]!.text)
  const require = createRequire(import.meta.url)
  return (globals) => {
    const module = { exports: {} as Exports }
    run(module, require, globals, ...names.map((name) => globals[name]))
    return module.exports
  }
}

/** So that files of a kilobyte go the ways of large ones: stored as Blobs, hashed later, and their outcome asked for before they are sent again. */
const scale: Swap[] = [
  { file: 'src/intake.ts', from: 'inlineLimit: number = 64 * 1024', to: 'inlineLimit: number = 300' },
  { file: 'src/intake.ts', from: 'size > wholeLimit', to: 'size > 600' },
  { file: 'src/outcome.ts', from: 'worthAsking = 2 ** 20', to: 'worthAsking = 900' },
]

/** The code as it is, or with faults in it. */
export async function loadCode(swaps: readonly Swap[] = []): Promise<Code> {
  const isServers = ({ file }: Swap): boolean => file.startsWith('demo/')
  const [loadPage, loadProgram] = await Promise.all([
    compile<Page>(
      `export { createUploadQueue } from './src/queue.ts'
       export { xhrTransport } from './src/transport.ts'
       export { serveUploads } from './src/serve.ts'`,
      [...scale, ...swaps.filter((swap) => !isServers(swap))],
    ),
    compile<Program>(
      `export { createUploadHandler } from './demo/server/handler.ts'
       export { createIdempotency } from './demo/server/idempotency.ts'
       export { createMemoryKeys } from './demo/server/keys.ts'`,
      swaps.filter(isServers),
    ),
  ])
  return { loadPage, loadProgram }
}
