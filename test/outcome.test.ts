import { expect, test } from 'vitest'
import { isAskedFirst, learnOutcomeUrl, readOutcome } from '../src/outcome.js'
import { newRecord, type PendingUpload } from '../src/record.js'

const record = (facts: Partial<PendingUpload>): PendingUpload => ({
  ...newRecord({
    id: 'u1',
    idempotencyKey: 'k1',
    sha256: 'ab'.repeat(32),
    owner: '',
    name: 'a',
    type: '',
    size: 2 ** 21,
    lastModified: 0,
    metadata: {},
    priority: 0,
    order: 1,
    createdAt: 0,
    expiresAt: 1,
    paused: false,
  }),
  requests: 2,
  ...facts,
})

test.each<[string, Partial<PendingUpload>, boolean]>([
  ['a large one whose page went', {}, true],
  ['a large one whose answer was lost', { reason: 'network' }, true],
  ['a large one that took too long', { reason: 'timeout' }, true],
  ['a large one that the server refused for now', { reason: 'http' }, false],
  ['a large one on its first attempt', { requests: 1 }, false],
  ['a small one whose answer was lost', { size: 2 ** 20, reason: 'network' }, false],
  ['a small one that is still at work', { size: 1, reason: 'in-progress' }, true],
  ['one at work, on its first attempt', { requests: 1, reason: 'in-progress' }, false],
])('the outcome of %s is asked for first: %s', (_name, facts, expected) => {
  expect(isAskedFirst(record(facts))).toBe(expected)
})

test.each<[string | null, string | undefined]>([
  ['/outcome', 'https://files.example/outcome'],
  ['outcome?x=1', 'https://files.example/api/outcome?x=1'],
  ['https://files.example/o', 'https://files.example/o'],
  ['https://evil.example/o', undefined],
  ['//evil.example/o', undefined],
  ['http://files.example/o', undefined],
  ['https://files.example:8443/o', undefined],
  ['javascript:alert(1)', undefined],
  ['http://', undefined],
  [null, undefined],
])('of Idempotency-Outcome %s is learned: %s', (header, url) => {
  expect(learnOutcomeUrl(header, 'https://files.example/api/uploads')).toBe(url)
})

const completed = {
  state: 'completed',
  status: 201,
  headers: [['Content-Type', 'application/json']],
  body: '{"a":"ü"}',
  bodyEncoding: 'utf8',
}
const read = (body: unknown, status = 200) => readOutcome({ status, text: typeof body === 'string' ? body : JSON.stringify(body) })

test('a stored answer is read with status, headers and text, and marked as a replay', () => {
  const known = read(completed) as Exclude<ReturnType<typeof read>, string | undefined>
  expect([known.status, known.text, [...known.headers]]).toEqual([
    201,
    '{"a":"ü"}',
    [
      ['content-type', 'application/json'],
      ['idempotent-replayed', 'true'],
    ],
  ])
})

test('a stored body in base64 is the text that its bytes would have been', () => {
  const body = Buffer.from('a ü 写 😀').toString('base64')
  expect(read({ ...completed, body, bodyEncoding: 'base64' })).toMatchObject({ text: 'a ü 写 😀' })
  expect(read({ ...completed, body: Buffer.of(0x61, 0xff).toString('base64'), bodyEncoding: 'base64' })).toMatchObject({ text: 'a\ufffd' })
})

test('one that is at work is told', () => {
  expect(read({ state: 'in_flight' })).toBe('in-flight')
})

test.each<[string, unknown, number?]>([
  ['another status', completed, 404],
  ['no JSON', '<html>'],
  ['JSON null', null],
  ['JSON text', '"completed"'],
  ['another state', { state: 'unknown' }],
  ['no status', { ...completed, status: undefined }],
  ['no body', { ...completed, body: null }],
  ['headers that are none', { ...completed, headers: [['a b', 'c']] }],
  ['a body that is no base64', { ...completed, body: '%%', bodyEncoding: 'base64' }],
])('an outcome of %s says nothing', (_name, body, status) => {
  expect(read(body, status)).toBeUndefined()
})
