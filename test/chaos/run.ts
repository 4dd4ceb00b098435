/** `npm run chaos -- --minutes N --engine chromium|firefox|webkit --seed S`: says what went wrong and what came of it, and draws it. */
import { mkdir, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { freshSeed } from '../helpers/random.js'
import { type EngineName, engines, runChaos } from './chaos.js'
import { linesOf } from './report.js'

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '2' },
    engine: { type: 'string', default: 'chromium' },
    seed: { type: 'string', default: String(freshSeed()) },
  },
})
const [minutes, seed, engine] = [Number(values.minutes), Number(values.seed), values.engine as EngineName]
if (!(minutes > 0) || !Number.isInteger(seed) || !(engine in engines)) {
  console.error(`Expected --minutes, a number above 0, --seed, an integer, and --engine, one of ${Object.keys(engines).join(', ')}.`)
  process.exit(1)
}
console.log(`chaos: ${engine}, ${minutes} min, seed ${seed}`)
const report = await runChaos({ engine, minutes, seed })
const folder = fileURLToPath(new URL('../../.build/chaos/', import.meta.url))
await mkdir(folder, { recursive: true })
const picture = `${folder}${engine}-${seed}.svg`
await writeFile(picture, report.picture)
for (const line of linesOf(report)) console.log(`chaos: ${line}`)
console.log(`chaos: ${picture}`)
process.exit(report.lost.length + report.twice.length + report.wrong.length + report.rekeyed.length === 0 ? 0 : 1)
