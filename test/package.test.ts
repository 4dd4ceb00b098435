import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import { type BuildOptions, build, type Metafile } from 'esbuild'
import { beforeAll, expect, test } from 'vitest'

/** kB (1,000 bytes), gzip -9: the whole core with every run-time dependency. What the project sets out to reach. */
const CORE_AIM = 16
/** What it may be until then: a change that goes beyond has to earn its bytes. */
const LARGEST_CORE = 25
/** What a page, and a worker, pays for the service worker's entry beside the core; a worker brings the code along that hashes large files. */
const LARGEST_SERVICE_WORKER = { page: 0.4, worker: 4 }
/** What is loaded when the first large file is hashed: in the worker, half of it in WebAssembly, or on the page, by script. */
const LARGEST_HASHING = { worker: 10.4, script: 3.2 }
/** What an app pays for each adapter beside the core, the framework, and the file picker where it brings that along. */
const LARGEST_ADAPTERS = { 'file-picker': 2, element: 6, react: 1, uppy: 2, filepond: 1 }

const root = fileURLToPath(new URL('..', import.meta.url))
const dist = `${root}dist/`
const manifest: { exports: Record<string, string | Record<string, string>> } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))
const targets = Object.values(manifest.exports).flatMap((target) => (typeof target === 'string' ? [target] : Object.values(target)))
const entries = [...new Set(targets.filter((target) => target.endsWith('.js')))]

const read = (file: string): string => readFileSync(dist + file, 'utf8')
const gzipped = (contents: Uint8Array): number => gzipSync(contents, { level: 9 }).length / 1000

beforeAll(() => {
  if (!existsSync(`${dist}index.js`)) throw new Error('These tests look at the built package: npm run build comes first.')
})

test('every file that package.json exports was built', () => {
  expect(targets.filter((target) => !existsSync(root + target))).toEqual([])
})

test('importing the package does nothing: no global is touched, no timer, handle or listener is left', () => {
  const script = `
    // What a framework does is its own affair.
    await import('react')
    await import('@uppy/core')
    const globals = Object.getOwnPropertyDescriptors(globalThis)
    const handles = process.getActiveResourcesInfo()
    const listeners = process.eventNames()
    for (const entry of ${JSON.stringify(entries)}) await import(new URL(entry, ${JSON.stringify(`file://${root}`)}))
    await new Promise((resolve) => setImmediate(resolve))
    const now = Object.getOwnPropertyDescriptors(globalThis)
    const isSame = (name) => globals[name] && now[name] && Object.is(globals[name].value, now[name].value) && globals[name].get === now[name].get
    console.log(JSON.stringify({
      globals: Object.keys({ ...globals, ...now }).filter((name) => !isSame(name)),
      handles: process.getActiveResourcesInfo().filter((handle) => !handles.includes(handle)),
      listeners: process.eventNames().filter((name) => !listeners.includes(name)),
    }))
  `
  const left = JSON.parse(execFileSync(process.execPath, ['--input-type=module', '--eval', script], { cwd: root, encoding: 'utf8' }))
  expect(left).toEqual({ globals: [], handles: [], listeners: [] })
})

test('a bundler can see the worker: its URL is spelt out, and nothing tells the bundler to look away', () => {
  const scripts = readdirSync(dist, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.js'))
  const naming = scripts.filter((file) => /new URL\(\s*["'`]\.\/digest\.worker\.js["'`],\s*import\.meta\.url\s*\)/.test(read(file)))
  expect(naming).toHaveLength(1)
  for (const file of scripts) expect(read(file), file).not.toContain('@vite-ignore')
})

/** A minified bundle, as an app would make it; dist is where `uponce` is found. */
const bundle = async (entry: Pick<BuildOptions, 'stdin' | 'entryPoints'>, external: string[] = []) => {
  const { outputFiles, metafile } = await build({
    ...entry,
    alias: { uponce: `${dist}index.js`, 'uponce/service-worker': `${dist}service-worker.js` },
    external,
    absWorkingDir: root,
    outdir: 'bundle',
    bundle: true,
    minify: true,
    splitting: true,
    format: 'esm',
    target: 'es2022',
    write: false,
    metafile: true,
  })
  return { metafile, sizes: new Map(outputFiles.map(({ path, contents }) => [path.slice(root.length), gzipped(contents)])) }
}

test('the worker stands alone: it imports nothing from outside the package', async () => {
  const { metafile } = await bundle({ entryPoints: [`${dist}digest.worker.js`] })
  expect(Object.keys(metafile.inputs).filter((input) => !input.startsWith('dist/'))).toEqual([])
})

