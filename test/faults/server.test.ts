import { afterAll, beforeAll, expect, it } from 'vitest'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createIdempotency } from '../../demo/server/idempotency.js'
import { createSqlKeys } from '../../demo/server/keys-sql.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'
import { describeWith } from '../helpers/describe-with.js'
import { type Postgres, startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { freshSeed } from '../helpers/random.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'
import { execute, type Lane, openLane } from './execution.js'
import { Violation } from './invariants.js'
import { plant, plantedFaults } from './planted.js'
import { simulateTimers } from './simulation.js'
import type { Code } from './worker.js'

/**
 * Executions of which each has its own order of events, faults and crashes, all drawn from its seed. `FAULTS_SEED=n` runs one of them and tells
 * its story; `FAULTS_COUNT=n` changes how many there are.
 */
const only = process.env.FAULTS_SEED
const count = Number(process.env.FAULTS_COUNT ?? 2000)
/** Of them with seeds nobody has seen yet. */
const fresh = Math.ceil(count / 10)
const seeds = only ? [Number(only)] : Array.from({ length: count - fresh }, (_, n) => n + 1)
const LANES = 6
/** A planted fault must have been found by then. */
const TRIES = 500

const code: Code = { createUploadHandler, createIdempotency, createSqlKeys }

describeWith(programs.postgres, 'the server under faults', () => {
  let postgres: Postgres
  let folder: TempFolder
  let undo: () => void
  const lanes: Lane[] = []
  let databases = 0

  beforeAll(async () => {
    postgres = (await startPostgres())!
    folder = await makeTempFolder('faults')
    undo = simulateTimers()
  })
  afterAll(async () => {
    undo?.()
    await Promise.all(lanes.map((lane) => lane.close()))
    await postgres?.stop()
    await folder?.remove()
  })

  /** Each has a database of its own, since reapers and sweepers are for all that a database holds. */
  async function newLane(objects: ObjectStore = createMemoryObjects()): Promise<Lane> {
    const name = `lane${++databases}`
    const root = openPostgres({ url: postgres.url, max: 1 })
    await root.query(`CREATE DATABASE ${name}`)
    await root.close()
    const url = new URL(postgres.url)
    url.pathname = `/${name}`
    const lane = await openLane(url.href, objects)
    lanes.push(lane)
    await applySchema(lane.admin)
    return lane
  }

  /** Several executions at a time, one on each lane; ends with the first one that fails. */
  async function executeAll(queue: number[], on: Lane[], tested: Code): Promise<number> {
    let steps = 0
    let failure: unknown
    const work = async (lane: Lane): Promise<void> => {
      for (let seed = queue.shift(); seed !== undefined && !failure; seed = queue.shift()) {
        const told = await execute({ lane, seed, code: tested }).catch((error: unknown) => {
          failure ??= error
        })
        steps += told?.steps ?? 0
        if (only && told) console.log(told.story.join('\n'))
      }
    }
    await Promise.all(on.map(work))
    if (failure) throw failure
    return steps
  }

  it(`${only ? `execution ${only} keeps` : `${count} executions keep`} every promise`, async () => {
    const first = freshSeed()
    const queue = only ? seeds : [...Array.from({ length: fresh }, (_, n) => first + n), ...seeds]
    const own: Lane[] = []
    for (let n = 0; n < LANES; n++) own.push(await newLane(n === 0 && !only ? await createFolderObjects(folder.path) : undefined))
    const started = performance.now()
    const executions = queue.length
    const steps = await executeAll(queue, own, code)
    const seconds = ((performance.now() - started) / 1000).toFixed(0)
    console.log(`${executions} executions, ${fresh} of them from seed ${first} on: ${steps} steps in ${seconds} s`)
  }, 600_000)

  it.skipIf(only).each(plantedFaults)(
    'finds $name',
    async (planted) => {
      const tested = await plant(planted)
      const own = [await newLane(), await newLane(), await newLane(), await newLane()]
      if (planted.schema) for (const lane of own) await lane.admin.query(planted.schema)
      const queue = Array.from({ length: TRIES }, (_, n) => n + 1)
      const found = await executeAll(queue, own, tested).catch((error: unknown) => error)
      expect(found).toBeInstanceOf(Violation)
      const [line] = (found as Violation).message.split('\n')
      console.log(`${planted.name}: found after ${TRIES - queue.length} executions: ${line}`)
      for (const lane of own) await lane.close()
      lanes.splice(-own.length)
    },
    120_000,
  )
})
