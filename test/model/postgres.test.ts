import fc from 'fast-check'
import { expect, it } from 'vitest'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { describeWith } from '../helpers/describe-with.js'
import { startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { loadCode } from './code.js'
import { histories } from './command.js'
import { play } from './history.js'
import { createPostgresKeys } from './postgres-keys.js'

/** Each takes several times as long as one in memory. */
const COUNT = process.env.FAULTS_FULL === '1' ? 300 : 30

describeWith(programs.postgres, 'queue, network and server with a real database', () => {
  it(`keep every promise in ${COUNT} histories`, async () => {
    const code = await loadCode()
    const postgres = (await startPostgres())!
    const database = openPostgres({ url: postgres.url, max: 2 })
    try {
      await applySchema(database)
      const property = fc.asyncProperty(histories, async (history) => {
        await database.query('DELETE FROM idempotency_keys; DELETE FROM media; DELETE FROM pending_objects')
        await play(code, history, (timeline) => createPostgresKeys(database, timeline))
      })
      const started = performance.now()
      const details = await fc.check(property, { seed: 3, numRuns: COUNT, endOnFailure: true })
      console.log(`${details.numRuns} histories in ${((performance.now() - started) / 1000).toFixed(0)} s`)
      if (details.errorInstance) throw details.errorInstance
      expect(details.failed).toBe(false)
    } finally {
      await database.close()
      await postgres.stop()
    }
  }, 600_000)
})
