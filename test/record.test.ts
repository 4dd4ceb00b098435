import fc from 'fast-check'
import { expect, test } from 'vitest'
import * as z from 'zod/mini'
import type { UploadErrorFacts } from '../src/errors.js'
import { type Action, newRecord, type PendingUpload, parseRow, statuses, transition, type UploadStatus } from '../src/record.js'

const sha256 = 'ab'.repeat(32)
const error: UploadErrorFacts = { code: 'http', message: 'Busy.', retryable: true, status: 503 }
const final: UploadErrorFacts = { code: 'rejected', message: 'No.', retryable: false, status: 403 }

const fresh = (facts: Partial<Parameters<typeof newRecord>[0]> = {}): PendingUpload =>
  newRecord({
    id: 'u1',
    idempotencyKey: 'k1',
    sha256,
    owner: 'ann',
    name: 'a.txt',
    type: 'text/plain',
    size: 3,
    lastModified: 5,
    metadata: { album: 'summer' },
    priority: 0,
    order: 7,
    createdAt: 1_000,
    expiresAt: 9_000,
    paused: false,
    ...facts,
  })

/** A record of that status, as it really comes about. */
const inStatus = (status: UploadStatus): PendingUpload => {
  const pending = fresh()
  switch (status) {
    case 'preparing':
      return fresh({ sha256: null })
    case 'pending':
      return pending
    case 'uploading':
      return transition(pending, { type: 'started' })
    case 'paused':
      return transition(pending, { type: 'paused' })
    case 'blocked':
      return transition(pending, { type: 'blocked', error: { ...final, code: 'unauthorized' } })
    case 'succeeded':
      return transition(pending, { type: 'succeeded', result: { uploadId: 'x' }, replayed: false, at: 2_000 })
    case 'failed':
      return transition(pending, { type: 'failed', error, counted: true, at: 2_000 })
  }
}

const actions = {
  hashed: { type: 'hashed', sha256 },
  started: { type: 'started' },
  deferred: { type: 'deferred', notBefore: 3_000, counted: true, error, at: 2_500 },
  'set-back': { type: 'set-back', at: 500 },
  interrupted: { type: 'interrupted' },
  succeeded: { type: 'succeeded', result: { uploadId: 'y' }, replayed: true, at: 4_000 },
  failed: { type: 'failed', error: final, counted: true, at: 4_000 },
  blocked: { type: 'blocked', error: { ...final, code: 'unauthorized' } },
  paused: { type: 'paused' },
  resumed: { type: 'resumed' },
  retried: { type: 'retried', expiresAt: 20_000 },
  revived: { type: 'revived', attempts: 9 },
  hurried: { type: 'hurried' },
} satisfies { [Type in Action['type']]: Extract<Action, { type: Type }> }

/** Where each action leads from each status; `same`: it means nothing there, and the very same record comes back. */
const table: Record<Action['type'], Record<UploadStatus, UploadStatus | 'same'>> = {
  hashed: { preparing: 'pending', pending: 'same', uploading: 'same', paused: 'same', blocked: 'same', succeeded: 'same', failed: 'same' },
  started: {
    preparing: 'same',
    pending: 'uploading',
    uploading: 'same',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'same',
  },
  deferred: {
    preparing: 'preparing',
    pending: 'pending',
    uploading: 'pending',
    paused: 'paused',
    blocked: 'blocked',
    succeeded: 'same',
    failed: 'same',
  },
  'set-back': {
    preparing: 'same',
    pending: 'same',
    uploading: 'same',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'same',
  },
  interrupted: {
    preparing: 'same',
    pending: 'same',
    uploading: 'pending',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'same',
  },
  succeeded: {
    preparing: 'succeeded',
    pending: 'succeeded',
    uploading: 'succeeded',
    paused: 'succeeded',
    blocked: 'succeeded',
    succeeded: 'same',
    failed: 'succeeded',
  },
  failed: {
    preparing: 'failed',
    pending: 'failed',
    uploading: 'failed',
    paused: 'failed',
    blocked: 'failed',
    succeeded: 'same',
    failed: 'same',
  },
  blocked: {
    preparing: 'blocked',
    pending: 'blocked',
    uploading: 'blocked',
    paused: 'same',
    blocked: 'blocked',
    succeeded: 'same',
    failed: 'same',
  },
  paused: {
    preparing: 'paused',
    pending: 'paused',
    uploading: 'paused',
    paused: 'same',
    blocked: 'paused',
    succeeded: 'same',
    failed: 'same',
  },
  resumed: {
    preparing: 'same',
    pending: 'same',
    uploading: 'same',
    paused: 'pending',
    blocked: 'pending',
    succeeded: 'same',
    failed: 'same',
  },
  retried: {
    preparing: 'same',
    pending: 'same',
    uploading: 'same',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'pending',
  },
  revived: {
    preparing: 'same',
    pending: 'same',
    uploading: 'same',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'pending',
  },
  hurried: {
    preparing: 'same',
    pending: 'same',
    uploading: 'same',
    paused: 'same',
    blocked: 'same',
    succeeded: 'same',
    failed: 'same',
  },
}

