import { afterAll, describe, expect, test } from 'vitest'
import { run } from '../../helpers/engine.js'
import type { FileFacts } from '../../helpers/page-tools.js'
import { eventually, type Stage, type StagePage } from '../../helpers/stage.js'
import {
  answers,
  breaksOff,
  echoesKey,
  echoesKeyAndBreaksOff,
  hangsUp,
  hidesPortal,
  keepsSilent,
  readsNothing,
  redirects,
  resets,
  type Step,
  showsPortal,
  startTrouble,
  stores,
  storesAfter,
  storesSlowly,
  type Trouble,
} from '../../helpers/trouble.js'

const transports = ['fetch', 'xhr'] as const

interface Case {
  /** What the server does with the first, second, … attempt at each file, or at this one; later ones are stored. */
  steps: Step[] | Record<string, Step[]>
  files?: FileFacts[]
  options?: { timeout?: number; stallTimeout?: number; retry?: object }
  /** What the queue tells of each file, or of this one. */
  tale: string[] | Record<string, string[]>
  /** Over this transport only. */
  only?: (typeof transports)[number]
  warnings?: number
}

/** `limit`: after so many counted attempts it has failed. */
const retriesUpTo = (limit: number) => ({ baseDelay: 300, maxDelay: 600, limit })
const twice = { retry: retriesUpTo(2) }
const thrice = { retry: retriesUpTo(3) }

const problem = (status: number, error: string): Step =>
  answers(status, { headers: { 'Content-Type': 'application/problem+json' }, body: JSON.stringify({ error }) })
const all = (count: number, step: Step): Step[] => Array(count).fill(step)

const retried = [408, 409, 425, 429, 500, 502, 503, 504].map(String)
const refused = [304, 400, 403, 404, 405, 410, 413, 415, 418, 422, 431, 451, 501, 505, 599].map(String)

