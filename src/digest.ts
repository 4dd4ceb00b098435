import { chunksOf, toHex } from './chunks.js'
import { UploadError } from './errors.js'

/** Up to this many bytes the browser's own SHA-256 over the whole is quickest; above, it would hold twice the file in memory. */
export const wholeLimit: number = 2 ** 20

/** A worker that said nothing for so long, ms, was not loaded, whatever the engine reports. */
const workerStartLimit = 10_000

/** What the worker says. */
export type DigestMessage = { type: 'ready' } | { type: 'digest'; sha256: string } | { type: 'unreadable'; name: string; message: string }

/**
 * SHA-256 as 64 lower-case hex digits: by the browser when small, in a worker when large, by script on this thread where there is neither
 * (an insecure origin, a Content-Security-Policy without workers). Rejects with the signal's reason, the engine's error for bytes that cannot
 * be read, or `UploadError` `network` where the code for it does not load.
 */
export async function digest(bytes: Blob | ArrayBuffer, signal?: AbortSignal): Promise<string> {
  const isBlob = 'size' in bytes
  const size = isBlob ? bytes.size : bytes.byteLength
  if (size <= wholeLimit && globalThis.crypto?.subtle) {
    const buffer = isBlob ? await bytes.arrayBuffer() : bytes
    signal?.throwIfAborted()
    return toHex(new Uint8Array(await crypto.subtle.digest('SHA-256', buffer)))
  }
  const blob = isBlob ? bytes : new Blob([bytes])
  return (size > wholeLimit && (await digestInWorker(blob, signal))) || digestHere(blob, signal)
}

/** Resolves `undefined` where no worker can be had. */
function digestInWorker(blob: Blob, signal: AbortSignal | undefined): Promise<string | undefined> {
  if (typeof Worker === 'undefined') return Promise.resolve(undefined)
  let worker: Worker
  try {
    worker = new Worker(new URL(/* @vite-ignore */ './digest.worker.js', import.meta.url), { type: 'module' })
  } catch {
    return Promise.resolve(undefined)
  }
  let onAbort: (() => void) | undefined
  let timer: ReturnType<typeof setTimeout> | undefined
  return new Promise<string | undefined>((resolve, reject) => {
    signal?.throwIfAborted()
    onAbort = () => reject(signal?.reason)
    signal?.addEventListener('abort', onAbort)
    timer = setTimeout(() => resolve(undefined), workerStartLimit)
    worker.onerror = (event) => {
      event.preventDefault()
      resolve(undefined)
    }
    worker.onmessage = ({ data }: MessageEvent<DigestMessage>) => {
      clearTimeout(timer)
      if (data.type === 'digest') resolve(data.sha256)
      if (data.type === 'unreadable') reject(new DOMException(data.message, data.name))
    }
    worker.postMessage(blob)
  }).finally(() => {
    clearTimeout(timer)
    if (onAbort) signal?.removeEventListener('abort', onAbort)
    worker.terminate()
  })
}

type Sha256 = typeof import('@noble/hashes/sha2.js').sha256
let brought: Sha256 | undefined

/** Brings the code along that is else loaded when it is needed, for service workers: they may not `import()`. */
export function bringSha256(sha256: Sha256): void {
  brought = sha256
}

async function digestHere(blob: Blob, signal: AbortSignal | undefined): Promise<string> {
  const sha256 = brought ?? (await loadSha256())
  const hash = sha256.create()
  for await (const chunk of chunksOf(blob, signal)) hash.update(chunk)
  return toHex(hash.digest())
}

/** The page may be offline by now, or its files replaced by a deploy: neither says anything about the bytes. */
async function loadSha256(): Promise<Sha256> {
  try {
    const { sha256 } = await import('@noble/hashes/sha2.js')
    return sha256
  } catch (cause) {
    throw new UploadError('network', 'The code that hashes large files did not load.', { cause })
  }
}
