import { bringDigestByScript } from './digest.js'
import { digestByScript } from './digest-by-script.js'
import { resolveOptions, type UploadQueueOptions } from './options.js'
import type { QueuePorts } from './ports.js'
import type { UploadReceipt } from './proof.js'
import { createUploadQueue, type UploadQueue } from './queue.js'
import { runsByItself } from './record.js'
import type { Upload } from './snapshot.js'
import { within } from './within.js'

/** Chromium ends a `sync` event after 3 minutes, other events after 5. This, ms, leaves it time to stop an upload properly. */
const runLimit = 150_000
/** When nothing has been under way for so long, ms, all that is left has to wait. */
const patience = 5_000

/** What `sync`, `message` and `activate` events of a service worker have; lib.dom knows none of them. */
interface WorkerEvent extends Event {
  waitUntil(promise: Promise<unknown>): void
  /** Of a `sync` event. */
  tag?: string
  /** Of a `message` event. */
  data?: unknown
}

/**
 * Lets a service worker send what pages have left behind. Called once, as the worker's script is read. `options` are those of the pages'
 * `createUploadQueue`; its functions are called in the worker. Throws the same `TypeError`.
 *
 * A `sync` event of the queue's tag is held until the work is done, and rejects while some is left, so that the browser gives it another.
 * A `message` from a page, and the worker's activation, do the same without Background Sync. Each event makes one attempt at each upload that
 * is due. A page that runs the queue goes on; it is followed only when it stops.
 *
 * Returns the function that ends it.
 */
export function serveUploads<Result = UploadReceipt>(options: UploadQueueOptions<Result>, ports?: Partial<QueuePorts>): () => void {
  const { name } = resolveOptions(options)
  const tag = `uponce:${name}`
  /** The run that events share until it sends something: whoever comes later has one of its own. */
  let shared: Promise<void> | undefined
  /** Ends with the last run. */
  let last: Promise<void> = Promise.resolve()

  const run = async (limit: number, part: () => void): Promise<void> => {
    // What a worker keeps in memory is no use to anybody.
    const queue = createUploadQueue<Result>({ ...options, persist: 'required', autoStart: false }, { ...ports, once: true })
    queue.on('started', part)
    try {
      await within(
        limit,
        queue.start().then(() => rest(queue)),
      )
      const left = queue.getSnapshot().filter(runsByItself).length
      if (left > 0) throw new Error(`Uploads that are left: ${left}.`)
    } finally {
      part()
      await queue.close()
    }
  }
  const serve = (): Promise<void> => {
    if (shared) return shared
    const since = Date.now()
    const running = last.then(() =>
      run(runLimit - (Date.now() - since), () => {
        if (shared === running) shared = undefined
      }),
    )
    shared = running
    last = running.catch(() => {})
    return running
  }

  const onSync = (event: Event): void => {
    const sync = event as WorkerEvent
    if (sync.tag === tag) sync.waitUntil(serve())
  }
  const onMessage = (event: Event): void => {
    const message = event as WorkerEvent
    if ((message.data as { type?: unknown } | null | undefined)?.type === tag) message.waitUntil?.(serve().catch(() => {}))
  }
  // Not held: pages get no answer from a worker that is still being activated.
  const onActivate = (): void => void serve().catch(() => {})

  bringDigestByScript(digestByScript)
  const listeners: [string, (event: Event) => void][] = [
    ['sync', onSync],
    ['message', onMessage],
    ['activate', onActivate],
  ]
  for (const [type, listener] of listeners) globalThis.addEventListener?.(type, listener)
  return () => {
    for (const [type, listener] of listeners) globalThis.removeEventListener?.(type, listener)
  }
}

const isUnderWay = ({ status, notBefore }: Upload): boolean =>
  status === 'uploading' || (status === 'preparing' && (notBefore === null || notBefore <= Date.now()))

/** Resolves when nothing is left to do, or all that is left has to wait: here, or in the page that runs the queue. */
function rest<Result>(queue: UploadQueue<Result>): Promise<void> {
  return new Promise((resolve) => {
    let timer: ReturnType<typeof setTimeout> | undefined
    const end = (): void => {
      clearTimeout(timer)
      unsubscribe()
      resolve()
    }
    const check = (): void => {
      const uploads = queue.getSnapshot()
      if (!uploads.some(runsByItself)) end()
      else if (!uploads.some(isUnderWay)) timer ??= setTimeout(end, patience)
      else {
        clearTimeout(timer)
        timer = undefined
      }
    }
    const unsubscribe = queue.subscribe(check)
    check()
  })
}
