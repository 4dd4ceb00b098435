/** The part of the Web Locks API that is used here. */
export interface Locks {
  request(name: string, options: { signal: AbortSignal }, callback: () => Promise<void>): Promise<unknown>
}

/** The part of BroadcastChannel that is used here. */
export interface Channel {
  postMessage(message: unknown): void
  addEventListener(type: 'message', listener: (event: { data: unknown }) => void): void
  close(): void
}

export interface TabsOptions<Message> {
  /** What the tabs have in common: tabs of one name are one queue. */
  name: string
  locks: Locks | undefined
  openChannel: ((name: string) => Channel) | undefined
  /** Where there are no Web Locks: takes or renews the lease kept in the store; resolves with whether this tab has it. */
  lease(): Promise<boolean>
  onMessage(message: Message): void
  /** This tab sends from now on; or no longer, where another took a lease that it could not renew in time. */
  onRunner(isRunner: boolean): void
}

export interface Tabs<Message> {
  /** Tells the other tabs. */
  announce(message: Message): void
  /** Asks to be the runner, until closed. One that shares nothing with other tabs is it at once. */
  run(isShared?: boolean): void
  /** Whether other tabs hear at all; where they do not, each has to look for itself. */
  readonly heard: boolean
  close(): void
}

/** How often a tab without Web Locks asks for the lease, ms. */
export const leaseBeat = 5_000

/** One runner per queue across tabs. A Web Lock makes it so: the browser frees it when its tab goes, however that happens. */
export function createTabs<Message>(options: TabsOptions<Message>): Tabs<Message> {
  const { name, locks, openChannel, lease, onMessage, onRunner } = options
  const closing = new AbortController()
  const { signal } = closing
  let timer: ReturnType<typeof setTimeout> | undefined
  let asked = false
  let channel: Channel | undefined
  try {
    channel = openChannel?.(name)
    channel?.addEventListener('message', ({ data }) => onMessage(data as Message))
  } catch {
    // An opaque origin has no channels, and no other tabs either.
  }

  const byLock = (manager: Locks): void => {
    const held = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
    manager
      .request(name, { signal }, () => {
        onRunner(true)
        return held
      })
      .catch(() => {
        if (!signal.aborted) byLease()
      })
  }
  let runner = false
  const byLease = async (): Promise<void> => {
    const mine = await lease().catch(() => false)
    if (signal.aborted) return
    if (mine !== runner) onRunner(mine)
    runner = mine
    timer = setTimeout(byLease, leaseBeat)
  }

  return {
    heard: channel !== undefined,
    announce(message) {
      channel?.postMessage(message)
    },
    run(isShared = true) {
      if (asked) return
      asked = true
      if (!isShared) onRunner(true)
      else if (locks?.request) byLock(locks)
      else void byLease()
    },
    close() {
      closing.abort()
      clearTimeout(timer)
      channel?.close()
    },
  }
}
