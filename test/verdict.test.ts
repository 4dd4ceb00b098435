import fc from 'fast-check'
import { expect, test } from 'vitest'
import { UploadError, type UploadErrorCode } from '../src/errors.js'
import {
  delayFloor,
  fullJitter,
  type History,
  judge,
  type Outcome,
  parseRetryAfter,
  type RetryPolicy,
  type Verdict,
} from '../src/verdict.js'

const policy: RetryPolicy = {
  limit: 10,
  baseDelay: 1_000,
  maxDelay: 30_000,
  maxRetryAfter: 86_400_000,
  statusCodes: [408, 409, 425, 429, 500, 502, 503, 504],
}
const first: History = { attempts: 0, waits: 0, refreshed: false, mismatches: 0 }
const least = (): number => 0
const most = (): number => 1 - Number.EPSILON

const failed = (code: UploadErrorCode, status?: number): UploadError => new UploadError(code, 'm', { status })
const waits = (delay: number, counted: boolean, gate: 'none' | 'told' | 'unreachable' = 'none'): Verdict => ({
  type: 'wait',
  delay,
  counted,
  gate,
})
const fails: Verdict = { type: 'fail', counted: true }
const backsOff = waits(delayFloor, true)

const table: [name: string, outcome: Outcome, history: Partial<History>, verdict: Verdict][] = [
  ['409 of a key in progress, told to wait', { error: failed('in-progress', 409), retryAfter: 5_000 }, {}, waits(5_000, false)],
  ['409 of a key in progress, told nothing', { error: failed('in-progress', 409), retryAfter: null }, {}, waits(delayFloor, false)],
  ['409 of a key in progress, told 0', { error: failed('in-progress', 409), retryAfter: 0 }, {}, waits(delayFloor, false)],
  [
    '409 of a key in progress, with the budget spent',
    { error: failed('in-progress', 409), retryAfter: 5_000 },
    { attempts: 9 },
    waits(5_000, false),
  ],
  ['429 with Retry-After', { error: failed('http', 429), retryAfter: 7_000 }, {}, waits(7_000, false, 'told')],
  ['503 with Retry-After', { error: failed('http', 503), retryAfter: 7_000 }, {}, waits(7_000, false, 'told')],
  ['503 with a Retry-After that is past', { error: failed('http', 503), retryAfter: 0 }, {}, waits(delayFloor, false, 'told')],
  [
    '503 with Retry-After, the budget spent',
    { error: failed('http', 503), retryAfter: 7_000 },
    { attempts: 9 },
    waits(7_000, false, 'told'),
  ],
  ...[408, 409, 425, 429, 500, 502, 503, 504].flatMap((status): typeof table => [
    [`${status}`, { error: failed('http', status), retryAfter: null }, {}, backsOff],
    [`${status}, the last one allowed`, { error: failed('http', status) }, { attempts: 9 }, fails],
  ]),
  ['500 with a longer Retry-After', { error: failed('http', 500), retryAfter: 60_000 }, {}, waits(60_000, true)],
  ['a timeout', { error: failed('timeout'), reachable: true }, {}, backsOff],
  ['a timeout, the last one allowed', { error: failed('timeout'), reachable: true }, { attempts: 9 }, fails],
  ['an unproven 2xx', { error: failed('unproven', 200) }, {}, backsOff],
  ['an unproven 2xx, the last one allowed', { error: failed('unproven', 200) }, { attempts: 9 }, fails],
  ['an answer from another origin', { error: failed('unproven', 200) }, { attempts: 3 }, backsOff],
  ['no answer while the origin answers a probe', { error: failed('network'), reachable: true }, {}, backsOff],
  ['no answer while the origin answers a probe, the last one', { error: failed('network'), reachable: true }, { attempts: 9 }, fails],
  ['no answer, nor to a probe', { error: failed('network'), reachable: false }, {}, waits(0, false, 'unreachable')],
  [
    'no answer, nor to a probe, the budget spent',
    { error: failed('network'), reachable: false },
    { attempts: 9 },
    waits(0, false, 'unreachable'),
  ],
  [
    'a timeout while the origin answers no probe',
    { error: failed('timeout'), reachable: false },
    { attempts: 9 },
    waits(0, false, 'unreachable'),
  ],
  ['400 digest_mismatch', { error: failed('digest-mismatch', 400) }, {}, { type: 'verify' }],
  ['400 digest_mismatch, again', { error: failed('digest-mismatch', 400) }, { mismatches: 1 }, { type: 'verify' }],
  ['400 digest_mismatch, the third time', { error: failed('digest-mismatch', 400) }, { mismatches: 2 }, fails],
  ['401', { error: failed('unauthorized', 401) }, {}, { type: 'refresh' }],
  ['401 with the budget spent', { error: failed('unauthorized', 401) }, { attempts: 9 }, { type: 'refresh' }],
  ['401 with refreshed headers', { error: failed('unauthorized', 401) }, { refreshed: true }, { type: 'block' }],
  ['422 idempotency_key_reuse', { error: failed('key-reused', 422) }, {}, fails],
  ['a redirect that dropped the body', { error: failed('redirected', 200) }, {}, fails],
  ...[300, 400, 402, 403, 404, 405, 410, 413, 415, 422, 451, 501, 505, 507].map((status): (typeof table)[number] => [
    `${status}`,
    { error: failed('rejected', status), retryAfter: 1_000 },
    {},
    fails,
  ]),
  ['a status the app took off the list, though it came with Retry-After', { error: failed('rejected', 503), retryAfter: 1_000 }, {}, fails],
  ['a bad header or URL of the app', { error: failed('invalid-request') }, {}, fails],
  ['lost bytes', { error: failed('bytes-lost') }, {}, fails],
  ['an error of a code nobody knows', { error: failed('what-ever' as UploadErrorCode) }, {}, fails],
]

