/** Uppy with XHRUpload and GoldenRetriever, which keeps files of up to 10 MiB. */
import Uppy from '@uppy/core'
import GoldenRetriever from '@uppy/golden-retriever'
import XHRUpload from '@uppy/xhr-upload'
import { enter } from './stage.js'

const keptLimit = 10 * 2 ** 20

/** Calls when so many files are on disk: GoldenRetriever itself does not say. */
function onStored(count: number, call: () => void): void {
  const { add } = IDBObjectStore.prototype
  let stored = 0
  IDBObjectStore.prototype.add = function (...entry) {
    this.transaction.addEventListener('complete', () => {
      stored += 1
      if (stored === count) call()
    })
    return add.apply(this, entry)
  }
}

enter(({ endpoint, atOnce, digests, onDurable }) => {
  let stored = Promise.resolve()
  return {
    async drain(files) {
      if (files.every(({ size }) => size <= keptLimit))
        stored = new Promise((resolve) => {
          onStored(files.length, () => {
            onDurable()
            resolve()
          })
        })
      const uppy = new Uppy()
        .use(XHRUpload, {
          endpoint,
          formData: false,
          limit: atOnce,
          headers: ({ name }) => ({ 'Idempotency-Key': crypto.randomUUID(), 'X-File-Sha256': digests[name]!, 'X-File-Name': name }),
        })
        .use(GoldenRetriever)
      uppy.addFiles(files.map((file) => ({ name: file.name, type: 'application/octet-stream', data: file })))
      const { failed = [] } = (await uppy.upload()) ?? {}
      if (failed.length > 0) throw new Error(`${failed.length} failed: ${failed[0]?.error}`)
    },
    outlast: () => stored,
  }
})
