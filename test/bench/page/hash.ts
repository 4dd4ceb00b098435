/** By the browser itself, over the whole. */
export async function hashWhole(bytes: ArrayBuffer): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

export function hashInWorker(blob: Blob): Promise<string> {
  const worker = new Worker(new URL('./hash.worker.js', import.meta.url), { type: 'module' })
  return new Promise<string>((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data)
    worker.onerror = () => reject(new Error('the worker failed'))
    worker.postMessage(blob)
  }).finally(() => worker.terminate())
}
