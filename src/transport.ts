import { UploadError } from './errors.js'

/** One request, as a transport is to send it. */
export interface TransportRequest {
  /** Absolute. */
  url: string
  /** That of the queue, or `GET` for the look-up of an outcome. */
  method: string
  /** All of them, the app's own too. */
  headers: Headers
  /** Absent where the outcome of an earlier request is asked for. */
  readonly body?: Blob | FormData | undefined
  /** The same bytes, where they are few and at hand. Engines send a buffer of up to 64 KiB for less than a Blob, which they have to make first. */
  buffer?: ArrayBuffer | undefined
  /** As `fetch` takes them. */
  credentials: RequestCredentials
  /** Ends the request; its reason is what `send` rejects with. */
  signal: AbortSignal
  /** Bytes of the body handed to the network, where the transport can tell. */
  onProgress(loaded: number, total: number): void
}

/** A readable answer, whatever it says. */
export interface TransportAnswer {
  /** HTTP status. */
  status: number
  /** As far as the page may read them. */
  headers: Headers
  /** Where the answer came from, after redirects. */
  url: string
  /** Whether there were any. */
  redirected: boolean
  /** The body as text; as much as arrived, at most 1 MiB of it. */
  text: string
  /** Whether the body broke off. */
  broken: boolean
}

/**
 * Sends one request and knows nothing of retries. Resolves with any readable answer, whatever its status. Rejects with `UploadError`
 * `network` (no readable answer), `invalid-request` (it could not be sent at all), or the signal's reason.
 */
export interface Transport {
  /** Whether `onProgress` is called as bytes leave; then silence for `stallTimeout` ends an attempt. */
  readonly reportsBytes: boolean
  /** Sends one request. */
  send(request: TransportRequest): Promise<TransportAnswer>
}

const bodyLimit = 2 ** 20
const noAnswer = (cause: unknown): UploadError =>
  new UploadError('network', 'No readable answer: offline, blocked, or refused by a proxy.', { cause })
const notSendable = (cause: unknown): UploadError =>
  new UploadError('invalid-request', 'The request cannot be sent: its URL or a header is invalid.', { cause })

/** A body is made when it is asked for. */
const bodyOf = (request: TransportRequest): ArrayBuffer | Blob | FormData | null => request.buffer ?? request.body ?? null

/** As much of a body as arrives. */
async function readText(response: Response): Promise<{ text: string; broken: boolean }> {
  const decoder = new TextDecoder()
  let text = ''
  try {
    const reader = response.body?.getReader()
    while (reader && text.length < bodyLimit) {
      const { done, value } = await reader.read()
      text += decoder.decode(value, { stream: !done })
      if (done) break
    }
    reader?.cancel().catch(() => {})
    return { text: text.slice(0, bodyLimit), broken: false }
  } catch {
    return { text, broken: true }
  }
}

/** The default transport. Cannot report progress: browsers do not tell how much of a `fetch` body has left. */
export function fetchTransport(): Transport {
  return {
    reportsBytes: false,
    async send(request) {
      const { url, method, headers, credentials, signal } = request
      try {
        // What a request cannot hold is told apart here, by where it throws: every engine words its network errors differently.
        new Request(url, { method, headers, credentials })
      } catch (cause) {
        throw notSendable(cause)
      }
      let response: Response
      try {
        response = await fetch(url, { method, headers, body: bodyOf(request), credentials, signal })
      } catch (cause) {
        throw signal.aborted ? signal.reason : noAnswer(cause)
      }
      const { text, broken } = await readText(response)
      if (broken && signal.aborted) throw signal.reason
      return { status: response.status, headers: response.headers, url: response.url || url, redirected: response.redirected, text, broken }
    },
  }
}

const parseHeaderLines = (lines: string): Headers => {
  const headers = new Headers()
  for (const line of lines.split('\r\n')) {
    const colon = line.indexOf(':')
    if (colon > 0) headers.append(line.slice(0, colon), line.slice(colon + 1).trim())
  }
  return headers
}

/** Reports bytes as they leave. Pages only: workers of some engines have no upload events, service workers no XMLHttpRequest at all. */
export function xhrTransport(): Transport {
  return {
    reportsBytes: true,
    send(request) {
      const { url, method, headers, credentials, signal, onProgress } = request
      return new Promise((resolve, reject) => {
        const xhr = new XMLHttpRequest()
        const settle = (finish: () => void): void => {
          signal.removeEventListener('abort', onAbort)
          finish()
        }
        // The caller is answered at once; what the engine reports after its abort() is of no interest.
        const onAbort = (): void => {
          settle(() => reject(signal.reason))
          xhr.abort()
        }
        const answer = (broken: boolean): void => {
          const finalUrl = xhr.responseURL || url
          const redirected = withoutFragment(finalUrl) !== withoutFragment(url)
          const text = (xhr.responseText || partial).slice(0, bodyLimit)
          settle(() => resolve({ ...head, url: finalUrl, redirected, text, broken }))
        }
        const readHead = (): void => {
          head = { status: xhr.status, headers: parseHeaderLines(xhr.getAllResponseHeaders()) }
        }
        let head = { status: 0, headers: new Headers() }
        let partial = ''
        xhr.onreadystatechange = () => {
          if (xhr.readyState === 2) readHead()
          if (xhr.readyState === 3) partial = xhr.responseText
        }
        xhr.onload = () => {
          readHead()
          answer(false)
        }
        // After the head has arrived an error is a body that broke off: the status is known, and may be all that is needed.
        xhr.onerror = () => (head.status > 0 ? answer(true) : settle(() => reject(noAnswer(undefined))))
        // The browser's own stop, of its stop button say, comes as an abort that nobody here has asked for.
        xhr.onabort = xhr.onerror
        xhr.upload.onprogress = (event) => onProgress(event.loaded, event.total)
        try {
          signal.throwIfAborted()
          xhr.open(method, url)
          xhr.withCredentials = credentials === 'include'
          for (const [name, value] of headers) xhr.setRequestHeader(name, value)
          signal.addEventListener('abort', onAbort)
          xhr.send(bodyOf(request))
        } catch (cause) {
          settle(() => reject(signal.aborted ? signal.reason : notSendable(cause)))
        }
      })
    },
  }
}

const withoutFragment = (url: string): string => url.split('#', 1)[0] as string
