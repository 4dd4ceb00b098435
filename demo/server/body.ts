export interface BodyLimits {
  /** Longest silence while a chunk is awaited, in ms. */
  idleMs: number
  /** Slowest average, once `rateGraceMs` have been spent waiting. */
  minBytesPerSecond: number
  rateGraceMs: number
  /** Bytes read on behalf of an answer that is already known. */
  discardBytes: number
}

/** The client vanished before the end of its body. */
export class ClientGone extends Error {
  override name = 'ClientGone'
}

/** The body came too slowly, or not at all. */
export class BodyTimeout extends Error {
  override name = 'BodyTimeout'
}

export interface RequestBody {
  /** Bytes taken so far. */
  readonly received: number
  /** The next chunk, null at the end. Rejects with `ClientGone`, `BodyTimeout`, or the reason of the signal given to `watch`. */
  next(): Promise<Uint8Array | null>
  /** While the returned function has not been called, an abort of `signal` ends a pending `next`. */
  watch(signal: AbortSignal): () => void
  /**
   * Reads to the end and throws the bytes away, since a client that is still sending may not see an answer otherwise. Gives up, without
   * rejecting, when the client is gone, too slow, or has sent `discardBytes` more.
   */
  drain(): Promise<void>
}

/** The request's body, read under limits. It is never cancelled: behind msw a cancel() does not settle. */
export function createBody(request: Request, limits: BodyLimits): RequestBody {
  const reader = request.body?.getReader()
  let received = 0
  let waitedMs = 0
  let ended = reader === undefined
  let failed = false
  let interrupt: ((reason: unknown) => void) | undefined

  const read = (): Promise<ReadableStreamReadResult<Uint8Array>> =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => settle(() => reject(new BodyTimeout('no bytes arrived'))), limits.idleMs)
      const settle = (how: () => void): void => {
        clearTimeout(timer)
        interrupt = undefined
        how()
      }
      interrupt = (reason) => settle(() => reject(reason))
      reader!.read().then(
        (result) => settle(() => resolve(result)),
        (cause) => settle(() => reject(new ClientGone('the body broke off', { cause }))),
      )
    })

  const watch = (signal: AbortSignal, reason: () => unknown = () => signal.reason): (() => void) => {
    const onAbort = (): void => interrupt?.(reason())
    signal.addEventListener('abort', onAbort)
    return () => signal.removeEventListener('abort', onAbort)
  }

  const gone = (): ClientGone => new ClientGone('the client closed the connection')
  if (!ended) watch(request.signal, gone)

  const next = async (): Promise<Uint8Array | null> => {
    if (ended) return null
    if (request.signal.aborted) throw gone()
    const before = performance.now()
    const { done, value } = await read()
    waitedMs += performance.now() - before
    if (done) {
      ended = true
      return null
    }
    received += value.byteLength
    if (waitedMs > limits.rateGraceMs && (received * 1000) / waitedMs < limits.minBytesPerSecond)
      throw new BodyTimeout('bytes arrive too slowly')
    return value
  }

  return {
    get received() {
      return received
    },
    async next() {
      try {
        return await next()
      } catch (error) {
        failed = error instanceof ClientGone || error instanceof BodyTimeout
        throw error
      }
    },
    watch: (signal) => watch(signal),
    async drain() {
      // Nobody sends a body it was not asked for: Expect: 100-continue is answered without the 100.
      if (failed || (received === 0 && request.headers.get('expect')?.toLowerCase() === '100-continue')) return
      const until = received + limits.discardBytes
      try {
        while (received <= until && (await next()) !== null);
      } catch {
        // The answer is sent all the same, for whoever can still read it.
      }
    },
  }
}