/** Each with a queue and a server of its own, all at once; `portals` are where some lead to. */
const casesWith = (portals: () => { open: string; closed: string; storing: string }): Record<string, Case> => ({
  'reads and never answers gets the same key again after the time-out': {
    steps: [keepsSilent],
    options: { timeout: 6_000 }, // on a busy machine, where all cases are played at once, an answer takes a while
    tale: ['timeout', 'succeeded'],
  },
  'reads nothing any more gets the same key again when no byte has moved for long': {
    steps: [readsNothing],
    files: [{ size: 16_000_000 }],
    options: { stallTimeout: 2_000 },
    tale: ['timeout', 'succeeded'],
    only: 'xhr',
  },
  'breaks off in the middle of its answer gets the same key again': {
    steps: [breaksOff({ 'Content-Length': '200' })],
    tale: ['unproven', 'succeeded'],
  },
  'breaks off in the middle of a chunk gets the same key again': { steps: [breaksOff()], tale: ['unproven', 'succeeded'] },
  'breaks off, but has named the key, has proven enough': {
    steps: [echoesKeyAndBreaksOff(['Idempotency-Key'])],
    tale: ['succeeded'],
    warnings: 1,
  },
  'stores and hangs up gets the same key again': { steps: [hangsUp], tale: ['network', 'succeeded'] },
  'resets the connection in the middle of the request gets the same key again': {
    steps: [resets, resets],
    files: [{ size: 3_000_000 }],
    tale: ['network', 'network', 'succeeded'],
  },

  'redirects by 307 within the origin is followed': { steps: [redirects(307, '/stored')], tale: ['succeeded'] },
  'redirects by 308 within the origin is followed': { steps: [redirects(308, '/stored')], tale: ['succeeded'] },
  'redirects by 301, which drops the body, proves nothing': { steps: [redirects(301, '/stored')], tale: ['failed redirected'] },
  'redirects by 302, which drops the body, proves nothing': { steps: [redirects(302, '/stored')], tale: ['failed redirected'] },
  'redirects by 303 to a page proves nothing': { steps: [redirects(303, '/portal')], tale: ['failed redirected'] },
  'redirects to the sign-in page of another origin is tried again': {
    steps: [redirects(302, () => portals().open)],
    tale: ['unproven', 'succeeded'],
  },
  'redirects to a sign-in page that nobody may read is tried again': {
    steps: [redirects(302, () => portals().closed)],
    tale: ['network', 'succeeded'],
  },
  'redirects to another origin is tried again, whatever that one stores': {
    steps: [redirects(307, () => portals().storing)],
    tale: ['unproven', 'succeeded'],
  },
  'stands behind a captive portal has its upload when the portal is gone': {
    steps: all(2, showsPortal),
    tale: ['unproven', 'unproven', 'succeeded'],
  },
  'stands behind a portal that nobody may read has its upload when it is gone': {
    steps: all(2, hidesPortal),
    tale: ['network', 'network', 'succeeded'],
  },
  'is a portal for good has proven nothing at the limit, and the bytes are kept': {
    steps: all(2, showsPortal),
    options: twice,
    tale: ['unproven', 'failed unproven'],
  },

  'answers with a status is judged by it': {
    files: [...retried, ...refused].map((name) => ({ size: 300, name })),
    steps: Object.fromEntries([...retried, ...refused].map((name) => [name, all(2, answers(Number(name)))])),
    options: twice,
    tale: {
      ...Object.fromEntries(retried.map((status) => [status, ['http', 'failed http']])),
      ...Object.fromEntries(refused.map((status) => [status, ['failed rejected']])),
    },
  },
  'is still at work on the key is waited for, uncounted': {
    steps: [problem(409, 'idempotency_in_progress'), answers(409, { headers: { 'Retry-After': '1' }, exposes: ['Retry-After'] })],
    options: { retry: retriesUpTo(1) },
    tale: ['in-progress (free)', 'in-progress (free)', 'succeeded'],
  },
  'knows the key with other content is asked once': { steps: [problem(422, 'idempotency_key_reuse')], tale: ['failed key-reused'] },
  'got other bytes gets right ones twice more': {
    steps: all(3, problem(400, 'digest_mismatch')),
    tale: ['digest-mismatch (free)', 'digest-mismatch (free)', 'failed digest-mismatch'],
  },
  ...Object.fromEntries(
    [413, 401, 429, 502].map((status) => [
      `answers ${status} without letting the page read it is tried up to the limit, spaced, and the bytes are kept`,
      {
        steps: all(3, answers(status, { headers: { 'Retry-After': '1' }, exposes: false })),
        options: thrice,
        tale: ['network', 'network', 'failed network'],
      },
    ]),
  ),
  'answers 413, unreadable and before it has read anything, is tried up to the limit, and the bytes are kept': {
    steps: all(3, answers(413, { exposes: false, reads: false })),
    files: [{ size: 3_000_000 }],
    options: thrice,
    tale: ['network', 'network', 'failed network'],
  },

  'names the key where the page can read it has proven success': {
    steps: [echoesKey(200, 'fine', ['Idempotency-Key'])],
    tale: ['succeeded'],
    warnings: 1,
  },
  'names the key where the page cannot read it has proven nothing': {
    steps: all(2, echoesKey(200, 'fine', [])),
    options: twice,
    tale: ['unproven', 'failed unproven'],
  },
  'names the key and says nothing else has proven success': {
    steps: [echoesKey(204, undefined, ['Idempotency-Key'])],
    tale: ['succeeded'],
    warnings: 1,
  },
  'says nothing at all has proven nothing': { steps: all(2, answers(204)), options: twice, tale: ['unproven', 'failed unproven'] },
  'gives a receipt that is no JSON has proven nothing': {
    steps: all(2, answers(201, { body: '{"uploadId":"1"' })),
    options: twice,
    tale: ['unproven', 'failed unproven'],
  },
  'says 102 first is heard to the end': { steps: [storesAfter((answer) => answer.writeProcessing())], tale: ['succeeded'] },
  'says 103 first is heard to the end': {
    steps: [storesAfter((answer) => answer.writeEarlyHints({ link: '</a.css>; rel=preload; as=style' }))],
    tale: ['succeeded'],
  },
})

