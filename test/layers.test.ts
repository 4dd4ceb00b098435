import { readdirSync, readFileSync } from 'node:fs'
import { join, posix, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'
import { expect, test } from 'vitest'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The reading order of src: a file imports only from groups above its own, types included. A new file gets its place here. */
const groups = [
  ['hex.ts', 'turns.ts', 'within.ts'],
  ['errors.ts', 'chunks.ts'],
  ['record.ts', 'database.ts', 'digest-by-script.ts', 'digest-in-worker.ts'],
  [
    'digest.ts',
    'lifecycle.ts',
    'network.ts',
    'outcome.ts',
    'proof.ts',
    'quota.ts',
    'schedule.ts',
    'snapshot.ts',
    'store.ts',
    'tabs.ts',
    'transport.ts',
    'verdict.ts',
    'wire.ts',
  ],
  ['digest.worker.ts', 'events.ts', 'intake.ts', 'upload.ts'],
  ['ledger.ts', 'options.ts', 'persistence.ts', 'ports.ts', 'runner.ts'],
  ['handles.ts'],
  ['saving.ts'],
  ['queue.ts'],
  ['index.ts', 'serve.ts'],
  ['service-worker.ts', 'adapters/'],
  // An adapter of several files, on top of another.
  ['adapters/element-texts.ts'],
  ['adapters/element-view.ts'],
  ['adapters/element.ts'],
]

/** The number of a file's group, -1 when it has none. */
const groupOf = (file: string): number => {
  const own = groups.findIndex((group) => group.includes(file))
  return own < 0 ? groups.findIndex((group) => group.includes(file.replace(/^adapters\/.*/, 'adapters/'))) : own
}

/** What breaks the layering in a map of file name (relative to src) → source text. */
const layerFaults = (files: Record<string, string>): string[] =>
  Object.entries(files).flatMap(([file, source]) => {
    const group = groupOf(file)
    if (group < 0) return [`${file} has no group`]
    const imports = ts.preProcessFile(source, true, true).importedFiles.map(({ fileName }) => fileName)
    const faults = imports
      .filter((specifier) => specifier.startsWith('.'))
      .map((specifier) => posix.join(posix.dirname(file), specifier).replace(/\.js(x?)$/, '.ts$1'))
      .filter((imported) => groupOf(imported) < 0 || groupOf(imported) >= group)
      .map((imported) => `${file} imports ${imported}, which does not stand above it`)
    return file.startsWith('adapters/') ? faults : [...faults, ...pageNames(file, source)]
  })

/** The core runs in workers too, so it names neither window nor document. */
const pageNames = (file: string, source: string): string[] => {
  const faults: string[] = []
  const visit = (node: ts.Node): void => {
    if (ts.isIdentifier(node) && ['window', 'document'].includes(node.text)) faults.push(`${file} names ${node.text}`)
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(file, source, ts.ScriptTarget.Latest))
  return faults
}

const readSources = (): Record<string, string> => {
  const src = join(root, 'src')
  const files = readdirSync(src, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name))
  return Object.fromEntries(files.map((path) => [relative(src, path).replaceAll(sep, '/'), readFileSync(path, 'utf8')]))
}

test('every file of src has a group and imports only from groups above its own', () => {
  expect(layerFaults(readSources())).toEqual([])
})

test('a downward import of any form is fine', () => {
  expect(
    layerFaults({
      'upload.ts': `import { judge } from './verdict.js'\nimport type { Store } from './store.js'\nimport pRetry from 'p-retry'\nexport * from './errors.js'`,
      'adapters/react.ts': `import { useState } from 'react'\nimport { createUploadQueue } from '../index.js'\nwindow.document.title = ''`,
      'digest-in-worker.ts': `new Worker(new URL('./digest.worker.js', import.meta.url)) // import './queue.js' in a comment`,
    }),
  ).toEqual([])
})

test.each([
  [
    'an upward import',
    'record.ts',
    `import { createUploadQueue } from './queue.js'`,
    'record.ts imports queue.ts, which does not stand above it',
  ],
  ['a sideways import', 'store.ts', `import { announce } from './tabs.js'`, 'store.ts imports tabs.ts, which does not stand above it'],
  [
    'an import of types only',
    'store.ts',
    `import type { Tabs } from './tabs.js'`,
    'store.ts imports tabs.ts, which does not stand above it',
  ],
  [
    'an inline import type',
    'errors.ts',
    `export type A = import('./record.js').A`,
    'errors.ts imports record.ts, which does not stand above it',
  ],
  ['a dynamic import', 'errors.ts', `await import('./record.js')`, 'errors.ts imports record.ts, which does not stand above it'],
  ['a re-export', 'queue.ts', `export { a } from './index.js'`, 'queue.ts imports index.ts, which does not stand above it'],
  [
    'an adapter importing an adapter',
    'adapters/uppy.ts',
    `import './react.js'`,
    'adapters/uppy.ts imports adapters/react.ts, which does not stand above it',
  ],
  [
    'an import of a file without a group',
    'queue.ts',
    `import './helpers.js'`,
    'queue.ts imports helpers.ts, which does not stand above it',
  ],
  ['a file without a group', 'helpers.ts', '', 'helpers.ts has no group'],
  ['the core naming window', 'queue.ts', 'window.addEventListener("online", go)', 'queue.ts names window'],
  ['the core naming document', 'network.ts', 'globalThis.document?.hidden', 'network.ts names document'],
])('%s is found', (_name, file, source, fault) => {
  expect(layerFaults({ [file]: source })).toEqual([fault])
})

test('the top level holds nothing beside the fixed names', () => {
  const fixed = ['src', 'test', 'demo', 'package.json', 'tsconfig.json', 'vite.config.ts', 'README.md', 'LICENSE', 'CHANGELOG.md']
  const allowed = [...fixed, 'package-lock.json', 'biome.json', 'node_modules', 'dist']
  expect(readdirSync(root).filter((name) => !name.startsWith('.') && !allowed.includes(name))).toEqual([])
})
