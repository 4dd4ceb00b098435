/** hash-wasm in a worker, with one buffer. */
import { hashInWorker } from './hash.js'
import { enter } from './stage.js'

enter(() => ({
  async drain([file]) {
    await hashInWorker(file!)
  },
}))
