import { UploadError } from './errors.js'
import { toHex } from './hex.js'
import { createTurns } from './turns.js'
import { within } from './within.js'

/** Up to this many bytes the browser's own SHA-256 over the whole is quickest; above, it would hold twice the file in memory. */
export const wholeLimit: number = 2 ** 20
/** More at a time delay the page's timers: 16 of them by 80 ms. */
const takeNativeTurn = createTurns(4)
/** Code that is not there by then, ms, does not come. */
const loadLimit = 30_000

type DigestByScript = typeof import('./digest-by-script.js').digestByScript
let brought: DigestByScript | undefined

/** Brings the code along that is else loaded when it is needed, for service workers: they may not `import()`. */
export function bringDigestByScript(digestByScript: DigestByScript): void {
  brought = digestByScript
}

/**
 * SHA-256 as 64 lower-case hex digits: by the browser when small, in a worker when large, by script on this thread where there is neither
 * (an insecure origin, a Content-Security-Policy without workers). `onProgress` is told how many bytes of a large file are hashed; where the
 * worker dies it begins anew. Rejects with the signal's reason, the engine's error for bytes that cannot be read, or `UploadError`: `timeout`
 * where reading them hangs, `network` where the code for it does not load.
 */
export async function digest(bytes: Blob | ArrayBuffer, signal?: AbortSignal, onProgress?: (loaded: number) => void): Promise<string> {
  const isBlob = 'size' in bytes
  const size = isBlob ? bytes.size : bytes.byteLength
  try {
    if (size <= wholeLimit && globalThis.crypto?.subtle) {
      const buffer = isBlob ? await bytes.arrayBuffer() : bytes
      return toHex(new Uint8Array(await takeNativeTurn(() => crypto.subtle.digest('SHA-256', buffer), signal)))
    }
    const blob = isBlob ? bytes : new Blob([bytes])
    if (size > wholeLimit && typeof Worker !== 'undefined') {
      const { digestInWorker } = await loaded(import('./digest-in-worker.js'), signal)
      const sha256 = await digestInWorker(blob, signal, onProgress)
      if (sha256) return sha256
    }
    const digestByScript = brought ?? (await loaded(import('./digest-by-script.js'), signal)).digestByScript
    return await digestByScript(blob, signal, onProgress)
  } catch (cause) {
    signal?.throwIfAborted()
    if ((cause as Error)?.name !== 'TimeoutError') throw cause
    throw new UploadError('timeout', 'The bytes could not be read in time.', { cause })
  }
}

/** The page may be offline by now, or its files replaced by a deploy: neither says anything about the bytes. */
async function loaded<Code>(code: Promise<Code>, signal: AbortSignal | undefined): Promise<Code> {
  try {
    return await within(loadLimit, code, signal)
  } catch (cause) {
    throw new UploadError('network', 'The code that hashes large files did not load.', { cause })
  }
}
