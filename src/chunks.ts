/** Bytes read at a time: large enough to be quick, small enough that hashing a piece by script blocks nothing (16 ms at 65 MB/s). */
const chunkSize = 2 ** 20

/** The bytes of a Blob, piece by piece. Throws the signal's reason, or the engine's error where the bytes cannot be read. */
export async function* chunksOf(blob: Blob, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
  for (let start = 0; start < blob.size; start += chunkSize) {
    signal?.throwIfAborted()
    yield new Uint8Array(await blob.slice(start, start + chunkSize).arrayBuffer())
  }
}

export const toHex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
