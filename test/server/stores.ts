import { applySchema, openPostgres, pgliteDatabase } from '../../demo/server/database.js'
import { createMemoryKeys, type KeyStore } from '../../demo/server/keys.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { startPglite } from '../helpers/pglite.js'
import { type Postgres, startPostgres } from '../helpers/postgres.js'

/** A KeyStore as a test needs it: with a hand on its clock, and a look inside. */
export interface Subject {
  keys: KeyStore
  /** Lets time pass for everything that is stored. */
  elapse(ms: number): Promise<void>
  count(): Promise<{ keys: number; media: number; pending: number }>
  empty(): Promise<void>
  close(): Promise<void>
}

/** One that keeps its rows in a database. */
export interface SqlSubject extends Subject {
  database: Database
  /** Where other servers reach the same rows; null for a database that is one process's alone. */
  url: string | null
}

/** `keys` (with `statement` failing, when given) on another database, for faults between statements. */
export const failingAt = (database: Database, statement: RegExp): KeyStore =>
  createSqlKeys({
    ...database,
    transaction: (run) =>
      database.transaction((tx) =>
        run({
          query: (text, params) => (statement.test(text) ? Promise.reject(new Error('failed on order')) : tx.query(text, params)),
        }),
      ),
  })

export function memorySubject(): Subject {
  let now = Date.UTC(2026, 0, 1)
  let store = createMemoryKeys({ clock: () => now })
  const keys = new Proxy({} as KeyStore, { get: (_target, name) => store[name as keyof KeyStore] })
  return {
    keys,
    elapse: async (ms) => {
      now += ms
    },
    count: async () => store.count(),
    empty: async () => {
      store = createMemoryKeys({ clock: () => now })
    },
    close: async () => {},
  }
}

/** Time passes by moving everything stored into the past. */
function sqlSubject(database: Database & { close(): Promise<void> }, url: string | null): SqlSubject {
  const count = async (table: string): Promise<number> => Number((await database.query(`SELECT count(*) AS n FROM ${table}`))[0]?.n)
  return {
    keys: createSqlKeys(database),
    async elapse(ms) {
      const shift = `$1::float8 * interval '1 millisecond'`
      await database.query(
        `UPDATE idempotency_keys SET leased_until = leased_until - ${shift}, expires_at = expires_at - ${shift}, created_at = created_at - ${shift}`,
        [ms],
      )
      await database.query(`UPDATE media SET created_at = created_at - ${shift}`, [ms])
      await database.query(`UPDATE pending_objects SET created_at = created_at - ${shift}, dead_at = dead_at - ${shift}`, [ms])
    },
    count: async () => ({ keys: await count('idempotency_keys'), media: await count('media'), pending: await count('pending_objects') }),
    empty: async () => {
      for (const table of ['idempotency_keys', 'media', 'pending_objects']) await database.query(`DELETE FROM ${table}`)
    },
    database,
    url,
    close: () => database.close(),
  }
}

export async function pgliteSubject(): Promise<SqlSubject> {
  const database = pgliteDatabase(await startPglite())
  await applySchema(database)
  return sqlSubject(database, null)
}

/** Null where PostgreSQL is not installed. */
export async function postgresSubject(): Promise<(SqlSubject & { postgres: Postgres }) | null> {
  const postgres = await startPostgres()
  if (!postgres) return null
  const database = openPostgres({ url: postgres.url, max: 20 })
  await applySchema(database)
  const subject = sqlSubject(database, postgres.url)
  return {
    ...subject,
    postgres,
    async close() {
      await subject.close()
      await postgres.stop()
    },
  }
}
