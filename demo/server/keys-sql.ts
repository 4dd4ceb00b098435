import type { Answer } from './answer.js'
import type { ClaimId, CommitResult, KeyRow, KeyStore, StoredMedia } from './keys.js'

export type Row = Record<string, unknown>

/** One statement with `$1` parameters. Resolves to its rows. */
export interface Queryable {
  query(text: string, params?: unknown[]): Promise<Row[]>
}

/** All a database must do. */
export interface Database extends Queryable {
  /** COMMIT when `run` resolves, ROLLBACK when it rejects. Statements of the transaction go through the argument, no other. */
  transaction<Result>(run: (tx: Queryable) => Promise<Result>): Promise<Result>
}

/** Leaves the transaction, and says why. */
class Rollback extends Error {
  readonly result: CommitResult

  constructor(result: CommitResult) {
    super(result)
    this.result = result
  }
}

const HELD = `owner = $1 AND key = $2 AND fence = $3 AND state = 'in_flight'`

const CLAIM = `
  INSERT INTO idempotency_keys AS k (owner, key, fence, fingerprint, sha256, state, leased_until, expires_at)
  VALUES ($1, $2, $3, decode($4, 'hex'), decode($5, 'hex'), 'in_flight',
    now() + $6::float8 * interval '1 millisecond', now() + $7::float8 * interval '1 millisecond')
  ON CONFLICT (owner, key) DO UPDATE SET state = 'in_flight', fence = EXCLUDED.fence, fingerprint = EXCLUDED.fingerprint,
    sha256 = EXCLUDED.sha256, leased_until = EXCLUDED.leased_until, expires_at = EXCLUDED.expires_at,
    response_status = NULL, response_headers = NULL, response_body = NULL, created_at = now()
  WHERE (k.state = 'in_flight' AND k.leased_until <= now() AND (k.fingerprint = EXCLUDED.fingerprint OR k.expires_at <= now()))
     OR (k.state = 'completed' AND k.expires_at <= now())
  RETURNING xmax <> 0 AS replaced`

const MEDIA_COLUMNS = `m.id, m.owner, m.idempotency_key, m.storage_key, encode(m.sha256, 'hex') AS sha256, m.bytes, m.content_type,
  m.file_name, m.metadata, m.created_at, m.caption`

/** What a new claim has to know, in one round trip. */
const SURROUNDINGS = `
  SELECT ${MEDIA_COLUMNS}, (SELECT count(*) FROM idempotency_keys
    WHERE owner = $1 AND key <> $2 AND state = 'in_flight' AND leased_until > now()) AS other_leases
  FROM (SELECT 1) AS one LEFT JOIN media m ON m.owner = $1 AND m.idempotency_key = $2`

const READ = `
  SELECT state, fence, encode(fingerprint, 'hex') AS fingerprint, encode(sha256, 'hex') AS sha256,
    coalesce(extract(epoch FROM leased_until - now()) * 1000, 0)::float8 AS lease_left_ms,
    expires_at, response_status, response_headers, response_body
  FROM idempotency_keys WHERE owner = $1 AND key = $2 AND NOT (state = 'completed' AND expires_at <= now())`

/** clock_timestamp(), since now() is the start of the transaction. */
const COMPLETE = `
  UPDATE idempotency_keys SET state = 'completed', leased_until = NULL, response_status = $4, response_headers = $5::jsonb,
    response_body = $6, expires_at = clock_timestamp() + $7::float8 * interval '1 millisecond'
  WHERE ${HELD} RETURNING 1`

const PUBLISH = `DELETE FROM pending_objects WHERE storage_key = $1 AND dead_at IS NULL RETURNING 1`

const INSERT_MEDIA = `
  INSERT INTO media (id, owner, idempotency_key, storage_key, sha256, bytes, content_type, file_name, metadata, created_at)
  VALUES ($1, $2, $3, $4, decode($5, 'hex'), $6, $7, $8, $9::jsonb, clock_timestamp())`

const REAP = `
  DELETE FROM idempotency_keys WHERE (owner, key) IN (
    SELECT owner, key FROM idempotency_keys
    WHERE expires_at < now() AND (state = 'completed' OR leased_until < now()) LIMIT $1 FOR UPDATE SKIP LOCKED)
  RETURNING 1`

const CONDEMN = `
  UPDATE pending_objects SET dead_at = now() WHERE storage_key IN (
    SELECT storage_key FROM pending_objects
    WHERE dead_at IS NULL AND created_at < now() - $1::float8 * interval '1 millisecond' LIMIT $2 FOR UPDATE SKIP LOCKED)
  RETURNING storage_key`

const toMedia = (row: Row | undefined): StoredMedia | null =>
  row && typeof row.id === 'string'
    ? {
        id: row.id,
        owner: row.owner as string,
        key: row.idempotency_key as string,
        storageKey: row.storage_key as string,
        sha256: row.sha256 as string,
        bytes: Number(row.bytes),
        contentType: row.content_type as string,
        fileName: row.file_name as string | null,
        metadata: row.metadata as Record<string, string>,
        createdAt: row.created_at as Date,
        caption: row.caption as string | null,
      }
    : null

const toKeyRow = (row: Row): KeyRow => ({
  state: row.state as KeyRow['state'],
  fence: row.fence as string,
  fingerprint: row.fingerprint as string,
  sha256: row.sha256 as string | null,
  leaseLeftMs: row.lease_left_ms as number,
  expiresAt: row.expires_at as Date,
  answer:
    row.state === 'completed'
      ? {
          status: row.response_status as number,
          headers: row.response_headers as Answer['headers'],
          body: new Uint8Array(row.response_body as Uint8Array),
        }
      : null,
})

