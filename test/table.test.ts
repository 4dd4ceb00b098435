import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import {
  createUploadQueue,
  fetchTransport,
  type UploadHandle,
  type UploadQueue,
  type UploadQueueOptions,
  type UploadStatus,
  xhrTransport,
} from '../src/index.js'
import { fullJitter, type RetryPolicy } from '../src/verdict.js'
import { fakeClock, flush, until } from './helpers/fake-clock.js'
import { createRandom } from './helpers/random.js'
import { createTransportDouble, type SentRequest } from './helpers/transport.js'

const endpoint = 'https://files.example/uploads'
/** Whole seconds, as HTTP dates are. */
const epoch = Date.UTC(2026, 2, 1, 12)

/** What is seen from outside of an upload that gets one and the same answer four times, should it ask so often, and then is stored. */
interface Story {
  requests: number
  /** Between one answer and the next request, ms: at least and at most. */
  gaps: [number, number]
  end: UploadStatus
  reason: string | null
  /** Of these two are allowed. */
  attempts: number
  /** Whether another upload to the same origin, enqueued after the first answer, waits. */
  holdsOthers: boolean
}
const story = (requests: number, gaps: [number, number], end: UploadStatus, reason: string | null, attempts: number): Story => ({
  requests,
  gaps,
  end,
  reason,
  attempts,
  holdsOthers: false,
})

/** The verdicts. The first delay of the backoff is at most a second, and none is below 250 ms. */
const succeeds = story(1, [0, 0], 'succeeded', null, 1)
const backsOff = (reason: string, least = 250, most = 1_000): Story => story(2, [least, most], 'failed', reason, 2)
const waits = (least: number, most: number): Story => story(5, [least, most], 'succeeded', null, 1)
const holdsAll = (least: number, most: number): Story => ({ ...waits(least, most), holdsOthers: true })
const signsInAgain = story(2, [0, 0], 'blocked', 'unauthorized', 0)
const checksBytes = story(3, [0, 0], 'failed', 'digest-mismatch', 1)
const fails = (reason: string): Story => story(1, [0, 0], 'failed', reason, 1)

interface Answer {
  status: number
  headers?: Record<string, string>
  body?: unknown
  url?: string
  redirected?: boolean
  broken?: boolean
}
type Answering = Answer | ((request: SentRequest) => Answer)

const opened: UploadQueue<never>[] = []
const openQueue = (options: Partial<UploadQueueOptions<never>>): UploadQueue<never> => {
  const queue = createUploadQueue<never>(
    { endpoint, persist: 'memory', retry: { limit: 2 }, ...options },
    { random: createRandom(1).next, openChannel: undefined },
  )
  opened.push(queue)
  return queue
}

beforeEach(() => {
  fakeClock(epoch)
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
})
afterEach(async () => {
  await Promise.all(opened.splice(0).map((queue) => queue.close()))
  vi.unstubAllGlobals()
})

/** Lets time pass, only while nothing is under way, until something holds. */
async function untilHolds(holds: () => boolean): Promise<void> {
  const isUnderWay = (): boolean => opened.some((queue) => queue.getSnapshot().some(({ status }) => status === 'uploading'))
  for (let turn = 0; turn < 10_000; turn++) {
    await flush(5)
    if (holds()) return
    if (!isUnderWay()) await vi.advanceTimersToNextTimerAsync()
  }
  throw new Error('It does not come to an end.')
}
const hasEnded = (upload: UploadHandle<never>): boolean => ['succeeded', 'failed', 'blocked'].includes(upload.snapshot!.status)

