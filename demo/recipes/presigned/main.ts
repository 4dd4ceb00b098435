import { createUploadQueue, fetchTransport } from 'uponce'
import { attach } from 'uponce/file-picker'
import { showUploads } from '../list.js'

const { send } = fetchTransport()

const queue = createUploadQueue<string>({
  // Always the same place, so that a repeat replaces the very same bytes.
  endpoint: ({ idempotencyKey }) => `/presign?key=${idempotencyKey}`,
  method: 'PUT',
  transport: {
    reportsBytes: false,
    // URLs expire: each attempt asks for one of its own. Asked for here, and not by `endpoint`, a network that is gone is waited for.
    async send(request) {
      const { url, credentials, signal } = request
      const signed = await send({ url, method: 'POST', headers: new Headers(), credentials, signal, onProgress() {} })
      if (signed.status !== 200) return signed
      return send({ ...request, url: signed.text, credentials: 'omit' })
    },
  },
  response: (response, { idempotencyKey }): string => {
    if (response.status !== 200) throw new Error('S3 answers a stored object with 200.')
    return idempotencyKey
  },
})
attach(queue, document.querySelector('input') as HTMLInputElement)
showUploads(queue, document.querySelector('ul') as Element)