test.each(table)('%s', (_name, outcome, history, verdict) => {
  expect(judge(outcome, { ...first, ...history }, policy, least)).toEqual(verdict)
})

test.each<[name: string, error: UploadError, overruled: boolean, history: Partial<History>, verdict: Verdict]>([
  ['no to a 503', failed('http', 503), false, {}, fails],
  ['no to a 409 in progress', failed('in-progress', 409), false, {}, fails],
  ['no to a 401', failed('unauthorized', 401), false, {}, fails],
  ['no to a lost answer', failed('network'), false, {}, fails],
  ['yes to a 403', failed('rejected', 403), true, {}, backsOff],
  ['yes to a redirect', failed('redirected', 200), true, {}, backsOff],
  ['yes to a 403, the last one allowed', failed('rejected', 403), true, { attempts: 9 }, fails],
  ['yes to a 503', failed('http', 503), true, {}, backsOff],
])('the app says %s', (_name, error, overruled, history, verdict) => {
  expect(judge({ error, overruled }, { ...first, ...history }, policy, least)).toEqual(verdict)
})

test('the app that says nothing leaves the table as it is', () => {
  expect(judge({ error: failed('rejected', 403), overruled: undefined }, first, policy, least)).toEqual(fails)
})

test('limit 1 allows one attempt, and no limit allows any number', () => {
  expect(judge({ error: failed('http', 500) }, first, { ...policy, limit: 1 }, least)).toEqual(fails)
  const endless = { ...policy, limit: Number.POSITIVE_INFINITY }
  expect(judge({ error: failed('http', 500) }, { ...first, attempts: 10_000 }, endless, most)).toEqual(waits(30_000, true))
})

test.each([
  [0, 1_000],
  [1, 2_000],
  [2, 4_000],
  [4, 16_000],
  [5, 30_000],
  [9, 30_000],
  [1_500, 30_000],
])('after %i counted attempts the delay lies between the floor and %i ms', (attempts, cap) => {
  expect(fullJitter(attempts, policy, least)).toBe(250)
  expect(fullJitter(attempts, policy, most)).toBe(cap)
  expect(fullJitter(attempts, policy, () => 0.5)).toBe(Math.round((250 + cap) / 2))
})

test('a cap below the floor is the floor', () => {
  for (const random of [least, most]) {
    expect(fullJitter(3, { ...policy, maxDelay: 0 }, random)).toBe(250)
    expect(fullJitter(0, { ...policy, baseDelay: 1 }, random)).toBe(250)
  }
})

