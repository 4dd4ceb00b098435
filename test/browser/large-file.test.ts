import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import puppeteer, { type Browser, type ElementHandle, type LaunchOptions } from 'puppeteer-core'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createProcesses } from '../bench/processes.js'
import { createAccount } from '../helpers/account.js'
import { quietArgs } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { buildTestPage, type SiteServer, serveSite } from '../helpers/page.js'
import { type Program, programs } from '../helpers/programs.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

/** Bytes of the file. `FAULTS_FULL=1`: more than a buffer, or a signed number of 32 bits, can hold. */
const SIZE = process.env.FAULTS_FULL === '1' ? 2_500_000_000 : 64_000_000
/** MiB beside what is there before, of the browser with all its processes as it stores and hashes, and of the server. */
const LARGEST_GROWTH = 40
/** What the browser itself keeps of a body under way, MiB: 5 to 40 in most runs, 111 in one on a machine with much other work. */
const LARGEST_SENDING = 160
/** The page's timers may be as late as this, ms, on a machine that has other work too. One task that hashes such a file takes longer. */
const LARGEST_GAP = 500

/** Nothing but zeros that take no room, and a word at its start, at its end, and where 2 GiB end. */
const writeSparseFile = async (path: string): Promise<string> => {
  const file = await open(path, 'w')
  await file.truncate(SIZE)
  for (const at of [0, 2 ** 31 - 4, SIZE - 8].filter((at) => at <= SIZE - 8)) await file.write('uponce', at)
  await file.close()
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) hash.update(chunk)
  return hash.digest('hex')
}

/** What `look` gives while `work` is done, above what it gave before, each with its time, ms since 1970. */
const growthDuring = async <T>(
  look: () => number[],
  work: () => Promise<T>,
): Promise<{ result: T; growth: { at: number; by: number[] }[] }> => {
  const before = look()
  const growth: { at: number; by: number[] }[] = []
  const timer = setInterval(() => growth.push({ at: Date.now(), by: look().map((now, place) => now - before[place]!) }), 300)
  try {
    return { result: await work(), growth }
  } finally {
    clearInterval(timer)
  }
}

const testLargeFile = (program: Program, name: string, options: LaunchOptions): void =>
  describeWith(program, `a file of ${SIZE / 1_000_000_000} GB in ${name}`, () => {
    let folder: TempFolder
    let server: Server
    let site: SiteServer
    let browser: Browser

    beforeAll(async () => {
      folder = await makeTempFolder('large')
      site = await serveSite(await buildTestPage())
      server = await startServer({ ALLOWED_ORIGINS: site.url, MAX_BYTES: '3000000000' })
      // A driver that listens to requests keeps their bodies, in Firefox several times over.
      browser = await puppeteer.launch({
        executablePath: program.path!,
        headless: true,
        networkEnabled: false,
        protocolTimeout: 1_200_000,
        ...options,
      })
    })
    afterAll(async () => {
      await browser?.close()
      await server?.stop()
      await site?.stop()
      await folder?.remove()
    })

    test('is stored as it was, by a page that goes on working, in a memory that it does not fill', { timeout: 1_200_000 }, async () => {
      const path = join(folder.path, 'large.bin')
      const sha256 = await writeSparseFile(path)
      const account = createAccount(server, 'large')
      const page = await browser.newPage()
      await page.goto(site.url)
      await page.waitForFunction(() => 'uponce' in globalThis)
      await page.evaluate(
        async (options) => {
          globalThis.queue = uponce.createUploadQueue(options)
          // All code is loaded, and the server has the room in which it works, before memory is looked at.
          for (let warmUp = 0; warmUp < 3; warmUp++) await (await queue.enqueue(new Blob([new Uint8Array(16_000_000)]))).done
        },
        { endpoint: `${server.url}/uploads`, name: account.name, headers: account.headers },
      )
      const input = (await page.$('input')) as ElementHandle<HTMLInputElement>
      await input.uploadFile(path)
      const processes = [browser.process()!.pid!, server.pid].map((pid) => createProcesses(pid))
      const { result, growth } = await growthDuring(
        () => processes.map(({ memory }) => memory()),
        () =>
          page.evaluate(async () => {
            let last = performance.now()
            let gap = 0
            const timer = setInterval(() => {
              gap = Math.max(gap, performance.now() - last)
              last = performance.now()
            }, 5)
            const times: Record<string, number> = {}
            const start = Date.now()
            const upload = await queue.enqueue(document.querySelector('input')!.files![0]!)
            times.durable = Date.now() - start
            queue.on('started', () => {
              times.hashed = Date.now() - start
            })
            const result = (await upload.done) as unknown as { sha256: string; bytes: number }
            times.stored = Date.now() - start
            clearInterval(timer)
            return { ...result, gap, times, start }
          }),
      )
      const { durable = 0, hashed = 0, stored = 0 } = result.times
      const largest = (place: number, from = 0, to = Number.POSITIVE_INFINITY): number =>
        Math.max(0, ...growth.filter(({ at }) => at >= result.start + from && at < result.start + to).map(({ by }) => by[place]!))
      const serverGrowth = largest(1)
      const phases = [largest(0, 0, durable), largest(0, durable, hashed), largest(0, hashed)] as const
      const megabytesPerSecond = (ms: number): string => `${(SIZE / 1_000 / ms).toFixed(0)} MB/s`
      console.log(
        [
          `${name}, ${SIZE / 1_000_000} MB: durable after ${(durable / 1_000).toFixed(1)} s, hashed at ${megabytesPerSecond(hashed - durable)}`,
          `sent at ${megabytesPerSecond(stored - hashed)}, longest timer gap ${result.gap.toFixed(0)} ms`,
          `extra memory in the browser ${phases.map((growth) => growth.toFixed(0)).join(', ')} MiB as it stores, hashes, sends`,
          `in the server ${serverGrowth.toFixed(0)} MiB`,
        ].join(', '),
      )
      expect(result).toMatchObject({ sha256, bytes: SIZE })
      const { media, objects } = await account.state()
      expect([objects, media.map(({ sha256 }) => sha256)]).toEqual([4, expect.arrayContaining([sha256])])
      expect(result.gap).toBeLessThan(LARGEST_GAP)
      expect(Math.max(phases[0], phases[1])).toBeLessThan(LARGEST_GROWTH)
      expect(phases[2]).toBeLessThan(LARGEST_SENDING)
      expect(serverGrowth).toBeLessThan(LARGEST_GROWTH)
    })
  })

testLargeFile(programs.chromium, 'Chromium', { args: [...quietArgs, '--no-sandbox'] })
testLargeFile(programs.firefox, 'Firefox', { browser: 'firefox' })
