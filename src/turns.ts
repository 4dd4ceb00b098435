/** Runs work when there is room for it, in the order of the calls. Rejects with the signal's reason when that aborts before its turn. */
export type Turns = <T>(work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

/** Room for so many at a time. */
export function createTurns(limit: number): Turns {
  let free = limit
  const waiting = new Set<() => void>()
  const wait = (signal: AbortSignal | undefined): Promise<void> =>
    new Promise((resolve, reject) => {
      const leave = (): void => {
        waiting.delete(begin)
        reject(signal?.reason)
      }
      const begin = (): void => {
        waiting.delete(begin)
        signal?.removeEventListener('abort', leave)
        resolve()
      }
      waiting.add(begin)
      signal?.addEventListener('abort', leave, { once: true })
    })
  return async (work, signal) => {
    signal?.throwIfAborted()
    if (free > 0) free -= 1
    else await wait(signal)
    try {
      return await work()
    } finally {
      const [next] = waiting
      // The place is handed on: nobody who comes now gets in between.
      if (next) next()
      else free += 1
    }
  }
}