test('delays are spread evenly over the whole range, at the cap too', () => {
  // A linear generator with a fixed seed (Numerical Recipes): the same numbers in every run.
  let seed = 1
  const random = (): number => {
    seed = (seed * 1_664_525 + 1_013_904_223) % 2 ** 32
    return seed / 2 ** 32
  }
  const tenths = Array.from({ length: 10 }, () => 0)
  for (let draw = 0; draw < 10_000; draw++) {
    const tenth = Math.min(9, Math.floor(((fullJitter(20, policy, random) - 250) / (30_000 - 250)) * 10))
    tenths[tenth] = (tenths[tenth] ?? 0) + 1
  }
  for (const count of tenths) expect(Math.abs(count - 1_000)).toBeLessThan(150)
})

test('what the server said is never shortened, and gets a tenth of jitter, at most a second', () => {
  const delay = (retryAfter: number, random: () => number): number => {
    const verdict = judge({ error: failed('http', 503), retryAfter }, first, policy, random)
    return verdict.type === 'wait' ? verdict.delay : Number.NaN
  }
  expect([delay(5_000, least), delay(5_000, most)]).toEqual([5_000, 5_500])
  expect([delay(3_600_000, least), delay(3_600_000, most)]).toEqual([3_600_000, 3_601_000])
  expect([delay(1, least), delay(1, most)]).toEqual([250, 275])
  expect([delay(9_999_999_999_000, least), delay(9_999_999_999_000, most)]).toEqual([86_400_000, 86_401_000])
})

test('a limit on Retry-After below the floor does not undercut the floor', () => {
  expect(judge({ error: failed('http', 503), retryAfter: 0 }, first, { ...policy, maxRetryAfter: 0 }, least)).toEqual(
    waits(delayFloor, false, 'told'),
  )
})

const now = Date.UTC(2026, 2, 1, 12, 0, 0)
const at = (seconds: number): Date => new Date(now + seconds * 1_000)
const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday']
const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']
const two = (number: number): string => String(number).padStart(2, '0')
const clock = (date: Date): string => [date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()].map(two).join(':')
const fixdate = (date: Date): string => date.toUTCString()
const rfc850 = (date: Date): string =>
  `${days[date.getUTCDay()]}, ${two(date.getUTCDate())}-${months[date.getUTCMonth()]}-${two(date.getUTCFullYear() % 100)} ${clock(date)} GMT`
const asctime = (date: Date): string =>
  `${days[date.getUTCDay()]?.slice(0, 3)} ${months[date.getUTCMonth()]} ${String(date.getUTCDate()).padStart(2)} ${clock(date)} ${date.getUTCFullYear()}`

test('the three forms are those of RFC 9110', () => {
  const example = new Date(784_111_777_000)
  expect(fixdate(example)).toBe('Sun, 06 Nov 1994 08:49:37 GMT')
  expect(rfc850(example)).toBe('Sunday, 06-Nov-94 08:49:37 GMT')
  expect(asctime(example)).toBe('Sun Nov  6 08:49:37 1994')
})

