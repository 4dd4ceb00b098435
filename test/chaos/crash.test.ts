import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createAccount } from '../helpers/account.js'
import { quietArgs } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { type Front, startFront } from '../helpers/front.js'
import { buildTestPage } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { createRandom, freshSeed } from '../helpers/random.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

const CRASHES = process.env.FAULTS_FULL === '1' ? 50 : 8
/** The work of one round, undisturbed, is done in about this time, ms. */
const ROUND_MS = 800
const seed = Number(process.env.FAULTS_SEED ?? freshSeed())

/** Small enough to be stored inline, stored as a Blob, and hashed only once it is stored. */
const SIZES = [3_000, 200_000, 2_500_000]

/** The same bytes in the page and here. */
const bytesOf = (name: string, size: number): Uint8Array => {
  const bytes = new Uint8Array(size)
  const mark = new TextEncoder().encode(`${name};`)
  for (let at = 0; at < size; at++) bytes[at] = mark[at % mark.length]!
  return bytes
}

/** Takes up what the page before it left, enqueues its own files, and tells which of them are saved; or, `finish`, how all have ended. */
const script = `
  import './page.js'
  const tell = (message) => fetch('/told', { method: 'POST', body: JSON.stringify(message) })
  const round = new URLSearchParams(location.search).get('round')
  const queue = uponce.createUploadQueue({ endpoint: '/uploads', headers: { Authorization: 'Bearer crash' }, persist: 'required' })
  queue.on('warning', ({ message, error }) => tell({ kind: 'warning', round, message, code: error?.code }))
  const bytesOf = ${bytesOf.toString()}
  if (round === 'finish') {
    while (!(await queue.ready().then(() => true, () => false)));
    const isOver = () => queue.getSnapshot().every(({ status }) => status === 'succeeded' || status === 'failed')
    await new Promise((resolve) => {
      const check = () => isOver() && resolve()
      queue.subscribe(check)
      check()
    })
    await tell({ kind: 'end', uploads: queue.getSnapshot() })
  } else {
    tell({ kind: 'begin' })
    for (const size of ${JSON.stringify(SIZES)}) {
      const name = round + '-' + size
      const upload = await queue.enqueue(new File([bytesOf(name, size)], name))
      void tell({ kind: 'saved', name, key: queue.get(upload.id).idempotencyKey })
    }
  }
`

describeWith(programs.chromium, 'a browser that is killed again and again', () => {
  let server: Server
  let profile: TempFolder
  let front: Front
  let browser: ChildProcess | undefined

  beforeAll(async () => {
    const site = await buildTestPage()
    site.set('crash.html', new TextEncoder().encode(`<!doctype html><meta charset="utf-8"><script type="module">${script}</script>`))
    server = await startServer({ LEASE_MS: '2000' })
    profile = await makeTempFolder('crash')
    const random = createRandom(seed)
    front = await startFront(server, site, () => random.integer(0, 200))
  })

  afterAll(async () => {
    await kill()
    await front?.stop()
    await server?.stop()
    await profile?.remove()
  })

  const open = (round: string): void => {
    const args = [
      ...quietArgs,
      '--headless=new',
      '--no-sandbox',
      '--disable-gpu',
      '--password-store=basic',
      `--user-data-dir=${profile.path}`,
    ]
    browser = spawn(programs.chromium.path!, [...args, `${front.url}/uponce-test/crash.html?round=${round}`], {
      stdio: 'ignore',
      detached: true,
    })
  }

  /** The whole group: helpers that outlive the browser would go on writing. */
  const kill = async (): Promise<void> => {
    if (!browser?.pid) return
    const exited = once(browser, 'exit')
    process.kill(-browser.pid, 'SIGKILL')
    await exited
    browser = undefined
  }

  test(`after ${CRASHES} kills every file that was saved is stored once, under its own key`, {
    timeout: 60_000 + CRASHES * 8_000,
  }, async () => {
    console.log(`seed ${seed}`)
    const random = createRandom(seed)
    for (let round = 0; round < CRASHES; round++) {
      const begun = front.hear('begin')
      open(String(round))
      await begun
      await new Promise((resolve) => setTimeout(resolve, random.integer(0, ROUND_MS)))
      await kill()
    }
    const ended = front.hear('end')
    open('finish')
    const { uploads } = (await ended) as { uploads: { idempotencyKey: string; name: string; status: string }[] }

    const saved = front.told.filter(({ kind }) => kind === 'saved') as { name: string; key: string }[]
    const warnings = front.told.filter(({ kind }) => kind === 'warning')
    if (warnings.length > 0) console.log(JSON.stringify(warnings))
    const { media, objects } = await createAccount(server, 'crash').state()
    console.log(
      `${CRASHES} kills: ${saved.length} of ${CRASHES * SIZES.length} files were saved, ${front.passages.length} requests, ${media.length} files stored`,
    )
    expect(uploads.filter(({ status }) => status !== 'succeeded')).toEqual([])
    const endOf = new Map(uploads.map(({ idempotencyKey, name }) => [name, idempotencyKey]))
    for (const { name, key } of saved) expect([name, endOf.get(name)]).toEqual([name, key])
    expect(media.map(({ key }) => key).sort()).toEqual([...endOf.values()].sort())
    for (const { fileName, sha256, bytes } of media) {
      const expected = createHash('sha256').update(bytesOf(fileName, bytes)).digest('hex')
      expect([fileName, sha256, SIZES.includes(bytes)]).toEqual([fileName, expected, true])
    }
    expect(objects).toBe(media.length)
    const keysOf = new Map<string, Set<string>>()
    for (const { name, key } of front.passages) keysOf.set(name, (keysOf.get(name) ?? new Set()).add(key))
    for (const [name, keys] of keysOf) expect([name, keys.size]).toEqual([name, 1])
    expect(saved.length).toBeGreaterThan(CRASHES)
  })
})