/** Plays an answer until it has been given and another upload has come, while no time passes; what it returns plays the rest. */
async function play(answering: Answering, options: Partial<UploadQueueOptions<never>> = {}): Promise<() => Promise<Story>> {
  const transport = createTransportDouble()
  const queue = openQueue({ transport, ...options })
  const times: number[] = []
  let isOtherAsked = false
  const serve = async (): Promise<never> => {
    for (;;) {
      const request = await transport.nextRequest()
      if (request.headers.get('X-File-Name') === 'other') {
        isOtherAsked = true
        request.store()
      } else if (times.push(Date.now()) > 4) request.store()
      else request.respondWith(typeof answering === 'function' ? answering(request) : answering)
    }
  }
  void serve()
  const one = await queue.enqueue(new File(['hello'], 'one'))
  await until(() => times.length > 0)
  const other = await queue.enqueue(new File(['other'], 'other'))
  await flush()
  const holdsOthers = !isOtherAsked
  return async () => {
    await untilHolds(() => [one, other].every(hasEnded))
    const { status, reason, attempts } = one.snapshot!
    const gaps = times.slice(1).map((time, index) => time - times[index]!)
    return { requests: times.length, gaps: [Math.min(...gaps), Math.max(...gaps)], end: status, reason, attempts, holdsOthers }
  }
}

const within = (value: number, [least, most]: [number, number]): boolean => value >= least && value <= most

/** Plays each answer to a queue of its own, all at the same time: they share a clock, so none lets time pass before all have come so far. */
async function expectStories(rows: readonly [name: string, Answering, Story, Partial<UploadQueueOptions<never>>?][]): Promise<void> {
  const begun = await Promise.all(rows.map(([, answering, , options]) => play(answering, options)))
  const stories = await Promise.all(begun.map((finish) => finish()))
  // A gap that is as it should be is shown as what it should be.
  const shown = stories.map((seen, place) => {
    const { gaps } = rows[place]![2]
    return [rows[place]![0], { ...seen, gaps: seen.requests === 1 || seen.gaps.every((gap) => within(gap, gaps)) ? gaps : seen.gaps }]
  })
  expect(Object.fromEntries(shown)).toEqual(Object.fromEntries(rows.map(([name, , expected]) => [name, expected])))
}

const receipt = { uploadId: 'u', storageKey: 's' }
const page = '<!doctype html><title>Welcome</title><h1>Sign in to the hotel</h1>'
const html = { 'Content-Type': 'text/html' }
const statuses = Array.from({ length: 400 }, (_, index) => 200 + index)
const isSuccess = (status: number): boolean => status >= 200 && status <= 299
const worthRetrying = [408, 409, 425, 429, 500, 502, 503, 504]

/** The table for an answer that says nothing but its status. */
const byStatus = (status: number): Story => {
  if (isSuccess(status)) return backsOff('unproven')
  if (status === 401) return signsInAgain
  return worthRetrying.includes(status) ? backsOff('http') : fails('rejected')
}
const told = (status: number): Story => {
  if (status === 409) return waits(7_000, 7_700)
  if (status === 429 || status === 503) return holdsAll(7_000, 7_700)
  const untold = byStatus(status)
  return untold.gaps[1] > 0 ? { ...untold, gaps: [7_000, 7_700] } : untold
}
const ifProven = (status: number): Story => (isSuccess(status) ? succeeds : byStatus(status))
/** A redirect that keeps method and body may lead to any answer; one that dropped them cannot lead to a proof. */
const afterRedirect = (status: number): Story => (status === 401 || worthRetrying.includes(status) ? byStatus(status) : fails('redirected'))

const here = { url: 'https://files.example/elsewhere', redirected: true }
const elsewhere = { url: 'https://hotel.example/welcome', redirected: true }

test.each(statuses)('a status of %i', async (status) => {
  const echoing = ({ key }: SentRequest): Answer => ({ status, headers: { 'Idempotency-Key': key } })
  await expectStories([
    ['and nothing else', { status }, byStatus(status)],
    ['with a receipt', { status, body: receipt }, ifProven(status)],
    ['echoing the key', echoing, ifProven(status)],
    ['with Retry-After', { status, headers: { 'Retry-After': '7' } }, told(status)],
    ['redirected here', { status, ...here }, afterRedirect(status)],
    ['redirected elsewhere', { status, ...elsewhere }, backsOff('unproven')],
    ['redirected elsewhere, echoing the key', (request) => ({ ...echoing(request), ...elsewhere }), backsOff('unproven')],
  ])
})

