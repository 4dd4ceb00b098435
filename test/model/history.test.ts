import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { freshSeed } from '../helpers/random.js'
import { loadCode } from './code.js'
import { histories } from './command.js'
import { play } from './history.js'

/**
 * Histories of pages, networks and servers, each of 30 commands or more, all drawn from one seed. One in ten comes from a seed that nobody has
 * seen yet, which is printed: `MODEL_SEED=n` runs those of that seed alone, and `MODEL_COUNT=n` says how many; else 2,000, which
 * take a core 70 s, and 10,000 with `FAULTS_FULL=1`. What fails is made as short as it goes, and told: one line for each command, with what was seen.
 */
const only = process.env.MODEL_SEED
const isFull = process.env.FAULTS_FULL === '1'
const count = Number(process.env.MODEL_COUNT ?? (isFull ? 10_000 : 2_000))
/** Longest search for a shorter story, ms. */
const SHRINKING = 60_000

const known = { seed: 1, numRuns: Math.ceil(count * 0.9) }
const unseen = { seed: freshSeed(), numRuns: Math.floor(count * 0.1) }
const runs = only ? [{ seed: Number(only), numRuns: count }] : [known, unseen]

describe('queue, network and server together', () => {
  it.each(runs)(
    'keep every promise in $numRuns histories of seed $seed',
    async ({ seed, numRuns }) => {
      const code = await loadCode()
      const started = performance.now()
      let steps = 0
      let failedAt = Number.POSITIVE_INFINITY
      const property = fc.asyncProperty(histories, async (history) => {
        if (performance.now() > failedAt + SHRINKING) return
        const told = await play(code, history).catch((error) => {
          failedAt = Math.min(failedAt, performance.now())
          throw error
        })
        steps += told.steps
      })
      const details = await fc.check(property, { seed, numRuns })
      const seconds = ((performance.now() - started) / 1000).toFixed(0)
      console.log(`${details.numRuns} histories of seed ${seed}: ${steps} steps in ${seconds} s`)
      const error = details.errorInstance as Error | null
      if (error) throw new Error(`seed ${seed}, history ${details.numRuns}: ${error.message}`, { cause: error.cause })
      expect(details.failed).toBe(false)
    },
    isFull ? 3_000_000 : 600_000,
  )

  it('does the same twice: a seed tells one story', async () => {
    const code = await loadCode()
    for (const history of fc.sample(histories, { seed: 7, numRuns: 10 })) {
      const [first, second] = [await play(code, history), await play(code, history)]
      expect(second).toEqual(first)
    }
  })
})
