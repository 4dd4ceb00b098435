import { createUploadQueue } from 'uponce'
import { attach } from 'uponce/file-picker'
import { syncInBackground } from 'uponce/service-worker'
import { showUploads } from '../list.js'

const queue = createUploadQueue({ endpoint: '/uploads' })
attach(queue, document.querySelector('input') as HTMLInputElement)
showUploads(queue, document.querySelector('ul') as Element)

navigator.serviceWorker.register('sw.js', { type: 'module' })
syncInBackground(queue)
