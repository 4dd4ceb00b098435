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
  let asked = false

  const ask = (isLeaving: boolean): void => {
    if (!queue.getSnapshot().some(runsByItself)) return
    asked = true
    wake(tag, isLeaving).catch(() => {
      // No worker can be had here: the queue works without.
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

async function wake(tag: string, isLeaving: boolean): Promise<void> {
  const { active, sync }: ServiceWorkerRegistration & { sync?: SyncManager } = await globalThis.navigator.serviceWorker.ready
  // Chromium takes no registration of a page that has gone meanwhile, as one that is being closed often has; a message does arrive.
  if (isLeaving || !sync) active?.postMessage({ type: tag })
  await sync?.register(tag)
}
