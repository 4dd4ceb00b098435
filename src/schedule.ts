import type { PendingUpload } from './record.js'

export interface Situation {
  /** All records of the queue. */
  records(): Iterable<PendingUpload>
  find(id: string): PendingUpload | undefined
  /** Whose records run; `null`: nobody's. */
  owner: string | null
  now: number
  /** A record that was sent once lives so much shorter than it says, ms: its server forgets keys sooner. */
  cut: number
  /** How many may hold a slot at once. */
  concurrency: number
  /** Whether it is under way here. */
  isSent(id: string): boolean
  /** Whether it is left to others, and not to be started here. */
  isLeft(id: string): boolean
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
  /** Marked as under way, but nobody sends them: their page has gone, or their end could not be stored. */
  abandoned: string[]
  /** When to choose again even if nothing happens, ms since 1970; `null`: never. */
  wakeAt: number | null
}

/** The uploads that run by themselves, in the order of their turns: kept from choice to choice, since most change nothing for most of them. */
export interface Line {
  /** This one changed, or its slot became free: it is looked at when next is chosen. */
  enter(id: string): void
  /** So are all. */
  renew(): void
  /** Which uploads start now. Everything else it knows is in the situation. */
  choose(situation: Situation): Choice
}

/** Higher priority first, then the older. */
const byTurn = (a: PendingUpload, b: PendingUpload): number => b.priority - a.priority || a.order - b.order || (a.id < b.id ? -1 : 1)

interface Survey {
  owner: string | null
  cut: number
  now: number
  wakeAt: number | null
}

export function createLine(): Line {
  /** Those whose turn it could be; some have left meanwhile, which is noticed when it is theirs. */
  let due: PendingUpload[] = []
  const entered = new Set<string>()
  /** For whom and when all were last looked at, and until when that holds, ms since 1970. */
  let survey: Survey | undefined

  const insert = (record: PendingUpload): void => {
    let [low, high] = [0, due.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const other = due[middle] as PendingUpload
      if (other.id !== record.id && byTurn(other, record) < 0) low = middle + 1
      else high = middle
    }
    due.splice(low, due[low]?.id === record.id ? 1 : 0, record)
  }

  return {
    enter: (id) => void entered.add(id),
    renew() {
      survey = undefined
    },
    choose(situation) {
      const { owner, now, cut, concurrency, holding, originOf, capacity, opensAt, find, isSent, isLeft } = situation
      const choice: Choice = { start: [], expired: [], setBack: [], abandoned: [], wakeAt: null }
      const earlier = (a: number | null, b: number | null): number | null => (b !== null && b > now && (a === null || b < a) ? b : a)
      const mayRun = (record: PendingUpload | undefined): record is PendingUpload =>
        record?.owner === owner &&
        !holding.has(record.id) &&
        !isLeft(record.id) &&
        (record.status === 'preparing' || record.status === 'pending')

      const stands = survey?.owner === owner && survey.cut === cut && survey.now <= now && !(survey.wakeAt !== null && survey.wakeAt <= now)
      const known: Survey = stands && survey ? survey : { owner, cut, now, wakeAt: null }
      known.now = now
      survey = known
      const endOf = ({ expiresAt, requests }: PendingUpload): number => expiresAt - (requests > 0 ? cut : 0)
      const isDue = (record: PendingUpload): boolean => {
        const { id, notBefore, waitingSince = 0 } = record
        const end = endOf(record)
        if (end <= now) choice.expired.push(id)
        else if (notBefore === null || notBefore <= now) return true
        else if (waitingSince > now) choice.setBack.push(id)
        else known.wakeAt = earlier(known.wakeAt, Math.min(notBefore, end))
        return false
      }
      const changed = stands ? Array.from(entered, find) : Array.from(situation.records())
      for (const record of changed) if (record?.status === 'uploading' && !isSent(record.id)) choice.abandoned.push(record.id)
      if (stands) {
        for (const record of changed) if (mayRun(record) && isDue(record)) insert(record)
      } else due = changed.filter(mayRun).filter(isDue).sort(byTurn)
      entered.clear()

      let slots = concurrency - holding.size
      const under = new Map<string, number>()
      for (const origin of holding.values()) if (origin !== undefined) under.set(origin, (under.get(origin) ?? 0) + 1)
      const waiting: PendingUpload[] = []
      let place = 0
      for (; slots > 0 && place < due.length; place++) {
        const known = due[place] as PendingUpload
        const record = find(known.id)
        // Another one of its id has a place of its own.
        if (!mayRun(record) || record.order !== known.order || record.priority !== known.priority || !isDue(record)) continue
        // Hashing needs no network.
        const origin = record.status === 'preparing' ? undefined : originOf(record)
        const count = origin === undefined ? 0 : (under.get(origin) ?? 0)
        if (origin !== undefined && count >= capacity(origin)) {
          choice.wakeAt = earlier(earlier(choice.wakeAt, opensAt(origin)), endOf(record))
          waiting.push(record)
          continue
        }
        if (origin !== undefined) under.set(origin, count + 1)
        choice.start.push(record.id)
        slots -= 1
      }
      if (place > waiting.length) due = [...waiting, ...due.slice(place)]
      choice.wakeAt = earlier(known.wakeAt, choice.wakeAt)
      return choice
    },
  }
}
