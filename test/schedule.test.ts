import fc from 'fast-check'
import { expect, test } from 'vitest'
import { newRecord, type PendingUpload, type UploadStatus } from '../src/record.js'
import { type Choice, createLine, type Situation } from '../src/schedule.js'

const origin = 'https://files.example'

const upload = (id: string, facts: Partial<PendingUpload> = {}): PendingUpload => ({
  ...newRecord({
    id,
    idempotencyKey: id,
    sha256: 'ab'.repeat(32),
    owner: 'ann',
    name: id,
    type: '',
    size: 1,
    lastModified: 0,
    metadata: {},
    priority: 0,
    order: Number(id.slice(1)),
    createdAt: 0,
    expiresAt: 100_000,
    paused: false,
  }),
  ...facts,
})

/** A situation as a test says it. */
type Facts = Omit<Situation, 'records' | 'find'> & { records: readonly PendingUpload[] }

const whole = ({ records, ...facts }: Facts): Situation => ({
  ...facts,
  records: () => records,
  find: (id) => records.find((record) => record.id === id),
})

const choose = (facts: Facts): Choice => createLine().choose(whole(facts))

const situation = (records: PendingUpload[], facts: Partial<Facts> = {}): Facts => ({
  records,
  owner: 'ann',
  now: 1_000,
  cut: 0,
  concurrency: 3,
  isSent: () => false,
  isLeft: () => false,
  holding: new Map(),
  originOf: () => origin,
  capacity: () => Number.POSITIVE_INFINITY,
  opensAt: () => null,
  ...facts,
})

const nothing: Choice = { start: [], expired: [], setBack: [], abandoned: [], wakeAt: null }
const five = ['u1', 'u2', 'u3', 'u4', 'u5'].map((id) => upload(id))

test('as many start as there are slots, the oldest first', () => {
  expect(choose(situation(five))).toEqual({ ...nothing, start: ['u1', 'u2', 'u3'] })
  expect(choose(situation([...five].reverse()))).toEqual({ ...nothing, start: ['u1', 'u2', 'u3'] })
})

test('those under way take slots and are not started again', () => {
  expect(choose(situation(five, { holding: new Map([['u1', origin]]) })).start).toEqual(['u2', 'u3'])
  const holding = new Map([
    ['u1', origin],
    ['u2', undefined],
    ['u3', origin],
  ])
  expect(choose(situation(five, { holding }))).toEqual(nothing)
})

test('a slot held by one that is gone is held', () => {
  expect(choose(situation(five, { concurrency: 1, holding: new Map([['gone', origin]]) })).start).toEqual([])
})

test('a higher priority goes first, then the older', () => {
  const records = [upload('u1'), upload('u2', { priority: 5 }), upload('u3', { priority: -1 }), upload('u4', { priority: 5 })]
  expect(choose(situation(records, { concurrency: 4 })).start).toEqual(['u2', 'u4', 'u1', 'u3'])
})

test.each<[UploadStatus, boolean]>([
  ['preparing', true],
  ['pending', true],
  ['uploading', false],
  ['paused', false],
  ['blocked', false],
  ['succeeded', false],
  ['failed', false],
])('one that is %s starts: %s', (status, starts) => {
  expect(choose(situation([upload('u1', { status })])).start).toEqual(starts ? ['u1'] : [])
})

test("nobody else's start, expire or wake", () => {
  const others = [
    upload('u1', { owner: 'bob' }),
    upload('u2', { owner: 'bob', expiresAt: 5 }),
    upload('u3', { owner: 'bob', notBefore: 9_000 }),
  ]
  expect(choose(situation(others))).toEqual(nothing)
  expect(choose(situation(others, { owner: null }))).toEqual(nothing)
  expect(choose(situation([upload('u1', { owner: '' })], { owner: null }))).toEqual(nothing)
  expect(choose(situation([upload('u1', { owner: '' })], { owner: '' })).start).toEqual(['u1'])
})

test('one that waits holds no slot and delays nobody; the soonest wakes', () => {
  const records = [upload('u1', { notBefore: 9_000 }), upload('u2', { notBefore: 5_000 }), ...five.slice(2)]
  expect(choose(situation(records))).toEqual({ ...nothing, start: ['u3', 'u4', 'u5'], wakeAt: 5_000 })
})

test('one is due from the very millisecond on', () => {
  expect(choose(situation([upload('u1', { notBefore: 1_000 })])).start).toEqual(['u1'])
  expect(choose(situation([upload('u1', { notBefore: 1_001 })]))).toEqual({ ...nothing, wakeAt: 1_001 })
})