test('every 2xx after a redirect on the same origin that carried the body along', async () => {
  const successes = statuses.filter(isSuccess)
  await expectStories(successes.map((status) => [`${status}`, { status, body: receipt, ...here }, succeeds]))
})

describe('the codes of problems', () => {
  const problem = (error: string): Partial<Answer> => ({ headers: { 'Content-Type': 'application/problem+json' }, body: { error } })

  test('those that the table names, under their own status', async () => {
    await expectStories([
      ['400', { status: 400, ...problem('digest_mismatch') }, checksBytes],
      ['409', { status: 409, ...problem('idempotency_in_progress') }, waits(250, 8_000)],
      ['409, told', { status: 409, body: { error: 'idempotency_in_progress' }, headers: { 'Retry-After': '7' } }, waits(7_000, 7_700)],
      ['422', { status: 422, ...problem('idempotency_key_reuse') }, fails('key-reused')],
    ])
  })

  test.each(['digest_mismatch', 'idempotency_in_progress', 'idempotency_key_reuse'])(
    '%s means nothing under another status',
    async (code) => {
      const own = { digest_mismatch: 400, idempotency_in_progress: 409, idempotency_key_reuse: 422 }[code]
      const others = [200, 400, 401, 403, 409, 413, 422, 428, 500].filter((status) => status !== own)
      await expectStories(others.map((status) => [`${status}`, { status, ...problem(code) }, byStatus(status)]))
    },
  )

  test('every other code leaves it to the status', async () => {
    const codes: [number, string][] = [
      [400, 'idempotency_key_required'],
      [400, 'idempotency_key_invalid'],
      [400, 'digest_required'],
      [400, 'metadata_invalid'],
      [401, 'unauthorized'],
      [403, 'origin_not_allowed'],
      [404, 'not_found'],
      [405, 'method_not_allowed'],
      [408, 'upload_timeout'],
      [413, 'payload_too_large'],
      [413, 'quota_exceeded'],
      [415, 'unsupported_media_type'],
      [429, 'too_many_in_flight'],
      [500, 'internal_error'],
      [503, 'storage_unavailable'],
      [503, 'store_unavailable'],
    ]
    await expectStories(codes.map(([status, code]) => [code, { status, ...problem(code) }, byStatus(status)]))
  })

  test('a code in a page, or in a body that broke off, is none', async () => {
    const code = '{"error":"idempotency_key_reuse"}'
    await expectStories([
      ['a page', { status: 422, headers: html, body: code }, fails('rejected')],
      [
        'broken',
        { status: 422, headers: { 'Content-Type': 'application/json' }, body: code.slice(0, -3), broken: true },
        fails('rejected'),
      ],
      ['a list', { status: 422, body: [{ error: 'idempotency_key_reuse' }] }, fails('rejected')],
      ['null', { status: 422, body: 'null', headers: { 'Content-Type': 'application/json' } }, fails('rejected')],
    ])
  })
})

