import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { applySchema, openPostgres, pgliteDatabase } from '../../demo/server/database.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { type RunningServer, startServer } from '../../demo/server/server.js'
import { startPglite } from '../helpers/pglite.js'
import { startPostgres } from '../helpers/postgres.js'
import { newKey, problemOf, replayMarkers, until } from './fixture.js'
import { startMain } from './process.js'
import { post } from './wire.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-albums-'))
const postgres = await startPostgres()
const opened: RunningServer[] = []
afterAll(async () => {
  await Promise.all(opened.map((server) => server.close()))
  await postgres?.stop()
  await rm(folder, { recursive: true })
})

interface Fields {
  key?: string | null
  owner?: string | null
  headers?: Record<string, string>
}

const send = (url: string, method: string, path: string, body: unknown, { key = newKey(), owner = 'alice', headers = {} }: Fields = {}) =>
  fetch(url + path, {
    method,
    body: typeof body === 'string' ? body : JSON.stringify(body),
    headers: {
      'Content-Type': 'application/json',
      ...(key === null ? {} : { 'Idempotency-Key': key }),
      ...(owner === null ? {} : { Authorization: `Bearer ${owner}` }),
      ...headers,
    },
  })
const list = async (url: string, path: string, owner = 'alice'): Promise<Record<string, unknown>[]> =>
  (await (await fetch(url + path, { headers: { Authorization: `Bearer ${owner}` } })).json()) as Record<string, unknown>[]
const uploaded = async (url: string, owner = 'alice'): Promise<string> =>
  ((await (await post(url, { owner, body: randomUUID() })).json()) as { uploadId: string }).uploadId
const isReplay = (answer: Response): boolean => replayMarkers(answer).every((marker) => marker === 'true')

const embedded = await startServer({ port: 0, host: '127.0.0.1', dataDir: join(folder, 'embedded') })
opened.push(embedded)
const { url } = embedded

describe('PATCH /media/:id', () => {
  it('gives a file its caption once, and lists it', async () => {
    const id = await uploaded(url)
    const key = newKey()
    const caption = 'Sommer ☀ "東京"'
    const first = await send(url, 'PATCH', `/media/${id}`, { caption }, { key })
    expect([first.status, ((await first.json()) as { caption: string }).caption]).toEqual([200, caption])
    expect((await send(url, 'PATCH', `/media/${id}`, { caption: 'later' })).status).toBe(200)
    const again = await send(url, 'PATCH', `/media/${id}`, `{ "caption" : ${JSON.stringify(caption)} }`, { key })
    expect([again.status, isReplay(again), ((await again.json()) as { caption: string }).caption]).toEqual([200, true, caption])
    // The repeat has changed nothing.
    expect((await list(url, '/media')).find((media) => media.id === id)).toMatchObject({ caption: 'later' })
    expect((await send(url, 'PATCH', `/media/${id}`, { caption: null })).status).toBe(200)
    expect((await list(url, '/media')).find((media) => media.id === id)).toMatchObject({ caption: null })
  })

  it('refuses what is not the caller’s, not there, or no caption', async () => {
    const id = await uploaded(url)
    expect(await problemOf(await send(url, 'PATCH', `/media/${id}`, { caption: 'x' }, { owner: 'bob' }))).toMatchObject({
      error: 'media_unknown',
    })
    expect(await problemOf(await send(url, 'PATCH', '/media/none', { caption: 'x' }))).toEqual({ status: 404, error: 'media_unknown' })
    for (const body of [{}, { caption: 'a\0b' }, { caption: 'x'.repeat(2001) }, [], '{']) {
      expect((await send(url, 'PATCH', `/media/${id}`, body)).status).toBe(400)
    }
    expect((await list(url, '/media')).find((media) => media.id === id)).toMatchObject({ caption: null })
  })
})

