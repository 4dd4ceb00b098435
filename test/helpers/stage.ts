import { readFile } from 'node:fs/promises'
import { transform } from 'esbuild'
import type { Upload, UploadQueueOptions } from 'uponce'
import { expect } from 'vitest'
import { type Account, createAccount } from './account.js'
import { type Engine, type EnginePage, run } from './engine.js'
import { type Front, startFront } from './front.js'
import { buildTestPage, type Site, type SiteServer, serveSite } from './page.js'
import { type Server, startServer } from './server.js'

/** What a page does before anything else: storage that fails in ways that no engine can be brought to. */
const spoiling = {
  undefined: `Object.defineProperty(globalThis, 'indexedDB', { value: undefined })`,
  throws: `IDBFactory.prototype.open = () => { throw new DOMException('not here', 'SecurityError') }`,
  fails: `{
    const { open } = IDBFactory.prototype
    indexedDB.open('refused', 9)
    IDBFactory.prototype.open = function () { return open.call(this, 'refused', 1) }
  }`,
  silent: `IDBFactory.prototype.open = () => Object.defineProperty(Object.create(IDBOpenDBRequest.prototype), 'addEventListener', { value() {} })`,
}

const htmlOf = (first = ''): Uint8Array =>
  new TextEncoder().encode(`<!doctype html><meta charset="utf-8"><title>uponce test</title><script>${first}</script>
    <script type="module" src="page.js"></script>
    <script type="module">import * as tools from './page-tools.js'; globalThis.tools = tools</script>`)

type Options = Partial<UploadQueueOptions<never>>

/** A page with the test page's tools, for one account. */
export interface StagePage extends EnginePage {
  /** Starts the account's queue. */
  start(options?: Options): Promise<void>
  /** Reloads the page, and starts the queue with the same options. */
  restart(): Promise<void>
  list(): Promise<readonly Upload[]>
  statuses(): Promise<string[]>
}

/** One browser, and the real server behind a front that can hold back its answers. */
export interface Stage {
  server: Server
  front: Front
  /** The test page on an origin of its own, which the server lets in. */
  elsewhere: SiteServer
  /** Answers to uploads are held back until `release`, should they come from now on. */
  hold(): void
  release(): void
  /** An account that nobody has used, with a database of its own. */
  newAccount(): Account
  /** A page without a queue. `first`: what is wrong with its storage. */
  newPage(account: Account, first?: keyof typeof spoiling): Promise<StagePage>
  /** A page with the account's queue. */
  open(account: Account, options?: Options): Promise<StagePage>
  /** After each test. */
  tidy(): void
  stop(): Promise<void>
}

export const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 40_000, interval: 50 })

export const stagePage = (page: EnginePage, account: Account): StagePage => {
  let given: Options = {}
  const goto = async (url: string): Promise<void> => {
    await page.goto(url)
    await untilLoaded(page)
  }
  const start = async (options: Options = given): Promise<void> => {
    given = options
    await run(page, ({ name, options }) => tools.start(name, options), { name: account.name, options: options as object })
  }
  return {
    ...page,
    goto,
    start,
    async restart() {
      await page.reload()
      await untilLoaded(page)
      await start()
    },
    list: () => run(page, () => queue.getSnapshot()),
    statuses: () => run(page, () => queue.getSnapshot().map(({ status }) => status)),
  }
}

const untilLoaded = (page: EnginePage): Promise<void> =>
  eventually(() => page.evaluate<boolean>(`'tools' in globalThis && 'uponce' in globalThis`)).toBe(true)

/** The test page with its tools, `tools.html`, and one for each way in which storage is spoilt. */
export async function buildToolsPages(): Promise<Site> {
  const site = await buildTestPage()
  const { code } = await transform(await readFile(new URL('page-tools.ts', import.meta.url)), { loader: 'ts' })
  site.set('page-tools.js', new TextEncoder().encode(code))
  site.set('tools.html', htmlOf())
  for (const [name, script] of Object.entries(spoiling)) site.set(`${name}.html`, htmlOf(script))
  return site
}

export async function setStage(launch: () => Promise<Engine>): Promise<Stage> {
  const site = await buildToolsPages()
  const elsewhere = await serveSite(site)
  const server = await startServer({ ALLOWED_ORIGINS: elsewhere.url, LEASE_MS: '3000' })
  let held: Promise<void> | undefined
  let release = (): void => {}
  const front = await startFront(server, site, () => held ?? 0)
  const engine = await launch()
  // A page that is used again costs less than a new one.
  const idle: EnginePage[] = []
  const busy = new Set<EnginePage>()
  let accounts = 0

  const newPage = async (account: Account, first = 'tools'): Promise<StagePage> => {
    const page = idle.pop() ?? (await engine.newPage())
    busy.add(page)
    const made = stagePage(page, account)
    await made.goto(`${front.url}/uponce-test/${first}.html`)
    return {
      ...made,
      async close() {
        busy.delete(page)
        await page.close()
      },
    }
  }

  return {
    server,
    front,
    elsewhere,
    hold() {
      held = new Promise((resolve) => {
        release = resolve
      })
    },
    release() {
      held = undefined
      release()
    },
    newAccount: () => createAccount(server, `account-${++accounts}`),
    newPage,
    async open(account, options) {
      const page = await newPage(account)
      await page.start(options)
      return page
    },
    tidy() {
      held = undefined
      release()
      idle.push(...busy)
      busy.clear()
    },
    async stop() {
      await engine.close()
      await front.stop()
      await server.stop()
      await elsewhere.stop()
    },
  }
}
