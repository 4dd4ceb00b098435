import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { openPostgres } from '../../demo/server/database.js'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import { bearerOf, heldBody, newKey, replayMarkers, sha256, until, uploadRequest } from './fixture.js'
import { pgliteSubject, postgresSubject, type SqlSubject } from './stores.js'

const postgres = await postgresSubject()
const subjects: [string, SqlSubject][] = [['PGlite', await pgliteSubject()]]
if (postgres) subjects.push(['PostgreSQL', postgres])

const isReplay = (response: Response): boolean => response.status === 201 && replayMarkers(response)[0] === 'true'
const isFirst = (response: Response): boolean => response.status === 201 && replayMarkers(response)[0] === null

describe.each(subjects)('the handler on %s', (_name, subject) => {
  let objects: ObjectStore
  beforeEach(async () => {
    await subject.empty()
    objects = createMemoryObjects()
  })
  afterAll(() => subject.close())

  const create = (database: Database = subject.database, waitMs = 0) =>
    createUploadHandler({ keys: createSqlKeys(database), objects, authenticate: bearerOf, limits: { waitMs, maxInFlightPerOwner: 100 } })
  const state = async (): Promise<string> => {
    const { keys, media, pending } = await subject.count()
    return `${keys}/${media}/${(await objects.list('')).length}/${pending}`
  }

  it('stores one of 20 parallel uploads, and answers the others 409 or with a replay', async () => {
    const handler = create()
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 20 }, () => handler(uploadRequest({ key }))))
    expect(answers.filter(isFirst)).toHaveLength(1)
    expect(answers.filter((answer) => !isFirst(answer) && !isReplay(answer) && answer.status !== 409)).toEqual([])
    expect(await state()).toBe('1/1/1/0')
  })

  it('stores one of 20 parallel uploads on a lease that has lapsed', async () => {
    const handler = create()
    const key = newKey()
    void create()(uploadRequest({ key, body: heldBody().stream, digest: sha256('hello') }))
    await until(async () => (await state()) === '1/0/0/1')
    await subject.elapse(61_000)
    const answers = await Promise.all(Array.from({ length: 20 }, () => handler(uploadRequest({ key }))))
    expect(answers.filter(isFirst)).toHaveLength(1)
    expect(await state()).toBe('1/1/1/1')
  })

  it('gives every waiting one the same answer', async () => {
    const handler = create(subject.database, 20_000)
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 10 }, () => handler(uploadRequest({ key }))))
    expect(answers.filter(isFirst)).toHaveLength(1)
    expect(answers.filter(isReplay)).toHaveLength(9)
    expect(new Set(await Promise.all(answers.map((answer) => answer.text()))).size).toBe(1)
  })

  it('replays after the retention from the media row', async () => {
    const handler = create()
    const key = newKey()
    const first = await (await handler(uploadRequest({ key }))).text()
    await subject.elapse(73 * 3_600_000)
    const late = await handler(uploadRequest({ key }))
    expect(isReplay(late)).toBe(true)
    expect(await late.text()).toBe(first)
    expect((await handler(uploadRequest({ key, body: 'other' }))).status).toBe(422)
  })

  it('keeps names and metadata in any script', async () => {
    const name = '東京 "Übung" 🎈.jpg'
    const metadata = `album ${Buffer.from('Sommer ☀ {"a":1}').toString('base64')}`
    await create()(uploadRequest({ headers: { 'X-File-Name': encodeURIComponent(name), 'Upload-Metadata': metadata } }))
    const [media] = await subject.keys.listMedia('alice', 1)
    expect([media!.fileName, media!.metadata]).toEqual([name, { album: 'Sommer ☀ {"a":1}' }])
  })

  it('costs a repeat two statements, and a new upload one transaction', async () => {
    const statements: string[] = []
    const noting = (text: string) => statements.push(text.trim().split(/\s+/)[0]!)
    const counted: Database = {
      query: (text, params) => {
        noting(text)
        return subject.database.query(text, params)
      },
      transaction: (run) =>
        subject.database.transaction((tx) =>
          run({
            query: (text, params) => {
              noting(text)
              return tx.query(text, params)
            },
          }),
        ),
    }
    const handler = create(counted)
    const key = newKey()
    await handler(uploadRequest({ key }))
    expect(statements).toEqual(['INSERT', 'SELECT', 'INSERT', 'UPDATE', 'DELETE', 'INSERT'])
    statements.length = 0
    await handler(uploadRequest({ key }))
    expect(statements).toEqual(['INSERT', 'SELECT'])
  })
})