test('one that ran out of time expires and is not started', () => {
  const records = [
    upload('u1', { expiresAt: 1_000 }),
    upload('u2', { expiresAt: 1_001 }),
    upload('u3', { expiresAt: 500, notBefore: 9_000 }),
  ]
  expect(choose(situation(records))).toEqual({ ...nothing, start: ['u2'], expired: ['u1', 'u3'] })
})

test.each<UploadStatus>(['paused', 'blocked', 'failed', 'succeeded', 'uploading'])('one that is %s does not expire', (status) => {
  expect(choose(situation([upload('u1', { status, expiresAt: 5 })], { isSent: () => true }))).toEqual(nothing)
})

test('one that is marked as under way, though nobody sends it, is named as it changes, and whenever all are looked at', () => {
  const records = [upload('u1', { status: 'uploading' }), upload('u2', { status: 'uploading', owner: 'bob' })]
  const line = createLine()
  const facts = situation(records, { isSent: (id) => id === 'u1' })
  expect(line.choose(whole(facts)).abandoned).toEqual(['u2'])
  expect(line.choose(whole(facts)).abandoned).toEqual([])
  line.enter('u1')
  expect(line.choose(whole(situation(records))).abandoned).toEqual(['u1'])
  line.renew()
  expect(line.choose(whole(situation(records))).abandoned).toEqual(['u1', 'u2'])
})

test('one that is left to others is not started, and waits for nothing here', () => {
  const records = [upload('u1'), upload('u2', { notBefore: 5_000 })]
  expect(choose(situation(records, { isLeft: () => true }))).toEqual(nothing)
})

test('one that was sent once lives no longer than the server remembers its key; one that was not lives its whole time', () => {
  const records = [upload('u1', { requests: 1 }), upload('u2')]
  expect(choose(situation(records, { cut: 99_000 }))).toEqual({ ...nothing, start: ['u2'], expired: ['u1'] })
  const waiting = [upload('u1', { requests: 1, notBefore: 90_000 })]
  expect(choose(situation(waiting, { cut: 50_000 })).wakeAt).toBe(50_000)
})

test('one that waits for a time told by a clock that was set back since is named, and the others are not', () => {
  const records = [
    upload('u1', { notBefore: 9_000, waitingSince: 8_000 }),
    upload('u2', { notBefore: 9_000, waitingSince: 1_000 }),
    upload('u3', { notBefore: 9_000 }),
    upload('u4', { notBefore: null, waitingSince: 8_000 }),
    upload('u5', { notBefore: 9_000, waitingSince: 8_000, owner: 'bob' }),
  ]
  expect(choose(situation(records))).toEqual({ ...nothing, start: ['u4'], setBack: ['u1'], wakeAt: 9_000 })
})

test('one that expires while it waits wakes at its end', () => {
  expect(choose(situation([upload('u1', { notBefore: 9_000, expiresAt: 4_000 })])).wakeAt).toBe(4_000)
})

test('a closed origin starts nothing and says when it opens', () => {
  const closed = { capacity: () => 0, opensAt: () => 7_000 }
  expect(choose(situation(five, closed))).toEqual({ ...nothing, wakeAt: 7_000 })
  expect(choose(situation(five, { ...closed, opensAt: () => null }))).toEqual({ ...nothing, wakeAt: 100_000 })
})

test('a half-open origin lets one through, those under way counted', () => {
  expect(choose(situation(five, { capacity: () => 1 })).start).toEqual(['u1'])
  expect(choose(situation(five, { capacity: () => 1, holding: new Map([['u1', origin]]) })).start).toEqual([])
})

test('a closed origin does not hold up uploads to another', () => {
  const originOf = ({ id }: PendingUpload): string => (id < 'u4' ? origin : 'https://other.example')
  const capacity = (of: string): number => (of === origin ? 0 : Number.POSITIVE_INFINITY)
  expect(choose(situation(five, { originOf, capacity })).start).toEqual(['u4', 'u5'])
})

test('hashing needs no network, and one whose place is not known yet finds out', () => {
  const records = [upload('u1', { status: 'preparing', sha256: null }), upload('u2')]
  expect(choose(situation(records, { capacity: () => 0 })).start).toEqual(['u1'])
  expect(choose(situation(records, { capacity: () => 0, originOf: () => undefined })).start).toEqual(['u1', 'u2'])
})