describe('POST /albums', () => {
  it('makes one album for one key, with its files in order', async () => {
    const mediaIds = [await uploaded(url), await uploaded(url), await uploaded(url)].sort().reverse()
    const key = newKey()
    const first = await send(url, 'POST', '/albums', { title: 'Summer', mediaIds }, { key })
    const text = await first.text()
    const again = await send(url, 'POST', '/albums', { mediaIds, title: 'Summer' }, { key })
    expect([first.status, again.status, await again.text(), isReplay(again)]).toEqual([201, 201, text, true])
    expect(await list(url, '/albums')).toEqual([JSON.parse(text)])
    expect(JSON.parse(text)).toMatchObject({ title: 'Summer', mediaIds })
    expect(await problemOf(await send(url, 'POST', '/albums', { title: 'Winter', mediaIds }, { key }))).toEqual({
      status: 422,
      error: 'idempotency_key_reuse',
    })
    expect(await list(url, '/albums', 'bob')).toEqual([])
    const empty = await send(url, 'POST', '/albums', { title: 'Empty', mediaIds: [] }, { key, owner: 'bob' })
    expect([empty.status, isReplay(empty)]).toEqual([201, false])
    expect(await list(url, '/albums', 'bob')).toMatchObject([{ title: 'Empty', mediaIds: [] }])
  })

  it('makes none with files of others, without an account, a key or a title, or from another site by cookie', async () => {
    const before = (await list(url, '/albums')).length
    const theirs = await uploaded(url, 'bob')
    expect(await problemOf(await send(url, 'POST', '/albums', { title: 'x', mediaIds: [theirs] }))).toEqual({
      status: 404,
      error: 'media_unknown',
    })
    expect(await problemOf(await send(url, 'POST', '/albums', { title: 'x', mediaIds: [] }, { owner: null }))).toMatchObject({
      status: 401,
    })
    expect(await problemOf(await send(url, 'POST', '/albums', { title: 'x', mediaIds: [] }, { key: null }))).toMatchObject({ status: 400 })
    for (const body of [{ title: '', mediaIds: [] }, { title: 'x' }, { title: 'x', mediaIds: ['1'] }, { title: 'a\0', mediaIds: [] }]) {
      expect((await send(url, 'POST', '/albums', body)).status).toBe(400)
    }
    const headers = { Cookie: `uponce=${randomUUID()}`, 'Sec-Fetch-Site': 'cross-site' }
    const foreign = await send(url, 'POST', '/albums', { title: 'x', mediaIds: [] }, { owner: null, headers })
    expect(await problemOf(foreign)).toEqual({ status: 403, error: 'origin_not_allowed' })
    expect(await list(url, '/albums')).toHaveLength(before)
  })

  it.skipIf(!postgres)(
    'killed between the album and its answer, a server leaves neither, and another makes it once',
    async () => {
      const env = { DATABASE_URL: postgres!.url, DATA_DIR: join(folder, 'pg'), LEASE_MS: '3000' }
      const [first, second] = await Promise.all([startMain(env), startMain(env)])
      const [albums, keyRow] = [new pg.Client(postgres!.url), new pg.Client(postgres!.url)]
      await Promise.all([albums.connect(), keyRow.connect()])
      const key = newKey()
      const body = { title: 'Once', mediaIds: [] }
      // Holds the server between its claim and the album, then between the album and the answer.
      await albums.query('BEGIN; LOCK TABLE albums IN SHARE MODE')
      const lost = send(first.url, 'POST', '/albums', body, { key }).catch(() => null)
      await until(async () => (await keyRow.query('SELECT 1 FROM idempotency_keys WHERE key LIKE $1', [`%${key}`])).rowCount === 1)
      await keyRow.query('BEGIN')
      await keyRow.query('SELECT 1 FROM idempotency_keys WHERE key LIKE $1 FOR UPDATE', [`%${key}`])
      await albums.query('COMMIT')
      await until(async () => {
        const waiting = await albums.query(
          `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%response_status = $4%'`,
        )
        return waiting.rowCount === 1
      })
      await first.stop('SIGKILL')
      await keyRow.query('ROLLBACK')
      expect(await lost).toBeNull()
      expect(await list(second.url, '/albums')).toEqual([])
      const answer = await vi.waitFor(
        async () => {
          const given = await send(second.url, 'POST', '/albums', body, { key })
          expect(given.status).toBe(201)
          return given
        },
        { timeout: 15_000, interval: 100 },
      )
      expect(isReplay(answer)).toBe(false)
      expect(await list(second.url, '/albums')).toEqual([await answer.json()])
      await Promise.all([albums.end(), keyRow.end()])
      expect((await second.stop('SIGTERM')).code).toBe(0)
    },
    60_000,
  )

  it.skipIf(!postgres)(
    'makes one album for 20 requests to two servers',
    async () => {
      const config = { port: 0, host: '127.0.0.1', databaseUrl: postgres!.url, dataDir: join(folder, 'two') }
      const servers = await Promise.all([startServer(config), startServer(config)])
      opened.push(...servers)
      const key = newKey()
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, n) =>
          send(servers[n % 2]!.url, 'POST', '/albums', { title: 'Race', mediaIds: [] }, { key, owner: 'racer' }),
        ),
      )
      expect(answers.filter((answer) => answer.status === 201 && !isReplay(answer))).toHaveLength(1)
      expect(answers.filter(({ status }) => status !== 201 && status !== 409)).toEqual([])
      expect(await list(servers[0]!.url, '/albums', 'racer')).toHaveLength(1)
      expect(isReplay(await send(servers[1]!.url, 'POST', '/albums', { title: 'Race', mediaIds: [] }, { key, owner: 'racer' }))).toBe(true)
    },
    60_000,
  )
})

