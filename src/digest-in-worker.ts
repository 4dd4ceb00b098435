import { createTurns } from './turns.js'

/** What the worker says; `failed`: it cannot go on, for a reason that is not the file's. */
export type DigestMessage =
  | { type: 'ready' }
  | { type: 'progress'; loaded: number }
  | { type: 'digest'; sha256: string }
  | { type: 'unreadable'; name: string; message: string }
  | { type: 'failed' }

/** Signs of life are looked for so often, ms. Looks are counted, not time: after a sleep only one of them is due. */
const lookSpacing = 10_000
/** A worker that is not there by the first look was not loaded, whatever the engine reports. */
const looksToStart = 1
/** One that says nothing for so many is dead. Bytes that it cannot read it gives up before: after 30 s. */
const looksToLive = 5

/** Two large files never wait for each other, four where there are cores for it; more would only be slower, each. */
const takeTurn = createTurns(Math.min(Math.max(globalThis.navigator?.hardwareConcurrency ?? 2, 2), 4))

/**
 * SHA-256 of a Blob as 64 lower-case hex digits, in a worker of its own. Resolves `undefined` where none can be had (a
 * Content-Security-Policy, a file that is not there), or it dies or falls silent. Rejects with the signal's reason as soon as it aborts, the
 * engine's error for bytes that cannot be read, or a `TimeoutError` where reading them hangs.
 */
export function digestInWorker(blob: Blob, signal?: AbortSignal, onProgress?: (loaded: number) => void): Promise<string | undefined> {
  return takeTurn(() => run(blob, signal, onProgress), signal)
}

function run(blob: Blob, signal: AbortSignal | undefined, onProgress: ((loaded: number) => void) | undefined): Promise<string | undefined> {
  let worker: Worker
  try {
    worker = new Worker(new URL(/* @vite-ignore */ './digest.worker.js', import.meta.url), { type: 'module' })
  } catch {
    return Promise.resolve(undefined)
  }
  let onAbort: (() => void) | undefined
  let timer: ReturnType<typeof setInterval> | undefined
  return new Promise<string | undefined>((resolve, reject) => {
    onAbort = () => reject(signal?.reason)
    signal?.addEventListener('abort', onAbort)
    if (signal?.aborted) onAbort()
    let looks = 0
    let enough = looksToStart
    timer = setInterval(() => {
      looks += 1
      if (looks >= enough) resolve(undefined)
    }, lookSpacing)
    worker.onerror = (event) => {
      event.preventDefault()
      resolve(undefined)
    }
    worker.onmessage = ({ data }: MessageEvent<DigestMessage>) => {
      looks = 0
      enough = looksToLive
      if (data.type === 'progress') onProgress?.(data.loaded)
      if (data.type === 'digest') resolve(data.sha256)
      if (data.type === 'unreadable') reject(new DOMException(data.message, data.name))
      if (data.type === 'failed') resolve(undefined)
    }
    worker.postMessage(blob)
  }).finally(() => {
    clearInterval(timer)
    if (onAbort) signal?.removeEventListener('abort', onAbort)
    worker.terminate()
  })
}
