/** What the browser does by itself, with all bytes in memory. */
import { hashWhole } from './hash.js'
import { enter } from './stage.js'

enter(() => ({
  async drain([file]) {
    await hashWhole(await file!.arrayBuffer())
  },
}))
