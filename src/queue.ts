import { abortError, UploadError } from './errors.js'
import type { UploadQueueEventName, UploadQueueEvents } from './events.js'
import { createHandles, type UploadHandle } from './handles.js'
import { type EnqueueOptions, inlineLimit } from './intake.js'
import { createLedger, type Message } from './ledger.js'
import { followLifecycle } from './lifecycle.js'
import { createNetwork } from './network.js'
import { checkClearOptions, checkEnqueueOptions, resolveOptions, type UploadQueueOptions } from './options.js'
import { createPersistence } from './persistence.js'
import { defaultPorts, type QueuePorts } from './ports.js'
import type { UploadReceipt } from './proof.js'
import { type Action, type PendingUpload, runsByItself, transition, type UploadStatus } from './record.js'
import { createRunner } from './runner.js'
import { createSaving } from './saving.js'
import type { Upload } from './snapshot.js'
import { type Announced, memoryStore, type Store } from './store.js'
import { createTabs, leaseBeat, type Tabs } from './tabs.js'

/** A queue of uploads; all of one `name` in an origin, in any tab or worker, are one. */
export interface UploadQueue<Result = UploadReceipt> {
  /**
   * Saves a file and sends it. Resolves when record and bytes are on disk; from then on they survive the page. Rejects, leaving nothing
   * behind, with `TypeError` for wrong options, an `AbortError`, or `UploadError`: `not-a-file`, `file-unreadable`, `file-too-large`,
   * `quota-exceeded`, `storage-…`, `unauthorized` (nobody is signed in).
   */
  enqueue(file: Blob, options?: EnqueueOptions): Promise<UploadHandle<Result>>
  /**
   * The same for many, in few transactions. Saves all that can be saved; if some cannot, rejects with an `AggregateError`: its `errors` are
   * theirs, and its `indexes` say to which of `files` each belongs.
   */
  enqueueAll(files: Iterable<Blob>, options?: Omit<EnqueueOptions, 'id'>): Promise<UploadHandle<Result>[]>
  /** One of the current owner's uploads. */
  get(id: string): Upload<Result> | undefined
  /** A handle for any upload of the queue, one that an earlier page enqueued too. */
  handle(id: string): UploadHandle<Result> | undefined
  /** The current owner's uploads, oldest first: frozen, and the same array until something changes. */
  getSnapshot(): readonly Upload<Result>[]
  /** Calls `listener` soon after `getSnapshot` has changed, on a page every 16 ms at most, a frame at 60 Hz. Returns the function that ends it. */
  subscribe(listener: () => void): () => void
  /** Calls `listener` for each event of that name. Returns the function that ends it. Throws `TypeError` for a name that is none. */
  on<Name extends UploadQueueEventName>(name: Name, listener: (payload: UploadQueueEvents<Result>[Name]) => void): () => void
  /** Runs the queue; what failed on something retryable gets one more attempt. */
  start(): Promise<void>
  /** One upload, or the whole queue and what is enqueued meanwhile. Stays so across reloads, until `resume`. */
  pause(id?: string): Promise<void>
  /** Also revives what is `blocked`. */
  resume(id?: string): Promise<void>
  /** Tries what failed again, with the same key and a whole new budget; what is waiting is tried at once. */
  retry(id?: string): Promise<void>
  /**
   * Tries everything now, whatever the backoff. Settles when all has ended or has to wait, with how many of the uploads that ran then
   * `succeeded`, `failed`, and are `left`.
   */
  flush(): Promise<{ succeeded: number; failed: number; left: number }>
  /** Removes an upload that has not succeeded, its bytes too, now and in every tab. */
  cancel(id: string): Promise<void>
  /**
   * Removes uploads and bytes: those of one status, of another owner, or, where nothing is said, **all** of the current owner's, sent or not;
   * what is enqueued here after the call stays. Rejects with `TypeError` for anything else.
   */
  clear(which?: { status?: UploadStatus; owner?: string }): Promise<void>
  /**
   * Whether the browser has promised not to evict what is stored, https://storage.spec.whatwg.org/#persistence; `undefined` until it has
   * answered. It is asked at the first `enqueue`, once a day at most, since Firefox asks its user.
   */
  readonly persisted: boolean | undefined
  /** Resolves when storage is usable; rejects, within 10 s, with the `UploadError` that says why it is not. */
  ready(): Promise<void>
  /** Stops this instance and lets go of locks and handles; records stay. */
  close(): Promise<void>
}

