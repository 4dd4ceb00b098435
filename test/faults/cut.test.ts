import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { type OpenDatabase, openPostgres } from '../../demo/server/database.js'
import { launchChromiumEngine } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { launchFirefox } from '../helpers/firefox.js'
import { type SiteServer, serveSite } from '../helpers/page.js'
import { type Postgres, startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { createRandom, freshSeed } from '../helpers/random.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'
import { MiB, sha256 } from '../server/fixture.js'
import { headOf, openWire, post, postStream } from '../server/wire.js'
import { buildProgram, memoryPeak, type Program, startProgram } from './program.js'

/** `FAULTS_FULL=1`: 20 refusals of each kind instead of 6, in browsers 20 instead of 2, and a stream of 2 GiB instead of 256 MiB. */
const isFull = process.env.FAULTS_FULL === '1'
const CUTS = 100
const REFUSALS = isFull ? 20 : 6
const BROWSER_REFUSALS = isFull ? 20 : 2
const STREAM_BYTES = (isFull ? 2048 : 256) * MiB
const MEMORY_GROWTH = 16 * MiB
/** Uploads by which a process shows how large its work makes it. */
const WELCOMES = 5
const seed = Number(process.env.FAULTS_SEED ?? freshSeed())
const run = promisify(execFile)

const describeMemory = (...bytes: number[]): string => bytes.map((some) => Math.round(some / MiB)).join(', ')

describeWith(programs.postgres, 'a server in a process of its own', () => {
  let postgres: Postgres
  let folder: TempFolder
  let database: OpenDatabase
  let site: SiteServer
  let server: Program
  const objects = (): string => join(folder.path, 'objects')

  const start = (env: Record<string, string> = {}): Promise<Program> =>
    startProgram({ DATABASE_URL: postgres.url, DATA_DIR: folder.path, ALLOWED_ORIGINS: site.url, ...env })

  beforeAll(async () => {
    await buildProgram()
    postgres = (await startPostgres())!
    folder = await makeTempFolder('cut')
    database = openPostgres({ url: postgres.url, max: 2 })
    site = await serveSite(new Map([['', Buffer.from('<!doctype html><title>uponce test</title>')]]))
    server = await start()
  })
  afterAll(async () => {
    await server?.kill()
    await site?.stop()
    await database?.close()
    await postgres?.stop()
    await folder?.remove()
  })

  const logged = (program: Program): string[] => program.errors().split('\n').slice(0, -1)

  it(`forgets ${CUTS} uploads that are cut anywhere, and takes each of them again`, async () => {
    console.log(`seed ${seed}`)
    const random = createRandom(seed)
    const uploads = Array.from({ length: CUTS }, (_, n) => {
      const owner = `owner${n % 20}`
      const key = randomUUID()
      const body = new Uint8Array(random.integer(1, 300_000)).fill(n)
      const head = headOf(key, body).replace('alice', owner)
      return { owner, key, body, message: Buffer.concat([Buffer.from(head), body]) }
    })
    const cut = async ({ message }: (typeof uploads)[number]): Promise<void> => {
      const wire = await openWire(server.url)
      const at = random.integer(0, message.byteLength - 1)
      const pieces = random.integer(1, 4)
      for (let piece = 0; piece < pieces; piece++) {
        const from = Math.floor((at * piece) / pieces)
        const data = message.subarray(from, Math.floor((at * (piece + 1)) / pieces))
        await new Promise<void>((resolve) => wire.socket.write(data, () => resolve()))
      }
      const ways = [() => wire.socket.resetAndDestroy(), () => wire.socket.destroy(), () => wire.socket.end()]
      random.pick(ways)()
      // Of a half-closed one the server has to close its half.
      await wire.closed
    }
    await Promise.all(uploads.map(cut))

    await vi.waitFor(
      async () => {
        const [rows] = await database.query(`SELECT (SELECT count(*)::int FROM idempotency_keys) AS keys,
          (SELECT count(*)::int FROM pending_objects) AS pending, (SELECT count(*)::int FROM media) AS media`)
        const left = { ...rows, objects: await readdir(objects()), files: server.openFiles(folder.path), connections: server.connections() }
        expect(left).toEqual({ keys: 0, pending: 0, media: 0, objects: [], files: [], connections: 0 })
      },
      { timeout: 5_000, interval: 50 },
    )
    for (const { owner, key, body } of uploads) expect((await post(server.url, { owner, key, body })).status).toBe(201)
    expect(server.isAlive()).toBe(true)
    expect(logged(server).map((line) => (JSON.parse(line) as { level: string }).level)).not.toContain('error')
    expect(await readdir(objects())).toHaveLength(CUTS)
  }, 60_000)

  it(`streams ${STREAM_BYTES / MiB} MiB in constant memory`, async () => {
    const send = async (bytes: number, digest?: string): Promise<number> => (await postStream(server.url, bytes, digest)).status
    // A few make the process as large as it gets by working at all: buffers wait for the garbage collector.
    const idle = server.memory()
    const working = await memoryPeak(server, async () => {
      for (let n = 0; n < 3; n++) expect(await send(64 * MiB, '0'.repeat(64))).toBe(400)
    })
    const streaming = await memoryPeak(server, async () => expect(await send(STREAM_BYTES)).toBe(201))
    console.log(`resident MiB idle, at work, and while ${STREAM_BYTES / MiB} MiB stream: ${describeMemory(idle, working, streaming)}`)
    expect(streaming - working).toBeLessThan(MEMORY_GROWTH)
  }, 180_000)

  describe('a refusal of 64 MiB', () => {
    const body = new Uint8Array(64 * MiB).fill(7)
    const digest = sha256(body)
    /** What each server takes. */
    const welcome = body.subarray(0, 31 * MiB)
    const welcomeDigest = sha256(welcome)
    const used = randomUUID()
    const busy = randomUUID()
    const file = (): string => join(folder.path, 'body')
    const welcomeFile = (): string => join(folder.path, 'welcome')
    let small: Program
    let feeding: NodeJS.Timeout
    /** The most memory of each process while it did what it is for. */
    const atWork = new Map<Program, number>()

    /** The headers that are refused with each status. */
    const refused: [number, () => Record<string, string>][] = [
      [400, () => ({ Authorization: 'Bearer alice', 'Idempotency-Key': randomUUID(), 'X-File-Sha256': 'zz' })],
      [401, () => ({ 'Idempotency-Key': randomUUID(), 'X-File-Sha256': digest })],
      [409, () => ({ Authorization: 'Bearer alice', 'Idempotency-Key': busy, 'X-File-Sha256': digest })],
      [413, () => ({ Authorization: 'Bearer alice', 'Idempotency-Key': randomUUID(), 'X-File-Sha256': digest })],
      [422, () => ({ Authorization: 'Bearer alice', 'Idempotency-Key': used, 'X-File-Sha256': digest })],
    ]
    const typed = (headers: Record<string, string>): Record<string, string> => ({ 'Content-Type': 'image/jpeg', ...headers })
    /** Only one that takes less than 64 MiB refuses them with 413. */
    const serverOf = (status: number): Program => (status === 413 ? small : server)

    beforeAll(async () => {
      small = await start({ MAX_BYTES: String(32 * MiB) })
      await writeFile(file(), body)
      // They make the processes as large as they get by working at all: buffers wait for the garbage collector.
      for (const program of [server, small]) {
        const idle = program.memory()
        const most = await memoryPeak(program, async () => {
          for (let n = 0; n < REFUSALS; n++) {
            const answer = await fetch(`${program.url}/uploads`, { method: 'POST', body })
            await answer.arrayBuffer()
          }
        })
        console.log(`resident MiB before and during ${REFUSALS} bodies of 64 MiB: ${describeMemory(idle, most)}`)
        atWork.set(program, most)
      }
      expect((await post(server.url, { key: used, body: 'another' })).status).toBe(201)
      const wire = await openWire(server.url)
      wire.send(headOf(busy, body))
      feeding = setInterval(() => wire.send(new Uint8Array(8192)), 1000)
      await vi.waitFor(async () => expect(await database.query('SELECT 1 FROM idempotency_keys WHERE key = $1', [busy])).toHaveLength(1))
    })
    afterAll(async () => {
      clearInterval(feeding)
      await small?.kill()
    })

    type Send = (url: string, headers: Record<string, string>, size: number) => Promise<number>

    /** Uploads that are taken make a process as large as it gets by doing its work for this client: buffers wait for the garbage collector. */
    async function warmUp(program: Program, send: Send): Promise<void> {
      const before = program.memory()
      const most = await memoryPeak(program, async () => {
        for (let n = 0; n < WELCOMES; n++) {
          const headers = { Authorization: 'Bearer bob', 'Idempotency-Key': randomUUID(), 'X-File-Sha256': welcomeDigest }
          expect(await send(`${program.url}/uploads`, typed(headers), welcome.byteLength)).toBe(201)
        }
      })
      console.log(`resident MiB before and during ${WELCOMES} uploads of ${welcome.byteLength / MiB} MiB: ${describeMemory(before, most)}`)
      atWork.set(program, Math.max(most, atWork.get(program) ?? 0))
    }

    /** As many times `count` answers, each of them what was refused. */
    async function expectRefusals(count: number, send: Send): Promise<void> {
      for (const program of [server, small]) await warmUp(program, send)
      const lines: string[] = []
      for (const [status, headers] of refused) {
        const program = serverOf(status)
        const sendSome = async (times: number): Promise<void> => {
          for (let n = 0; n < times; n++) expect(await send(`${program.url}/uploads`, typed(headers()), body.byteLength)).toBe(status)
        }
        const refusing = await memoryPeak(program, () => sendSome(count))
        lines.push(`${status}: ${describeMemory(refusing)}`)
        expect(refusing - atWork.get(program)!).toBeLessThan(MEMORY_GROWTH)
      }
      console.log(`resident MiB at work: ${describeMemory(...atWork.values())}, at most: ${lines.join(' | ')}`)
    }

    it(`is read by fetch of Node, ${REFUSALS} of ${REFUSALS} times`, async () => {
      await expectRefusals(REFUSALS, async (url, headers, size) => {
        const answer = await fetch(url, { method: 'POST', body: body.subarray(0, size), headers })
        await answer.arrayBuffer()
        return answer.status
      })
    }, 180_000)

    it(`is read by curl, ${REFUSALS} of ${REFUSALS} times, half of them without Expect: 100-continue`, async () => {
      let turn = 0
      await writeFile(welcomeFile(), welcome)
      await expectRefusals(REFUSALS, async (url, headers, size) => {
        const sent = { ...headers, ...(turn++ % 2 === 0 ? { Expect: '' } : {}) }
        const lines = Object.entries(sent).flatMap(([name, value]) => ['-H', `${name}:${value === '' ? '' : ` ${value}`}`])
        const { stdout } = await run('curl', [
          '-sS',
          '-o',
          '/dev/null',
          '-w',
          '%{http_code}',
          '-X',
          'POST',
          '-T',
          size === body.byteLength ? file() : welcomeFile(),
          ...lines,
          url,
        ])
        return Number(stdout)
      })
    }, 180_000)

    const browsers = [
      { program: programs.chromium, launch: launchChromiumEngine },
      { program: programs.firefox, launch: launchFirefox },
    ]
    for (const { program, launch } of browsers) {
      describeWith(program, `in ${program.name}`, () => {
        it(`is read by a page, ${BROWSER_REFUSALS} of ${BROWSER_REFUSALS} times`, async () => {
          const engine = await launch()
          try {
            await engine.goto(`${site.url}/`)
            await engine.evaluate(`globalThis.body = new Blob([new Uint8Array(${body.byteLength}).fill(7)]), 1`)
            await expectRefusals(BROWSER_REFUSALS, (url, headers, size) =>
              engine.evaluate<number>(
                `fetch(${JSON.stringify(url)}, { method: 'POST', body: body.slice(0, ${size}), headers: ${JSON.stringify(headers)} }).then(async (answer) => (await answer.text(), answer.status))`,
              ),
            )
          } finally {
            await engine.close()
          }
        }, 600_000)
      })
    }
  })
})