const cells = Object.entries(table).flatMap(([type, row]) =>
  statuses.map((status) => [type as Action['type'], status, row[status]] as const),
)

test.each(cells)('%s in %s leads to %s', (type, status, expected) => {
  const before = inStatus(status)
  const copy = structuredClone(before)
  const after = transition(before, actions[type])
  if (expected === 'same') expect(after).toBe(before)
  else expect(after).toMatchObject({ status: expected, revision: before.revision + 1 })
  expect(before).toEqual(copy)
})

test('a new record is pending, preparing while it has no digest, or paused with its queue', () => {
  expect(fresh()).toEqual({
    v: 1,
    revision: 1,
    id: 'u1',
    idempotencyKey: 'k1',
    sha256,
    owner: 'ann',
    name: 'a.txt',
    type: 'text/plain',
    size: 3,
    lastModified: 5,
    metadata: { album: 'summer' },
    priority: 0,
    order: 7,
    status: 'pending',
    attempts: 0,
    requests: 0,
    notBefore: null,
    reason: null,
    error: null,
    result: null,
    replayed: false,
    createdAt: 1_000,
    expiresAt: 9_000,
    endedAt: null,
  })
  expect(fresh({ sha256: null }).status).toBe('preparing')
  expect(fresh({ paused: true }).status).toBe('paused')
  expect(fresh({ sha256: null, paused: true }).status).toBe('paused')
})

test('a record paused before it was hashed is hashed when it resumes', () => {
  const paused = fresh({ sha256: null, paused: true })
  expect(transition(paused, { type: 'resumed' }).status).toBe('preparing')
  const hashed = transition(paused, { type: 'hashed', sha256 })
  expect(hashed).toMatchObject({ status: 'paused', sha256 })
  expect(transition(hashed, { type: 'resumed' }).status).toBe('pending')
})

test('a counted deferral uses up an attempt, another does not', () => {
  const uploading = inStatus('uploading')
  expect(transition(uploading, { ...actions.deferred, counted: true })).toMatchObject({
    attempts: 1,
    notBefore: 3_000,
    reason: 'http',
    error,
  })
  expect(transition(uploading, { ...actions.deferred, counted: false })).toMatchObject({ attempts: 0, notBefore: 3_000 })
})

test('a clock that was set back makes a wait begin anew, as long as it was; one that goes on changes nothing', () => {
  const deferred = transition(inStatus('uploading'), actions.deferred)
  expect(transition(deferred, { type: 'set-back', at: 500 })).toMatchObject({ notBefore: 1_000, waitingSince: 500, status: 'pending' })
  expect(transition(deferred, { type: 'set-back', at: 2_500 })).toBe(deferred)
  const hurried = transition(deferred, actions.hurried)
  expect(transition(hurried, { type: 'set-back', at: 500 })).toBe(hurried)
})

test('every start counts a request', () => {
  const first = transition(fresh(), { type: 'started' })
  const second = transition(transition(first, { type: 'interrupted' }), { type: 'started' })
  expect([first.requests, second.requests, second.attempts]).toEqual([1, 2, 0])
})

test('success clears what failed before and keeps the answer', () => {
  const deferred = transition(inStatus('uploading'), actions.deferred)
  expect(transition(deferred, actions.succeeded)).toMatchObject({
    status: 'succeeded',
    attempts: 2,
    notBefore: null,
    reason: null,
    error: null,
    result: { uploadId: 'y' },
    replayed: true,
    endedAt: 4_000,
  })
})

test('a failure says why and when, and keeps key, digest and budget spent', () => {
  expect(transition(inStatus('uploading'), actions.failed)).toMatchObject({
    status: 'failed',
    reason: 'rejected',
    error: final,
    attempts: 1,
    endedAt: 4_000,
    idempotencyKey: 'k1',
    sha256,
  })
})