/** Receipts of succeeded uploads are kept so long, ms, and so many. */
const receiptAge = 86_400_000
const receiptCount = 1_000
/**
 * Without Web Locks a tab that died keeps the next waiting so long, ms. The timers of a tab hidden for long run once a minute, so it loses
 * the lease to one that is seen.
 */
const leaseLength = 15_000
/** What was read so long ago at most, ms, need not be read again as this tab's turn comes: what happened since has been told. */
const freshness = 2_000
/** What nobody told is looked for so often, ms. */
const untoldInterval = 60_000
/** A database that was too slow to open is looked for again so often, ms. */
const returnInterval = 15_000
const sleep = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const wake = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', wake)
      resolve()
    }
    const timer = setTimeout(wake, ms)
    signal.addEventListener('abort', wake)
  })

/**
 * A queue that delivers each file to the server exactly once. Opens its database on first use.
 * Throws `TypeError`, naming the option, its value and what was expected, for options that cannot be.
 */
export function createUploadQueue<Result = UploadReceipt>(
  options: UploadQueueOptions<Result>,
  ports?: Partial<QueuePorts>,
): UploadQueue<Result> {
  const settings = resolveOptions(options)
  const { now, random, uuid: newId, locks, openChannel, openStore, storage, once } = { ...defaultPorts(), ...ports }
  const queueName = `uponce:${settings.name}`
  const tabId = newId()
  const closing = new AbortController()
  /** Those who wait for the queue to come to rest. */
  const resting = new Set<() => void>()
  /** The uploads that had to wait after a try of this tab. */
  const tried = new Set<string>()
  let store: Store = settings.persist === 'memory' ? memoryStore() : openStore(queueName, () => void missLost())
  let opening: Promise<void> | undefined
  let owner: string | null = null
  let paused = false
  let announced: Announced = {}
  let isRunner = false
  let reachable = true
  let outage = false
  let polling: ReturnType<typeof setInterval> | undefined
  let started = false
  let lastRead = Number.NEGATIVE_INFINITY
  let away = false
  /** What is being cleared: what is enqueued after that was asked for is saved after it. */
  let clearing: Promise<unknown> = Promise.resolve()
  /** Whether the store is being read anew, and whether something was missed since that began. */
  let rereading = false
  let stale = false

  const ledger = createLedger<Result>({
    store: () => store,
    tabId,
    now,
    announce: (message) => {
      if (store.durable) tabs.announce(message)
    },
    onMessage(message) {
      if (message.type === 'changed' && (message.record.status === 'paused' || message.record.status === 'succeeded'))
        runner.stop(message.record.id)
      if (message.type === 'removed')
        for (const id of message.ids) {
          runner.stop(id)
          handles.forget(id)
        }
      if (message.type === 'paused') paused = message.paused
      if (message.type === 'network') reachable = message.reachable
      if (message.type === 'hint') void network.hint()
      if (message.type === 'changed') runner.enter(message.record.id)
      else runner.look()
      check()
    },
    onFenced() {
      isRunner = false
      void runner.halt()
      tabs.doubt()
    },
  })
  const { snapshot } = ledger
  const handles = createHandles(ledger, cancel)
  const persistence = createPersistence(() => store, storage, now)

  const network = createNetwork({
    now,
    random,
    onChange(change) {
      if (change) ledger.tell({ type: 'network', reachable: change.reachable })
      else runner.look()
    },
  })

  const runner = createRunner<Result>({
    options: settings,
    network,
    now,
    random,
    owner: () => owner,
    uploads: snapshot.all,
    isLeft: (id) => once && tried.has(id),
    upload: snapshot.find,
    bytes: (id) => patiently(() => store.bytes(id)),
    isSignedIn: async (record) => (await findOwner()) === record.owner,
    act(id, action, warning, signal) {
      // Asked for a new sign-in, or to look at the bytes again, it goes on with the same try.
      if (action.type === 'deferred' && (action.notBefore !== null || action.error.status === undefined)) tried.add(id)
      return patiently(() => ledger.act(id, action, warning, signal))
    },
    progress(id, loaded, total) {
      const message = { type: 'progress', id, loaded, total } as const
      // What leaves at once has ended before another tab could show it.
      if (total > inlineLimit) ledger.tell(message)
      else ledger.hear(message)
    },
    outcomeUrl() {
      const { outcome = announced.outcomeUrl } = settings
      return outcome === false || outcome === undefined ? undefined : new URL(outcome, globalThis.location?.href).href
    },
    learned({ outcomeUrl = announced.outcomeUrl, retention = announced.retention }) {
      if (outcomeUrl === announced.outcomeUrl && retention === announced.retention) return
      announced = { outcomeUrl, retention }
      // What is not remembered is learned again.
      store.setting('server', () => announced).catch(() => {})
    },
    cut: () => Math.max(0, settings.maxAge - (announced.retention ?? settings.maxAge)),
  })

  const saving = createSaving<Result>({
    settings,
    store: () => store,
    storage,
    ledger,
    handles,
    now,
    newId,
    async account() {
      // Whose file it is was settled with the call, however long the storage takes: another may sign in meanwhile.
      const [account] = await Promise.all([findOwner(), clearing])
      await ready()
      if (account !== null) void persistence.ask()
      return account
    },
    isPaused: () => paused,
    isClosed: () => closing.signal.aborted,
    follow: (id) => patiently(() => ledger.act(id, { type: paused ? 'paused' : 'resumed' })),
    cancel,
  })

  let tabs = openTabs()
  const unfollow = followLifecycle({ onLeave: leave, onReturn: comeBack })

  function openTabs(): Tabs<Message> {
    return createTabs<Message>({
      name: queueName,
      id: tabId,
      locks,
      openChannel,
      random,
      async lease() {
        let isRenewal = false
        const held = await store.setting('runner', (held) => {
          const free = !held || held.id === tabId || held.until <= now() || held.until > now() + leaseLength
          isRenewal = held?.id === tabId && held.until > now()
          return free ? turn() : undefined
        })
        // While this tab slept another may have had the lease, and let it lapse: what that did was perhaps not heard.
        if (isRunner && !isRenewal) void readAgain()
        return held?.id === tabId
      },
      onMessage(message) {
        if (store.durable && !closing.signal.aborted) ledger.hear(message)
      },
      alive: () => store.setting('runner'),
      onMissed: () => void readAgain(),
      onRunner(mine) {
        isRunner = mine
        if (!mine) void runner.halt()
        else
          patiently(takeOver).catch(() => {
            // Closed meanwhile.
          })
      },
    })
  }

  const turn = (): { id: string; until: number } => ({ id: tabId, until: now() + leaseLength })

  /** The page stops, perhaps for ever: locks, channels and connections would keep it out of the back/forward cache, or the others waiting. */
  function leave(): void {
    if (away || closing.signal.aborted) return
    away = true
    const mine = isRunner
    isRunner = false
    void runner.halt()
    tabs.close()
    if (mine) letGo().catch(() => {})
    store.release()
  }

  /** Without Web Locks the others would wait for the end of the lease. */
  async function letGo(): Promise<void> {
    if (!locks && store.durable) await store.setting('runner', (held) => (held?.id === tabId ? { id: tabId, until: 0 } : undefined))
  }

  function comeBack(): void {
    if (!away || closing.signal.aborted) return
    away = false
    tabs = openTabs()
    if (started) tabs.run(store.durable)
    if (opening) void readAgain()
  }

  /** Something may have happened that nobody told. However many say so meanwhile, it is read once more. */
  async function readAgain(): Promise<void> {
    stale = true
    if (rereading) return
    rereading = true
    // What is missed in one go is read in one go.
    await Promise.resolve()
    while (stale && store.durable && !closing.signal.aborted) {
      stale = false
      await patiently(read).then(look, () => {})
    }
    rereading = false
  }

  /** The browser has closed the database: perhaps its user has cleared the storage. Each tab notices by itself. */
  async function missLost(): Promise<void> {
    const lost = await patiently(read).catch(() => 0)
    if (lost > 0) ledger.hear({ type: 'warning', message: `The browser has removed ${lost} uploads with its storage.` })
  }

  /** Anything may have changed: there may be something to start, or nothing left to wait for. */
  function look(): void {
    runner.renew()
    check()
  }

  function check(): void {
    for (const rest of [...resting]) rest()
  }

  /** Storage that fails under a running upload is waited for: what the server has answered must not be forgotten. */
  async function patiently<T>(work: () => Promise<T>, message = 'The upload database does not answer; trying on.'): Promise<T> {
    for (let delay = 1_000; ; delay = Math.min(delay * 2, 30_000)) {
      try {
        const result = await work()
        outage = false
        return result
      } catch (error) {
        if (closing.signal.aborted) throw error
        if (!outage) ledger.tell({ type: 'warning', message, ...(error instanceof UploadError && { error: error.toJSON() }) })
        outage = true
        await sleep(delay, closing.signal)
      }
    }
  }

  // Opening, and taking over what earlier pages left.

  function ready(): Promise<void> {
    if (closing.signal.aborted) return Promise.reject(abortError('The queue was closed.'))
    opening ??= open().catch((error) => {
      opening = undefined
      throw error
    })
    return opening
  }

  async function open(): Promise<void> {
    await findOwner()
    try {
      await read()
    } catch (error) {
      if (settings.persist !== 'preferred' || (error as UploadError).code === 'storage-blocked') throw error
      const disk = store
      store = memoryStore()
      await read()
      // With a cause it failed; without one it was only slow.
      if ((error as UploadError).cause === undefined) void returnTo(disk)
      ledger.tell({
        type: 'warning',
        message: 'No usable IndexedDB: uploads will not survive this page.',
        error: (error as UploadError).toJSON(),
      })
    }
  }

  /** A database that was slow is taken up once it answers, and nothing would be lost with the memory: what earlier pages left waits there. */
  async function returnTo(disk: Store): Promise<void> {
    for (let isBack = false; !isBack; ) {
      await sleep(returnInterval, closing.signal)
      if (closing.signal.aborted) return disk.close()
      const answers = await disk.list().then(
        () => true,
        () => false,
      )
      isBack = answers && !saving.isBusy && [...snapshot.all()].every(({ status }) => status === 'succeeded')
    }
    store = disk
    isRunner = false
    tabs.close()
    tabs = openTabs()
    opening = undefined
    await runner.halt()
    await ready().catch(() => {})
    if (started && !away) tabs.run(store.durable)
  }

  async function findOwner(): Promise<string | null> {
    const found = await settings.owner()
    if (found !== owner) {
      owner = found
      ledger.setOwner(found)
      look()
    }
    return found
  }

  /** This tab sends from now on, and nobody else. */
  async function takeOver(): Promise<void> {
    // What a tab that was taken for dead still wants to change is void from here on. A lease has done so already.
    const told = locks && store.durable ? store.setting('runner', turn) : undefined
    // What it begins with is stored after that.
    if (isRunner) runner.start()
    await told
    // What this page knows may be old by now; a start that no longer fits what is stored means nothing.
    if (!tabs.heard || lastRead + freshness < now() || lastRead > now()) await read()
    await store.sweep()
    const receipts = [...snapshot.all()].filter(({ status }) => status === 'succeeded').sort((a, b) => (b.endedAt ?? 0) - (a.endedAt ?? 0))
    const old = receipts.filter(({ endedAt }, place) => place >= receiptCount || (endedAt ?? 0) + receiptAge <= now())
    if (old.length > 0) await purge(old.map(({ id }) => id))
    look()
  }

  async function read(): Promise<number> {
    const at = now()
    const [lost, isPaused = false, server = {}] = await Promise.all([ledger.read(), store.setting('paused'), store.setting('server')])
    paused = isPaused
    announced = server
    lastRead = at
    return lost
  }

  async function purge(ids: string[]): Promise<void> {
    for (const id of await store.remove(ids, ({ status }) => status === 'succeeded')) snapshot.remove(id)
  }

  async function start(): Promise<void> {
    await ready()
    await findOwner()
    const attempts = settings.retry.limit - 1
    await Promise.all(
      snapshot.list().map(({ id, status, error, expiresAt }) => {
        if (status === 'blocked') return ledger.act(id, { type: 'resumed' })
        return status === 'failed' && error?.retryable && expiresAt > now() ? ledger.act(id, { type: 'revived', attempts }) : undefined
      }),
    )
    if (closing.signal.aborted) return
    started = true
    if (!away) tabs.run(store.durable)
    // Tabs that cannot hear each other look for themselves; and a page may have saved a file without living to tell the one that sends.
    const lookAround = (): void => {
      if (!away && (isRunner || !tabs.heard)) void readAgain()
    }
    if (store.durable) polling ??= setInterval(lookAround, tabs.heard ? untoldInterval : leaseBeat)
    runner.renew()
  }

  // What apps call.

  async function cancel(id: string): Promise<void> {
    await ready()
    await remove([id], ({ status }) => status !== 'succeeded')
  }

  async function remove(ids: readonly string[], which?: (record: PendingUpload) => boolean): Promise<void> {
    const removed = await store.remove(ids, which)
    if (removed.length > 0) ledger.tell({ type: 'removed', ids: removed })
    // Gone already: another tab did it, or the connection was lost as it was done.
    if (removed.length < ids.length && ids.some(snapshot.find)) await ledger.read()
  }

  async function clear(which: { status?: UploadStatus; owner?: string } = {}): Promise<void> {
    checkClearOptions(which)
    const { status, owner: whose } = which
    // Of whoever is signed in now, not once the storage is there.
    const account = whose ?? (await findOwner())
    await ready()
    const matches = (record: PendingUpload): boolean => record.owner === account && (status === undefined || record.status === status)
    const { records, unreadable } = await store.list()
    const ids = (rows: readonly { id: string }[]): string[] => rows.map(({ id }) => id)
    await remove(ids(records.filter(matches)), matches)
    // What cannot be read is the account's too, and whoever signs out wants nothing left.
    if (status === undefined) await store.remove(ids(unreadable.filter((row) => row.owner === account)))
  }

  /** Does an action to one upload, or to all. */
  async function each(id: string | undefined, actionFor: (upload: Upload<Result>) => Action): Promise<void> {
    await ready()
    // Of what the others have saved meanwhile a tab that cannot hear them knows nothing.
    if (!tabs.heard && store.durable) await read()
    const one = id === undefined ? undefined : snapshot.get(id)
    const chosen = id === undefined ? snapshot.list() : one ? [one] : []
    await Promise.all(chosen.map((upload) => ledger.act(upload.id, actionFor(upload))))
  }

  async function setPaused(value: boolean): Promise<void> {
    await ready()
    await store.setting('paused', () => value)
    ledger.tell({ type: 'paused', paused: value })
  }

  async function flush(): Promise<{ succeeded: number; failed: number; left: number }> {
    await start()
    const ids = snapshot
      .list()
      .filter(runsByItself)
      .map(({ id }) => id)
    const looked = network.hint()
    if (!isRunner) tabs.announce({ type: 'hint' })
    await Promise.all(ids.map((id) => ledger.act(id, { type: 'hurried' })))
    await looked
    runner.look()
    const waits = (upload: Upload<Result>): boolean =>
      upload.status === 'pending' && (isRunner ? runner.waits(upload) : !reachable || (upload.notBefore ?? 0) > now())
    /** Those that have not ended, the next one last. */
    const open = [...ids].reverse()
    const hasEnded = (id: string | undefined): boolean => {
      const status = snapshot.find(id as string)?.status
      return status === undefined || status === 'succeeded' || status === 'failed'
    }
    const runs = (id: string): boolean => {
      const upload = snapshot.find(id)
      return upload !== undefined && upload.owner === owner && runsByItself(upload) && !waits(upload)
    }
    await new Promise<void>((resolve) => {
      const rest = (): void => {
        while (open.length > 0 && hasEnded(open.at(-1))) open.pop()
        if (!closing.signal.aborted && open.some(runs)) return
        resting.delete(rest)
        resolve()
      }
      resting.add(rest)
      rest()
    })
    const ends = ids.map((id) => snapshot.find(id)?.status)
    const succeeded = ends.filter((status) => status === 'succeeded').length
    const failed = ends.filter((status) => status === 'failed').length
    return { succeeded, failed, left: ends.filter((status) => status !== undefined).length - succeeded - failed }
  }

  if (settings.autoStart)
    patiently(start, 'The queue could not start; trying on.').catch(() => {
      // Closed meanwhile.
    })

  return {
    async enqueue(file, enqueueOptions = {}) {
      checkEnqueueOptions(enqueueOptions)
      return saving.save(file, enqueueOptions)
    },
    async enqueueAll(files, enqueueOptions = {}) {
      checkEnqueueOptions(enqueueOptions)
      if ((enqueueOptions as EnqueueOptions).id !== undefined) throw new TypeError('enqueue: id: many files cannot have one id.')
      return saving.saveAll([...files], enqueueOptions)
    },
    get: snapshot.get,
    handle: (id) => (snapshot.get(id) ? handles.of(id) : undefined),
    getSnapshot: snapshot.list,
    subscribe: snapshot.subscribe,
    on: ledger.on,
    start,
    async pause(id) {
      if (id === undefined) await setPaused(true)
      await each(id, () => ({ type: 'paused' }))
    },
    async resume(id) {
      if (id === undefined) await setPaused(false)
      await each(id, () => ({ type: 'resumed' }))
    },
    retry: (id) =>
      each(id, ({ status }) => (status === 'failed' ? { type: 'retried', expiresAt: now() + settings.maxAge } : { type: 'hurried' })),
    flush,
    cancel,
    clear(which) {
      const cleared = clear(which)
      clearing = clearing.then(() => cleared).catch(() => {})
      return cleared
    },
    get persisted() {
      return persistence.granted
    },
    ready,
    async close() {
      if (closing.signal.aborted) return
      closing.abort()
      unfollow()
      clearInterval(polling)
      check()
      network.close()
      const under = [...snapshot.all()].filter(({ status }) => status === 'uploading')
      await runner.halt()
      const interrupt = (record: PendingUpload): PendingUpload => transition(record, { type: 'interrupted' })
      if (isRunner) await Promise.all(under.map(({ id }) => store.change(id, interrupt).catch(() => undefined)))
      tabs.close()
      if (isRunner) await letGo().catch(() => undefined)
      store.close()
    },
  }
}