describe('bodies of a success', () => {
  const json = { 'Content-Type': 'application/json' }
  const echo = ({ key }: SentRequest): Record<string, string> => ({ ...json, 'Idempotency-Key': key })
  const other = 'ab'.repeat(32)

  test('what proves nothing is tried again', async () => {
    const nothing = backsOff('unproven')
    await expectStories([
      ['empty', { status: 201 }, nothing],
      ['a captive portal', { status: 200, headers: html, body: page }, nothing],
      ['a captive portal that says it is JSON', { status: 200, headers: json, body: page }, nothing],
      ['a 204', { status: 204 }, nothing],
      ['JSON without what is asked for', { status: 201, body: { id: 'u' } }, nothing],
      ['a receipt with a number', { status: 201, body: { uploadId: 1, storageKey: 's' } }, nothing],
      ['a list', { status: 201, body: [receipt] }, nothing],
      ['null', { status: 201, headers: json, body: 'null' }, nothing],
      ['a receipt that broke off', { status: 201, headers: json, body: '{"uploadId":"u","stor', broken: true }, nothing],
      ['a receipt for other bytes', { status: 201, body: { ...receipt, sha256: other } }, nothing],
      ['the key of another', { status: 201, headers: { 'Idempotency-Key': 'another' } }, nothing],
      [
        'its own key, and a receipt for other bytes',
        (request) => ({ status: 201, headers: echo(request), body: { ...receipt, sha256: other } }),
        nothing,
      ],
    ])
  })

  test('what proves it is enough, whatever else is wrong', async () => {
    await expectStories([
      ['a receipt', { status: 200, body: receipt }, succeeds],
      ['a receipt labelled as a page', { status: 201, headers: html, body: JSON.stringify(receipt) }, succeeds],
      ['a receipt with more in it', { status: 201, body: { ...receipt, sha256: null, more: [1] } }, succeeds],
      ['the key and an empty body', (request) => ({ status: 201, headers: echo(request) }), succeeds],
      ['the key and a body that broke off', (request) => ({ status: 201, headers: echo(request), body: '{"up', broken: true }), succeeds],
      ['the key and a page', (request) => ({ status: 200, headers: { ...echo(request), ...html }, body: page }), succeeds],
      ['the key, quoted', ({ key }) => ({ status: 201, headers: { 'Idempotency-Key': `"${key}"` } }), succeeds],
      ['the key, and no content', (request) => ({ status: 204, headers: echo(request) }), succeeds],
    ])
  })
})

test('what the app says overrules the table where that is documented', async () => {
  await expectStories([
    ['a status it wants retried', { status: 418 }, backsOff('http'), { retry: { limit: 2, statusCodes: [418] } }],
    [
      'a status it does not',
      { status: 503, headers: { 'Retry-After': '7' } },
      fails('rejected'),
      { retry: { limit: 2, statusCodes: [418] } },
    ],
    ['a refusal it wants retried', { status: 403 }, backsOff('rejected'), { retry: { limit: 2, shouldRetry: () => true } }],
    ['a fault it does not', { status: 500 }, fails('http'), { retry: { limit: 2, shouldRetry: () => false } }],
    ['its own proof', { status: 204 }, succeeds, { response: () => null as never }],
    [
      'its own doubt',
      { status: 201, body: receipt },
      backsOff('unproven'),
      { response: () => Promise.reject(new Error('not what was asked for')) },
    ],
  ])
})

