import { sha256 } from '@noble/hashes/sha2.js'
import { createSHA256 } from 'hash-wasm'
import { piecesOf } from './chunks.js'
import type { DigestMessage } from './digest-in-worker.js'
import { toHex } from './hex.js'

declare const self: DedicatedWorkerGlobalScope

/** `progress` is said no more often than this, ms. */
const progressSpacing = 100

const say = (message: DigestMessage): void => self.postMessage(message)

interface Hash {
  update(piece: Uint8Array): unknown
  hex(): string
}

/** In WebAssembly, three times as quick as by script; a Content-Security-Policy without `wasm-unsafe-eval` forbids it. */
async function createHash(): Promise<Hash> {
  try {
    const hash = await createSHA256()
    return { update: hash.update, hex: () => hash.digest() }
  } catch {
    const hash = sha256.create()
    return { update: (piece) => hash.update(piece), hex: () => toHex(hash.digest()) }
  }
}

self.onmessage = async ({ data: blob }: MessageEvent<Blob>) => {
  try {
    const hash = await createHash()
    let loaded = 0
    let saidAt = performance.now()
    for await (const piece of piecesOf(blob)) {
      hash.update(piece)
      loaded += piece.byteLength
      if (performance.now() - saidAt < progressSpacing) continue
      saidAt = performance.now()
      say({ type: 'progress', loaded })
    }
    say({ type: 'digest', sha256: hash.hex() })
  } catch (error) {
    // What else is thrown, for want of memory say, is not the file's fault.
    if (error instanceof DOMException) say({ type: 'unreadable', name: error.name, message: error.message })
    else say({ type: 'failed' })
  }
}

say({ type: 'ready' })
