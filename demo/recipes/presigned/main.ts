import { createUploadQueue } from 'uponce'
import { attach } from 'uponce/file-picker'
import { showUploads } from '../list.js'

const queue = createUploadQueue<string>({
  // A new one for each attempt, since they expire; always to the same place, so that a repeat replaces the very same bytes.
  endpoint: async ({ idempotencyKey }) => {
    const response = await fetch(`/presign?key=${idempotencyKey}`, { method: 'POST' })
    if (!response.ok) throw new Error(`No URL: HTTP ${response.status}.`)
    return response.text()
  },
  method: 'PUT',
  credentials: 'omit',
  response: (response, { idempotencyKey }): string => {
    if (response.status !== 200) throw new Error('S3 answers a stored object with 200.')
    return idempotencyKey
  },
})
attach(queue, document.querySelector('input') as HTMLInputElement)
showUploads(queue, document.querySelector('ul') as Element)
