import { afterAll, beforeAll, it } from 'vitest'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createIdempotency } from '../../demo/server/idempotency.js'
import { createSqlKeys } from '../../demo/server/keys-sql.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'
import { type Postgres, startPostgres } from '../helpers/postgres.js'
import { freshSeed } from '../helpers/random.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'
import { execute, type Lane, openLane } from './execution.js'
import { simulateTimers } from './simulation.js'
import type { Code } from './worker.js'

export interface Lanes {
  /** Each has a database of its own, since reapers and sweepers are for all that a database holds. */
  open(objects?: ObjectStore): Promise<Lane>
  close(lanes: Lane[]): Promise<void>
  /** For objects that are files. */
  folder(): string
}

/** For the tests of one file: a database server and simulated timers; all lanes are closed after them. */
export function useLanes(): Lanes {
  let postgres: Postgres
  let folder: TempFolder
  let undo: () => void
  const lanes = new Set<Lane>()
  let databases = 0

  beforeAll(async () => {
    postgres = (await startPostgres())!
    folder = await makeTempFolder('faults')
    undo = simulateTimers()
  })
  afterAll(async () => {
    undo?.()
    await close([...lanes])
    await postgres?.stop()
    await folder?.remove()
  })

  async function close(some: Lane[]): Promise<void> {
    for (const lane of some) lanes.delete(lane)
    await Promise.all(some.map((lane) => lane.close()))
  }

  return {
    close,
    async open(objects = createMemoryObjects()) {
      const name = `lane${++databases}`
      const root = openPostgres({ url: postgres.url, max: 1 })
      await root.query(`CREATE DATABASE ${name}`)
      await root.close()
      const url = new URL(postgres.url)
      url.pathname = `/${name}`
      const lane = await openLane(url.href, objects)
      lanes.add(lane)
      await applySchema(lane.admin)
      return lane
    },
    folder: () => folder.path,
  }
}

/** Several executions at a time, one on each lane; ends with the first one that fails. Resolves with the number of steps. */
export async function executeAll(queue: number[], lanes: Lane[], code: Code, tell?: (story: string[]) => void): Promise<number> {
  let steps = 0
  let failure: unknown
  const work = async (lane: Lane): Promise<void> => {
    for (let seed = queue.shift(); seed !== undefined && !failure; seed = queue.shift()) {
      const told = await execute({ lane, seed, code }).catch((error: unknown) => {
        failure ??= error
      })
      steps += told?.steps ?? 0
      if (told) tell?.(told.story)
    }
  }
  await Promise.all(lanes.map(work))
  if (failure) throw failure
  return steps
}

/**
 * Executions of which each has its own order of events, faults and crashes, all drawn from its seed. `FAULTS_SEED=n` runs one of them and tells
 * its story; `FAULTS_COUNT=n` changes how many there are, else 2,000 with `FAULTS_FULL=1` and 300 without. One in ten has a seed that nobody has seen yet.
 */
export const only = process.env.FAULTS_SEED
const count = Number(process.env.FAULTS_COUNT ?? (process.env.FAULTS_FULL === '1' ? 2000 : 300))
const LANES = 6
const code: Code = { createUploadHandler, createIdempotency, createSqlKeys }

/** They take more than a core can do in a minute, so two files share them: the first has the odd seeds, the second the even ones. */
export function itKeepsEveryPromise(lanes: Lanes, half: 1 | 2): void {
  const share = half === 1 ? Math.ceil(count / 2) : Math.floor(count / 2)
  const fresh = Math.ceil(share / 10)
  it.skipIf(only && half === 2)(
    only ? `execution ${only} keeps every promise` : `${share} of ${count} executions keep every promise`,
    async () => {
      const first = freshSeed()
      if (!only) console.log(`${fresh} unseen seeds from ${first} on`)
      const unseen = Array.from({ length: fresh }, (_, n) => first + n)
      const queue = only ? [Number(only)] : [...unseen, ...Array.from({ length: share - fresh }, (_, n) => 2 * n + half)]
      const executions = queue.length
      const own: Lane[] = []
      for (let n = 0; n < LANES; n++) own.push(await lanes.open(n === 0 && !only ? await createFolderObjects(lanes.folder()) : undefined))
      const started = performance.now()
      const steps = await executeAll(queue, own, code, only ? (story) => console.log(story.join('\n')) : undefined)
      const seconds = ((performance.now() - started) / 1000).toFixed(0)
      console.log(`${executions} executions, ${fresh} of them from seed ${first} on: ${steps} steps in ${seconds} s`)
    },
    600_000,
  )
}
