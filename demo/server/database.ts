import { readFile } from 'node:fs/promises'
import { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import type { Database, Queryable, Row } from './keys-sql.js'

export interface OpenDatabase extends Database {
  close(): Promise<void>
}

/** Any number works, as long as every process takes the same. */
const SCHEMA_LOCK = 7_283_001

/**
 * Creates what is missing, in a new database or an older one. Safe in several processes at once, and beside processes at work: no transaction
 * waits for one table while it holds another, so none can be in a deadlock with theirs.
 */
export async function applySchema(database: Database): Promise<void> {
  const schema = await readFile(new URL('schema.sql', import.meta.url), 'utf8')
  const statements = schema.split(/;\s*$/m).filter((statement) => statement.trim() !== '')
  for (const statement of statements) {
    await database.transaction(async (tx) => {
      await tx.query('SELECT pg_advisory_xact_lock($1)', [SCHEMA_LOCK])
      await tx.query(statement)
    })
  }
}

/** PGlite as a Database. One connection: whatever runs during a transaction waits for its end. */
export const pgliteDatabase = (pglite: PGlite): OpenDatabase => ({
  query: async (text, params) => (await pglite.query<Row>(text, params)).rows,
  transaction: (run) => pglite.transaction((tx) => run({ query: async (text, params) => (await tx.query<Row>(text, params)).rows })),
  close: () => pglite.close(),
})

/** The embedded PostgreSQL, in `folder`. Nothing stops a second process from opening it too: see lock.ts. */
export async function openPglite(folder: string): Promise<OpenDatabase> {
  const pglite = new PGlite(folder)
  await pglite.waitReady
  return pgliteDatabase(pglite)
}

const queryable = (client: pg.Pool | pg.PoolClient): Queryable => ({
  query: async (text, params) => (await client.query<Row>(text, params)).rows,
})

export interface PostgresOptions {
  url: string
  /** Connections. Default 10; none is held while bytes stream. */
  max?: number
  /** Told of connections that break while idle, or between two statements of a transaction. */
  onError?: (error: unknown) => void
}

/** A PostgreSQL server. A connection that cannot be had in 5 s, or a statement that takes 15 s, is a failure and not a wait. */
export function openPostgres({ url, max = 10, onError = () => {} }: PostgresOptions): OpenDatabase {
  const pool = new pg.Pool({ connectionString: url, max, connectionTimeoutMillis: 5_000, query_timeout: 15_000 })
  pool.on('error', onError)
  return {
    ...queryable(pool),
    async transaction(run) {
      const client = await pool.connect()
      // The pool listens only to idle ones: without this, a connection that breaks between two statements would end the process.
      client.on('error', onError)
      let broken: unknown
      try {
        await client.query('BEGIN')
        const result = await run(queryable(client))
        await client.query('COMMIT')
        return result
      } catch (error) {
        await client.query('ROLLBACK').catch((failure: unknown) => {
          broken = failure
        })
        throw error
      } finally {
        client.off('error', onError)
        client.release(broken === undefined ? undefined : true)
      }
    },
    close: () => pool.end(),
  }
}