const isUniqueViolation = (error: unknown): boolean => (error as { code?: unknown } | null)?.code === '23505'

const isUuid = (id: string): boolean => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id)

/** Gives a file of the owner its caption. Null: there is no such file. */
export async function setCaption(on: Queryable, owner: string, id: string, caption: string | null): Promise<StoredMedia | null> {
  if (!isUuid(id)) return null
  const [row] = await on.query(`UPDATE media m SET caption = $3 WHERE m.owner = $1 AND m.id = $2 RETURNING ${MEDIA_COLUMNS}`, [
    owner,
    id,
    caption,
  ])
  return toMedia(row)
}

export interface SqlKeys extends KeyStore {
  /** One transaction for rows of the app, through `tx`, and for keys, through `within`: COMMIT when `run` resolves, ROLLBACK when it rejects. */
  transaction<Result>(run: (tx: Queryable, within: KeyStore) => Promise<Result>): Promise<Result>
}

/** A KeyStore on PostgreSQL, embedded or not. Autocommit statements, and one short transaction per stored file. */
export function createSqlKeys(database: Database): SqlKeys {
  const complete = async (on: Queryable, { owner, key, fence }: ClaimId, answer: Answer, retentionMs: number): Promise<boolean> => {
    const { status, headers, body } = answer
    const done = await on.query(COMPLETE, [owner, key, fence, status, JSON.stringify(headers), body, retentionMs])
    return done.length === 1
  }

  return {
    transaction: (run) =>
      database.transaction((tx) =>
        run(tx, createSqlKeys({ query: (text, params) => tx.query(text, params), transaction: (nested) => nested(tx) })),
      ),
    async claim({ owner, key, fence, fingerprint, sha256, leaseMs, retentionMs }) {
      const [mine] = await database.query(CLAIM, [owner, key, fence, fingerprint, sha256, leaseMs, retentionMs])
      if (!mine) return null
      const [around] = await database.query(SURROUNDINGS, [owner, key])
      return { replaced: mine.replaced as boolean, otherLeases: Number(around?.other_leases), media: toMedia(around) }
    },
    async read(owner, key) {
      const [row] = await database.query(READ, [owner, key])
      return row ? toKeyRow(row) : null
    },
    async renew({ owner, key, fence }, leaseMs) {
      const renewed = await database.query(
        `UPDATE idempotency_keys SET leased_until = now() + $4::float8 * interval '1 millisecond' WHERE ${HELD} RETURNING 1`,
        [owner, key, fence, leaseMs],
      )
      return renewed.length === 1
    },
    async intend({ owner, key, fence }, storageKey) {
      await database.query('INSERT INTO pending_objects (storage_key, owner, key, fence) VALUES ($1, $2, $3, $4)', [
        storageKey,
        owner,
        key,
        fence,
      ])
    },
    async commit(claim, answer, retentionMs, media) {
      const { id, owner, key, storageKey, sha256, bytes, contentType, fileName, metadata } = media
      try {
        await database.transaction(async (tx) => {
          if (!(await complete(tx, claim, answer, retentionMs))) throw new Rollback('fenced')
          const published = await tx.query(PUBLISH, [storageKey])
          if (published.length !== 1) throw new Rollback('condemned')
          await tx.query(INSERT_MEDIA, [id, owner, key, storageKey, sha256, bytes, contentType, fileName, JSON.stringify(metadata)])
        })
        return 'committed'
      } catch (error) {
        if (error instanceof Rollback) return error.result
        if (isUniqueViolation(error)) return 'duplicate'
        throw error
      }
    },
    reject: (claim, answer, retentionMs) => complete(database, claim, answer, retentionMs),
    async release({ owner, key, fence }) {
      const released = await database.query(`DELETE FROM idempotency_keys WHERE ${HELD} RETURNING 1`, [owner, key, fence])
      return released.length === 1
    },
    async reap(limit) {
      return (await database.query(REAP, [limit])).length
    },
    async condemn(olderThanMs, limit) {
      const dead = await database.query(CONDEMN, [olderThanMs, limit])
      return dead.map((row) => row.storage_key as string)
    },
    async condemned(agoMs, limit) {
      const dead = await database.query(
        `SELECT storage_key FROM pending_objects WHERE dead_at < now() - $1::float8 * interval '1 millisecond' ORDER BY dead_at LIMIT $2`,
        [agoMs, limit],
      )
      return dead.map((row) => row.storage_key as string)
    },
    async forget(storageKey) {
      await database.query('DELETE FROM pending_objects WHERE storage_key = $1', [storageKey])
    },
    async mediaByKey(owner, key) {
      const [row] = await database.query(`SELECT ${MEDIA_COLUMNS} FROM media m WHERE m.owner = $1 AND m.idempotency_key = $2`, [owner, key])
      return toMedia(row)
    },
    async mediaById(owner, id) {
      if (!isUuid(id)) return null
      const [row] = await database.query(`SELECT ${MEDIA_COLUMNS} FROM media m WHERE m.owner = $1 AND m.id = $2`, [owner, id])
      return toMedia(row)
    },
    async listMedia(owner, limit) {
      const rows = await database.query(`SELECT ${MEDIA_COLUMNS} FROM media m WHERE m.owner = $1 ORDER BY m.created_at DESC LIMIT $2`, [
        owner,
        limit,
      ])
      return rows.map((row) => toMedia(row)!)
    },
  }
}
