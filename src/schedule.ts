import type { PendingUpload } from './record.js'

export interface Situation {
  /** All records of the queue, oldest first. */
  records: Iterable<PendingUpload>
  /** Whose records run; `null`: nobody's. */
  owner: string | null
  now: number
  /** A record that was sent once lives so much shorter than it says, ms: its server forgets keys sooner. */
  cut: number
  /** How many may hold a slot at once. */
  concurrency: number
  /** The records that hold a slot, and the origin on which each counts, if it does on one. */
  holding: ReadonlyMap<string, string | undefined>
  /** Where a record will be sent, as far as that is known before its turn. */
  originOf(record: PendingUpload): string | undefined
  /** What `Network` says of an origin. */
  capacity(origin: string): number
  opensAt(origin: string): number | null
}

export interface Choice {
  /** Get a slot now, in this order. */
  start: string[]
  /** Ran out of time: not to be tried again by themselves. */
  expired: string[]
  /** Wait for a time that was told by a clock which has been set back since. */
  setBack: string[]
  /** When to choose again even if nothing happens, ms since 1970; `null`: never. */
  wakeAt: number | null
}

/** Higher priority first, then the older. */
const byTurn = (a: PendingUpload, b: PendingUpload): number => b.priority - a.priority || a.order - b.order

/** Which uploads start now. Pure: everything it knows is in the situation. */
export function choose(situation: Situation): Choice {
  const { owner, now, cut, concurrency, holding, originOf, capacity, opensAt } = situation
  const choice: Choice = { start: [], expired: [], setBack: [], wakeAt: null }
  const wake = (at: number | null): void => {
    if (at !== null && at > now && (choice.wakeAt === null || at < choice.wakeAt)) choice.wakeAt = at
  }
  const endOf = ({ expiresAt, requests }: PendingUpload): number => expiresAt - (requests > 0 ? cut : 0)
  const due: PendingUpload[] = []
  for (const record of situation.records) {
    if (record.owner !== owner || holding.has(record.id)) continue
    if (record.status !== 'preparing' && record.status !== 'pending') continue
    const end = endOf(record)
    if (end <= now) choice.expired.push(record.id)
    else if (record.notBefore === null || record.notBefore <= now) due.push(record)
    else if ((record.waitingSince ?? 0) > now) choice.setBack.push(record.id)
    else wake(Math.min(record.notBefore, end))
  }
  let slots = concurrency - holding.size
  const under = new Map<string, number>()
  for (const origin of holding.values()) if (origin !== undefined) under.set(origin, (under.get(origin) ?? 0) + 1)
  for (const record of due.sort(byTurn)) {
    if (slots <= 0) break
    // Hashing needs no network.
    const origin = record.status === 'preparing' ? undefined : originOf(record)
    if (origin !== undefined) {
      const count = under.get(origin) ?? 0
      if (count >= capacity(origin)) {
        wake(opensAt(origin))
        wake(endOf(record))
        continue
      }
      under.set(origin, count + 1)
    }
    choice.start.push(record.id)
    slots -= 1
  }
  return choice
}
