/**
 * `npm test`: everything that must hold before a change lands, in order. Prints what failed, and as its very last line
 * `N passed, N failed`. Every check counts as one test.
 */
import { type StdioOptions, spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { stripVTControlCharacters } from 'node:util'
import { programs } from './helpers/programs.js'

const root = fileURLToPath(new URL('..', import.meta.url))
const isCi = process.env.CI === 'true'

const { FORCE_COLOR: _, ...environment } = process.env
const plain = process.stdout.isTTY ? process.env : { ...environment, NO_COLOR: '1' }
const env = { ...plain, PATH: `${root}node_modules/.bin:${process.env.PATH}` }

const count = { passed: 0, failed: 0, skipped: 0 }
const failures: string[] = []
const notices: string[] = []

const fail = (what: string, tests = 1): void => {
  count.failed += tests
  failures.push(what)
}

/** Settles with the exit code (1 for a signal) and with what was printed, unless that went straight to the terminal. */
const run = (command: string, stdio: StdioOptions): Promise<{ code: number; output: string }> =>
  new Promise((resolve) => {
    const child = spawn(command, { cwd: root, env, shell: true, stdio })
    let output = ''
    child.stdout?.on('data', (data) => (output += data))
    child.stderr?.on('data', (data) => (output += data))
    child.on('close', (code) => resolve({ code: code ?? 1, output }))
  })

const seconds = (since: number): string => `${((performance.now() - since) / 1000).toFixed(1)} s`

const check = async (name: string, command: string): Promise<void> => {
  const start = performance.now()
  const { code, output } = await run(command, ['ignore', 'pipe', 'pipe'])
  console.log(`${code === 0 ? 'ok  ' : 'FAIL'} ${name} (${command}) ${seconds(start)}`)
  if (code === 0) count.passed++
  else {
    fail(name)
    console.log(process.stdout.isTTY ? output.trimEnd() : stripVTControlCharacters(output).trimEnd())
  }
}

interface Report {
  numPassedTests: number
  numFailedTests: number
  numPendingTests: number
  numTodoTests: number
  testResults: { name: string; status: string; assertionResults: { status: string; fullName: string }[] }[]
}

const vitest = async (name: string, projects: readonly string[]): Promise<void> => {
  const start = performance.now()
  const report = `.build/vitest-${projects[0]}.json`
  rmSync(`${root}${report}`, { force: true })
  const chosen = projects.map((project) => `--project ${project}`).join(' ')
  const command = `vitest run ${chosen} --maxWorkers=2 --reporter=default --reporter=json --outputFile.json=${report}`
  const { code } = await run(command, ['ignore', 'inherit', 'inherit'])
  const failedBefore = count.failed
  if (existsSync(`${root}${report}`)) {
    const { numPassedTests, numFailedTests, numPendingTests, numTodoTests, testResults }: Report = JSON.parse(
      readFileSync(`${root}${report}`, 'utf8'),
    )
    count.passed += numPassedTests
    count.skipped += numPendingTests + numTodoTests
    for (const { name, status, assertionResults } of testResults) {
      const failed = assertionResults.filter((test) => test.status === 'failed')
      for (const { fullName } of failed) fail(`${name.slice(root.length)}: ${fullName}`)
      if (status === 'failed' && failed.length === 0) fail(`${name.slice(root.length)}: the file itself`)
    }
    if (numPassedTests + numFailedTests === 0) fail(`${name}: no test ran`)
  }
  if (code !== 0 && count.failed === failedBefore) fail(`${name}: vitest ended with exit code ${code}, see above`)
  console.log(`${count.failed === failedBefore ? 'ok  ' : 'FAIL'} ${name} (${projects.join(', ')}) ${seconds(start)}`)
}

const start = performance.now()
mkdirSync(`${root}.build`, { recursive: true })

for (const { name, path, install } of Object.values(programs)) {
  if (path) continue
  const notice = `${name} is not installed, so its tests ${isCi ? 'cannot run' : 'are SKIPPED'}: ${install}`
  console.log(notice)
  notices.push(notice)
  if (isCi) fail(`${name} is missing`)
}

const checkAll = async (): Promise<void> => {
  await check('format and lint', 'biome ci .')
  await check('types of the worker', 'tsc -p src/tsconfig.worker.json')
  await check('build', 'npm run --silent build')
  if (existsSync(`${root}demo/page/index.html`)) await check('build of the page', 'npm run --silent build:page')
  await check('unused files, exports and dependencies', 'knip --no-config-hints')
  await check('shape of the package', 'publint --strict')
  await check('types of the package', 'attw --pack . --profile esm-only')
}
// The types take as long as all else.
await Promise.all([check('types', 'tsc -p .'), checkAll()])
// Browsers wait a lot, and so do tests of servers: side by side they take little longer than one of them.
await Promise.all([
  vitest('tests in browsers', ['browser']),
  vitest('tests in browsers and servers that are stopped at random, and in every browser', ['chaos', 'engines']),
  vitest('tests in Node', ['repository', 'unit', 'server', 'faults']),
])

console.log(['', ...failures.map((failure) => `failed: ${failure}`), ...notices, `${seconds(start)} in all`].join('\n'))
console.log(`${count.passed} passed, ${count.failed} failed${count.skipped > 0 ? `, ${count.skipped} skipped` : ''}`)
process.exitCode = count.failed > 0 ? 1 : 0
