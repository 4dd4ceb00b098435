import { expect, test } from 'vitest'
import { parseProblem, prove, type ResponseProof, type StandardSchema, uploadReceipt } from '../src/proof.js'
import { newRecord } from '../src/record.js'

const sha256 = 'ab'.repeat(32)
const record = newRecord({
  id: 'u1',
  idempotencyKey: 'k1',
  sha256,
  owner: '',
  name: 'a',
  type: '',
  size: 1,
  lastModified: 0,
  metadata: {},
  priority: 0,
  order: 1,
  createdAt: 0,
  expiresAt: 1,
  paused: false,
})

const receipt = { uploadId: 'x', storageKey: 'y' }
const answerOf = (
  body: unknown,
  { status = 201, headers = {}, broken = false }: { status?: number; headers?: Record<string, string>; broken?: boolean } = {},
) => ({ status, headers: new Headers(headers), text: typeof body === 'string' ? body : JSON.stringify(body), broken })

const echo = { 'Idempotency-Key': 'k1' }
const warning = expect.stringContaining('not the JSON it should be')

test.each([
  ['a receipt', answerOf(receipt), { result: receipt }],
  ['a receipt with more in it', answerOf({ ...receipt, size: 3 }), { result: { ...receipt, size: 3 } }],
  ['a receipt under 200', answerOf(receipt, { status: 200 }), { result: receipt }],
  ['a receipt with the right digest', answerOf({ ...receipt, sha256 }), { result: { ...receipt, sha256 } }],
  ['a receipt with the right digest in capitals', answerOf({ ...receipt, sha256: sha256.toUpperCase() }), {}],
  ['a receipt whose sha256 is no digest', answerOf({ ...receipt, sha256: 'see header' }), {}],
  ['a receipt whole though the connection broke', answerOf(receipt, { broken: true }), { result: receipt }],
  ['the key, with a cut body', answerOf('{"uploadId":"x', { headers: echo, broken: true }), { result: '{"uploadId":"x', warning }],
  ['the key, with a page', answerOf('<html>', { headers: echo }), { result: '<html>', warning }],
  ['the key, with nothing', answerOf('', { status: 204, headers: echo }), { result: '', warning }],
  ['the key, with other JSON', answerOf({ ok: true }, { headers: echo }), { result: { ok: true } }],
  ['the key quoted', answerOf({ ok: true }, { headers: { 'Idempotency-Key': ' "k1" ' } }), { result: { ok: true } }],
])('%s proves success', async (_name, answer, expected) => {
  const proven = await prove(answer, record, uploadReceipt)
  expect(proven).toMatchObject({ replayed: false, ...expected })
  expect(proven?.warning !== undefined).toBe('warning' in expected)
})

test.each([
  ['a page under 200', answerOf('<html>Sign in</html>', { status: 200, headers: { 'Content-Type': 'text/html' } })],
  ['an empty 204', answerOf('', { status: 204 })],
  ['JSON that is no receipt', answerOf({ ok: true })],
  ['a receipt that lacks the storage key', answerOf({ uploadId: 'x' })],
  ['a receipt of numbers', answerOf({ uploadId: 1, storageKey: 2 })],
  ['JSON null', answerOf(null)],
  ['a JSON list', answerOf([receipt])],
  ['a cut receipt', answerOf('{"uploadId":"x","storageKey":"y', { broken: true })],
  ['a receipt under 200 for other bytes', answerOf({ ...receipt, sha256: 'cd'.repeat(32) })],
  ['the key with a receipt for other bytes', answerOf({ ...receipt, sha256: 'cd'.repeat(32) }, { headers: echo })],
  ['another key', answerOf({ ok: true }, { headers: { 'Idempotency-Key': 'k2' } })],
  ['an empty key', answerOf({ ok: true }, { headers: { 'Idempotency-Key': '' } })],
  ['a receipt under 199', answerOf(receipt, { status: 199 })],
  ['a receipt under 300', answerOf(receipt, { status: 300 })],
  ['a receipt and the key under 409', answerOf(receipt, { status: 409, headers: echo })],
  ['a receipt and the key under 503', answerOf(receipt, { status: 503, headers: echo })],
])('%s proves nothing', async (_name, answer) => {
  expect(await prove(answer, record, uploadReceipt)).toBeUndefined()
})

