import { randomUUID } from 'node:crypto'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import type { Answer } from '../../demo/server/answer.js'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { createIdempotency } from '../../demo/server/idempotency.js'
import type { Claimed, ClaimId, ClaimRequest, Media } from '../../demo/server/keys.js'
import { createMemoryObjects } from '../../demo/server/objects.js'
import { failingAt, memorySubject, pgliteSubject, postgresSubject, type SqlSubject, type Subject } from './stores.js'

const LEASE = 60_000
const RETENTION = 259_200_000
const KEY = 'key-0123456789abcdef'
const print = 'ab'.repeat(32)

const claimOf = (fields: Partial<ClaimRequest> = {}): ClaimRequest => ({
  owner: 'alice',
  key: KEY,
  fence: randomUUID(),
  fingerprint: print,
  sha256: '0f'.repeat(32),
  leaseMs: LEASE,
  retentionMs: RETENTION,
  ...fields,
})

const everyByte = Uint8Array.from({ length: 256 }, (_, byte) => byte)
const answer: Answer = {
  status: 201,
  headers: [
    ['Content-Type', 'application/json'],
    ['Location', '/media/1'],
  ],
  body: everyByte,
}
const other: Answer = { status: 422, headers: [], body: new Uint8Array([0]) }

const mediaOf = (claim: ClaimId, storageKey: string): Media => ({
  id: randomUUID(),
  owner: claim.owner,
  key: claim.key,
  storageKey,
  sha256: '0f'.repeat(32),
  bytes: 5_000_000_000,
  contentType: 'image/jpeg',
  fileName: 'Müller 東京.jpg',
  metadata: { album: 'summer', b: '"' },
})

const winnersOf = (results: (Claimed | null)[]): number => results.filter((result) => result !== null).length

const postgres = await postgresSubject()
const sqlSubjects: [string, SqlSubject][] = [['PGlite', await pgliteSubject()]]
if (postgres) sqlSubjects.push(['PostgreSQL', postgres])
const subjects: [string, Subject][] = [['memory', memorySubject()], ...sqlSubjects]
afterAll(() => Promise.all(subjects.map(([, subject]) => subject.close())))

