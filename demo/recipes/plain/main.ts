import { createUploadQueue } from 'uponce'
import { showUploads } from '../list.js'

const queue = createUploadQueue({ endpoint: '/uploads' })
showUploads(queue, document.querySelector('ul') as Element)

const form = document.querySelector('form') as HTMLFormElement
form.addEventListener('submit', async (event) => {
  event.preventDefault()
  const { files } = form.querySelector('input') as HTMLInputElement
  await queue.enqueueAll(files ?? []) // they are on disk now, and are sent whatever becomes of this page
  form.reset()
})