test('a key stored quoted is echoed bare', async () => {
  const quoted = { ...record, idempotencyKey: '"k1"' }
  expect(await prove(answerOf({}, { headers: echo }), quoted, uploadReceipt)).toMatchObject({ result: {} })
})

test.each([
  ['Idempotent-Replayed', 'true', true],
  ['Idempotent-Replay', 'true', true],
  ['Idempotency-Replayed', ' True ', true],
  ['Idempotent-Replayed', 'false', false],
  ['Idempotent-Replayed', '', false],
  ['X-Cache', 'true', false],
])('%s: %s is a replay: %s', async (name, value, replayed) => {
  expect(await prove(answerOf(receipt, { headers: { [name]: value } }), record, uploadReceipt)).toMatchObject({ replayed })
  expect(await prove(answerOf('', { headers: { [name]: value } }), record, () => 'own')).toMatchObject({ replayed, result: 'own' })
})

const schema = (validate: StandardSchema<unknown>['~standard']['validate']): StandardSchema<unknown> => ({
  '~standard': { version: 1, vendor: 'test', validate },
})

test.each<[string, ResponseProof<unknown>, unknown]>([
  ['a schema', schema(() => ({ value: 'checked' })), 'checked'],
  ['a schema that takes its time', schema(async () => ({ value: 'checked' })), 'checked'],
  ['a function', (response) => response.json(), { any: 1 }],
  ['a function that takes its time', async (response, upload) => [response.status, response.headers.get('a'), upload.id], [201, 'b', 'u1']],
  ['a function that returns nothing', () => undefined, undefined],
])('%s of the app decides', async (_name, proof, result) => {
  expect(await prove(answerOf({ any: 1 }, { headers: { a: 'b' } }), record, proof)).toEqual({ result, replayed: false })
})

test.each<[string, ResponseProof<unknown>]>([
  ['a schema with issues', schema(() => ({ issues: [{ message: 'no' }] }))],
  ['a schema that rejects', schema(() => Promise.reject(new Error('no')))],
  [
    'a schema that throws',
    schema(() => {
      throw new Error('no')
    }),
  ],
  [
    'a function that throws',
    () => {
      throw new Error('no')
    },
  ],
  ['a function that rejects', () => Promise.reject(new Error('no'))],
  ['a function that reads JSON where there is none', (response) => response.clone().formData()],
])('%s of the app proves nothing, the echoed key neither', async (_name, proof) => {
  expect(await prove(answerOf({ ...receipt }, { headers: echo }), record, proof)).toBeUndefined()
})

test("the app's schema sees no body that is no JSON", async () => {
  expect(
    await prove(
      answerOf('<html>'),
      record,
      schema(() => ({ value: 1 })),
    ),
  ).toBeUndefined()
})

test.each([204, 205])("the app's function may take a %i, which has no body", async (status) => {
  const proof = async (response: Response): Promise<unknown> => [response.status, await response.text()]
  expect(await prove(answerOf('', { status }), record, proof)).toMatchObject({ result: [status, ''] })
})

test("the app's function is asked about no refusal", async () => {
  expect(await prove(answerOf('', { status: 500 }), record, () => 'fine')).toBeUndefined()
})

const problemOf = (text: string, type: string) => parseProblem(answerOf(text, { status: 422, headers: { 'Content-Type': type } }))

test.each([
  ['application/problem+json', '{"title":"Reuse","error":"idempotency_key_reuse"}', { title: 'Reuse', error: 'idempotency_key_reuse' }],
  ['application/json; charset=utf-8', '{"a":1}', { a: 1 }],
  ['APPLICATION/PROBLEM+JSON', '{}', {}],
  ['text/html', '{"a":1}', undefined],
  ['', '{"a":1}', undefined],
  ['application/json', '[1]', undefined],
  ['application/json', 'null', undefined],
  ['application/json', '"text"', undefined],
  ['application/json', '{"cut":', undefined],
  ['application/json', JSON.stringify({ a: 'x'.repeat(20_000) }), undefined],
])('a problem labelled %s: %.40s', (type, text, problem) => {
  expect(problemOf(text, type)).toEqual(problem)
})
