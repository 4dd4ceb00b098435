import { CheapAbortController } from './abort.js'
import { CheapHeaders } from './headers.js'
import type { Realm } from './realm.js'

/** `fetch` that says how much of a body has left. */
export type ReportingFetch = (url: string, init: RequestInit, onBytes?: (loaded: number, total: number) => void) => Promise<Response>

/** As much of an XMLHttpRequest as a transport uses, by what its page has for `fetch`. */
export const xhrOf = (realm: Realm, fetch: ReportingFetch) =>
  class {
    readonly upload: { onprogress?: (event: { loaded: number; total: number }) => void } = {}
    readonly #controller = new CheapAbortController()
    readonly #headers = new CheapHeaders()
    #method = ''
    #response: Response | undefined
    onreadystatechange?: () => void
    onload?: () => void
    onerror?: () => void
    onabort?: () => void
    withCredentials = false
    readyState = 0
    status = 0
    responseText = ''
    responseURL = ''

    open(method: string, url: string): void {
      this.#method = method
      this.responseURL = url
    }
    setRequestHeader(name: string, value: string): void {
      this.#headers.append(name, value)
    }
    getAllResponseHeaders(): string {
      return [...(this.#response?.headers ?? [])].map(([name, value]) => `${name}: ${value}\r\n`).join('')
    }
    abort(): void {
      this.#controller.abort()
      this.onabort?.()
    }
    send(body: BodyInit | null): void {
      const { signal } = this.#controller
      const init = { method: this.#method, headers: this.#headers, body, signal }
      // It may be late: no engine does that, but an app's own transport may.
      const report = (loaded: number, total: number): void => realm.later(0, () => this.upload.onprogress?.({ loaded, total }))
      fetch(this.responseURL, init, report).then(
        (response) => this.#read(response),
        () => signal.aborted || this.onerror?.(),
      )
    }
    async #read(response: Response): Promise<void> {
      this.#response = response
      this.status = response.status
      this.responseURL = response.url
      this.#enter(2)
      const reader = response.body?.getReader()
      try {
        for (let next = await reader?.read(); next?.value; next = await reader?.read()) {
          this.responseText += Buffer.from(next.value).toString()
          this.#enter(3)
        }
        this.onload?.()
      } catch {
        // The engine forgets what has arrived.
        this.status = 0
        this.responseText = ''
        this.onerror?.()
      }
    }
    #enter(state: number): void {
      this.readyState = state
      this.onreadystatechange?.()
    }
  }
