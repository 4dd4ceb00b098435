import { expect, test } from 'vitest'
import { checkEnqueueOptions, resolveOptions, type UploadQueueOptions } from '../src/options.js'
import { uploadReceipt } from '../src/proof.js'
import { xhrTransport } from '../src/transport.js'

const endpoint = '/uploads'
const resolve = (options: object) => resolveOptions({ endpoint, ...options } as UploadQueueOptions)
const upload = (size: number) => ({ size }) as never

test('the defaults', () => {
  const { owner, timeout, transport, ...options } = resolve({})
  expect(options).toEqual({
    endpoint,
    name: 'uploads',
    method: 'POST',
    headers: undefined,
    credentials: 'same-origin',
    body: 'raw',
    digestHeader: 'X-File-Sha256',
    nameHeader: 'X-File-Name',
    keyFormat: 'bare',
    outcome: undefined,
    concurrency: 3,
    retry: {
      limit: 10,
      baseDelay: 1_000,
      maxDelay: 30_000,
      maxRetryAfter: 86_400_000,
      statusCodes: [408, 409, 425, 429, 500, 502, 503, 504],
      shouldRetry: undefined,
    },
    maxAge: 172_800_000,
    stallTimeout: 30_000,
    maxFileSize: undefined,
    response: uploadReceipt,
    persist: 'preferred',
    autoStart: true,
  })
  expect(owner()).toBe('')
  expect(transport.reportsBytes).toBe(false)
  expect([timeout(upload(0)), timeout(upload(16_384)), timeout(upload(16_384_000))]).toEqual([120_000, 121_000, 1_120_000])
})

test('a member that is undefined is one that is not there', () => {
  const none = Object.fromEntries(Object.keys(resolve({})).map((name) => [name, undefined]))
  const { owner: _owner, timeout: _timeout, transport: _transport, ...expected } = resolve({})
  expect(resolve({ ...none, endpoint })).toMatchObject(expected)
  expect(resolve({ retry: { limit: undefined, shouldRetry: undefined } }).retry).toEqual(expected.retry)
})

test('what is given stands, and the rest keeps its default', () => {
  const transport = xhrTransport()
  const given = { name: 'photos', method: 'PUT', body: { field: 'file' }, concurrency: 1, maxFileSize: 0, transport, autoStart: false }
  expect(resolve(given)).toMatchObject(given)
  expect(resolve({ retry: { limit: 3 } }).retry).toMatchObject({ limit: 3, baseDelay: 1_000 })
})

test('an owner or a timeout that is no function becomes one', async () => {
  expect(resolve({ owner: 'ann' }).owner()).toBe('ann')
  expect(resolve({ owner: null }).owner()).toBeNull()
  expect(await resolve({ owner: async () => 'bob' }).owner()).toBe('bob')
  expect(resolve({ timeout: 5 }).timeout(upload(1))).toBe(5)
  expect(resolve({ timeout: ({ size }: { size: number }) => size }).timeout(upload(7))).toBe(7)
})

const schema = { '~standard': { version: 1, vendor: 'test', validate: () => ({ value: 1 }) } }

test.each<[string, unknown[]]>([
  ['endpoint', ['/uploads', 'uploads', '?x', 'https://files.example/', new URL('http://localhost:1/'), () => '/x']],
  ['name', ['a', 'with space']],
  ['owner', ['', 'ann', null, () => null]],
  ['method', ['POST', 'PUT', 'PATCH']],
  ['headers', [{}, { a: 'b' }, [['a', 'b']], new Headers(), () => ({})]],
  ['credentials', ['same-origin', 'include', 'omit']],
  ['body', ['raw', { field: 'file' }]],
  ['digestHeader', ['X-File-Sha256', 'Repr-Digest', 'both']],
  ['nameHeader', [false, 'X-Name', 'x_name!']],
  ['outcome', [false, '/outcome', new URL('https://files.example/outcome')]],
  ['keyFormat', ['bare', 'quoted']],
  ['concurrency', [1, 20]],
  [
    'retry',
    [
      {},
      { limit: 1 },
      { limit: Number.POSITIVE_INFINITY },
      { baseDelay: 0, maxDelay: 0, maxRetryAfter: 0 },
      { statusCodes: [] },
      { statusCodes: [500, 599, 100] },
      { shouldRetry: () => true },
    ],
  ],
  ['maxAge', [1, 1e12]],
  ['timeout', [1, Number.POSITIVE_INFINITY, () => 1]],
  ['stallTimeout', [1, Number.POSITIVE_INFINITY]],
  ['maxFileSize', [0, 1, Number.POSITIVE_INFINITY]],
  ['response', [uploadReceipt, schema, () => 1]],
  ['transport', [xhrTransport()]],
  ['persist', ['required', 'preferred', 'memory']],
  ['autoStart', [true, false]],
])('%s may be what it may be', (name, values) => {
  for (const value of values) resolve({ [name]: value })
})