const consumer = `import { createUploadQueue } from 'uponce'; globalThis.createUploadQueue = createUploadQueue`

test(`the core with its dependencies is at most ${LARGEST_CORE} kB minified and gzipped`, async () => {
  const { metafile, sizes } = await bundle({ stdin: { contents: consumer, resolveDir: root } })
  const worker = await bundle({ entryPoints: [`${dist}digest.worker.js`] })
  const core = ['bundle/stdin.js', ...staticImports('bundle/stdin.js', metafile)]
  const total = core.reduce((sum, file) => sum + sizes.get(file)!, 0)
  const lazy = [...sizes].filter(([file]) => !core.includes(file))
  const lines = [
    `core, gzipped: ${total.toFixed(2)} kB (bound: ${LARGEST_CORE}, aim: ${CORE_AIM})`,
    ...[...shares(core, metafile)].sort((a, b) => b[1] - a[1]).map(([name, share]) => `  ${(share * total).toFixed(2)} kB  ${name}`),
    'loaded when needed, gzipped:',
    ...lazy.map(([file, size]) => `  ${size.toFixed(2)} kB  ${file.slice('bundle/'.length)}`),
    `  ${worker.sizes.get('bundle/digest.worker.js')!.toFixed(2)} kB  digest.worker.js`,
  ]
  console.log(lines.join('\n'))
  expect(worker.sizes.get('bundle/digest.worker.js')).toBeLessThanOrEqual(LARGEST_HASHING.worker)
  expect(lazy.find(([file]) => file.includes('digest-by-script'))?.[1]).toBeLessThanOrEqual(LARGEST_HASHING.script)
  expect(total).toBeLessThanOrEqual(LARGEST_CORE)
})

test('the service worker entry adds little to a page, and to a worker hardly more than the code that hashes', async () => {
  const sizeOf = async (contents: string): Promise<number> => {
    const { metafile, sizes } = await bundle({ stdin: { contents, resolveDir: root } })
    return ['bundle/stdin.js', ...staticImports('bundle/stdin.js', metafile)].reduce((sum, file) => sum + sizes.get(file)!, 0)
  }
  const core = await sizeOf(consumer)
  const page = (await sizeOf(`${consumer}; import { syncInBackground } from 'uponce/service-worker'; syncInBackground()`)) - core
  const worker = (await sizeOf(`import { serveUploads } from 'uponce/service-worker'; serveUploads()`)) - core
  console.log(`uponce/service-worker beside the core, gzipped: ${page.toFixed(2)} kB in a page, ${worker.toFixed(2)} kB in a worker`)
  expect(page).toBeLessThanOrEqual(LARGEST_SERVICE_WORKER.page)
  expect(worker).toBeLessThanOrEqual(LARGEST_SERVICE_WORKER.worker)
})

test.each(Object.entries(LARGEST_ADAPTERS))(
  'uponce/%s is at most %d kB minified and gzipped, the core, the framework and another adapter not counted',
  async (name, largest) => {
    const { sizes } = await bundle({ entryPoints: [`${dist}adapters/${name}.js`] }, ['react', '@uppy/core', '../*', './file-picker.js'])
    const size = [...sizes.values()].reduce((sum, each) => sum + each, 0)
    console.log(`uponce/${name}, gzipped: ${size.toFixed(2)} kB`)
    expect(size).toBeLessThanOrEqual(largest)
  },
)

const staticImports = (file: string, metafile: Metafile): string[] => {
  const imports = metafile.outputs[file]!.imports.filter(({ kind, external }) => kind === 'import-statement' && !external)
  return [...new Set(imports.flatMap(({ path }) => [path, ...staticImports(path, metafile)]))]
}

/** The part of the minified bytes that comes from each package; gzip is taken to shrink all alike. */
const shares = (files: string[], metafile: Metafile): Map<string, number> => {
  const bytes = new Map<string, number>()
  for (const file of files)
    for (const [input, { bytesInOutput }] of Object.entries(metafile.outputs[file]!.inputs)) {
      const name = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1] ?? 'uponce'
      bytes.set(name, (bytes.get(name) ?? 0) + bytesInOutput)
    }
  const all = [...bytes.values()].reduce((sum, count) => sum + count, 0)
  return new Map([...bytes].map(([name, count]) => [name, count / all]))
}

test('the packed package holds dist and the papers, nothing else', () => {
  const packed = JSON.parse(
    execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }),
  )
  const files: string[] = packed[0].files.map(({ path }: { path: string }) => path)
  expect(files).toContain('dist/index.js')
  expect(files.filter((file) => !/^(dist\/.*|README\.md|LICENSE|CHANGELOG\.md|package\.json)$/.test(file))).toEqual([])
})
