import { afterAll, afterEach, beforeAll } from 'vitest'
import { describeWith } from '../../helpers/describe-with.js'
import type { Engine } from '../../helpers/engine.js'
import type { Program } from '../../helpers/programs.js'
import { type Stage, setStage } from '../../helpers/stage.js'
import { testDelivery } from './delivery.js'
import { testOutages } from './outages.js'
import { testServers } from './servers.js'
import { testStorage } from './storage.js'
import { testTabs } from './tabs.js'

export interface EngineFacts {
  /** Whether Blobs can be kept in IndexedDB. */
  keepsBlobs: boolean
  /** Whether a page can ask not to lose its data: `navigator.storage.persist`. */
  persists: boolean
  /** Whether it is tried for its storage alone: on the network it does what another engine of the suite does. */
  forStorageAlone?: boolean
}

/** What must hold in every engine, in one start of the browser. */
export const testEngine = (program: Program, name: string, facts: EngineFacts, launch: () => Promise<Engine>): void =>
  describeWith(program, `in ${name}`, () => {
    let current: Stage
    beforeAll(async () => {
      current = await setStage(launch)
    })
    afterEach(() => current.tidy())
    afterAll(() => current?.stop())

    const stage = (): Stage => current
    testDelivery(stage)
    testTabs(stage)
    testStorage(stage, facts)
    testOutages(stage)
    if (!facts.forStorageAlone) testServers(stage)
  })
