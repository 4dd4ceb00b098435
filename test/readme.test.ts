import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'
import { expect, test } from 'vitest'

const root = fileURLToPath(new URL('..', import.meta.url))
const read = (path: string): string => readFileSync(root + path, 'utf8')
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

const pages = ['README.md', 'demo/recipes/README.md', ...readdirSync(`${root}demo/docs`).map((name) => `demo/docs/${name}`)]

/** What examples do not say again: what an app has, or an earlier example made; and what a page's own types are too careful about. */
const surroundings = `
import type { UploadQueue } from 'uponce'
declare module 'react' {
  /** JavaScript says no props. */
  function memo(component: (props: any) => ReactNode): (props: any) => ReactNode
}
declare global {
  var queue: UploadQueue
  interface EventTarget { files: FileList; value: string }
  interface Element { onclick: () => unknown }
  /** Of a service worker. */
  interface FetchEvent extends Event { request: Request; respondWith(response: Promise<Response>): void }
  interface WindowEventMap { fetch: FetchEvent }
  interface HTMLElementEventMap { succeeded: CustomEvent<{ upload: { name: string } }> }
}`

/** What compilers read, by file name: an example of README.md whose fence is in line 30 is `README.md-30.js`. */
const examples = new Map<string, string>()
for (const page of pages)
  for (const { 1: language, 2: code, index } of read(page).matchAll(/^```(\w+)\n(.*?)^```$/gms)) {
    const name = `${root}.build/${page.replaceAll('/', '-')}-${read(page).slice(0, index).split('\n').length}`
    const [, script] = /<script type="module">\n(.*?)<\/script>/s.exec(code!) ?? []
    if (/^[jt]sx?$/.test(language!)) examples.set(`${name}.${language}`, `${code}\nexport {}`)
    else if (language === 'html' && script) examples.set(`${name}.js`, `${script}\nexport {}`)
  }

test('the examples of README.md and demo/docs have no type errors', { timeout: 60_000 }, () => {
  expect([...examples.keys()].filter((name) => name.includes('README.md')).length).toBeGreaterThan(5)
  const { config } = ts.readConfigFile(`${root}tsconfig.json`, ts.sys.readFile)
  const { options: own } = ts.parseJsonConfigFileContent({ ...config, include: [] }, ts.sys, root)
  // As an editor looks at JavaScript.
  const options = { ...own, allowJs: true, checkJs: true, strict: false, noUnusedLocals: false, noUnusedParameters: false }
  const files = new Map([...examples, [`${root}.build/surroundings.ts`, surroundings]])
  const host = ts.createCompilerHost(options)
  const { getSourceFile, fileExists } = host
  host.fileExists = (path) => files.has(path) || fileExists(path)
  host.getSourceFile = (path, target, ...rest) => {
    const code = files.get(path)
    return code === undefined ? getSourceFile(path, target, ...rest) : ts.createSourceFile(path, code, target)
  }
  const program = ts.createProgram([...files.keys()], options, host)
  const errors = [...files.keys()].flatMap((name) => {
    const file = program.getSourceFile(name)!
    return [...program.getSyntacticDiagnostics(file), ...program.getSemanticDiagnostics(file)].map(({ start = 0, messageText }) => {
      const { line } = file.getLineAndCharacterOfPosition(start)
      return `${name.slice(`${root}.build/`.length)}:${line + 1}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`
    })
  })
  expect(errors).toEqual([])
})

test('every link of README.md and demo/docs to a file of this repository leads to one', () => {
  const links = pages.flatMap((page) =>
    [...read(page).matchAll(/\]\((?!https?:)([^)]+)\)/g)].map(([, link]) => new URL(link!, new URL(`../${page}`, import.meta.url))),
  )
  const isThere = ({ pathname, hash }: URL): boolean => {
    if (!existsSync(pathname)) return false
    const headings = [...readFileSync(pathname, 'utf8').matchAll(/^#+ (.+)$/gm)].map(([, title]) => title!.toLowerCase())
    return hash === '' || headings.some((title) => title.replace(/[^\w -]/g, '').replaceAll(' ', '-') === hash.slice(1))
  }
  expect(links.filter((link) => !isThere(link)).map(({ href }) => href.slice(`file://${root}`.length))).toEqual([])
})
