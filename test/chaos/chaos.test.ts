import { describe, expect, test } from 'vitest'
import { programs } from '../helpers/programs.js'
import { freshSeed } from '../helpers/random.js'
import { runChaos } from './chaos.js'
import { linesOf } from './report.js'

const MINUTES = process.env.FAULTS_FULL === '1' ? 5 : 2
const seed = Number(process.env.FAULTS_SEED ?? freshSeed())
const missing = [programs.chromium, programs.postgres].filter(({ path }) => !path).map(({ name, install }) => `${name}: ${install}`)

describe.skipIf(missing.length > 0)(`chaos${missing.length > 0 ? ` (skipped, not installed: ${missing.join(', ')})` : ''}`, () => {
  test(`of ${MINUTES} min loses no file, stores none twice, and changes no byte`, { timeout: MINUTES * 60_000 + 300_000 }, async () => {
    console.log(`seed ${seed}`)
    const report = await runChaos({ engine: 'chromium', minutes: MINUTES, seed })
    for (const line of linesOf(report)) console.log(line)
    expect(report).toMatchObject({ lost: [], twice: [], wrong: [], rekeyed: [] })
    // The server was killed, requests and answers were lost, and work went on all the while.
    for (const kind of ['server killed', 'answer lost', 'request cut', 'reload']) expect(report.faults.get(kind), kind).toBeGreaterThan(0)
    expect(report.saved).toBeGreaterThan(10)
  })
})