describe('Retry-After', () => {
  const at = (seconds: number): Date => new Date(epoch + seconds * 1_000)
  // The three forms of RFC 9110, section 5.6.7, of a moment 90 s from now.
  const imf = 'Sun, 01 Mar 2026 12:01:30 GMT'
  const rfc850 = 'Sunday, 01-Mar-26 12:01:30 GMT'
  const asctime = 'Sun Mar  1 12:01:30 2026'
  const day = 86_400_000
  /** What a header is understood as, ms at least and at most; `null`: as if it were not there. */
  const forms: [header: string, understood: [number, number] | null, date?: string][] = [
    ['7', [7_000, 7_700]],
    [' 7 ', [7_000, 7_700]],
    ['007', [7_000, 7_700]],
    ['120', [120_000, 121_000]],
    ['0', [250, 275]],
    [imf, [90_000, 91_000]],
    [rfc850, [90_000, 91_000]],
    [asctime, [90_000, 91_000]],
    // A server whose clock is an hour ahead, and one whose clock is an hour behind.
    ['Sun, 01 Mar 2026 13:01:30 GMT', [90_000, 91_000], at(3_600).toUTCString()],
    ['Sun, 01 Mar 2026 11:01:30 GMT', [90_000, 91_000], at(-3_600).toUTCString()],
    [imf, [90_000, 91_000], 'soon'],
    ['Sun, 01 Mar 2026 11:59:59 GMT', [250, 275]],
    ['Sun, 06 Nov 1994 08:49:37 GMT', [250, 275]],
    ['Sunday, 06-Nov-94 08:49:37 GMT', [250, 275]],
    ['Sun Nov  6 08:49:37 1994', [250, 275]],
    ['9999999999', [day, day + 1_000]],
    ['9'.repeat(400), [day, day + 1_000]],
    ['Thu, 31 Dec 2099 23:59:59 GMT', [day, day + 1_000]],
    ['-5', null],
    ['+5', null],
    ['1e3', null],
    ['1.5', null],
    ['0x10', null],
    ['abc', null],
    ['NaN', null],
    ['Infinity', null],
    ['5s', null],
    ['', null],
    ['5, 10', null],
    ['7, 7', null],
    [`${imf}, ${imf}`, null],
    ['2026-03-01T12:01:30Z', null],
    ['Sun, 01 Mar 2026 12:01:30 +0000', null],
    ['Sun, 99 Mar 2026 12:01:30 GMT', null],
    ['sun, 01 mar 2026 12:01:30 gmt', null],
  ]

  test.each(forms)('%j', async (header, understood, date) => {
    const headers = { 'Retry-After': header, ...(date !== undefined && { Date: date }) }
    // With time to spare: some of these waits end in days.
    const options = { maxAge: 30 * day }
    // A date is the same moment at the second request, and by then it is past.
    const gaps = (header.includes(':') && understood ? [250, understood[1]] : understood) as [number, number]
    await expectStories([
      ['429', { status: 429, headers }, understood ? holdsAll(...gaps) : byStatus(429), options],
      ['503', { status: 503, headers }, understood ? holdsAll(...gaps) : byStatus(503), options],
      ['409', { status: 409, headers }, understood ? waits(...gaps) : byStatus(409), options],
      // Never shorter than was said, and counted all the same.
      [
        '500',
        { status: 500, headers },
        { ...byStatus(500), gaps: understood && understood[0] > 1_000 ? understood : [250, 1_000] },
        options,
      ],
      ['403', { status: 403, headers }, byStatus(403), options],
    ])
  })

  test.each([imf, rfc850, asctime])('the first wait until %s lasts until then', async (date) => {
    const transport = createTransportDouble()
    const upload = await openQueue({ transport }).enqueue(new File(['hello'], 'one'))
    ;(await transport.nextRequest()).respondWith({ status: 409, headers: { 'Retry-After': date } })
    await until(() => upload.snapshot?.status === 'pending')
    expect(within(upload.snapshot!.notBefore! - epoch, [90_000, 91_000])).toBe(true)
  })
})