/** The tables as they were before captions and albums. */
const EARLIER = [
  `CREATE TABLE idempotency_keys (owner text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, fingerprint bytea NOT NULL, sha256 bytea,
    state text NOT NULL CHECK (state IN ('in_flight', 'completed')), fence uuid NOT NULL, leased_until timestamptz, response_status int,
    response_headers jsonb, response_body bytea, created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz NOT NULL,
    PRIMARY KEY (owner, key))`,
  `CREATE TABLE media (id uuid PRIMARY KEY, owner text COLLATE "C" NOT NULL, idempotency_key text COLLATE "C" NOT NULL,
    storage_key text NOT NULL UNIQUE, sha256 bytea NOT NULL, bytes bigint NOT NULL, content_type text NOT NULL, file_name text,
    metadata jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), UNIQUE (owner, idempotency_key))`,
  `INSERT INTO media VALUES ('00000000-0000-4000-8000-000000000001', 'alice', 'key-0123456789abcdef', 'object', '\\x00', 1, 'image/png', 'a.png', '{}')`,
]

async function expectMigrated(database: Database): Promise<void> {
  expect(await createSqlKeys(database).listMedia('alice', 10)).toMatchObject([{ fileName: 'a.png', caption: null }])
  await database.query(`UPDATE media SET caption = 'kept'`)
  await applySchema(database)
  expect(await createSqlKeys(database).listMedia('alice', 10)).toMatchObject([{ fileName: 'a.png', caption: 'kept' }])
  expect(await database.query('SELECT count(*)::int AS n FROM albums')).toEqual([{ n: 0 }])
}

describe('the schema', () => {
  it('of an earlier version is brought up to date, and its rows are kept', async () => {
    const database = pgliteDatabase(await startPglite())
    for (const statement of EARLIER) await database.query(statement)
    await applySchema(database)
    await expectMigrated(database)
    await database.close()
  })

  it.skipIf(!postgres)('of an earlier version is brought up to date by eight processes at once, beside transactions at work', async () => {
    const admin = openPostgres({ url: postgres!.url })
    await admin.query('CREATE DATABASE earlier')
    const url = postgres!.url.replace(/postgres$/, 'earlier')
    const pools = Array.from({ length: 8 }, () => openPostgres({ url, max: 2 }))
    for (const statement of EARLIER) await pools[0]!.query(statement)
    // A transaction that has written to one table, and will write to the other: with both locked at once there would be a deadlock.
    const writer = new pg.Client(url)
    await writer.connect()
    await writer.query(`BEGIN; UPDATE media SET bytes = 2`)
    const applied = Promise.all(pools.map((pool) => applySchema(pool)))
    await until(async () => {
      const waiting = await admin.query(`SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%media_newest%'`)
      return waiting.length > 0
    })
    await writer.query(`DELETE FROM idempotency_keys; COMMIT`)
    await applied
    await expectMigrated(pools[0]!)
    await writer.end()
    await Promise.all(pools.map((pool) => pool.close()))
    await admin.close()
  })
})
