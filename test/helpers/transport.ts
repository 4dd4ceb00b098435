import { UploadError } from '../../src/errors.js'
import type { Transport, TransportAnswer, TransportRequest } from '../../src/transport.js'

/** One request that a queue has made, and the test's way to end it. */
export interface SentRequest extends TransportRequest {
  /** The `Idempotency-Key` and digest it carries. */
  readonly key: string
  readonly sha256: string
  text(): Promise<string>
  respondWith(answer: { status: number; headers?: HeadersInit; body?: unknown; url?: string; redirected?: boolean; broken?: boolean }): void
  /** 201 with a receipt, as the reference server gives it. */
  store(): void
  /** No readable answer. */
  lose(): void
}

export interface TransportDouble extends Transport {
  /** All requests so far. */
  readonly requests: readonly SentRequest[]
  /** How many are under way, and how many were at most. */
  readonly open: number
  readonly mostOpen: number
  /** The oldest request the test has not seen yet; waits for it. */
  nextRequest(): Promise<SentRequest>
}

/** A transport that lets the test speak for the server. */
export function createTransportDouble({ reportsBytes = false } = {}): TransportDouble {
  const requests: SentRequest[] = []
  const unseen: SentRequest[] = []
  const waiting: ((request: SentRequest) => void)[] = []
  let open = 0
  let mostOpen = 0
  return {
    reportsBytes,
    requests,
    get open() {
      return open
    },
    get mostOpen() {
      return mostOpen
    },
    nextRequest: () =>
      new Promise((resolve) => {
        const request = unseen.shift()
        if (request) resolve(request)
        else waiting.push(resolve)
      }),
    send(request) {
      open += 1
      mostOpen = Math.max(mostOpen, open)
      return new Promise<TransportAnswer>((resolve, reject) => {
        if (request.signal.aborted) reject(request.signal.reason)
        request.signal.addEventListener('abort', () => reject(request.signal.reason))
        const key = request.headers.get('Idempotency-Key') ?? ''
        const sha256 = request.headers.get('X-File-Sha256') ?? ''
        const sent: SentRequest = {
          ...request,
          key,
          sha256,
          text: () => (request.body as Blob).text(),
          respondWith({ status, headers, body = '', url = request.url, redirected = false, broken = false }) {
            const text = typeof body === 'string' ? body : JSON.stringify(body)
            const type = typeof body === 'string' ? {} : { 'Content-Type': 'application/json' }
            resolve({
              status,
              headers: new Headers({ ...type, ...Object.fromEntries(new Headers(headers)) }),
              url,
              redirected,
              text,
              broken,
            })
          },
          store: () => sent.respondWith({ status: 201, body: { uploadId: `id-${key}`, storageKey: `at-${key}`, sha256 } }),
          lose: () => reject(new UploadError('network', 'No readable answer.')),
        }
        requests.push(sent)
        const next = waiting.shift()
        if (next) next(sent)
        else unseen.push(sent)
      }).finally(() => {
        open -= 1
      })
    },
  }
}