type Faring = Awaited<ReturnType<typeof tools.faring>>[number]
const faring = (page: StagePage): Promise<Faring[]> => run(page, () => tools.faring())
const isAtRest = ({ status }: Faring): boolean => ['succeeded', 'failed', 'blocked'].includes(status)

/** The grain of timers and clocks, ms. */
const grain = 25

/** What holds of every upload that is at rest: what the server saw is what the queue told, under one key, and no attempt came early. */
const expectTrueTale = ({ seen }: Trouble, upload: Faring): void => {
  const own = seen.filter(({ path, name }) => path === '/uploads' && name === upload.file)
  expect(new Set(own.map(({ key }) => key))).toEqual(new Set([upload.key]))
  expect(upload.requests).toBe(upload.tale.length)
  const free = upload.tale.filter((word) => word.endsWith('(free)') || word.startsWith('blocked'))
  expect(upload.attempts).toBe(upload.tale.length - free.length)
  const arrived = [...new Set(own.map(({ attempt }) => attempt))].sort((a, b) => a - b)
  expect(arrived).toEqual(Array.from({ length: upload.requests }, (_, place) => place + 1))
  // By the page's own word, since a busy server learns late that a connection is gone.
  for (const [place, notBefore] of upload.notBefore.entries()) {
    const next = Math.min(...own.filter(({ attempt }) => attempt === place + 2).map(({ at }) => at))
    expect(next).toBeGreaterThanOrEqual(notBefore - grain)
  }
}

/** How a case ended over one transport. */
interface Ending {
  server: Trouble
  uploads: Faring[]
  /** Uploads whose bytes are in the database. */
  kept: number
}