describe.each(subjects)('a key store on %s', (_name, subject) => {
  const { keys, elapse, count } = subject
  beforeEach(() => subject.empty())

  const claimed = async (fields: Partial<ClaimRequest> = {}): Promise<ClaimRequest> => {
    const request = claimOf(fields)
    expect(await keys.claim(request)).not.toBeNull()
    return request
  }
  const race = (fields: Partial<ClaimRequest> = {}) => Promise.all(Array.from({ length: 100 }, () => keys.claim(claimOf(fields))))

  it('has one winner among 100 claims on nothing', async () => {
    expect(winnersOf(await race())).toBe(1)
    expect(await count()).toEqual({ keys: 1, media: 0, pending: 0 })
  })

  it('has one winner among 100 claims on a lease that has just lapsed', async () => {
    await claimed()
    await elapse(LEASE + 1)
    expect(winnersOf(await race())).toBe(1)
  })

  it('has one winner among 100 claims on an answer that has just expired', async () => {
    await keys.reject(await claimed(), answer, RETENTION)
    await elapse(RETENTION + 1)
    const results = await race({ fingerprint: 'cd'.repeat(32) })
    expect(winnersOf(results)).toBe(1)
    expect(results.find((result) => result !== null)?.replaced).toBe(true)
    expect((await keys.read('alice', KEY))?.answer).toBeNull()
  })

  it('lets nobody claim while the lease lives, nor while the answer is kept', async () => {
    const claim = await claimed()
    await elapse(LEASE - 1000)
    expect(await keys.claim(claimOf())).toBeNull()
    await keys.reject(claim, answer, RETENTION)
    await elapse(RETENTION - 1000)
    expect(await keys.claim(claimOf())).toBeNull()
  })

  it('keeps a lapsed claim from a request with another fingerprint', async () => {
    await claimed()
    await elapse(LEASE + 1)
    expect(await keys.claim(claimOf({ fingerprint: 'cd'.repeat(32) }))).toBeNull()
    await elapse(RETENTION)
    expect(await keys.claim(claimOf({ fingerprint: 'cd'.repeat(32) }))).not.toBeNull()
  })

  it('tells keys apart by owner and by case', async () => {
    await claimed()
    await claimed({ owner: 'bob' })
    await claimed({ key: KEY.toUpperCase() })
    expect((await count()).keys).toBe(3)
  })

  it('extends a lease on renewal, and only with the right fence', async () => {
    const claim = await claimed()
    await elapse(LEASE - 1000)
    expect(await keys.renew({ ...claim, fence: randomUUID() }, LEASE)).toBe(false)
    expect((await keys.read('alice', KEY))!.leaseLeftMs).toBeLessThan(2000)
    expect(await keys.renew(claim, LEASE)).toBe(true)
    await elapse(LEASE - 1000)
    expect(await keys.claim(claimOf())).toBeNull()
    await elapse(2000)
    expect(await keys.claim(claimOf())).not.toBeNull()
  })

  it('refuses every write of a wrong fence, and the row stays as it is', async () => {
    const claim = await claimed()
    const stale = { ...claim, fence: randomUUID() }
    await keys.intend(stale, 'object-1')
    const before = await keys.read('alice', KEY)
    expect(await keys.renew(stale, LEASE)).toBe(false)
    expect(await keys.commit(stale, answer, RETENTION, mediaOf(stale, 'object-1'))).toBe('fenced')
    expect(await keys.reject(stale, other, RETENTION)).toBe(false)
    expect(await keys.release(stale)).toBe(false)
    const after = await keys.read('alice', KEY)
    expect({ ...after, leaseLeftMs: 0 }).toEqual({ ...before, leaseLeftMs: 0 })
    expect(await count()).toEqual({ keys: 1, media: 0, pending: 1 })
  })

  it('lets a former holder publish nothing after a take-over', async () => {
    const first = await claimed()
    await keys.intend(first, 'object-1')
    await elapse(LEASE + 1)
    const second = await claimed()
    await keys.intend(second, 'object-2')
    expect(await keys.commit(first, answer, RETENTION, mediaOf(first, 'object-1'))).toBe('fenced')
    expect(await count()).toEqual({ keys: 1, media: 0, pending: 2 })
    expect(await keys.commit(second, answer, RETENTION, mediaOf(second, 'object-2'))).toBe('committed')
    expect(await keys.commit(first, answer, RETENTION, mediaOf(first, 'object-1'))).toBe('fenced')
    expect((await keys.mediaByKey('alice', KEY))?.storageKey).toBe('object-2')
  })

  it('stores answer, media row and end of the pending object in one step', async () => {
    const claim = await claimed()
    await keys.intend(claim, 'object-1')
    const media = mediaOf(claim, 'object-1')
    expect(await keys.commit(claim, answer, RETENTION, media)).toBe('committed')
    expect(await count()).toEqual({ keys: 1, media: 1, pending: 0 })
    expect(await keys.mediaByKey('alice', KEY)).toEqual({ ...media, createdAt: expect.any(Date), caption: null })
    expect(await keys.mediaById('alice', media.id)).toEqual({ ...media, createdAt: expect.any(Date), caption: null })
    expect(await keys.mediaById('bob', media.id)).toBeNull()
    expect(await keys.mediaById('alice', 'no id')).toBeNull()
    expect(await keys.listMedia('alice', 10)).toHaveLength(1)
  })

  it('gives back the bytes, the headers in their order and the status of an answer as they were', async () => {
    await keys.reject(await claimed(), answer, RETENTION)
    const row = await keys.read('alice', KEY)
    expect(row?.answer).toEqual(answer)
    expect(row?.state).toBe('completed')
    expect(row?.fingerprint).toBe(print)
  })

  it('has no second media row for a key, even when the first claim is long forgotten', async () => {
    const first = await claimed()
    await keys.intend(first, 'object-1')
    await keys.commit(first, answer, RETENTION, mediaOf(first, 'object-1'))
    await elapse(RETENTION + 1)
    const second = claimOf()
    expect((await keys.claim(second))?.media?.storageKey).toBe('object-1')
    await keys.intend(second, 'object-2')
    expect(await keys.commit(second, other, RETENTION, mediaOf(second, 'object-2'))).toBe('duplicate')
    expect(await count()).toEqual({ keys: 1, media: 1, pending: 1 })
    expect((await keys.read('alice', KEY))?.state).toBe('in_flight')
  })

  it('publishes no object that the sweeper has condemned', async () => {
    const claim = await claimed()
    await keys.intend(claim, 'object-1')
    await elapse(1000)
    expect(await keys.condemn(999, 10)).toEqual(['object-1'])
    expect(await keys.commit(claim, answer, RETENTION, mediaOf(claim, 'object-1'))).toBe('condemned')
    expect(await count()).toEqual({ keys: 1, media: 0, pending: 1 })
    expect((await keys.read('alice', KEY))?.state).toBe('in_flight')
  })

  it('releases once, and harmlessly a second time', async () => {
    const claim = await claimed()
    expect(await keys.release(claim)).toBe(true)
    expect(await keys.release(claim)).toBe(false)
    const next = await claimed()
    expect(await keys.release(claim)).toBe(false)
    expect((await keys.read('alice', KEY))?.fence).toBe(next.fence)
  })

  it('never releases an answer', async () => {
    const claim = await claimed()
    await keys.reject(claim, answer, RETENTION)
    expect(await keys.release(claim)).toBe(false)
    expect((await keys.read('alice', KEY))?.answer?.status).toBe(201)
  })

  it('counts the other live leases of the owner', async () => {
    await claimed({ key: `${KEY}-1` })
    await elapse(LEASE / 2)
    await claimed({ key: `${KEY}-2` })
    await claimed({ key: `${KEY}-3`, owner: 'bob' })
    await keys.reject(await claimed({ key: `${KEY}-4` }), answer, RETENTION)
    expect((await keys.claim(claimOf()))?.otherLeases).toBe(2)
    await elapse(LEASE / 2 + 1)
    expect((await keys.claim(claimOf({ key: `${KEY}-5` })))?.otherLeases).toBe(2)
  })

  it('reaps what is due and never a live lease, and finds nothing the second time', async () => {
    await keys.reject(await claimed({ key: `${KEY}-answered` }), answer, 1000)
    await claimed({ key: `${KEY}-lapsed`, retentionMs: 1000, leaseMs: 1000 })
    const live = await claimed({ key: `${KEY}-live`, retentionMs: 1000 })
    await keys.reject(await claimed({ key: `${KEY}-kept` }), answer, RETENTION)
    await elapse(2000)
    expect(await keys.reap(100)).toBe(2)
    expect(await keys.reap(100)).toBe(0)
    expect(await keys.renew(live, LEASE)).toBe(true)
    expect((await count()).keys).toBe(2)
  })

  it('reaps in batches', async () => {
    for (let n = 0; n < 5; n++) await claimed({ key: `${KEY}-${n}`, retentionMs: 10, leaseMs: 10 })
    await elapse(1000)
    expect([await keys.reap(3), await keys.reap(3), await keys.reap(3)]).toEqual([3, 2, 0])
  })

  it('deletes a condemned object a second time before it is forgotten', async () => {
    const claim = await claimed()
    await keys.intend(claim, 'object-1')
    const deleted: string[] = []
    const objects = createMemoryObjects()
    const noting = {
      ...objects,
      delete: async (key: string) => {
        deleted.push(key)
      },
    }
    const { sweep } = createIdempotency({ keys })
    const options = { objects: noting, graceMs: 5000, finalGraceMs: 5000 }
    await sweep(options)
    expect(deleted).toEqual([])
    await elapse(6000)
    await sweep(options)
    expect(deleted).toEqual(['object-1'])
    expect((await count()).pending).toBe(1)
    await elapse(6000)
    await sweep(options)
    expect(deleted).toEqual(['object-1', 'object-1'])
    expect((await count()).pending).toBe(0)
  })

  it('never has a media row without its object, however sweep and commit fall together', async () => {
    const objects = createMemoryObjects()
    const { sweep } = createIdempotency({ keys })
    const rounds = 200
    for (let round = 0; round < rounds; round++) {
      const claim = await claimed({ key: `${KEY}-${round}` })
      const storageKey = `object-${round}`
      await keys.intend(claim, storageKey)
      await (await objects.create(storageKey)).finish()
      await elapse(10)
      const sweeping = sweep({ objects, graceMs: 5, finalGraceMs: 1_000_000 })
      if (round % 2) await new Promise((resolve) => setImmediate(resolve))
      const [result] = await Promise.all([keys.commit(claim, answer, RETENTION, mediaOf(claim, storageKey)), sweeping])
      expect(['committed', 'condemned']).toContain(result)
      const isThere = (await objects.stat(storageKey)) !== null
      expect(isThere).toBe((await keys.mediaByKey('alice', claim.key)) !== null)
    }
  }, 60_000)
})

