/** The part of the Web Locks API that is used here. */
export interface Locks {
  /** https://w3c.github.io/web-locks/#api-lock-manager-request */
  request(name: string, options: { signal?: AbortSignal; steal?: boolean }, callback: () => Promise<void>): Promise<unknown>
}

/** The part of BroadcastChannel that is used here. */
export interface Channel {
  /** To all others of the name, as a structured clone. */
  postMessage(message: unknown): void
  /** Hears what others have posted. */
  addEventListener(type: 'message', listener: (event: { data: unknown }) => void): void
  /** Lets go of it; nothing is heard any more. */
  close(): void
}

export interface TabsOptions<Message> {
  /** What the tabs have in common: tabs of one name are one queue. */
  name: string
  /** What tells this tab from the others. */
  id: string
  locks: Locks | undefined
  openChannel: ((name: string) => Channel) | undefined
  random(): number
  /** Where there are no Web Locks: takes or renews the lease kept in the store; resolves with whether this tab has it. */
  lease(): Promise<boolean>
  onMessage(message: Message): void
  /** Resolves while this tab can do its work: a frozen one may still hear, but its database does not answer. */
  alive(): Promise<unknown>
  /** Another tab has said something that did not arrive: engines drop messages to a page that is frozen or stopped in a debugger. */
  onMissed(): void
  /** This tab sends from now on; or no longer, where another took a lease that it could not renew in time. */
  onRunner(isRunner: boolean): void
}

export interface Tabs<Message> {
  /** Tells the other tabs. */
  announce(message: Message): void
  /** Asks to be the runner, until closed. One that shares nothing with other tabs is it at once. */
  run(isShared?: boolean): void
  /** The store says that another tab is the runner: if this one is it all the same, `onRunner` is told so once more. */
  doubt(): void
  /** Whether other tabs hear at all; where they do not, each has to look for itself. */
  readonly heard: boolean
  /** Lets go of lock and channel, at once. */
  close(): void
}

/** What travels between tabs: what the queue says, or whether the runner still lives; and how many envelopes with messages its sender has sent. */
type Content<Message> = { messages: Message[] } | { pulse: 'ask' | 'beat' }
type Envelope<Message> = Content<Message> & { from: string; count: number }

/** How often a tab without Web Locks asks for the lease, ms. */
export const leaseBeat = 5_000
/** How often a tab that waits for the lock asks the one that has it for a sign of life, ms. Answers need no timer, so throttled ones are as quick. */
export const pulseBeat = 15_000
/** After so many questions without an answer the lock is taken from it: its page is frozen or hangs. */
const pulsesMissed = 2

/** Two tabs that both have the lock, which no manager should allow, take turns of up to so long, ms: at the same pace each would void the other's. */
const doubtSpread = 1_000

/** One runner per queue across tabs. A Web Lock makes it so: the browser frees it when its tab goes, however that happens. */
export function createTabs<Message>(options: TabsOptions<Message>): Tabs<Message> {
  const { name, id, locks, openChannel, random, lease, alive, onMessage, onMissed, onRunner } = options
  const closing = new AbortController()
  const { signal } = closing
  const closed = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
  let timer: ReturnType<typeof setTimeout> | undefined
  let asked = false
  let isRunner = false
  let byLocks = false
  let unanswered = 0
  let sent = 0
  /** What was said in this very moment travels together. */
  let outgoing: Message[] = []
  /** How many envelopes of each tab were heard. */
  const heard = new Map<string, number>()
  let channel: Channel | undefined
  try {
    channel = openChannel?.(name)
    channel?.addEventListener('message', ({ data }) => hear(data as Envelope<Message>))
  } catch {
    // An opaque origin has no channels, and no other tabs either.
  }

  const hear = (envelope: Envelope<Message>): void => {
    const { from, count } = envelope
    const isMessage = 'messages' in envelope
    const isComplete = count === (heard.get(from) ?? 0) + (isMessage ? 1 : 0)
    heard.set(from, count)
    if (isMessage) for (const message of envelope.messages) onMessage(message)
    else if (envelope.pulse === 'beat') unanswered = 0
    else if (isRunner)
      alive().then(
        () => !signal.aborted && isRunner && post({ pulse: 'beat' }),
        () => {},
      )
    if (!isComplete) onMissed()
  }
  const post = (content: Content<Message>): void => {
    if ('messages' in content) sent += 1
    channel?.postMessage({ ...content, from: id, count: sent })
  }
  const send = (): void => {
    const messages = outgoing
    outgoing = []
    if (messages.length > 0) post({ messages })
  }

  const setRunner = (mine: boolean): void => {
    if (mine === isRunner) return
    isRunner = mine
    onRunner(mine)
  }

  const byLock = (manager: Locks): void => {
    const waiting = new AbortController()
    signal.addEventListener('abort', () => waiting.abort())
    const request = (how: { signal?: AbortSignal; steal?: boolean }): void => {
      let granted = false
      const onGranted = (): Promise<void> => {
        granted = true
        clearTimeout(timer)
        if (!signal.aborted) setRunner(true)
        return closed
      }
      const onEnded = (): void => {
        if (signal.aborted) return
        if (granted) {
          // Another tab took it, since this one gave no sign of life.
          setRunner(false)
          byLock(manager)
        } else if (!how.signal?.aborted) void byLease()
      }
      // A manager may throw at once, and must not do so in the app's call.
      Promise.resolve()
        .then(() => manager.request(name, how, onGranted))
        .catch(onEnded)
    }
    const watch = (): void => {
      if (isRunner) return
      if (unanswered < pulsesMissed) {
        unanswered += 1
        post({ pulse: 'ask' })
        timer = setTimeout(watch, pulseBeat)
      } else {
        waiting.abort()
        request({ steal: true })
      }
    }
    byLocks = true
    unanswered = 0
    request({ signal: waiting.signal })
    // Where the others cannot be heard, their silence means nothing.
    if (channel) timer = setTimeout(watch, pulseBeat)
  }

  const byLease = async (): Promise<void> => {
    byLocks = false
    const mine = await lease().catch(() => false)
    if (signal.aborted) return
    setRunner(mine)
    timer = setTimeout(byLease, leaseBeat)
  }

  return {
    heard: channel !== undefined,
    announce(message) {
      if (outgoing.push(message) === 1) queueMicrotask(send)
    },
    run(isShared = true) {
      if (asked || signal.aborted) return
      asked = true
      if (!isShared) setRunner(true)
      else if (locks?.request) byLock(locks)
      else void byLease()
    },
    doubt() {
      // A lease is asked for again at the next beat.
      if (!byLocks) isRunner = false
      else if (isRunner) {
        clearTimeout(timer)
        timer = setTimeout(() => isRunner && onRunner(true), random() * doubtSpread)
      }
    },
    close() {
      closing.abort()
      clearTimeout(timer)
      send()
      channel?.close()
      channel = undefined
    },
  }
}
