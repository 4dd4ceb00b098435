/** `npm run bench -- NAME …`: measures, and prints each figure beside its limit. Without a name: everything. */
import { benchOutage } from './outage.js'
import { benchServer } from './server.js'

const scenarios: Record<string, () => Promise<void>> = {
  outage: benchOutage,
  server: benchServer,
}

const names = process.argv.slice(2)
const unknown = names.filter((name) => !scenarios[name])
if (unknown.length > 0) {
  console.error(`No such scenario: ${unknown.join(', ')}. There are: ${Object.keys(scenarios).join(', ')}`)
  process.exit(1)
}
for (const name of names.length > 0 ? names : Object.keys(scenarios)) await scenarios[name]!()
process.exit(0)
