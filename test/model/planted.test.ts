import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { loadCode } from './code.js'
import { histories } from './command.js'
import { play } from './history.js'
import { plantedFaults } from './planted.js'

/** A planted fault must have been found by then. */
const TRIES = 500

describe('queue, network and server with a planted fault', () => {
  it.each(plantedFaults)('are found out: $name', async ({ name, swaps }) => {
    const code = await loadCode(swaps)
    const property = fc.asyncProperty(histories, async (history) => void (await play(code, history)))
    const details = await fc.check(property, { seed: 1, numRuns: TRIES, endOnFailure: true })
    const error = details.errorInstance as Error | null
    expect(error?.name).toBe('Violation')
    console.log(`${name}: found after ${details.numRuns} histories: ${error!.message.split('\n', 1)[0]}`)
  })
})
