import type { ChaosReport } from './chaos.js'

const named = (what: string, names: readonly string[]): string =>
  `${what} ${names.length}${names.length > 0 ? ` (${names.join(', ')})` : ''}`

/** What came of it, for people. */
export const linesOf = ({ saved, cancelled, stored, requests, faults, lost, twice, wrong, rekeyed, revived }: ChaosReport): string[] => [
  `${saved} files saved, ${cancelled} of them cancelled; ${stored} stored; ${requests} requests; ${revived} had given up and were tried again at the end`,
  `faults: ${[...faults].map(([kind, count]) => `${kind} ${count}`).join(', ')}`,
  [named('lost', lost), named('twice', twice), named('wrong bytes', wrong), named('under another key', rekeyed)].join(', '),
]
