import { within } from './within.js'

/** Bytes read at a time where that blocks nobody: in a worker. Larger pieces are no quicker. */
const largePiece = 2 ** 20
/** A byte stream that brings nothing for so long, ms, is given up for slices: one that hung was seen in Chromium. */
export const streamLimit = 10_000
/** A slice that is not read by then, ms, will never be. A disk that has to spin up takes less. */
export const sliceLimit = 20_000

export interface SliceOptions {
  /** Where to begin; default 0. */
  start?: number
  /** Bytes of one slice; default 1 MiB. */
  size?: number
  signal?: AbortSignal | undefined
}

/**
 * The bytes of a Blob, piece by piece, in one buffer that is filled again and again: a piece is good until the next is asked for. Goes on by
 * slices where there are no byte streams (WebKit), or this one hangs or fails. Throws as `slicesOf` does.
 */
export async function* piecesOf(blob: Blob): AsyncGenerator<Uint8Array> {
  let offset = 0
  for await (const piece of streamOf(blob)) {
    offset += piece.byteLength
    yield piece
  }
  yield* slicesOf(blob, { start: offset })
}

/** As much as the stream brings: it ends before the Blob does where something goes wrong. */
async function* streamOf(blob: Blob): AsyncGenerator<Uint8Array> {
  let reader: ReadableStreamBYOBReader
  try {
    reader = blob.stream().getReader({ mode: 'byob' })
  } catch {
    return
  }
  try {
    let buffer = new ArrayBuffer(Math.min(largePiece, blob.size))
    while (buffer.byteLength > 0) {
      const { done, value } = await within(streamLimit, reader.read(new Uint8Array(buffer)))
      if (done) return
      yield value
      buffer = value.buffer
    }
  } catch {
    // Slices say what is wrong, or that nothing is.
  } finally {
    reader.cancel().catch(() => {})
  }
}

/**
 * The bytes of a Blob from `start` on; the next slice is read while one is worked on. Throws the signal's reason as soon as it aborts, the
 * engine's error where the bytes cannot be read, or a `TimeoutError` where a read does not end.
 */
export async function* slicesOf(blob: Blob, { start = 0, size = largePiece, signal }: SliceOptions = {}): AsyncGenerator<Uint8Array> {
  const read = (from: number): Promise<ArrayBuffer> | undefined => {
    if (from >= blob.size) return undefined
    const reading = blob.slice(from, from + size).arrayBuffer()
    // Nobody may be left to hear it.
    reading.catch(() => {})
    return reading
  }
  signal?.throwIfAborted()
  let reading = read(start)
  for (let from = start; reading; from += size) {
    const buffer: ArrayBuffer = await within(sliceLimit, reading, signal)
    reading = read(from + size)
    yield new Uint8Array(buffer)
  }
}