describe.skipIf(!postgres)('two servers on one PostgreSQL', () => {
  it('store one of 20 parallel uploads, hold no connection while bytes stream, and answer with a pool of 2', async () => {
    const own = (await postgresSubject())!
    const { url } = own.postgres
    const objects = createMemoryObjects()
    const pools = [openPostgres({ url, max: 2 }), openPostgres({ url, max: 2 })]
    const handlers = pools.map((database) =>
      createUploadHandler({ keys: createSqlKeys(database), objects, authenticate: bearerOf, limits: { maxInFlightPerOwner: 100 } }),
    )
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => handlers[n % 2]!(uploadRequest({ key }))))
    expect(answers.filter(isFirst)).toHaveLength(1)
    expect(await own.count()).toEqual({ keys: 1, media: 1, pending: 0 })

    const bodies = Array.from({ length: 20 }, heldBody)
    const slow = bodies.map((body) => handlers[0]!(uploadRequest({ body: body.stream, digest: sha256('x') })))
    await until(async () => (await own.count()).pending === 20)
    const idle = await own.database.query(`SELECT count(*)::int AS n FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'`)
    expect(idle).toEqual([{ n: 0 }])
    const started = performance.now()
    expect(isFirst(await handlers[0]!(uploadRequest()))).toBe(true)
    expect(performance.now() - started).toBeLessThan(3000)
    for (const body of bodies) {
      body.push('x')
      body.end()
    }
    expect((await Promise.all(slow)).every(isFirst)).toBe(true)
    await Promise.all(pools.map((pool) => pool.close()))
    await own.close()
  })

  it('outlive a connection that breaks between two statements of a transaction, and nothing of it is stored', async () => {
    const own = (await postgresSubject())!
    const errors: unknown[] = []
    const pool = openPostgres({ url: own.postgres.url, max: 1, onError: (error) => errors.push(error) })
    const broken = pool.transaction(async (tx) => {
      await tx.query(`INSERT INTO pending_objects (storage_key, owner, key, fence) VALUES ('object', 'alice', 'key', gen_random_uuid())`)
      const [backend] = await tx.query('SELECT pg_backend_pid() AS pid')
      await own.database.query('SELECT pg_terminate_backend($1, 5000)', [backend!.pid])
      await until(() => errors.length > 0)
      await tx.query('SELECT 1')
    })
    await expect(broken).rejects.toThrow('connection error')
    expect(await pool.query('SELECT * FROM pending_objects')).toEqual([])
    await pool.close()
    await own.close()
  })

  it('answer 503 while the database is away, and go on when it is back', async () => {
    const own = (await postgresSubject())!
    const pool = openPostgres({ url: own.postgres.url, max: 2 })
    const handler = createUploadHandler({ keys: createSqlKeys(pool), objects: createMemoryObjects(), authenticate: bearerOf })
    await own.database.query('ALTER TABLE idempotency_keys RENAME TO gone')
    const refused = await handler(uploadRequest())
    expect([refused.status, refused.headers.get('Retry-After')]).toEqual([503, '1'])
    await own.database.query('ALTER TABLE gone RENAME TO idempotency_keys')
    const key = newKey()
    expect((await handler(uploadRequest({ key }))).status).toBe(201)
    // Kills the pool's connections under it.
    await own.database
      .query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL')
      .catch(() => {})
    await vi.waitFor(async () => expect(isReplay(await handler(uploadRequest({ key })))).toBe(true))
    await pool.close()
    await own.close()
  })
})
