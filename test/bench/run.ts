/**
 * `npm run bench -- NAME … --rounds N`: measures, and prints each figure beside its limit; without a name, everything. `--only CONTESTANT` and
 * `--profile` look at one thing more closely.
 */
import { benchBig, benchHashing, benchJank, benchLatency, benchMedium, benchSmall } from './drain.js'
import { benchDurable } from './durable.js'
import { benchGrowth } from './growth.js'
import { type Options, readOptions } from './options.js'
import { benchOutage } from './outage.js'
import { benchPending } from './pending.js'
import { benchServer } from './server.js'

const scenarios: Record<string, (options: Options) => Promise<void>> = {
  small: benchSmall,
  latency: benchLatency,
  medium: benchMedium,
  big: benchBig,
  pending: benchPending,
  durable: benchDurable,
  hashing: benchHashing,
  jank: benchJank,
  growth: benchGrowth,
  outage: benchOutage,
  server: benchServer,
}

const { names, options } = readOptions(process.argv.slice(2))
const unknown = names.filter((name) => !scenarios[name])
if (unknown.length > 0) {
  console.error(`No such scenario: ${unknown.join(', ')}. There are: ${Object.keys(scenarios).join(', ')}`)
  process.exit(1)
}
for (const name of names.length > 0 ? names : Object.keys(scenarios)) await scenarios[name]!(options)
process.exit(0)
