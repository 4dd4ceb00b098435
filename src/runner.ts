import { abortError } from './errors.js'
import type { Network } from './network.js'
import { isOpen } from './outcome.js'
import type { Action, PendingUpload } from './record.js'
import { createLine } from './schedule.js'
import type { Upload } from './snapshot.js'
import type { Announced, Change } from './store.js'
import { keyExpired, runLast, runUpload, type SendOptions, type UploadContext } from './upload.js'

export interface RunnerOptions<Result> {
  options: SendOptions<Result> & { concurrency: number }
  network: Network
  now(): number
  random(): number
  /** Whose uploads run. */
  owner(): string | null
  uploads(): Iterable<Upload<Result>>
  upload(id: string): Upload<Result> | undefined
  /** Whether it is left to others. */
  isLeft(id: string): boolean
  bytes(id: string): Promise<Blob | ArrayBuffer | undefined>
  /** Whether the account that this record belongs to is signed in now. */
  isSignedIn(record: PendingUpload): Promise<boolean>
  act(id: string, action: Action, warning?: string, signal?: AbortSignal): Promise<Change | undefined>
  progress(id: string, loaded: number, total: number): void
  outcomeUrl(): string | undefined
  learned(announced: Announced): void
  /** A record that was sent once lives so much shorter than it says, ms. */
  cut(): number
}

/** Sends the queue's uploads, from the one tab whose turn it is. */
export interface Runner {
  start(): void
  /** Something changed: looks whether something can start. Cheap to call often. */
  look(): void
  /** The same, where this one upload changed. */
  enter(id: string): void
  /** The same, where any may have changed. */
  renew(): void
  /** Ends all runs, and begins none until started again; resolves when they have ended. */
  halt(): Promise<void>
  /** Ends the run of this upload, if there is one, wherever it is. */
  stop(id: string): void
  /** Whether nothing would be gained by waiting for this upload now. */
  waits(record: PendingUpload): boolean
}

interface Run {
  controller: AbortController
  /** Whether it holds one of the `concurrency` slots; one that waits holds none. */
  slot: boolean
  /** Where its last request went. */
  origin: string | undefined
  /** When it got its slot, ms since 1970. */
  since: number
  /** While it waits for its turn. */
  resume?: () => void
  done: Promise<void>
}

/** A clock that was set, or a sleep of hours, is noticed after so long at most, ms. */
const longestNap = 60_000
/** `progress` events of one upload are no closer than this, ms. */
const progressSpacing = 100

