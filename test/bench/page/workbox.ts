/** Workbox's queue of requests, without Background Sync: then it replays, one after another, what it holds. */
import { Queue } from 'workbox-background-sync'
import { enter } from './stage.js'

enter(({ endpoint, digests, onDurable }) => {
  // It expects to be in a service worker, and asks its registration for Background Sync.
  Object.assign(globalThis, { registration: {} })
  const queue = new Queue('bench', { onSync: async () => {} })
  return {
    async drain(files) {
      const requests = files.map((file) => {
        const headers = { 'Idempotency-Key': crypto.randomUUID(), 'X-File-Sha256': digests[file.name]!, 'X-File-Name': file.name }
        return new Request(endpoint, { method: 'POST', body: file, headers })
      })
      await Promise.all(requests.map((request) => queue.pushRequest({ request })))
      onDurable()
      await queue.replayRequests()
    },
  }
})