test('retry gives a whole new budget under the same key', () => {
  expect(transition(inStatus('failed'), actions.retried)).toMatchObject({
    status: 'pending',
    attempts: 0,
    reason: null,
    error: null,
    endedAt: null,
    expiresAt: 20_000,
    idempotencyKey: 'k1',
  })
})

test('a start revives with one attempt left only what failed on something retryable', () => {
  expect(transition(inStatus('failed'), actions.revived)).toMatchObject({ status: 'pending', attempts: 9, endedAt: null, expiresAt: 9_000 })
  const rejected = transition(fresh(), actions.failed)
  expect(transition(rejected, actions.revived)).toBe(rejected)
})

test('a start of a queue without a limit leaves a record that can be stored and read again', () => {
  const revived = transition(inStatus('failed'), { type: 'revived', attempts: Number.POSITIVE_INFINITY })
  expect(parseRow(structuredClone(revived))).toEqual({ record: revived })
})

test('hurry forgets the wait and nothing else', () => {
  const deferred = transition(inStatus('uploading'), actions.deferred)
  expect(transition(deferred, actions.hurried)).toEqual({ ...deferred, notBefore: null, revision: deferred.revision + 1 })
})

const anyAction: fc.Arbitrary<Action> = fc.oneof(
  fc.record({ type: fc.constant('hashed' as const), sha256: fc.constantFrom(sha256, 'cd'.repeat(32)) }),
  fc.constant<Action>({ type: 'started' }),
  fc.record({
    type: fc.constant('deferred' as const),
    at: fc.nat(10_000),
    notBefore: fc.option(fc.nat(10_000), { nil: null }),
    counted: fc.boolean(),
    error: fc.constantFrom(error, final),
  }),
  fc.constant<Action>({ type: 'interrupted' }),
  fc.record({ type: fc.constant('succeeded' as const), result: fc.jsonValue(), replayed: fc.boolean(), at: fc.nat(10_000) }),
  fc.record({ type: fc.constant('failed' as const), error: fc.constantFrom(error, final), counted: fc.boolean(), at: fc.nat(10_000) }),
  fc.record({ type: fc.constant('blocked' as const), error: fc.constantFrom(error, final) }),
  fc.constant<Action>({ type: 'paused' }),
  fc.constant<Action>({ type: 'resumed' }),
  fc.record({ type: fc.constant('retried' as const), expiresAt: fc.nat(10_000) }),
  fc.record({ type: fc.constant('revived' as const), attempts: fc.nat(20) }),
  fc.constant<Action>({ type: 'hurried' }),
)

const anyStart = fc.record({ hashed: fc.boolean(), paused: fc.boolean() })

test('whatever happens: the key and a digest once set never change, success is final, and the revision grows exactly with a change', () => {
  fc.assert(
    fc.property(anyStart, fc.array(anyAction, { maxLength: 30 }), ({ hashed, paused }, sequence) => {
      let record = fresh({ sha256: hashed ? sha256 : null, paused })
      for (const action of sequence) {
        const before = structuredClone(record)
        const next = transition(record, action)
        expect(record).toEqual(before)
        if (next === record) continue
        expect(next.revision).toBe(record.revision + 1)
        expect(next.idempotencyKey).toBe('k1')
        if (record.sha256 !== null) expect(next.sha256).toBe(record.sha256)
        expect(record.status).not.toBe('succeeded')
        for (const fact of ['id', 'owner', 'name', 'type', 'size', 'lastModified', 'metadata', 'priority', 'order', 'createdAt'] as const)
          expect(next[fact]).toBe(record[fact])
        record = next
      }
    }),
  )
})

test('whatever happens: only a hashed record runs, only an ended one has an end, and every record can be stored and read again', () => {
  fc.assert(
    fc.property(anyStart, fc.array(anyAction, { maxLength: 30 }), ({ hashed, paused }, sequence) => {
      const end = sequence.reduce(transition, fresh({ sha256: hashed ? sha256 : null, paused }))
      if (end.status === 'pending' || end.status === 'uploading') expect(end.sha256).not.toBeNull()
      if (end.status === 'preparing') expect(end.sha256).toBeNull()
      expect(end.endedAt !== null).toBe(end.status === 'succeeded' || end.status === 'failed')
      if (end.status === 'failed') expect(end.error).not.toBeNull()
      if (end.status !== 'succeeded') expect(end.result).toBeNull()
      expect(parseRow(structuredClone(end))).toEqual({ record: end })
    }),
  )
})

