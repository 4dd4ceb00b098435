import type { Upload } from 'uponce'
import type { Account } from './account.js'

export const faultNames = ['lose-answer', 'cut-body', 'unavailable', 'too-many', 'server-error', 'slow', 'away'] as const
export type FaultName = (typeof faultNames)[number]

/** A stored file. */
export interface Media {
  id: string
  fileName: string | null
  contentType: string
  bytes: number
  sha256: string
  key: string
  createdAt: string
}

/** One request as the server saw it. */
export interface SeenRequest {
  at: string
  /** Null while it runs, and when no answer was sent. */
  status: number | null
  bytes: number
  replayed: boolean
  fault: FaultName | null
  /** Sent again by the browser itself, within one and the same attempt. */
  copy: boolean
}

export interface ServerState {
  /** Newest first, at most `mediaLimit`. */
  media: Media[]
  /** Since the server started. */
  keys: { key: string; requests: SeenRequest[] }[]
  objects: number
  /** What will strike the next requests. */
  faults: Partial<Record<FaultName, { times?: number; seconds: number }>>
}

/** The server lists no more rows than these. */
export const mediaLimit = 1000

/** The server as it was when last asked. */
export interface Look {
  /** When it was asked, ms since 1970: what happened later is not in it. */
  askedAt: number
  state: ServerState
  /** Whether faults can be ordered: a server that is not for play has no such routes, and tells of no requests. */
  hasFaults: boolean
}

export interface ServerWatch {
  readonly last: Look | undefined
  /** Something happened that the server may have seen: asks soon. */
  nudge(): void
  /** Orders that one more request goes wrong; rejects where that could not be said. */
  order(fault: FaultName): Promise<void>
  /** Takes every order back. */
  disarm(): Promise<void>
}

/** How long after a nudge the server is asked, ms: several changes make one question. A slow server is asked less often. */
const nudgeDelay = 150
const slowest = 1_000
const busyPause = 1_000
const restPause = 5_000
/** What the server is told to send as Retry-After, or how long it stays away, s. */
const faultSeconds: Partial<Record<FaultName, number>> = { unavailable: 5, 'too-many': 5, away: 20 }

/** Asks the server what it holds: after each change, often while something is under way, seldom otherwise, never from a hidden tab. */
export function watchServer(options: {
  account: Account
  isBusy(): boolean
  onLook(look: Look): void
  /** It gave no answer, or one that makes no sense. */
  onSilence(): void
}): ServerWatch {
  let last: Look | undefined
  let hasFaults = true
  let timer: ReturnType<typeof setTimeout> | undefined
  let asking = false
  let again = false
  let dueAt = 0
  /** How long the last answer took, ms. */
  let taken = 0

  async function request(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = { ...options.account.headers, ...init.headers }
    const response = await fetch(path, { cache: 'no-store', ...init, headers })
    if (!response.ok && response.status !== 404) throw new Error(`${path} was answered with ${response.status}.`)
    return response
  }

  async function ask(): Promise<Look> {
    const askedAt = Date.now()
    // Nobody has nothing.
    if (options.account.owner === null) return { askedAt, state: { media: [], keys: [], objects: 0, faults: {} }, hasFaults }
    const response = hasFaults ? await request('/demo/state') : undefined
    if (response?.ok) return { askedAt, state: (await response.json()) as ServerState, hasFaults }
    hasFaults = false
    const media = (await (await request('/media')).json()) as Media[]
    return { askedAt, state: { media, keys: [], objects: media.length, faults: {} }, hasFaults }
  }

  async function look(): Promise<void> {
    if (asking) {
      again = true
      return
    }
    clearTimeout(timer)
    timer = undefined
    if (document.hidden) return
    asking = true
    again = false
    const begun = performance.now()
    const answer = await ask().catch(() => undefined)
    asking = false
    if (!answer) {
      later(restPause)
      options.onSilence()
      return
    }
    taken = performance.now() - begun
    last = answer
    later(again ? soon() : isLively() ? busyPause : restPause)
    options.onLook(answer)
  }

  const isLively = (): boolean => options.isBusy() || Object.keys(last?.state.faults ?? {}).length > 0
  const soon = (): number => Math.max(nudgeDelay, Math.min(slowest, 4 * taken))
  /** Unless it is asked sooner anyway. */
  const later = (delay: number): void => {
    const at = performance.now() + delay
    if (timer !== undefined && dueAt <= at) return
    clearTimeout(timer)
    timer = setTimeout(look, delay)
    dueAt = at
  }
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && !asking) later(0)
  })
  void look()

  return {
    get last() {
      return last
    },
    nudge() {
      if (asking) again = true
      else later(soon())
    },
    async order(fault) {
      const times = (last?.state.faults[fault]?.times ?? 0) + 1
      const seconds = faultSeconds[fault]
      const body = JSON.stringify({ fault, times, ...(seconds === undefined ? {} : { seconds }) })
      await request('/demo/faults', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body })
      await look()
    },
    async disarm() {
      await request('/demo/faults', { method: 'DELETE' })
      await look()
    },
  }
}

export interface Totals {
  /** Files that were picked and not withdrawn: every key that the queue or the server knows. */
  picked: number
  stored: number
  requests: number
  replays: number
  /** Whether the server has forgotten some requests: it keeps those of the last keys, and none over a restart. */
  isPartial: boolean
  /** Rows beyond the first of any key. */
  storedTwice: number
  /** Uploads that succeeded before the server was asked, and of which it has no row. */
  lost: number
}

export const rowsByKey = (media: readonly Media[]): Map<string, Media[]> => {
  const rows = new Map<string, Media[]>()
  for (const row of media) rows.set(row.key, [...(rows.get(row.key) ?? []), row])
  return rows
}

export function totalsOf(uploads: readonly Upload[], { state, askedAt }: Look): Totals {
  const rows = rowsByKey(state.media)
  const known = new Set(state.keys.map(({ key }) => key))
  const seen = state.keys.flatMap(({ requests }) => requests)
  // Where the server has more rows than it lists, what is older than the list cannot be judged.
  const since = state.media.length < mediaLimit ? 0 : Date.parse(state.media.at(-1)?.createdAt ?? '')
  const lost = uploads.filter(
    ({ status, endedAt, idempotencyKey }) =>
      status === 'succeeded' && endedAt !== null && endedAt < askedAt && endedAt >= since && !rows.has(idempotencyKey),
  )
  return {
    picked: new Set([...rows.keys(), ...uploads.map(({ idempotencyKey }) => idempotencyKey)]).size,
    stored: state.media.length,
    requests: seen.length,
    replays: seen.filter(({ replayed }) => replayed).length,
    isPartial: state.media.some(({ key }) => !known.has(key)),
    storedTwice: state.media.length - rows.size,
    lost: lost.length,
  }
}
