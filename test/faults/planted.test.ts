import { expect, it } from 'vitest'
import { describeWith } from '../helpers/describe-with.js'
import { programs } from '../helpers/programs.js'
import { Violation } from './invariants.js'
import { executeAll, only, useLanes } from './lanes.js'
import { plant, plantedFaults } from './planted.js'

/** A planted fault must have been found by then. */
const TRIES = 500

describeWith(programs.postgres, 'a server with a planted fault', () => {
  const lanes = useLanes()

  it.skipIf(only).each(plantedFaults)(
    'is found out: $name',
    async (planted) => {
      const tested = await plant(planted)
      const own = [await lanes.open(), await lanes.open(), await lanes.open(), await lanes.open()]
      if (planted.schema) for (const lane of own) await lane.admin.query(planted.schema)
      const queue = Array.from({ length: TRIES }, (_, n) => n + (planted.firstSeed ?? 1))
      const found = await executeAll(queue, own, tested).catch((error: unknown) => error)
      expect(found).toBeInstanceOf(Violation)
      const [line] = (found as Violation).message.split('\n')
      console.log(`${planted.name}: found after ${TRIES - queue.length} executions: ${line}`)
      await lanes.close(own)
    },
    120_000,
  )
})
