import { createSHA256 } from 'hash-wasm'

/** Hashes a Blob with one buffer that is filled again and again. */
self.onmessage = async ({ data: blob }: MessageEvent<Blob>) => {
  const hash = await createSHA256()
  const reader = blob.stream().getReader({ mode: 'byob' })
  let buffer = new Uint8Array(2 ** 20)
  for (;;) {
    const { done, value } = await reader.read(buffer)
    if (done) break
    hash.update(value)
    buffer = new Uint8Array(value.buffer)
  }
  self.postMessage(hash.digest('hex'))
}