test('a row comes back as the record it was, with what it does not know', () => {
  const row = { ...fresh(), thumbnail: { width: 3 }, error: { ...error, hint: 'later' } }
  expect(parseRow(structuredClone(row))).toEqual({ record: row })
})

test.each(['__proto__', 'constructor', 'toString'])('metadata under the key %s comes back', (key) => {
  const metadata = JSON.parse(`{${JSON.stringify(key)}:"value"}`) as Record<string, string>
  const parsed = parseRow(structuredClone(fresh({ metadata })))
  expect('record' in parsed && Object.entries(parsed.record.metadata)).toEqual([[key, 'value']])
})

test.each([
  ['a version above ours', { ...fresh(), v: 2 }],
  ['a version far above ours, of another shape', { v: 40, what: 'ever' }],
])('%s is a newer row, not a damaged one', (_name, row) => {
  expect(parseRow(row)).toEqual({ damage: 'newer' })
})

const { idempotencyKey: _key, ...withoutKey } = fresh()
test.each([
  ['nothing', undefined],
  ['null', null],
  ['a string', 'row'],
  ['an empty object', {}],
  ['no version', { ...fresh(), v: undefined }],
  ['version 0', { ...fresh(), v: 0 }],
  ['version 1.5 below', { ...fresh(), v: 0.5 }],
  ['a version that is text', { ...fresh(), v: '1' }],
  ['no key', withoutKey],
  ['a key that is a number', { ...fresh(), idempotencyKey: 5 }],
  ['a digest of another length', { ...fresh(), sha256: 'ab' }],
  ['a digest in upper case', { ...fresh(), sha256: sha256.toUpperCase() }],
  ['an unknown status', { ...fresh(), status: 'cancelled' }],
  ['a size that is no number', { ...fresh(), size: Number.NaN }],
  ['metadata that is no text', { ...fresh(), metadata: { a: 1 } }],
  ['metadata that is a list', { ...fresh(), metadata: ['a'] }],
  ['an error without a code', { ...fresh(), error: { message: 'm', retryable: true } }],
])('a row with %s is damaged', (_name, row) => {
  expect(parseRow(row)).toEqual({ damage: 'damaged' })
})

/** The stored shape, in the words of a schema library: the checks of the core say the same in fewer bytes. */
const schema = z.looseObject({
  v: z.literal(1),
  id: z.string(),
  revision: z.number(),
  idempotencyKey: z.string(),
  sha256: z.nullable(z.string().check(z.regex(/^[0-9a-f]{64}$/))),
  owner: z.string(),
  name: z.string(),
  type: z.string(),
  size: z.number(),
  lastModified: z.number(),
  metadata: z.record(z.string(), z.string()),
  priority: z.number(),
  order: z.number(),
  status: z.enum(['preparing', 'pending', 'uploading', 'paused', 'blocked', 'succeeded', 'failed']),
  attempts: z.number(),
  requests: z.number(),
  notBefore: z.nullable(z.number()),
  reason: z.nullable(z.string()),
  error: z.nullable(z.looseObject({ code: z.string(), message: z.string(), retryable: z.boolean() })),
  result: z.unknown(),
  replayed: z.boolean(),
  createdAt: z.number(),
  expiresAt: z.number(),
  endedAt: z.nullable(z.number()),
})

test('whatever member of a row is damaged, and however, a schema of the same shape agrees', () => {
  const values = fc.oneof(
    fc.constantFrom<unknown>(null, undefined, '', 'pending', 0, -1, 1.5, Number.NaN, Infinity, true, [], {}, sha256, new Date(0)),
    fc.record({ code: fc.string(), message: fc.string(), retryable: fc.oneof(fc.boolean(), fc.string()) }),
    fc.dictionary(fc.string(), fc.oneof(fc.string(), fc.integer())),
    fc.anything(),
  )
  const members = Object.keys(schema.shape)
  fc.assert(
    fc.property(fc.constantFrom(...statuses), fc.constantFrom(...members), values, (status, member, value) => {
      fc.pre(!(member === 'v' && typeof value === 'number' && value > 1))
      const row = { ...inStatus(status), [member]: value }
      expect('record' in parseRow(row)).toBe(schema.safeParse(row).success)
    }),
    { numRuns: 2_000 },
  )
})
