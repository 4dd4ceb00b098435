/** Probes of an unreachable origin back off from 1 s to this, ms. */
const probeMax = 60_000
/** A probe unanswered for so long, ms, found nobody. */
const probeTimeout = 10_000
/** For so long at most, ms, an origin that is back gets one upload at a time from each client: all have noticed, and all are full. */
const openingMax = 5_000

export interface NetworkOptions {
  now(): number
  random(): number
  /** Called when a gate has opened or closed: there may be something to start, or to wait for. */
  onChange(change: { origin: string; reachable: boolean } | undefined): void
}

/**
 * One gate per origin. It closes for everybody when the origin is unreachable, or said to wait; then one probe or one upload at a time finds
 * out, and any answer opens it. The browser's own network events only say when to look.
 */
export interface Network {
  /** How many requests may be under way to this origin now: none, one to find out, or as many as there are slots. */
  capacity(origin: string): number
  /** What began earlier does not fill `capacity`, ms since 1970: it was let through before the gate closed. */
  since(origin: string): number
  /** When `capacity` may rise by itself, ms since 1970; `null`: now, or `onChange` will tell. */
  opensAt(origin: string): number | null
  /** An upload begins: it is the one that finds out. */
  entered(origin: string): void
  /** The origin gave a readable answer: it is there, and what it told is over if its time has come. */
  answered(origin: string): void
  /** The origin said to wait until then. */
  told(origin: string, until: number): void
  /** A request to this URL got no answer: resolves with whether anybody answers there now; if nobody does, the gate is closed. */
  lost(url: string): Promise<boolean>
  /** Looks at once; resolves when it has looked. */
  hint(): Promise<void>
  close(): void
}

interface Unreachable {
  type: 'unreachable'
  url: string
  failures: number
  since: number
  /** Whether the next upload may find out. */
  trial: boolean
  timer?: ReturnType<typeof setTimeout>
  looking?: Promise<void> | undefined
}
/** `since`: when that was said or seen, ms since 1970. */
type Gate = { type: 'told' | 'opening'; since: number; until: number } | Unreachable

/**
 * An opaque HEAD: any answer at all, whatever its status, rights or body, shows that the origin is there, and it needs no CORS right. Redirects
 * are followed: engines refuse `no-cors` with any other `redirect`.
 */
async function probe(url: string): Promise<boolean> {
  const controller = new AbortController()
  const timer = setTimeout(() => controller.abort(), probeTimeout)
  try {
    await fetch(url, {
      method: 'HEAD',
      mode: 'no-cors',
      cache: 'no-store',
      credentials: 'omit',
      signal: controller.signal,
    })
    return true
  } catch {
    return false
  } finally {
    clearTimeout(timer)
  }
}

const hints = ['online', 'visibilitychange', 'pageshow', 'focus']

export function createNetwork({ now, random, onChange }: NetworkOptions): Network {
  const gates = new Map<string, Gate>()
  const probing = new Map<string, Promise<boolean>>()
  let closed = false

  /** A wait whose beginning is yet to come was told by a clock that has been set back since: it begins anew. */
  const gateOf = (origin: string): Gate | undefined => {
    const gate = gates.get(origin)
    if (gate && 'until' in gate && gate.since > now()) {
      gate.until += now() - gate.since
      gate.since = now()
    }
    return gate
  }

  const open = (origin: string): void => {
    const gate = gates.get(origin)
    if (gate?.type === 'unreachable') {
      clearTimeout(gate.timer)
      gates.set(origin, { type: 'opening', since: now(), until: now() + random() * openingMax })
      onChange({ origin, reachable: true })
    } else if (gate?.type === 'told') {
      gates.delete(origin)
      onChange(undefined)
    }
  }

  /** One probe at a time. */
  const ask = (origin: string, url: string): Promise<boolean> => {
    const running = probing.get(origin)
    if (running) return running
    const asked = probe(url).finally(() => probing.delete(origin))
    probing.set(origin, asked)
    return asked
  }

  /** Hints come in bunches, of which only the first looks. */
  const look = async (origin: string): Promise<void> => {
    const gate = gates.get(origin)
    if (gate?.type !== 'unreachable') return
    gate.looking ??= find(origin, gate)
    await gate.looking
  }

  const find = async (origin: string, gate: Unreachable): Promise<void> => {
    clearTimeout(gate.timer)
    const reachable = await ask(origin, gate.url)
    gate.looking = undefined
    if (closed || gates.get(origin) !== gate) return
    if (reachable) return open(origin)
    gate.failures += 1
    // A probe may be what is blocked, not the upload: from time to time one upload finds out.
    gate.trial = gate.failures % 2 === 0
    later(origin, gate)
    if (gate.trial) onChange(undefined)
  }

  const later = (origin: string, gate: Unreachable): void => {
    clearTimeout(gate.timer)
    const delay = Math.min(probeMax, 1000 * 2 ** gate.failures)
    gate.timer = setTimeout(() => look(origin), (delay * (1 + random())) / 2)
  }

  const hint = async (): Promise<void> => {
    await Promise.all([...gates.keys()].map(look))
  }
  for (const type of hints) globalThis.addEventListener?.(type, hint)

  return {
    capacity(origin) {
      const gate = gateOf(origin)
      switch (gate?.type) {
        case 'told':
          return gate.until <= now() ? 1 : 0
        case 'unreachable':
          return gate.trial ? 1 : 0
        case 'opening':
          return gate.until <= now() ? Number.POSITIVE_INFINITY : 1
        default:
          return Number.POSITIVE_INFINITY
      }
    },
    since(origin) {
      const gate = gateOf(origin)
      return gate?.type === 'told' ? gate.until : (gate?.since ?? 0)
    },
    opensAt(origin) {
      const gate = gateOf(origin)
      return gate && 'until' in gate && gate.until > now() ? gate.until : null
    },
    entered(origin) {
      const gate = gates.get(origin)
      if (gate?.type === 'unreachable') gate.trial = false
    },
    answered(origin) {
      const gate = gateOf(origin)
      // An answer to what was sent earlier does not take back what the origin has said since.
      if (gate?.type !== 'told' || gate.until <= now()) open(origin)
    },
    told(origin, until) {
      const gate = gateOf(origin)
      if (gate?.type === 'unreachable') open(origin)
      gates.set(origin, { type: 'told', since: now(), until: gate?.type === 'told' ? Math.max(gate.until, until) : until })
    },
    async lost(url) {
      const { origin } = new URL(url)
      const known = gates.get(origin)
      if (known?.type === 'unreachable') {
        // The one upload that was let through to find out has found out; the next one is let through after a probe.
        known.trial = false
        return false
      }
      if (await ask(origin, url)) return true
      if (!closed && gates.get(origin)?.type !== 'unreachable') {
        const gate: Gate = { type: 'unreachable', url, failures: 0, since: now(), trial: false }
        gates.set(origin, gate)
        later(origin, gate)
        onChange({ origin, reachable: false })
      }
      return false
    },
    hint,
    close() {
      closed = true
      for (const type of hints) globalThis.removeEventListener?.(type, hint)
      for (const gate of gates.values()) if (gate.type === 'unreachable') clearTimeout(gate.timer)
      gates.clear()
    },
  }
}
