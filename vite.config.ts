import { fileURLToPath } from 'node:url'
import type { Plugin, UserConfig } from 'vite'
import { defineConfig } from 'vitest/config'

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url))

/**
 * In library mode Vite turns `new Worker(new URL('./x.js', import.meta.url))` into an absolute /assets/ path, which is broken inside a
 * package. So the source says `@vite-ignore`, the worker is an entry of its own, and this takes the comment out of the output again, for the
 * consumer's bundler to see the worker.
 */
const keepWorkerUrls = (): Plugin => ({
  name: 'keep-worker-urls',
  enforce: 'post',
  generateBundle(_options, bundle) {
    for (const chunk of Object.values(bundle)) if (chunk.type === 'chunk') chunk.code = chunk.code.replace(/\/\* @vite-ignore \*\/\s*/g, '')
  },
})

/** The first to know `light-dark()`: what stands in for it obeys the system, and not the page that overrides it. */
const cssTarget = ['chrome123', 'firefox120', 'safari17.5']

const libraryOf = (entry: Record<string, string>, external: RegExp[], emptyOutDir: boolean): UserConfig => ({
  plugins: [keepWorkerUrls()],
  build: { target: 'es2022', cssTarget, sourcemap: true, emptyOutDir, lib: { entry, formats: ['es'] }, rolldownOptions: { external } },
})

/** `vite build`: the package. Dependencies stay imports. What a page takes of an entry lies in another file than what only a worker needs. */
const library = libraryOf(
  {
    index: here('src/index.ts'),
    'service-worker': here('src/service-worker.ts'),
    serve: here('src/serve.ts'),
    ...Object.fromEntries(
      ['file-picker', 'element', 'react', 'uppy', 'filepond'].map((name) => [`adapters/${name}`, here(`src/adapters/${name}.ts`)]),
    ),
  },
  [/^(idb|p-retry|@noble\/hashes|react|@uppy\/core)(\/|$)/],
  true,
)

/** `vite build --mode worker`: a file with everything in it, since nobody may bundle it. */
const worker = libraryOf({ 'digest.worker': here('src/digest.worker.ts') }, [], false)

/** `vite build --mode page`: the demo page, which uses the built package as any app would. */
const page: UserConfig = {
  root: here('demo/page'),
  resolve: {
    alias: [
      { find: /^uponce\/(element|file-picker)$/, replacement: here('dist/adapters/$1.js') },
      { find: 'uponce', replacement: here('dist/index.js') },
    ],
  },
  build: { target: 'es2022', outDir: here('.build/page'), emptyOutDir: true },
}

/** What tests the package and the layout, not the code in a page. */
const repositoryTests = ['test/api.test.ts', 'test/layers.test.ts', 'test/package.test.ts', 'test/readme.test.ts']

/** One browser at a time: two would wait for each other, and for what they wait. What drives them takes seconds to load, so it stays. */
const oneByOne = { fileParallelism: false, isolate: false }

export default defineConfig(({ mode }) => ({
  ...({ page, worker }[mode] ?? library),
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          environment: './test/helpers/happy-dom-web.ts',
          setupFiles: ['./test/helpers/setup.ts'],
          include: ['test/*.test.ts', 'test/adapters/*.test.{ts,tsx}'],
          exclude: repositoryTests,
          // They take tenths of a second, but days pass in some, and a machine with other work is ten times slower.
          testTimeout: 30_000,
        },
      },
      { test: { name: 'repository', environment: 'node', include: repositoryTests, testTimeout: 60_000 } },
      { test: { name: 'server', environment: 'node', include: ['test/server/**/*.test.ts'], testTimeout: 30_000, hookTimeout: 60_000 } },
      {
        test: {
          name: 'faults',
          environment: 'node',
          include: ['test/faults/**/*.test.ts', 'test/model/**/*.test.ts'],
          testTimeout: 180_000,
          hookTimeout: 120_000,
        },
      },
      {
        test: {
          name: 'browser',
          environment: 'node',
          include: ['test/browser/*.test.ts'],
          testTimeout: 90_000,
          hookTimeout: 120_000,
          ...oneByOne,
          sequence: { groupOrder: 1 },
        },
      },
      {
        test: {
          name: 'chaos',
          environment: 'node',
          include: ['test/chaos/**/*.test.ts'],
          hookTimeout: 120_000,
          ...oneByOne,
          sequence: { groupOrder: 2 },
        },
      },
      {
        test: {
          name: 'engines',
          environment: 'node',
          include: ['test/browser/engines/*.test.ts'],
          testTimeout: 90_000,
          hookTimeout: 120_000,
          ...oneByOne,
          sequence: { groupOrder: 3 },
        },
      },
    ],
  },
}))