test.each<[name: string, value: string | null, date: string | null, ms: number | null]>([
  ['absent', null, null, null],
  ['empty', '', null, null],
  ['seconds', '7', null, 7_000],
  ['seconds with white space', ' 120 ', null, 120_000],
  ['seconds with leading zeros', '0005', null, 5_000],
  ['0', '0', null, 0],
  ['9999999999', '9999999999', null, 9_999_999_999_000],
  ['negative', '-5', null, null],
  ['with a plus', '+5', null, null],
  ['decimal', '1.5', null, null],
  ['scientific', '1e3', null, null],
  ['hexadecimal', '0x10', null, null],
  ['digits of another script', '٣', null, null],
  ['two values', '5, 10', null, null],
  ['two dates', `${fixdate(at(5))}, ${fixdate(at(9))}`, null, null],
  ['a word', 'soon', null, null],
  ['seconds with a unit', '5s', null, null],
  ['a month an engine would take as a date', 'May', null, null],
  ['a year an engine would take as a date', '2027-01-01T00:00:00Z', null, null],
  ['NaN', 'NaN', null, null],
  ['Infinity', 'Infinity', null, null],
  ['a day that does not exist', 'Sun, 99 Nov 2026 08:49:37 GMT', null, null],
  ['an hour that does not exist', 'Sun, 01 Nov 2026 25:49:37 GMT', null, null],
  ['a date in another zone', 'Sun, 01 Mar 2026 12:00:30 +0100', null, null],
  ['IMF-fixdate', fixdate(at(30)), null, 30_000],
  ['RFC 850', rfc850(at(30)), null, 30_000],
  ['asctime', asctime(at(30)), null, 30_000],
  ['IMF-fixdate against Date', fixdate(at(3_630)), fixdate(at(3_600)), 30_000],
  ['RFC 850 against Date', rfc850(at(3_630)), rfc850(at(3_600)), 30_000],
  ['asctime against Date', asctime(at(3_630)), asctime(at(3_600)), 30_000],
  ['a date against a Date that is none', fixdate(at(30)), 'yesterday', 30_000],
  ['a date that is past', fixdate(at(-30)), null, 0],
  ['a date that is past for the server', fixdate(at(30)), fixdate(at(60)), 0],
  ['a date in 2099', 'Thu, 31 Dec 2099 23:59:59 GMT', fixdate(at(0)), Date.UTC(2099, 11, 31, 23, 59, 59) - now],
  ['seconds do not care about Date', '7', fixdate(at(3_600)), 7_000],
])('Retry-After: %s', (_name, value, date, ms) => {
  expect(parseRetryAfter(value, date, now)).toBe(ms)
})

test('whatever the header says, the delay is finite, at least the floor, at most the limit and a second, and fits what was said', () => {
  const anyHeader = fc.oneof(
    fc.string(),
    fc.nat().map(String),
    fc.bigInt({ min: 0n, max: 10n ** 400n }).map(String),
    fc.integer().map(String),
    fc.double().map(String),
    fc
      .date({ noInvalidDate: true, min: new Date(0), max: new Date('9999-01-01') })
      .chain((date) => fc.constantFrom(fixdate(date), rfc850(date), asctime(date))),
  )
  const anyDate = fc.option(
    fc.date({ noInvalidDate: true }).map((date) => date.toUTCString()),
    { nil: null },
  )
  const anyLimit = fc.oneof(fc.constant(86_400_000), fc.nat(100_000))
  fc.assert(
    fc.property(anyHeader, anyDate, anyLimit, fc.double({ min: 0, max: 1, noNaN: true }), (header, date, maxRetryAfter, drawn) => {
      const retryAfter = parseRetryAfter(header, date, now)
      for (const error of [failed('http', 503), failed('in-progress', 409), failed('http', 500)]) {
        const verdict = judge({ error, retryAfter }, first, { ...policy, maxRetryAfter }, () => drawn)
        if (verdict.type !== 'wait') throw new Error('Expected to wait.')
        expect(Number.isSafeInteger(verdict.delay)).toBe(true)
        expect(verdict.delay).toBeGreaterThanOrEqual(delayFloor)
        expect(verdict.delay).toBeLessThanOrEqual(Math.max(maxRetryAfter, delayFloor) + 1_000)
        if (retryAfter !== null) expect(verdict.delay).toBeGreaterThanOrEqual(Math.min(retryAfter, maxRetryAfter))
      }
    }),
    { numRuns: 500 },
  )
})

test('no jitter leaves its bounds, whatever the policy', () => {
  fc.assert(
    fc.property(
      fc.nat(2_000),
      fc.nat(1_000_000),
      fc.nat(10_000_000),
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      (attempts, baseDelay, maxDelay, drawn) => {
        const delay = fullJitter(attempts, { ...policy, baseDelay, maxDelay }, () => drawn)
        expect(Number.isSafeInteger(delay)).toBe(true)
        expect(delay).toBeGreaterThanOrEqual(delayFloor)
        expect(delay).toBeLessThanOrEqual(Math.max(delayFloor, maxDelay))
      },
    ),
  )
})
