import { createUploadQueue, type Transport, type UploadQueueOptions, xhrTransport } from 'uponce'
import { defineUploadQueue } from 'uponce/element'
import { account } from './account.js'

defineUploadQueue()

/** Parks what is sent in the page, where a test moves its bytes: for a thousand uploads at once. */
const parked: Parameters<Transport['send']>[0][] = []
const parking: Transport = {
  reportsBytes: true,
  send: (request) => {
    parked.push(request)
    return new Promise((_resolve, reject) => request.signal.addEventListener('abort', () => reject(request.signal.reason)))
  },
}

/** What a test wants otherwise. */
const { options = {}, isParking = false } = globalThis as { options?: Partial<UploadQueueOptions>; isParking?: boolean }
const queue = createUploadQueue(
  {
    ...account,
    endpoint: '/uploads',
    ...(isParking ? { transport: parking, persist: 'memory', concurrency: 5 } : { transport: xhrTransport() }),
    // As one who has signed out meanwhile, when a test says so.
    headers: () => ('signedOut' in globalThis ? {} : account.headers),
    ...options,
  },
  { random: () => 0.9 },
)
const element = document.createElement('upload-queue')
element.toggleAttribute('multiple', true)
element.queue = queue
const title = document.createElement('h1')
title.textContent = 'Uploads'
const main = document.createElement('main')
main.append(title, element)
document.body.append(main)

Object.assign(globalThis, { queue, element, parked })
