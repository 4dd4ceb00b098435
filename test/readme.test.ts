import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

const read = (path: string): string => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8')
const readme = read('README.md')

/** The names that `pattern` finds in the part of a source file that `part` matches. */
const namesIn = (path: string, part: RegExp, pattern: RegExp): string[] => {
  const [text] = part.exec(read(path)) ?? []
  const names = [...(text ?? '').matchAll(pattern)].map(([, name]) => name as string)
  expect(names.length, `${path} has changed its form`).toBeGreaterThan(5)
  return names
}

test.each([
  ['error code', namesIn('src/errors.ts', /type UploadErrorCode =[^/]+/, /'([a-z-]+)'/g)],
  ['status', namesIn('src/record.ts', /const statuses =.+/, /'([a-z]+)'/g)],
  ['event', namesIn('src/events.ts', /interface UploadQueueEvents[^}]+\{[\s\S]+?\n\}/, /^ {2}([a-z]+):/gm)],
  ['option', namesIn('src/options.ts', /interface UploadQueueOptions[\s\S]+?\n\}/, /^ {2}([a-zA-Z]+)\??:/gm)],
  ['option of enqueue', namesIn('src/intake.ts', /interface EnqueueOptions[\s\S]+?\n\}/, /^ {2}([a-zA-Z]+)\?:/gm)],
  ['member', namesIn('src/queue.ts', /interface UploadQueue<[\s\S]+?\n\}/, /^ {2}([a-zA-Z]+)[(<]/gm)],
  ['problem code', namesIn('demo/server/answer.ts', /idempotency_key_required: \{[\s\S]+?\n\}/, /^ {2}([a-z_]+): \{/gm)],
])('README.md knows every %s', (_what, names) => {
  const codes = [...readme.matchAll(/`([^`\n]+)`/g)].map(([, code]) => code).join(' ')
  const missing = names.filter((name) => !new RegExp(`(?<![\\w-])${name}(?![\\w-])`).test(codes))
  expect(missing).toEqual([])
})
