/** As the real one, for less. */
class Signal {
  aborted = false
  #reason: unknown
  readonly #listeners = new Set<() => void>()

  /** Most are never looked at. */
  get reason(): unknown {
    if (this.aborted) this.#reason ??= new DOMException('This operation was aborted', 'AbortError')
    return this.#reason
  }
  addEventListener(_type: 'abort', listener: () => void): void {
    if (!this.aborted) this.#listeners.add(listener)
  }
  removeEventListener(_type: 'abort', listener: () => void): void {
    this.#listeners.delete(listener)
  }
  throwIfAborted(): void {
    if (this.aborted) throw this.reason
  }
  end(reason: unknown): void {
    if (this.aborted) return
    this.aborted = true
    this.#reason = reason
    for (const listener of this.#listeners) listener()
    this.#listeners.clear()
  }
}

class Controller {
  readonly signal = new Signal()
  abort(reason?: unknown): void {
    this.signal.end(reason)
  }
}

/** What pages and processes take for the engine's own. */
export const CheapAbortController = Controller as unknown as typeof AbortController
