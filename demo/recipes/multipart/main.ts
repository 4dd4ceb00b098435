import { createUploadQueue } from 'uponce'
import { attach } from 'uponce/file-picker'
import { showUploads } from '../list.js'

const queue = createUploadQueue({
  endpoint: '/multipart',
  body: { field: 'file' },
  response: async (response): Promise<string> => {
    const { id } = await response.json()
    if (typeof id !== 'string') throw new Error('This is not what server.ts answers.')
    return id
  },
})
attach(queue, document.querySelector('input') as HTMLInputElement)
showUploads(queue, document.querySelector('ul') as Element)
