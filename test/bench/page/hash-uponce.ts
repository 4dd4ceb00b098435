/** Ours. */
import { digest } from '../../../src/digest.js'
import { enter } from './stage.js'

enter(({ digests }) => ({
  async drain([file]) {
    if ((await digest(file!)) !== digests[file!.name]) throw new Error('the digest is wrong')
  },
}))
