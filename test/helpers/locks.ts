interface Held {
  name: string
  mode: LockMode
  /** Rejects when another request steals the lock. */
  stolen: Promise<never>
  steal: () => void
}

interface Waiting {
  name: string
  mode: LockMode
  grant: () => void
}

const notSupported = (message: string): DOMException => new DOMException(message, 'NotSupportedError')

/**
 * Web Locks inside one process, for environments that have none (https://w3c.github.io/web-locks/). Whoever shares an instance is a tab of one
 * browser.
 */
export class FakeLocks implements LockManager {
  #held: Held[] = []
  #waiting: Waiting[] = []

  request<T>(name: string, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  request<T>(name: string, options: LockOptions, callback: LockGrantedCallback<T>): Promise<Awaited<T>>
  async request<T>(name: string, ...rest: [LockGrantedCallback<T>] | [LockOptions, LockGrantedCallback<T>]): Promise<Awaited<T>> {
    const [options, callback] = rest.length === 1 ? [{}, rest[0]] : rest
    const { mode = 'exclusive', ifAvailable = false, steal = false, signal } = options
    if (name.startsWith('-')) throw notSupported('Names that start with "-" are reserved.')
    if (steal && (ifAvailable || mode === 'shared')) throw notSupported('steal goes with neither ifAvailable nor shared.')
    if (signal && (steal || ifAvailable)) throw notSupported('signal goes with neither steal nor ifAvailable.')
    signal?.throwIfAborted()

    if (steal) for (const held of this.#held.filter((held) => held.name === name)) held.steal()
    const free = steal || (this.#fits(name, mode) && !this.#waiting.some((waiting) => waiting.name === name))
    if (!free && ifAvailable) return await callback(null)
    const held = free ? this.#take(name, mode) : await this.#wait(name, mode, signal)
    try {
      await null // a callback never runs inside request()
      return await Promise.race([callback({ name, mode }), held.stolen])
    } finally {
      this.#release(held)
    }
  }

  async query(): Promise<LockManagerSnapshot> {
    const info = ({ name, mode }: { name: string; mode: LockMode }): LockInfo => ({ clientId: 'fake', name, mode })
    return { held: this.#held.map(info), pending: this.#waiting.map(info) }
  }

  #fits(name: string, mode: LockMode): boolean {
    return this.#held.every((held) => held.name !== name || (mode === 'shared' && held.mode === 'shared'))
  }

  #take(name: string, mode: LockMode): Held {
    let reject: (reason: unknown) => void
    const stolen = new Promise<never>((_resolve, rejectStolen) => {
      reject = rejectStolen
    })
    stolen.catch(() => {})
    const held: Held = {
      name,
      mode,
      stolen,
      steal: () => {
        this.#held = this.#held.filter((other) => other !== held)
        reject(new DOMException('The lock was stolen by another request.', 'AbortError'))
      },
    }
    this.#held.push(held)
    return held
  }

  #wait(name: string, mode: LockMode, signal: AbortSignal | undefined): Promise<Held> {
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        signal?.removeEventListener('abort', abort)
        this.#waiting = this.#waiting.filter((other) => other !== waiting)
      }
      const abort = (): void => {
        leave()
        this.#grantNext()
        reject(signal?.reason)
      }
      const grant = (): void => {
        leave()
        resolve(this.#take(name, mode))
      }
      const waiting: Waiting = { name, mode, grant }
      this.#waiting.push(waiting)
      signal?.addEventListener('abort', abort)
    })
  }

  #release(held: Held): void {
    this.#held = this.#held.filter((other) => other !== held)
    this.#grantNext()
  }

  /** Those who wait for one name are served in the order of their coming. */
  #grantNext(): void {
    for (const waiting of [...this.#waiting]) {
      const isFirst = this.#waiting.find(({ name }) => name === waiting.name) === waiting
      if (isFirst && this.#fits(waiting.name, waiting.mode)) waiting.grant()
    }
  }
}