export function createRunner<Result>(deps: RunnerOptions<Result>): Runner {
  const { options, network, now, random, act } = deps
  const runs = new Map<string, Run>()
  const line = createLine()
  /** Made once: an error for each of many uploads costs more than ending its run. */
  const stopped = abortError()
  /** Records that are being put right. */
  const mending = new Set<string>()
  /** Records whose time has run out, and whose outcome is being asked for. */
  const asking = new Set<string>()
  let running = false
  let halting = new AbortController()
  let looking = false
  let timer: ReturnType<typeof setTimeout> | undefined
  /** The renewals of one account's sign-in: how many have ended, whether the last one failed, and the one under way. */
  let renewal: { owner: string | null; ended: number; failure?: { cause: unknown }; running?: Promise<void> } = { owner: null, ended: 0 }

  const fixedOrigin = ((): string | undefined => {
    const { endpoint } = options
    if (typeof endpoint === 'function') return undefined
    try {
      return new URL(endpoint, globalThis.location?.href).origin
    } catch {
      return undefined
    }
  })()
  const lastOrigins = new Map<string, string>()
  const originOf = (record: PendingUpload): string | undefined => fixedOrigin ?? lastOrigins.get(record.id)

  const look = (): void => {
    if (looking || !running) return
    looking = true
    queueMicrotask(() => {
      looking = false
      if (running) choosing()
    })
  }

  const enter = (id: string): void => {
    line.enter(id)
    look()
  }
  const renew = (): void => {
    line.renew()
    look()
  }

  function choosing(): void {
    clearTimeout(timer)
    // Another account has signed in.
    for (const id of [...runs.keys()]) if (deps.upload(id)?.owner !== deps.owner()) stop(id)
    const holding = new Map<string, string | undefined>()
    for (const [id, { slot, origin, since }] of runs)
      if (slot) holding.set(id, origin !== undefined && since >= network.since(origin) ? origin : undefined)
    const choice = line.choose({
      records: deps.uploads,
      find: deps.upload,
      isLeft: deps.isLeft,
      // A run that waits for its turn does not send.
      isSent: (id) => runs.has(id) && runs.get(id)?.resume === undefined,
      owner: deps.owner(),
      now: now(),
      cut: deps.cut(),
      concurrency: options.concurrency,
      holding,
      originOf,
      capacity: network.capacity,
      opensAt: network.opensAt,
    })
    for (const id of choice.expired) expire(id)
    for (const id of choice.setBack) void mend(id, { type: 'set-back', at: now() })
    for (const id of choice.abandoned) void mend(id, { type: 'interrupted' })
    for (const id of choice.start) {
      const parked = runs.get(id)
      if (parked) {
        parked.slot = true
        parked.since = now()
        parked.resume?.()
      } else launch(id)
    }
    if (choice.wakeAt !== null) timer = setTimeout(look, Math.min(choice.wakeAt - now(), longestNap))
  }

  function expire(id: string): void {
    if (asking.has(id)) return
    stop(id)
    const record = deps.upload(id)
    if (record && isOpen(record) && deps.outcomeUrl() !== undefined) {
      asking.add(id)
      launch(id, runLast, false)
    } else void mend(id, { type: 'failed', error: keyExpired(id).toJSON(), counted: false, at: now() })
  }

  async function mend(id: string, action: Action): Promise<void> {
    if (mending.has(id)) return
    mending.add(id)
    await act(id, action, undefined, halting.signal).catch(() => {})
    mending.delete(id)
    enter(id)
  }

  function launch(id: string, path = runUpload<Result>, slot = true): void {
    const controller = new AbortController()
    const run: Run = { controller, slot, origin: undefined, since: now(), done: Promise.resolve() }
    runs.set(id, run)
    // Everything a run can end with is stored by then; what is left is that it was stopped.
    run.done = path(contextOf(id, run))
      .catch(() => {})
      .then(() => {
        if (runs.get(id) === run) {
          runs.delete(id)
          asking.delete(id)
        }
        enter(id)
      })
  }

  function contextOf(id: string, run: Run): UploadContext<Result> {
    const { signal } = run.controller
    let first = true
    let reportedAt = 0
    return {
      options,
      network,
      now,
      random,
      signal,
      async turn() {
        if (!first) await park(id, run)
        first = false
        const record = deps.upload(id) as PendingUpload | undefined
        return record?.status === 'pending' || record?.status === 'preparing' ? record : undefined
      },
      bytes: () => deps.bytes(id),
      isSignedIn: deps.isSignedIn,
      act: (action, warning) => act(id, action, warning, signal),
      upload: () => deps.upload(id) as Upload<Result>,
      answered() {
        run.slot = false
        look()
      },
      located(origin) {
        run.origin = origin
        lastOrigins.set(id, origin)
      },
      progress(loaded, total) {
        if (loaded < total && Math.abs(now() - reportedAt) < progressSpacing) return
        reportedAt = now()
        deps.progress(id, loaded, total)
      },
      outcomeUrl: deps.outcomeUrl,
      learned: deps.learned,
      renewals: () => renewal.ended,
      refresh(renew, since) {
        const { owner, ended, failure, running } = renewal
        const isSameOwner = owner === deps.owner()
        if (isSameOwner && running) return running
        if (isSameOwner && ended > since) return failure ? Promise.reject(failure.cause) : Promise.resolve()
        return renewNow(renew)
      },
    }
  }

  function renewNow(renew: () => Promise<unknown>): Promise<void> {
    const current: typeof renewal = { owner: deps.owner(), ended: renewal.ended }
    renewal = current
    const end = (failure?: { cause: unknown }): void => {
      if (renewal === current) renewal = { owner: current.owner, ended: current.ended + 1, ...(failure && { failure }) }
    }
    current.running = renew().then(
      () => end(),
      (cause) => {
        end({ cause })
        throw cause
      },
    )
    return current.running
  }

  function park(id: string, run: Run): Promise<void> {
    run.slot = false
    const { signal } = run.controller
    const parked = new Promise<void>((resolve, reject) => {
      const onAbort = (): void => reject(signal.reason)
      signal.addEventListener('abort', onAbort)
      if (signal.aborted) onAbort()
      run.resume = () => {
        delete run.resume
        signal.removeEventListener('abort', onAbort)
        resolve()
      }
    })
    enter(id)
    return parked
  }

  function stop(id: string): void {
    const run = runs.get(id)
    if (!run) return
    runs.delete(id)
    asking.delete(id)
    run.controller.abort(stopped)
    enter(id)
  }

  return {
    start() {
      running = true
      renew()
    },
    look,
    enter,
    renew,
    stop,
    waits(record) {
      const origin = originOf(record)
      return (record.notBefore !== null && record.notBefore > now()) || (origin !== undefined && network.capacity(origin) === 0)
    },
    async halt() {
      running = false
      halting.abort()
      halting = new AbortController()
      clearTimeout(timer)
      const ending = [...runs.values()].map((run) => run.done)
      for (const run of runs.values()) run.controller.abort()
      runs.clear()
      asking.clear()
      await Promise.all(ending)
    },
  }
}
