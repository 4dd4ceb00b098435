import { CheapHeaders } from './headers.js'

/** Where an answer came from, and how much of it arrives. */
export interface Arrival {
  url?: string
  redirected?: boolean
  /** The connection breaks after its bytes. */
  isCut?: boolean
}

const bytesOf = (body: string | Uint8Array): Uint8Array => (typeof body === 'string' ? Buffer.from(body) : body)

/** As the real one, whose streams take longer than all that is done with it. */
export class CheapResponse {
  readonly [Symbol.toStringTag] = 'Response'
  readonly status: number
  readonly statusText: string
  readonly headers: Headers
  readonly url: string
  readonly redirected: boolean
  bodyUsed = false
  readonly #bytes: Uint8Array | null
  readonly #isCut: boolean

  constructor(
    body: string | Uint8Array | null = null,
    { status = 200, statusText = '', headers }: ResponseInit = {},
    arrival: Arrival = {},
  ) {
    this.status = status
    this.statusText = statusText
    this.headers = new CheapHeaders(headers)
    if (typeof body === 'string' && !this.headers.has('Content-Type')) this.headers.set('Content-Type', 'text/plain;charset=UTF-8')
    this.#bytes = body === null ? null : bytesOf(body)
    this.url = arrival.url ?? ''
    this.redirected = arrival.redirected ?? false
    this.#isCut = arrival.isCut ?? false
  }

  get ok(): boolean {
    return this.status >= 200 && this.status < 300
  }

  get body() {
    if (this.#bytes === null) return null
    let left: Uint8Array | undefined = this.#bytes.length > 0 ? this.#bytes : undefined
    const read = async (): Promise<{ done: boolean; value?: Uint8Array }> => {
      this.bodyUsed = true
      const value = left
      left = undefined
      if (value) return { done: false, value }
      if (this.#isCut) throw new TypeError('Failed to fetch')
      return { done: true }
    }
    return { locked: false, cancel: async () => {}, getReader: () => ({ read, cancel: async () => {} }) }
  }

  async text(): Promise<string> {
    return Buffer.from(this.#bytes ?? []).toString()
  }
}