const nan = Number.NaN
const infinite = Number.POSITIVE_INFINITY
test.each<[string, unknown[], expected: string]>([
  ['endpoint', ['', 5, null, {}, [], 'http://', 'https://a b/'], 'a URL, or a function'],
  ['name', ['', 5, null, {}], 'a string that is not empty'],
  ['owner', [5, {}, true, ['ann']], 'a string, null, or a function'],
  ['method', ['GET', 'post', 'DELETE', '', null, 5], '"POST" or "PUT" or "PATCH"'],
  [
    'headers',
    ['a: b', 5, null, { 'a b': 'c' }, { a: 'b\nc' }, [['a']], { 'Idempotency-Key': 'mine' }, [['X-File-SHA256', 'mine']]],
    'headers as fetch takes them',
  ],
  ['credentials', ['always', true, null], '"same-origin" or "include" or "omit"'],
  ['body', ['form', {}, { field: '' }, { field: 5 }, null], '"raw" or { field: string }'],
  ['digestHeader', ['sha-256', false, null], '"X-File-Sha256" or "Repr-Digest" or "both"'],
  [
    'nameHeader',
    [true, '', 'X Name', 'X:Name', 'Näme', null, 'Idempotency-Key', 'content-type', 'X-File-SHA256', 'Repr-Digest', 'Upload-Metadata'],
    'a header name that has no other use, or false',
  ],
  ['outcome', [true, '', 5, null, 'http://'], 'a URL or false'],
  ['keyFormat', ['uuid', null, true], '"bare" or "quoted"'],
  ['concurrency', [0, -1, 1.5, nan, infinite, '3', null], 'a whole number of at least 1'],
  ['retry', [5, 'none', null, () => {}], 'an object'],
  ['maxAge', [0, -1, nan, '5', null, infinite], 'a finite number of ms above 0'],
  ['timeout', [0, -1, nan, '5', null], 'a number of ms above 0'],
  ['stallTimeout', [0, -1, nan, '5', null], 'a number of ms above 0'],
  ['maxFileSize', [-1, nan, '5', null], 'a number of at least 0'],
  ['response', [{}, 'json', null, 5, { validate: () => true }], 'a Standard Schema or a function'],
  ['transport', [{}, null, () => {}, { send: 5 }], 'a Transport'],
  ['persist', ['always', true, null], '"required" or "preferred" or "memory"'],
  ['autoStart', [1, 'yes', null], 'true or false'],
])('%s may be nothing else', (name, values, expected) => {
  for (const value of values) {
    const thrown = catchFrom(() => resolve({ [name]: value }))
    expect(thrown, String(value)).toBeInstanceOf(TypeError)
    expect(thrown.message).toMatch(new RegExp(`^${name}: .+ is not valid; expected `))
    expect(thrown.message).toContain(expected)
  }
})

test.each<[string, unknown[], expected: string]>([
  ['limit', [0, 1.5, -1, nan, '3', null], 'a whole number of at least 1'],
  ['baseDelay', [-1, nan, '5', null, infinite], 'at least 0'],
  ['maxDelay', [-1, nan, '5', null, infinite], 'at least 0'],
  ['maxRetryAfter', [-1, nan, '5', null, infinite], 'at least 0'],
  ['statusCodes', ['500', 500, ['500'], [99], [600], [1.5], null], 'an array of HTTP statuses'],
  ['shouldRetry', [true, 'always', null], 'a function'],
])('retry.%s may be nothing else', (name, values, expected) => {
  for (const value of values) {
    const thrown = catchFrom(() => resolve({ retry: { [name]: value } }))
    expect(thrown, String(value)).toBeInstanceOf(TypeError)
    expect(thrown.message).toMatch(new RegExp(`^retry\\.${name}: .+ is not valid; expected `))
    expect(thrown.message).toContain(expected)
  }
})