/** What only rows in a database can be asked for. */
describe.each(sqlSubjects)('a key store in a database, on %s,', (_name, subject) => {
  const { keys, count } = subject
  beforeEach(() => subject.empty())

  it('changes nothing when a commit fails between two statements', async () => {
    for (const statement of [/DELETE FROM pending_objects/, /INSERT INTO media/]) {
      await subject.empty()
      const claim = claimOf()
      await keys.claim(claim)
      await keys.intend(claim, 'object-1')
      const failing = failingAt(subject.database, statement)
      await expect(failing.commit(claim, answer, RETENTION, mediaOf(claim, 'object-1'))).rejects.toThrow('failed on order')
      expect(await count()).toEqual({ keys: 1, media: 0, pending: 1 })
      expect((await keys.read('alice', KEY))?.state).toBe('in_flight')
      expect(await keys.commit(claim, answer, RETENTION, mediaOf(claim, 'object-1'))).toBe('committed')
    }
  })

  it('may have its schema applied again', async () => {
    await keys.claim(claimOf())
    await applySchema(subject.database)
    expect((await count()).keys).toBe(1)
  })
})

describe.skipIf(!postgres)('several processes on one PostgreSQL', () => {
  it('apply the schema to an empty database at the same time', async () => {
    const own = await postgresSubject()
    const { postgres: server, database } = own!
    await database!.query('CREATE DATABASE fresh')
    const pools = Array.from({ length: 6 }, () => openPostgres({ url: server.url.replace(/postgres$/, 'fresh'), max: 1 }))
    await Promise.all(pools.map(applySchema))
    expect(await pools[0]!.query('SELECT count(*)::int AS n FROM media')).toEqual([{ n: 0 }])
    await Promise.all(pools.map((pool) => pool.close()))
    await own!.close()
  })
})
