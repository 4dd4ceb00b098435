import type { KeyStore } from '../../demo/server/keys.js'
import type { Database } from '../../demo/server/keys-sql.js'
import { createSqlKeys } from '../../demo/server/keys-sql.js'
import type { Timeline } from './timeline.js'

/** Lets time pass for everything that is stored. */
const elapse = (ms: number): string => {
  const by = `interval '${ms} milliseconds'`
  return `UPDATE idempotency_keys SET leased_until = leased_until - ${by}, expires_at = expires_at - ${by};
    UPDATE pending_objects SET created_at = created_at - ${by}, dead_at = dead_at - ${by}`
}

/** Keys in a real PostgreSQL. Its clock cannot be set, so whatever it holds grows older by as much as has passed since the last call. */
export function createPostgresKeys(database: Database, timeline: Timeline): KeyStore {
  const keys = createSqlKeys(database)
  let at = timeline.now
  return new Proxy(keys, {
    get(target, name) {
      const method = target[name as keyof KeyStore] as (...args: unknown[]) => Promise<unknown>
      return (...args: unknown[]) =>
        timeline.hold(async () => {
          const passed = timeline.now - at
          at = timeline.now
          if (passed > 0) await database.query(elapse(passed))
          return method(...args)
        })
    },
  })
}
