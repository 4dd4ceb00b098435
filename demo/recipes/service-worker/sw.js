import { serveUploads } from 'uponce/service-worker'

// As the page's queue: what a closed page has left is sent from here.
serveUploads({ endpoint: '/uploads' })

// The app itself: from the network, and what was seen last where there is none. Uploads are none of this: they pass by.
addEventListener('fetch', (event) => {
  const { method, destination } = event.request
  if (method === 'GET' && ['document', 'script', 'style', 'worker', 'manifest'].includes(destination))
    event.respondWith(load(event.request))
})

async function load(request) {
  const cache = await caches.open('app')
  try {
    const response = await fetch(request)
    if (response.ok) await cache.put(request, response.clone())
    return response
  } catch (error) {
    const kept = await cache.match(request)
    if (!kept) throw error
    return kept
  }
}
