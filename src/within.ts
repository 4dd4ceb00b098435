/** What a promise comes to; rejects with a `TimeoutError` where that takes longer than `ms`, if given, and with the signal's reason at its abort. */
export async function within<T>(ms: number | undefined, promise: T | Promise<T>, signal?: AbortSignal): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined
  let onAbort: (() => void) | undefined
  const end = new Promise<never>((_resolve, reject) => {
    if (ms !== undefined) timer = setTimeout(() => reject(new DOMException('It took too long.', 'TimeoutError')), ms)
    onAbort = () => reject(signal?.reason)
    signal?.addEventListener('abort', onAbort)
    if (signal?.aborted) onAbort()
  })
  try {
    return await Promise.race([promise, end])
  } finally {
    clearTimeout(timer)
    if (onAbort) signal?.removeEventListener('abort', onAbort)
  }
}