export function testServers(stage: () => Stage): void {
  const troubles: Trouble[] = []
  const stopAll = async (): Promise<void> => {
    for (const trouble of troubles.splice(0)) await trouble.stop()
  }
  afterAll(stopAll)
  const trouble = async (...[scripts, options]: Parameters<typeof startTrouble>): Promise<Trouble> => {
    const started = await startTrouble(scripts, options)
    troubles.push(started)
    return started
  }

  const begin = (page: StagePage, name: string, url: string, transport: string, files: FileFacts[], options: object): Promise<void> =>
    run(
      page,
      async ({ name, url, transport, files, options }) => {
        const own = transport === 'xhr' ? { transport: uponce.xhrTransport() } : {}
        const queue = tools.open(name, { endpoint: `${url}/uploads`, ...own, ...options })
        for (const { size, seed, name } of files) await queue.enqueue(new File([tools.bytesOf(size, seed)], name ?? 'file.bin'))
      },
      { name, url, transport, files, options },
    )

  const play = async (cases: Record<string, Case>): Promise<Map<string, Ending>> => {
    const page = await stage().newPage(stage().newAccount())
    const prefix = `${Date.now()} `
    const playing = Object.entries(cases).flatMap(([title, { steps, files = [{ size: 500 }], options = {}, only }]) =>
      (only ? [only] : transports).map(async (transport) => {
        const name = `${title}, ${transport}`
        const server = await trouble((file) => (Array.isArray(steps) ? steps : (steps[file] ?? [])))
        await begin(page, prefix + name, server.url, transport, files, { retry: retriesUpTo(10), ...options })
        return { name, server, count: files.length }
      }),
    )
    const begun = await Promise.all(playing)
    const count = begun.reduce((sum, { count }) => sum + count, 0)
    // One that comes to no end is its own test's fault.
    await eventually(async () => (await faring(page)).filter(isAtRest).length)
      .toBe(count)
      .catch(() => {})
    const uploads = await faring(page)
    const ends = begun.map(async ({ name, server }): Promise<[string, Ending]> => {
      const { bytes } = await run(page, (name) => tools.held(name), prefix + name)
      return [name, { server, uploads: uploads.filter(({ queue }) => queue === prefix + name), kept: Object.keys(bytes).length }]
    })
    const endings = new Map(await Promise.all(ends))
    await run(page, () => tools.closeOthers())
    return endings
  }

  describe('a server that', () => {
    const portals = { open: '', closed: '', storing: '' }
    const cases = casesWith(() => portals)
    let playing: Promise<Map<string, Ending>> | undefined
    /** All are played in the test that comes first, since only tests may wait. */
    const endings = (): Promise<Map<string, Ending>> => {
      playing ??= (async () => {
        portals.open = `${(await trouble(() => all(9, showsPortal))).url}/`
        portals.closed = `${(await trouble(() => all(9, hidesPortal), { preflights: false })).url}/`
        portals.storing = `${(await trouble(() => [])).url}/`
        return play(cases)
      })()
      return playing
    }

    for (const [title, { files = [{ size: 0 }], tale, only, warnings = 0 }] of Object.entries(cases))
      test(title, async () => {
        for (const transport of only ? [only] : transports) {
          const { server, uploads, kept } = (await endings()).get(`${title}, ${transport}`)!
          const expected = files.map(({ name = 'file.bin' }) => [name, Array.isArray(tale) ? tale : tale[name]])
          expect(uploads.map(({ file, tale }) => [file, tale])).toEqual(expected)
          for (const upload of uploads) expectTrueTale(server, upload)
          expect(kept).toBe(uploads.filter(({ status }) => status !== 'succeeded').length)
          expect(uploads[0]!.told.filter((event) => event === 'warning')).toHaveLength(warnings)
        }
      })

    test('is away is waited for, which is not counted; when it is there, everything is sent, without a reload', async () => {
      const page = await stage().newPage(stage().newAccount())
      const prefix = `${Date.now()} `
      const servers = await Promise.all(transports.map(() => trouble((file) => (file === 'c' ? [keepsSilent] : []))))
      for (const server of servers) await server.leave()
      for (const [place, transport] of transports.entries())
        await begin(
          page,
          prefix + transport,
          servers[place]!.url,
          transport,
          [
            { size: 500, name: 'a' },
            { size: 500, name: 'b' },
          ],
          {
            retry: retriesUpTo(1),
          },
        )
      // Where the first of two has found nobody, the second is not tried.
      const states = async () =>
        (await faring(page)).map(({ status, attempts, tale }) => [status, attempts, tale.filter((word) => word !== 'network (free)')])
      await eventually(states).toEqual(Array(4).fill(['pending', 0, []]))
      await eventually(async () => (await faring(page)).map(({ told }) => told)).toEqual(Array(4).fill(['offline']))
      for (const server of servers) await server.listen()
      await eventually(states).toEqual(Array(4).fill(['succeeded', 1, ['succeeded']]))
      expect((await faring(page)).map(({ told }) => told)).toEqual(Array(4).fill(['offline', 'online']))
      for (const { seen } of servers) expect(seen.map(({ name }) => name).sort()).toEqual(['a', 'b'])

      for (const transport of transports) await run(page, (name) => tools.other(name).enqueue(new File(['x'], 'c')), prefix + transport)
      for (const { seen } of servers) await eventually(() => seen.length).toBe(3)
      for (const server of servers) await server.leave()
      const lastOf = async () => (await states()).filter((_, place) => place % 3 === 2)
      await eventually(lastOf).toEqual(Array(2).fill(['pending', 0, []]))
      for (const server of servers) await server.listen()
      await eventually(lastOf).toEqual(Array(2).fill(['succeeded', 1, ['succeeded']]))
      for (const { seen } of servers) expect(new Set(seen.slice(2).map(({ key }) => key)).size).toBe(1)
      await run(page, () => tools.closeOthers())
    })

    test('is slow, but reads on, is not cut, neither by the time-out, which grows with the file, nor as stalled where bytes are reported', async () => {
      const slow: Case = { steps: [storesSlowly(8_000_000)], files: [{ size: 24_000_000 }], options: { stallTimeout: 1_500 }, tale: [] }
      for (const { server, uploads } of (await play({ slow })).values()) {
        expect(uploads.map(({ tale }) => tale)).toEqual([['succeeded']])
        expectTrueTale(server, uploads[0]!)
        expect(server.seen[0]!.endedAt - server.seen[0]!.at).toBeGreaterThan(2_500)
      }
    })

    test('limits the rate is obeyed where its Retry-After can be read, and nothing else starts before; else it is spared for the floor', async () => {
      const page = await stage().newPage(stage().newAccount())
      const prefix = `${Date.now()} `
      const cases = [429, 503].flatMap((status) =>
        [['Retry-After'], []].flatMap((exposes) => transports.map((transport) => ({ status, exposes, transport }))),
      )
      const servers = await Promise.all(
        cases.map(({ status, exposes }) =>
          trouble((file) => (file === 'first' ? [answers(status, { headers: { 'Retry-After': '1' }, exposes })] : [])),
        ),
      )
      const nameOf = (place: number): string => `${prefix}${place}`
      for (const [place, { transport }] of cases.entries())
        await begin(page, nameOf(place), servers[place]!.url, transport, [{ size: 500, name: 'first' }], { retry: retriesUpTo(10) })
      await run(
        page,
        async (names) => {
          const untilRefused = (name: string): Promise<void> =>
            new Promise((resolve) => {
              const look = (): void => {
                if (tools.faring().some(({ queue, tale }) => queue === name && tale.length > 0)) resolve()
              }
              tools.other(name).subscribe(look)
              tools.other(name).on('retrying', look)
              look()
            })
          for (const name of names)
            untilRefused(name).then(() => tools.other(name).enqueueAll(['second', 'third'].map((file) => new File(['x'], file))))
        },
        cases.map((_, place) => nameOf(place)),
      )
      await eventually(async () => (await faring(page)).filter(isAtRest).length).toBe(3 * cases.length)
      const uploads = await faring(page)
      for (const [place, { exposes }] of cases.entries()) {
        const server = servers[place]!
        const own = uploads.filter(({ queue }) => queue === nameOf(place))
        for (const upload of own) expectTrueTale(server, upload)
        expect(own.map(({ file, tale }) => [file, tale])).toEqual([
          ['first', [exposes.length > 0 ? 'http (free)' : 'http', 'succeeded']],
          ['second', ['succeeded']],
          ['third', ['succeeded']],
        ])
        if (exposes.length === 0) continue
        const [notBefore = 0] = own[0]!.notBefore
        expect(notBefore - server.seen[0]!.at).toBeGreaterThanOrEqual(1_000 - grain)
        // What is left of the contacts once those for the refused attempt, its preflight among them, are gone.
        expect(server.contacts.filter((at) => at > server.seen[0]!.at && at < notBefore - grain)).toEqual([])
      }
      await run(page, () => tools.closeOthers())
    })

    test("answers 204 is believed by the app's own response", async () => {
      const page = await stage().newPage(stage().newAccount())
      const servers = await Promise.all(transports.map(() => trouble(() => [answers(200), answers(204)])))
      const prefix = `${Date.now()} `
      for (const [place, transport] of transports.entries())
        await run(
          page,
          async ({ name, url, transport }) => {
            const queue = tools.open(name, {
              endpoint: `${url}/uploads`,
              transport: transport === 'xhr' ? uponce.xhrTransport() : uponce.fetchTransport(),
              retry: { baseDelay: 300 },
              response: (response: Response) => {
                if (response.status !== 204) throw new Error()
                return { type: response.headers.get('Content-Type') } as never
              },
            })
            await queue.enqueue(new File(['x'], 'file.bin'))
          },
          { name: prefix + transport, url: servers[place]!.url, transport },
        )
      await eventually(async () => (await faring(page)).map(({ tale, result }) => ({ tale, result }))).toEqual(
        transports.map(() => ({ tale: ['unproven', 'succeeded'], result: { type: null } })),
      )
      for (const [place, upload] of (await faring(page)).entries()) expectTrueTale(servers[place]!, upload)
      await run(page, () => tools.closeOthers())
    })

    test('no longer accepts the sign-in: new headers are asked for once, for all; refused again, all wait for the app', async () => {
      const page = await stage().newPage(stage().newAccount())
      let accepted = 'Bearer 1'
      const step: Step = async (asked) => (asked.seen.authorization === accepted ? stores : answers(401))(asked)
      const servers = await Promise.all(transports.map(() => trouble(() => all(9, step))))
      const prefix = `${Date.now()} `
      for (const [place, transport] of transports.entries())
        await run(
          page,
          async ({ name, url, transport }) => {
            const session = { token: 0, next: 1, refreshes: 0 }
            Object.assign(globalThis, { [`session of ${transport}`]: session })
            const queue = tools.open(name, {
              endpoint: `${url}/uploads`,
              transport: transport === 'xhr' ? uponce.xhrTransport() : uponce.fetchTransport(),
              headers: async (_upload, { refresh }) => {
                if (refresh) {
                  session.refreshes += 1
                  session.token = session.next
                }
                return { Authorization: `Bearer ${session.token}` }
              },
            })
            await queue.enqueueAll(['a', 'b', 'c'].map((file) => new File(['x'], file)))
          },
          { name: prefix + transport, url: servers[place]!.url, transport },
        )
      const sessions = (): Promise<{ refreshes: number }[]> =>
        run(page, (names) => names.map((name) => globalThis[name as never] as { refreshes: number }), [
          'session of fetch',
          'session of xhr',
        ])
      const tales = async () => (await faring(page)).map(({ status, attempts, tale }) => ({ status, attempts, tale }))
      const renewed = { status: 'succeeded', attempts: 1, tale: ['unauthorized (free)', 'succeeded'] }
      await eventually(tales).toEqual(Array(6).fill(renewed))
      expect((await sessions()).map(({ refreshes }) => refreshes)).toEqual([1, 1])
      for (const upload of await faring(page)) expectTrueTale(servers[upload.queue.endsWith('xhr') ? 1 : 0]!, upload)

      accepted = 'Bearer 2' // and the app has no such token
      const more = (name: string): Promise<unknown> => run(page, (name) => tools.other(name).enqueue(new File(['y'], 'd')), name)
      for (const transport of transports) await more(prefix + transport)
      const blocked = { status: 'blocked', attempts: 0, tale: ['unauthorized (free)', 'blocked unauthorized'] }
      const lastOf = async () => (await tales()).filter((_, place) => place % 4 === 3)
      await eventually(lastOf).toEqual([blocked, blocked])
      for (const transport of transports) {
        const { bytes } = await run(page, (name) => tools.held(name), prefix + transport)
        expect(Object.values(bytes)).toEqual([1])
        await run(
          page,
          async ({ name, session }) => {
            Object.assign(globalThis[session as never], { token: 2 })
            await tools.other(name).resume()
          },
          { name: prefix + transport, session: `session of ${transport}` },
        )
      }
      await eventually(lastOf).toEqual(Array(2).fill({ status: 'succeeded', attempts: 1, tale: [...blocked.tale, 'succeeded'] }))
      for (const upload of await faring(page)) expectTrueTale(servers[upload.queue.endsWith('xhr') ? 1 : 0]!, upload)
      await run(page, () => tools.closeOthers())
    })
  })
}