const anyUpload = (index: number): fc.Arbitrary<PendingUpload> =>
  fc
    .record({
      status: fc.constantFrom<UploadStatus>('preparing', 'pending', 'uploading', 'paused', 'blocked', 'succeeded', 'failed'),
      owner: fc.constantFrom('ann', 'bob', ''),
      priority: fc.integer({ min: -2, max: 2 }),
      order: fc.constant(index + 1),
      notBefore: fc.option(fc.integer({ min: 0, max: 3_000 }), { nil: null }),
      expiresAt: fc.integer({ min: 500, max: 5_000 }),
    })
    .map((facts) => upload(`u${index}`, facts))

const anySituation: fc.Arbitrary<Facts> = fc
  .record({
    records: fc.nat(25).chain((count) => fc.tuple(...Array.from({ length: count }, (_, index) => anyUpload(index)))),
    order: fc.boolean(),
    owner: fc.constantFrom('ann', 'bob', '', null),
    now: fc.constant(1_500),
    cut: fc.constant(0),
    concurrency: fc.integer({ min: 1, max: 5 }),
    held: fc.uniqueArray(fc.nat(24), { maxLength: 5 }),
    capacities: fc.tuple(fc.constantFrom(0, 1, free()), fc.constantFrom(0, 1, free())),
    opensAt: fc.option(fc.integer({ min: 1_501, max: 9_000 }), { nil: null }),
    endpoints: fc.constantFrom('one', 'two', 'unknown'),
  })
  .map(({ records, order, held, capacities, opensAt, endpoints, concurrency, ...facts }) => {
    const originOf = ({ id }: PendingUpload): string | undefined =>
      endpoints === 'unknown' ? undefined : endpoints === 'one' || Number(id.slice(1)) % 2 === 0 ? 'a' : 'b'
    const holding = new Map(held.slice(0, concurrency).map((index) => [`u${index}`, index % 2 === 0 ? 'a' : 'b']))
    const capacity = (of: string): number => capacities[of === 'a' ? 0 : 1]
    const whose = { isSent: () => true, isLeft: (id: string) => id === 'u7' }
    const shuffled = order ? records : [...records].reverse()
    return { ...facts, ...whose, records: shuffled, concurrency, holding, originOf, capacity, opensAt: () => opensAt }
  })

function free(): number {
  return Number.POSITIVE_INFINITY
}

const mayRun = ({ owner, now, holding, isLeft }: Facts, record: PendingUpload): boolean =>
  record.owner === owner &&
  !isLeft(record.id) &&
  !holding.has(record.id) &&
  (record.status === 'pending' || record.status === 'preparing') &&
  record.expiresAt > now &&
  (record.notBefore ?? 0) <= now

test('in any situation: never more than the slots, none twice, none before its time, none of another owner, by priority and then age', () => {
  fc.assert(
    fc.property(anySituation, (facts) => {
      const records = [...facts.records]
      const { start, expired, wakeAt } = choose(facts)
      const started = start.map((id) => records.find((record) => record.id === id) as PendingUpload)
      expect(start.length).toBeLessThanOrEqual(Math.max(0, facts.concurrency - facts.holding.size))
      expect(new Set([...start, ...facts.holding.keys()]).size).toBe(start.length + facts.holding.size)
      for (const record of started) expect(mayRun(facts, record)).toBe(true)
      const ranks = started.map(({ priority, order }) => [priority, order] as const)
      const sorted = [...ranks].sort(([p, o], [q, r]) => q - p || o - r)
      expect(ranks).toEqual(sorted)
      for (const id of expired) {
        expect(start).not.toContain(id)
        expect(records.find((record) => record.id === id)).toMatchObject({ owner: facts.owner })
        expect(records.find((record) => record.id === id)?.expiresAt).toBeLessThanOrEqual(facts.now)
      }
      if (wakeAt !== null) expect(wakeAt).toBeGreaterThan(facts.now)
    }),
  )
})

test('in any situation: no origin gets more than it takes, and a slot is left empty only where nobody could use it', () => {
  fc.assert(
    fc.property(anySituation, (facts) => {
      const records = [...facts.records]
      const { start } = choose(facts)
      const load = new Map<string, number>()
      for (const of of facts.holding.values()) if (of !== undefined) load.set(of, (load.get(of) ?? 0) + 1)
      const before = new Map(load)
      for (const id of start) {
        const record = records.find((one) => one.id === id) as PendingUpload
        const of = record.status === 'preparing' ? undefined : facts.originOf(record)
        if (of !== undefined) load.set(of, (load.get(of) ?? 0) + 1)
      }
      for (const [of, count] of load) if (count > (before.get(of) ?? 0)) expect(count).toBeLessThanOrEqual(facts.capacity(of))
      if (start.length + facts.holding.size >= facts.concurrency) return
      for (const record of records) {
        if (!mayRun(facts, record) || start.includes(record.id)) continue
        const of = record.status === 'preparing' ? undefined : facts.originOf(record)
        expect(of !== undefined && (load.get(of) ?? 0) >= facts.capacity(of)).toBe(true)
      }
    }),
  )
})

