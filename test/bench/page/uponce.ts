/** Ours. */
import { createUploadQueue, fetchTransport, type UploadQueue, type UploadQueueOptions, xhrTransport } from 'uponce'
import { enter } from './stage.js'

enter(({ endpoint, transport, atOnce, onDurable }) => {
  const open = (options: Partial<UploadQueueOptions>): UploadQueue =>
    createUploadQueue({
      endpoint,
      concurrency: atOnce,
      transport: transport === 'fetch' ? fetchTransport() : xhrTransport(),
      persist: 'required',
      ...options,
    })
  let resting: UploadQueue | undefined
  return {
    async drain(files) {
      const queue = open({})
      let left = files.length
      const drained = new Promise<void>((resolve, reject) => {
        queue.on('succeeded', () => {
          left -= 1
          if (left === 0) resolve()
        })
        queue.on('failed', ({ error }) => reject(error))
      })
      await queue.enqueueAll(files)
      onDurable()
      await drained
    },
    async save(file) {
      resting ??= open({ autoStart: false })
      await resting.enqueue(file)
    },
    async leave(files) {
      const queue = open({ autoStart: false })
      await queue.enqueueAll(files)
      await queue.close()
    },
    async resume() {
      const queue = open({})
      await queue.ready()
      return queue.getSnapshot().length
    },
  }
})
