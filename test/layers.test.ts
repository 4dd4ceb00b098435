import { readdirSync, readFileSync } from 'node:fs'
import { join, posix, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'
import { expect, test } from 'vitest'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The reading order of src: a file imports only from lower groups, types included. A new file gets its place here. */
const groups: Record<string, number> = {
  'errors.ts': 0,
  'record.ts': 1,
  'digest.ts': 2,
  'network.ts': 2,
  'proof.ts': 2,
  'schedule.ts': 2,
  'snapshot.ts': 2,
  'store.ts': 2,
  'tabs.ts': 2,
  'transport.ts': 2,
  'verdict.ts': 2,
  'wire.ts': 2,
  'digest.worker.ts': 3,
  'upload.ts': 3,
  'queue.ts': 4,
  'index.ts': 5,
  'service-worker.ts': 6,
}

const groupOf = (file: string): number | undefined => (file.startsWith('adapters/') ? 6 : groups[file])

/** What breaks the layering in a map of file name (relative to src) → source text. */
const layerFaults = (files: Record<string, string>): string[] =>
  Object.entries(files).flatMap(([file, source]) => {
    const group = groupOf(file)
    if (group === undefined) return [`${file} has no group`]
    const imports = ts.preProcessFile(source, true, true).importedFiles.map(({ fileName }) => fileName)
    const faults = imports
      .filter((specifier) => specifier.startsWith('.'))
      .map((specifier) => posix.join(posix.dirname(file), specifier).replace(/\.js(x?)$/, '.ts$1'))
      .filter((imported) => !((groupOf(imported) ?? Number.POSITIVE_INFINITY) < group))
      .map((imported) => `${file} (group ${group}) imports ${imported} (group ${groupOf(imported) ?? 'none'})`)
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
      'digest.ts': `new Worker(new URL('./digest.worker.js', import.meta.url)) // import './queue.js' in a comment`,
    }),
  ).toEqual([])
})

test.each([
  ['an upward import', 'record.ts', `import { createUploadQueue } from './queue.js'`, 'record.ts (group 1) imports queue.ts (group 4)'],
  ['a sideways import', 'store.ts', `import { announce } from './tabs.js'`, 'store.ts (group 2) imports tabs.ts (group 2)'],
  ['an import of types only', 'store.ts', `import type { Tabs } from './tabs.js'`, 'store.ts (group 2) imports tabs.ts (group 2)'],
  ['an inline import type', 'errors.ts', `export type A = import('./record.js').A`, 'errors.ts (group 0) imports record.ts (group 1)'],
  ['a dynamic import', 'errors.ts', `await import('./record.js')`, 'errors.ts (group 0) imports record.ts (group 1)'],
  ['a re-export', 'queue.ts', `export { a } from './index.js'`, 'queue.ts (group 4) imports index.ts (group 5)'],
  [
    'an adapter importing an adapter',
    'adapters/uppy.ts',
    `import './react.js'`,
    'adapters/uppy.ts (group 6) imports adapters/react.ts (group 6)',
  ],
  ['an import of a file without a group', 'queue.ts', `import './helpers.js'`, 'queue.ts (group 4) imports helpers.ts (group none)'],
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