test('in any situation: one that waits changes nothing for the others', () => {
  fc.assert(
    fc.property(anySituation, fc.integer({ min: 1_501, max: 9_000 }), (facts, notBefore) => {
      const waiting = upload('u99', { owner: facts.owner ?? 'ann', priority: 9, notBefore })
      expect(choose({ ...facts, records: [waiting, ...facts.records] }).start).toEqual(choose(facts).start)
    }),
  )
})

test('a line that is told of each change chooses what one would that looks at all anew', () => {
  const anyStep = fc.record({
    changed: fc.uniqueArray(fc.nat(24), { maxLength: 4 }),
    removed: fc.option(fc.nat(24), { nil: null }),
    passed: fc.constantFrom(0, 0, 1, 400, -300),
    held: fc.uniqueArray(fc.nat(24), { maxLength: 3 }),
    capacity: fc.constantFrom(0, 1, free(), free()),
    owner: fc.constantFrom('ann', 'ann', 'ann', 'bob'),
    cut: fc.constantFrom(0, 0, 0, 1_000),
  })
  const anyChange = fc.tuple(...Array.from({ length: 25 }, (_, index) => fc.infiniteStream(anyUpload(index))))
  fc.assert(
    fc.property(fc.array(anyStep, { minLength: 2, maxLength: 12 }), anyChange, (steps, streams) => {
      const line = createLine()
      const records = new Map<string, PendingUpload>()
      let now = 1_500
      let holding = new Map<string, string>()
      for (const step of steps) {
        now += step.passed
        for (const index of step.changed) {
          const record = { ...(streams[index]!.next().value as PendingUpload), waitingSince: now }
          records.set(record.id, record)
          line.enter(record.id)
        }
        if (step.removed !== null) records.delete(`u${step.removed}`)
        for (const id of holding.keys()) line.enter(id)
        holding = new Map(step.held.map((index) => [`u${index}`, 'a']))
        const facts = { ...situation([...records.values()]), now, holding, owner: step.owner, cut: step.cut, capacity: () => step.capacity }
        const choice = line.choose(whole({ ...facts, concurrency: 4 }))
        const fresh = choose({ ...facts, concurrency: 4 })
        expect(choice.start).toEqual(fresh.start)
        // Early is harmless.
        if (fresh.wakeAt !== null) expect(choice.wakeAt ?? Number.POSITIVE_INFINITY).toBeLessThanOrEqual(fresh.wakeAt)
        // Whoever is started holds a slot; what comes of it is a change.
        for (const id of choice.start) line.enter(id)
        for (const id of [...fresh.expired, ...fresh.setBack]) line.enter(id)
      }
    }),
    { numRuns: 1_000 },
  )
})

test('a new upload under the id of one that was cancelled waits for its own turn, and has one', () => {
  const line = createLine()
  const situationOf = (records: PendingUpload[], holding: string[]): Situation =>
    whole(situation(records, { concurrency: 1, holding: new Map(holding.map((id) => [id, origin])) }))
  const [first, second, third] = five as [PendingUpload, PendingUpload, PendingUpload]
  expect(line.choose(situationOf([first, second, third], [])).start).toEqual(['u1'])
  const again = upload('u2', { order: 9 })
  line.enter('u2')
  line.enter('u1')
  expect(line.choose(situationOf([third, again], [])).start).toEqual(['u3'])
  expect(line.choose(situationOf([again], [])).start).toEqual(['u2'])
  expect(line.choose(situationOf([again], [])).start).toEqual([])
})

test('most of ten thousand are not looked at for the next choice', () => {
  const many = Array.from({ length: 10_000 }, (_, index) => upload(`u${index}`))
  const records = new Map(many.map((record) => [record.id, record]))
  const line = createLine()
  let looked = 0
  const find = (id: string): PendingUpload | undefined => {
    looked += 1
    return records.get(id)
  }
  const facts = { ...whole(situation(many)), find }
  expect(line.choose(facts).start).toEqual(['u0', 'u1', 'u2'])
  looked = 0
  for (const id of ['u0', 'u1', 'u2']) records.delete(id)
  line.enter('u9000')
  expect(line.choose({ ...facts, records: () => expect.unreachable() }).start).toEqual(['u3', 'u4', 'u5'])
  expect(looked).toBeLessThan(10)
})
