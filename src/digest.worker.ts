import { sha256 } from '@noble/hashes/sha2.js'
import { chunksOf, toHex } from './chunks.js'
import type { DigestMessage } from './digest.js'

declare const self: DedicatedWorkerGlobalScope

const say = (message: DigestMessage): void => self.postMessage(message)

self.onmessage = async ({ data: blob }: MessageEvent<Blob>) => {
  try {
    const hash = sha256.create()
    for await (const chunk of chunksOf(blob)) hash.update(chunk)
    say({ type: 'digest', sha256: toHex(hash.digest()) })
  } catch (error) {
    const { name, message } = error as Error
    say({ type: 'unreadable', name, message })
  }
}

say({ type: 'ready' })