describe('no readable answer', () => {
  const failures: [engine: string, thrown: unknown][] = [
    ['Chromium', new TypeError('Failed to fetch')],
    ['Firefox', new TypeError('NetworkError when attempting to fetch resource.')],
    ['Firefox of earlier', new TypeError('NetworkError when attempting to fetch resource')],
    ['Safari', new TypeError('Load failed')],
    ['Safari, offline', new TypeError('The Internet connection appears to be offline.')],
    ['undici', new TypeError('fetch failed', { cause: Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' }) })],
    ['an engine nobody knows', new TypeError('Der Server ist nicht da')],
    ['an engine of few words', new TypeError('')],
    ['an engine that throws what it likes', 'no network'],
    ['an abort that nobody asked for', new DOMException('The user aborted a request.', 'AbortError')],
  ]
  const engines: [transport: string, thrown: unknown, () => void, typeof fetchTransport][] = [
    ...failures.map(([engine, thrown]): (typeof engines)[number] => [`fetch of ${engine}`, thrown, () => {}, fetchTransport]),
    ...(['onerror', 'onabort'] as const).map((event): (typeof engines)[number] => [
      `XMLHttpRequest, ${event}`,
      event,
      stubXhr,
      xhrTransport,
    ]),
  ]

  /** An XMLHttpRequest that ends as `answer` says. */
  function stubXhr(): void {
    class Xhr extends EventTarget {
      upload = {}
      status = 0
      responseText = ''
      responseURL = ''
      onload = (): void => {}
      onerror = (): void => {}
      onabort = (): void => {}
      open(): void {}
      setRequestHeader(): void {}
      getAllResponseHeaders = (): string => ''
      abort(): void {}
      async send(): Promise<void> {
        try {
          const answer = await globalThis.fetch(endpoint, { method: 'POST' })
          this.status = answer.status
          this.responseText = await answer.text()
          this.onload()
        } catch (event) {
          this[event as 'onerror' | 'onabort']()
        }
      }
    }
    vi.stubGlobal('XMLHttpRequest', Xhr)
  }

  /** A network whose first `lost` requests come to nothing, and its first `silent` probes. */
  const openNetwork = (thrown: unknown, { lost, silent }: { lost: number; silent: number }): { posts: number[]; probes: number[] } => {
    const seen = { posts: [] as number[], probes: [] as number[] }
    vi.stubGlobal('fetch', async (_url: string, init: RequestInit) => {
      const isProbe = init.method === 'HEAD'
      if ((isProbe ? seen.probes : seen.posts).push(Date.now()) <= (isProbe ? silent : lost)) throw thrown
      return new Response(JSON.stringify(receipt), { status: 201 })
    })
    return seen
  }

  test.each(engines)('%s, while a probe is answered: counted, and backed off', async (_engine, thrown, stub, createTransport) => {
    stub()
    const seen = openNetwork(thrown, { lost: 2, silent: 0 })
    const upload = await openQueue({ transport: createTransport() }).enqueue(new File(['hello'], 'one'))
    await untilHolds(() => hasEnded(upload))
    expect(upload.snapshot).toMatchObject({ status: 'failed', reason: 'network', attempts: 2, size: 5 })
    expect(upload.snapshot!.error!.message).toBe('No readable answer: offline, blocked, or refused by a proxy.')
    expect(seen.posts).toHaveLength(2)
    expect(within(seen.posts[1]! - seen.posts[0]!, [250, 1_000])).toBe(true)
    expect(seen.probes).toEqual(seen.posts)
  })

  test.each(engines)('%s, while no probe is answered: not counted, and waited for', async (_engine, thrown, stub, createTransport) => {
    stub()
    const seen = openNetwork(thrown, { lost: 4, silent: 20 })
    const queue = openQueue({ transport: createTransport() })
    const upload = await queue.enqueue(new File(['hello'], 'one'))
    await until(() => upload.snapshot?.reason === 'network')
    const other = await queue.enqueue(new File(['other'], 'other'))
    await flush()
    expect([seen.posts.length, other.snapshot?.status]).toEqual([1, 'pending'])
    expect(upload.snapshot).toMatchObject({ status: 'pending', attempts: 0, notBefore: null })
    await untilHolds(() => hasEnded(upload) && hasEnded(other))
    expect(upload.snapshot).toMatchObject({ status: 'succeeded', attempts: 1 })
    expect(Math.max(...seen.probes.slice(1).map((time, index) => time - seen.probes[index]!))).toBeLessThanOrEqual(60_000)
  })

  test.each([
    ['the whole time', { timeout: 5_000 }, 5_000],
    ['silence', { stallTimeout: 3_000 }, 3_000],
  ])('no answer, and %s is over: counted, and backed off', async (_what, limits, after) => {
    const transport = createTransportDouble({ reportsBytes: true })
    const upload = await openQueue({ transport, ...limits }).enqueue(new File(['hello'], 'one'))
    for (let count = 0; count < 2; count++) {
      const next = transport.nextRequest()
      await untilHolds(() => transport.requests.length > count)
      const request = await next
      await vi.advanceTimersByTimeAsync(after - 1)
      expect(request.signal.aborted).toBe(false)
      await vi.advanceTimersByTimeAsync(1)
      expect(request.signal.aborted).toBe(true)
      await until(() => upload.snapshot?.status !== 'uploading')
    }
    expect(upload.snapshot).toMatchObject({ status: 'failed', reason: 'timeout', attempts: 2 })
  })

  test.each([
    ['a header that cannot be sent', { headers: () => ({ 'X-Name': 'caf\u00e9\u4e2d' }) }],
    ['a URL that is none', { endpoint: () => 'http://' }],
    ['a URL with a password', { endpoint: 'https://ann:secret@files.example/uploads' }],
  ])('%s: no request, no probe', async (_what, options) => {
    for (const transport of [fetchTransport(), xhrTransport()]) {
      const seen = openNetwork(new TypeError('Failed to fetch'), { lost: 0, silent: 0 })
      const upload = await openQueue({ transport, ...(options as object) }).enqueue(new File(['hello'], 'one'))
      await untilHolds(() => hasEnded(upload))
      expect(upload.snapshot).toMatchObject({ status: 'failed', reason: 'invalid-request' })
      expect(seen).toEqual({ posts: [], probes: [] })
    }
  })
})

describe('full jitter', () => {
  const policy: RetryPolicy = { limit: 10, baseDelay: 1_000, maxDelay: 30_000, maxRetryAfter: 86_400_000, statusCodes: [] }
  const floor = 250
  const anyPolicy = fc.record({ attempts: fc.nat(1_000), baseDelay: fc.nat(100_000), maxDelay: fc.nat(10_000_000), seed: fc.integer() })

  test('never leaves its bounds', () => {
    fc.assert(
      fc.property(anyPolicy, ({ attempts, baseDelay, maxDelay, seed }) => {
        const { next } = createRandom(seed)
        const cap = Math.max(floor, Math.min(maxDelay, baseDelay * 2 ** attempts))
        for (let draw = 0; draw < 20; draw++) {
          const delay = fullJitter(attempts, { ...policy, baseDelay, maxDelay }, next)
          expect(Number.isSafeInteger(delay)).toBe(true)
          expect(delay).toBeGreaterThanOrEqual(floor)
          expect(delay).toBeLessThanOrEqual(cap)
        }
      }),
      { seed: 1, numRuns: 200 },
    )
  })

  /** The largest distance between the share of draws up to a value and that of the uniform distribution. */
  const distanceFromUniform = (draws: number[], least: number, most: number): number => {
    const sorted = [...draws].sort((a, b) => a - b)
    const distances = sorted.map((draw, index) => {
      const expected = (draw - least) / (most - least)
      return Math.max(Math.abs((index + 1) / sorted.length - expected), Math.abs(index / sorted.length - expected))
    })
    return Math.max(...distances)
  }
  /** Kolmogorov and Smirnov's: uniform draws are further off once in a thousand times. */
  const critical = (draws: number): number => 1.95 / Math.sqrt(draws)

  test('a thousand draws are spread evenly, whatever the attempt and the policy', () => {
    fc.assert(
      fc.property(
        fc.nat(20),
        fc.integer({ min: 5_000, max: 100_000 }),
        fc.integer({ min: 5_000, max: 10_000_000 }),
        fc.integer(),
        (attempts, baseDelay, maxDelay, seed) => {
          const { next } = createRandom(seed)
          const draws = Array.from({ length: 1_000 }, () => fullJitter(attempts, { ...policy, baseDelay, maxDelay }, next))
          expect(distanceFromUniform(draws, floor, Math.min(maxDelay, baseDelay * 2 ** attempts))).toBeLessThan(critical(1_000))
        },
      ),
      { seed: 1, numRuns: 100 },
    )
  })

  test('the measure tells other spreads apart', () => {
    const { next } = createRandom(1)
    const spreads = {
      'jitter first, capped then': () => Math.min(30_000, next() * 64_000),
      'half of it fixed': () => 15_000 + next() * 15_000,
      'a little on top': () => 27_000 + next() * 3_000,
    }
    for (const draw of Object.values(spreads)) {
      const draws = Array.from({ length: 1_000 }, draw)
      expect(distanceFromUniform(draws, floor, 30_000)).toBeGreaterThan(critical(1_000))
    }
  })
})

test('a wait told by another origin, after a redirect, is none', async () => {
  const headers = { 'Retry-After': '3600' }
  await expectStories([429, 503, 500].map((status) => [`${status}`, { status, headers, ...elsewhere }, backsOff('unproven')]))
})