function catchFrom(work: () => unknown): Error {
  try {
    work()
  } catch (error) {
    return error as Error
  }
  return new Error('Nothing was thrown.')
}

test.each<[unknown, string]>([
  ['get', '"get"'],
  [5, '5'],
  [null, 'null'],
  [{}, 'an object'],
  [['x'], 'an array'],
  [() => 1, 'a function'],
  [nan, 'NaN'],
  [10n, '10'],
  [Symbol('s'), 'Symbol(s)'],
])('a wrong value is shown: %o', (value, shown) => {
  expect(catchFrom(() => resolve({ method: value })).message).toBe(`method: ${shown} is not valid; expected "POST" or "PUT" or "PATCH".`)
})

test.each<[unknown, string]>([
  [undefined, 'options: undefined is not valid; expected an object.'],
  [null, 'options: null is not valid; expected an object.'],
  ['/uploads', 'options: "/uploads" is not valid; expected an object.'],
  [{}, 'endpoint: undefined is not valid; expected a URL, or a function that gives one.'],
  [{ endpoint: undefined }, 'endpoint: undefined is not valid; expected a URL, or a function that gives one.'],
])('options that are %o', (options, message) => {
  expect(catchFrom(() => resolveOptions(options as UploadQueueOptions))).toEqual(new TypeError(message))
})

test.each(['retries', 'Endpoint', 'url', 'toString', 'constructor'])('there is no option %s', (name) => {
  expect(catchFrom(() => resolve({ [name]: 1 }))).toEqual(new TypeError(`${name}: there is no such option.`))
  expect(catchFrom(() => resolve({ retry: { [name]: 1 } }))).toEqual(new TypeError(`retry.${name}: there is no such option.`))
  expect(catchFrom(() => checkEnqueueOptions({ [name]: 1 } as never))).toEqual(new TypeError(`enqueue: ${name}: there is no such option.`))
})

test('the options of one enqueue', () => {
  checkEnqueueOptions({})
  checkEnqueueOptions({
    id: 'a',
    metadata: { 'a/b.c': 'ü\n', empty: '' },
    contentType: 'text/plain; charset="utf-8"',
    name: '',
    priority: -1.5,
    signal: new AbortController().signal,
  })
  checkEnqueueOptions({ metadata: Object.create(null) as Record<string, string>, contentType: '' })
})

test.each<[string, unknown[], expected: string]>([
  ['id', ['', 5, null], 'a string that is not empty'],
  [
    'metadata',
    [
      'a=b',
      null,
      { 'a b': 'c' },
      { 'a,b': 'c' },
      { '': 'c' },
      { ä: 'c' },
      { a: 5 },
      { a: null },
      ['a'],
      new Map([['a', 'b']]),
      new Headers({ a: 'b' }),
    ],
    'an object of strings',
  ],
  ['contentType', [5, null, 'text/plän', 'text/plain\r\nX: 1'], 'a media type'],
  ['name', [5, null, {}], 'a string'],
  ['priority', ['high', nan, infinite, null], 'a number'],
  ['signal', [{}, null, new AbortController()], 'an AbortSignal'],
])('enqueue: %s may be nothing else', (name, values, expected) => {
  for (const value of values) {
    const thrown = catchFrom(() => checkEnqueueOptions({ [name]: value } as never))
    expect(thrown, String(value)).toBeInstanceOf(TypeError)
    expect(thrown.message).toMatch(new RegExp(`^enqueue: ${name}: .+ is not valid; expected ${expected}`))
  }
})

test('values that may be secret are not shown', () => {
  const secret = { Authorization: 'Bearer secret\n' }
  expect(catchFrom(() => resolve({ headers: secret })).message).not.toContain('secret')
})
