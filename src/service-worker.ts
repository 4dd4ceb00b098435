import type { UploadQueue } from './queue.js'
import { runsByItself } from './record.js'

export { serveUploads } from './serve.js'

/** https://wicg.github.io/background-sync/spec/ */
interface SyncManager {
  register(tag: string): Promise<void>
}

/**
 * On a page: wakes the service worker when the page leaves work behind, that is whenever it is hidden. Then, and once when the network fails,
 * it asks the browser to do so as soon as there is a network, where there is Background Sync. `name` is that of the queue, default `'uploads'`.
 * Never throws.
 *
 * Returns the function that ends it.
 */
export function syncInBackground<Result>(queue: UploadQueue<Result>, { name = 'uploads' }: { name?: string } = {}): () => void {
  const tag = `uponce:${name}`
  // Asked for in time: a page that is being closed gets no answer any more.
  const registration = findRegistration()
  let asked = false

  const ask = (isLeaving: boolean): void => {
    if (!queue.getSnapshot().some(runsByItself)) return
    asked = true
    registration
      .then((found) => found && wake(found, tag, isLeaving))
      .catch(() => {
        // The browser lets nobody wake it: the queue works without.
      })
  }
  // The worker's own failed attempts are heard here, too: asked again, it would be woken at once, and so on.
  const onFailure = (): void => {
    if (!asked) ask(false)
  }
  const onVisibility = ({ target }: Event): void => {
    if ((target as Document).visibilityState === 'hidden') ask(true)
  }

  globalThis.addEventListener?.('visibilitychange', onVisibility)
  const endings = [
    () => globalThis.removeEventListener?.('visibilitychange', onVisibility),
    queue.on('offline', onFailure),
    queue.on('retrying', ({ reason }) => {
      if (reason === 'network') onFailure()
    }),
    queue.on('idle', () => {
      asked = false
    }),
  ]
  return () => {
    for (const end of endings) end()
  }
}

type Registration = ServiceWorkerRegistration & { sync?: SyncManager }

/** Waits for one; resolves `undefined` where there are no workers. */
async function findRegistration(): Promise<Registration | undefined> {
  return globalThis.navigator?.serviceWorker?.ready.catch(() => undefined)
}

async function wake({ active, sync }: Registration, tag: string, isLeaving: boolean): Promise<void> {
  // Chromium takes no registration of a page that has gone meanwhile, as one that is being closed often has; a message does arrive.
  if (isLeaving || !sync) active?.postMessage({ type: tag })
  await sync?.register(tag)
}
