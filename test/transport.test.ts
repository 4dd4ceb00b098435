import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { delay, HttpResponse, http } from 'msw'
import { setupServer } from 'msw/node'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { fetchTransport, type Transport, type TransportRequest, xhrTransport } from '../src/transport.js'
import { flush } from './helpers/fake-clock.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)
const url = 'https://files.example/uploads'

const intercepted = setupServer()
beforeAll(() => intercepted.listen({ onUnhandledRequest: 'bypass' }))
afterAll(() => intercepted.close())
afterEach(() => {
  intercepted.resetHandlers()
  vi.restoreAllMocks()
})

const request = (facts: Partial<TransportRequest> = {}): TransportRequest => ({
  url,
  method: 'POST',
  headers: new Headers({ 'Idempotency-Key': 'k1', 'Content-Type': 'application/x-any' }),
  body: new Blob([everyByte]),
  credentials: 'same-origin',
  signal: new AbortController().signal,
  onProgress: () => {},
  ...facts,
})

/** Some turns of the event loop later: an error takes with it what was not yet read. */
const later = async (work: () => void): Promise<void> => {
  await flush()
  work()
}

/** Answers as a stream, piece by piece, and then ends, breaks off or says no more. */
const streamed = (pieces: (string | Uint8Array)[], end: 'close' | 'break'): ReadableStream<Uint8Array> => {
  const left = pieces.map((piece) => (typeof piece === 'string' ? new TextEncoder().encode(piece) : piece))
  return new ReadableStream({
    pull(controller) {
      const piece = left.shift()
      if (piece) controller.enqueue(piece)
      else if (end === 'close') controller.close()
      else return later(() => controller.error(new TypeError('terminated')))
    },
  })
}

describe.each<[string, () => Transport]>([
  ['fetchTransport', fetchTransport],
  ['xhrTransport', xhrTransport],
])('%s', (_name, open) => {
  test('it sends method, headers and bytes, and resolves with status, headers and text', async () => {
    let seen: unknown
    intercepted.use(
      http.put(url, async ({ request: sent }) => {
        seen = [sent.headers.get('idempotency-key'), sent.headers.get('content-type'), new Uint8Array(await sent.arrayBuffer())]
        return HttpResponse.text('{"a":"ü"}', { status: 201, headers: { 'X-Two': 'b', 'Retry-After': '7' } })
      }),
    )
    const answer = await open().send(request({ method: 'PUT' }))
    expect(seen).toEqual(['k1', 'application/x-any', everyByte])
    expect(answer).toMatchObject({ status: 201, text: '{"a":"ü"}', broken: false, url, redirected: false })
    expect([answer.headers.get('retry-after'), answer.headers.get('X-Two'), answer.headers.get('absent')]).toEqual(['7', 'b', null])
  })

  test('it sends a form', async () => {
    let file: File | undefined
    intercepted.use(
      http.post(url, async ({ request: sent }) => {
        file = (await sent.formData()).get('file') as File
        return new HttpResponse(null, { status: 204 })
      }),
    )
    const form = new FormData()
    form.append('file', new Blob([everyByte], { type: 'image/x-any' }), '写真.png')
    const answer = await open().send(request({ headers: new Headers(), body: form }))
    expect(answer).toMatchObject({ status: 204, text: '', broken: false })
    expect(file?.name).toBe('写真.png')
    expect(new Uint8Array(await (file as File).arrayBuffer())).toEqual(everyByte)
  })

  test.each([200, 204, 400, 401, 409, 413, 422, 429, 500, 503])('an answer of %i is an answer', async (status) => {
    intercepted.use(http.post(url, () => new HttpResponse(null, { status })))
    expect((await open().send(request())).status).toBe(status)
  })

  test('no answer is a network error, with its cause where there is one', async () => {
    intercepted.use(http.post(url, () => HttpResponse.error()))
    await expect(open().send(request())).rejects.toMatchObject({ code: 'network', retryable: true })
  })

  test("an abort rejects at once with the signal's own reason", async () => {
    const asked = vi.fn()
    intercepted.use(
      http.post(url, async () => {
        asked()
        await delay('infinite')
      }),
    )
    const controller = new AbortController()
    const reason = new Error('own reason')
    const sending = open().send(request({ signal: controller.signal }))
    await vi.waitFor(() => expect(asked).toHaveBeenCalled())
    controller.abort(reason)
    await expect(sending).rejects.toBe(reason)
  })

  test('an aborted signal makes no request', async () => {
    const asked = vi.fn()
    intercepted.use(http.post(url, asked))
    const reason = new DOMException('own reason', 'TimeoutError')
    await expect(open().send(request({ signal: AbortSignal.abort(reason) }))).rejects.toBe(reason)
    await new Promise((resolve) => setImmediate(resolve))
    expect(asked).not.toHaveBeenCalled()
  })

  test('of a body over 1 MiB the first is kept', async () => {
    intercepted.use(http.post(url, () => HttpResponse.text('x'.repeat(3 * 2 ** 20))))
    const { text, status } = await open().send(request())
    expect(status).toBe(200)
    expect(text.length).toBe(2 ** 20)
  })
})

describe('fetchTransport and its engine', () => {
  test('it says that it reports no bytes', () => {
    expect(fetchTransport().reportsBytes).toBe(false)
    expect(xhrTransport().reportsBytes).toBe(true)
  })

  test.each([
    new TypeError('Failed to fetch'),
    new TypeError('NetworkError when attempting to fetch resource.'),
    new TypeError('NetworkError when attempting to fetch resource'),
    new TypeError('Load failed'),
    new TypeError('fetch failed'),
    new TypeError('Der Netzwerkvorgang ist fehlgeschlagen'),
    new TypeError(''),
    new DOMException('The network connection was lost.', 'NetworkError'),
    new DOMException('The operation was aborted.', 'AbortError'),
    new Error('of no known class'),
  ])('%s is a network error', async (cause) => {
    vi.spyOn(globalThis, 'fetch').mockRejectedValue(cause)
    await expect(fetchTransport().send(request())).rejects.toMatchObject({ code: 'network', retryable: true, cause })
  })

  test("an engine that words an abort otherwise changes nothing about the signal's reason", async () => {
    const controller = new AbortController()
    const reason = new DOMException('too long', 'TimeoutError')
    vi.spyOn(globalThis, 'fetch').mockImplementation(async () => {
      controller.abort(reason)
      throw new DOMException('Fetch is aborted', 'AbortError')
    })
    await expect(fetchTransport().send(request({ signal: controller.signal }))).rejects.toBe(reason)
  })

  test.each<[string, Partial<TransportRequest>]>([
    ['a URL that is none', { url: 'not a url' }],
    ['a URL without a host', { url: 'https://' }],
    ['credentials in the URL', { url: 'https://ann:secret@files.example/' }],
    ['a method that is no token', { method: 'PO ST' }],
    ['a forbidden method', { method: 'TRACE' }],
  ])('%s is an invalid request, told without its content', async (_name, facts) => {
    const made = vi.spyOn(globalThis, 'fetch')
    const error = await fetchTransport()
      .send(request(facts))
      .catch((thrown: Error) => thrown)
    expect(error).toMatchObject({ code: 'invalid-request' })
    expect((error as Error).message).not.toContain('secret')
    expect(made).not.toHaveBeenCalled()
  })

  test('credentials go as they are asked for', async () => {
    const made = vi.spyOn(globalThis, 'fetch').mockImplementation(async () => new Response('ok'))
    await fetchTransport().send(request({ credentials: 'include' }))
    expect(made.mock.calls[0]?.[1]).toMatchObject({ credentials: 'include', method: 'POST' })
  })

  test('a body that breaks off is told with what arrived, even half a letter', async () => {
    const cut = new TextEncoder().encode('{"uploadId":"ü').slice(0, -1)
    intercepted.use(http.post(url, () => new HttpResponse(streamed([cut], 'break'), { status: 201 })))
    expect(await fetchTransport().send(request())).toMatchObject({ status: 201, text: '{"uploadId":"', broken: true })
  })

  test('letters cut between two pieces are whole', async () => {
    const bytes = new TextEncoder().encode('ü写😀')
    intercepted.use(
      http.post(
        url,
        () =>
          new HttpResponse(
            streamed(
              [...bytes].map((byte) => Uint8Array.of(byte)),
              'close',
            ),
          ),
      ),
    )
    expect(await fetchTransport().send(request())).toMatchObject({ text: 'ü写😀', broken: false })
  })

  test('bytes that are no UTF-8 are no fault', async () => {
    intercepted.use(http.post(url, () => new HttpResponse(Uint8Array.of(0x61, 0xff, 0x62).buffer)))
    expect(await fetchTransport().send(request())).toMatchObject({ text: 'a\ufffdb', broken: false })
  })

  test('an endless body is not waited for', async () => {
    const piece = new TextEncoder().encode('x'.repeat(2 ** 16))
    intercepted.use(
      http.post(url, () => {
        const endless = new ReadableStream<Uint8Array>({
          async pull(controller) {
            await new Promise((resolve) => setImmediate(resolve))
            controller.enqueue(piece)
          },
        })
        return new HttpResponse(endless)
      }),
    )
    expect((await fetchTransport().send(request())).text.length).toBe(2 ** 20)
  })
})

describe('fetchTransport over a real connection', () => {
  let server: Server
  let base: string
  let answer: (received: IncomingMessage, response: ServerResponse, body: Buffer) => void
  beforeEach(async () => {
    server = createServer((received, response) => {
      const pieces: Buffer[] = []
      received.on('data', (piece: Buffer) => pieces.push(piece))
      received.on('end', () => answer(received, response, Buffer.concat(pieces)))
      received.on('error', () => {})
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  afterEach(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })

  test('all byte values arrive, with their length and the headers', async () => {
    let seen: unknown
    answer = ({ headers }, response, body) => {
      seen = [headers['content-length'], headers['idempotency-key'], headers['content-type'], new Uint8Array(body)]
      response.writeHead(201, { 'Content-Type': 'application/json' }).end('{"ok":true}')
    }
    expect(await fetchTransport().send(request({ url: `${base}/up` }))).toMatchObject({
      status: 201,
      text: '{"ok":true}',
      url: `${base}/up`,
      redirected: false,
    })
    expect(seen).toEqual(['256', 'k1', 'application/x-any', everyByte])
  })

  test('an answer that lost its connection half way is told with its head and what arrived', async () => {
    answer = (_received, response) => {
      response.writeHead(201, { 'Content-Length': '100', 'Idempotency-Key': 'k1' })
      response.write('{"uploadId"', () => response.destroy())
    }
    const { status, text, broken, headers } = await fetchTransport().send(request({ url: base }))
    expect([status, text, broken, headers.get('idempotency-key')]).toEqual([201, '{"uploadId"', true, 'k1'])
  })

  test('a connection cut before the answer, and one that nobody takes, are network errors', async () => {
    answer = ({ socket }) => socket.destroy()
    await expect(fetchTransport().send(request({ url: base }))).rejects.toMatchObject({ code: 'network' })
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
    await expect(fetchTransport().send(request({ url: base }))).rejects.toMatchObject({ code: 'network' })
  })

  test.each([307, 308])('a %i is followed with its body, and told', async (status) => {
    answer = (received, response, body) => {
      if (received.url === '/') response.writeHead(status, { Location: '/there' }).end()
      else response.writeHead(201).end(`${received.method} ${body.length}`)
    }
    expect(await fetchTransport().send(request({ url: `${base}/` }))).toMatchObject({
      status: 201,
      text: 'POST 256',
      url: `${base}/there`,
      redirected: true,
    })
  })

  test("an abort while the body comes rejects with the signal's own reason", async () => {
    const begun = new Promise<void>((resolve) => {
      answer = (_received, response) => void response.writeHead(201).write('{"uploadId"', () => resolve())
    })
    const controller = new AbortController()
    const read = vi.spyOn(ReadableStreamDefaultReader.prototype, 'read')
    const sending = fetchTransport().send(request({ url: base, signal: controller.signal }))
    await begun
    await vi.waitFor(() => expect(read).toHaveBeenCalled())
    const reason = new Error('own reason')
    controller.abort(reason)
    await expect(sending).rejects.toBe(reason)
  })

  test('an abort ends the connection', async () => {
    const closed = new Promise<void>((resolve) => {
      answer = (_received, response) => void response.once('close', resolve)
    })
    const arrived = new Promise((resolve) => server.once('request', resolve))
    const controller = new AbortController()
    const sending = fetchTransport().send(request({ url: base, signal: controller.signal }))
    await arrived
    const reason = new DOMException('paused', 'AbortError')
    await new Promise((resolve) => setImmediate(resolve))
    controller.abort(reason)
    await expect(sending).rejects.toBe(reason)
    await closed
  })
})

describe('xhrTransport and its engine', () => {
  test('it reports the bytes that left', async () => {
    intercepted.use(http.post(url, () => HttpResponse.text('ok')))
    const onProgress = vi.fn()
    await xhrTransport().send(request({ onProgress }))
    expect(onProgress).toHaveBeenLastCalledWith(256, 256)
  })

  /** As much of XMLHttpRequest as a test wants to steer; happy-dom and msw know no upload that stalls and no body that breaks. */
  class SteeredXhr {
    static last: SteeredXhr
    readyState = 0
    status = 0
    responseText = ''
    responseURL = ''
    withCredentials = false
    upload: { onprogress?: (event: { loaded: number; total: number }) => void } = {}
    onreadystatechange: () => void = () => {}
    onload: () => void = () => {}
    onerror: () => void = () => {}
    onabort: () => void = () => {}
    abort = vi.fn()
    open = vi.fn()
    send = vi.fn()
    setRequestHeader = vi.fn()
    constructor() {
      SteeredXhr.last = this
    }
    getAllResponseHeaders(): string {
      return 'content-type: application/json\r\nidempotency-key: k1\r\nx-list: a, b\r\nbad line\r\n'
    }
    reach(readyState: number): void {
      this.readyState = readyState
      this.onreadystatechange()
    }
  }
  const steer = (
    facts: Partial<TransportRequest> = {},
  ): { sending: ReturnType<Transport['send']>; xhr: SteeredXhr; controller: AbortController; onProgress: () => void } => {
    vi.stubGlobal('XMLHttpRequest', SteeredXhr)
    const controller = new AbortController()
    const onProgress = vi.fn()
    const sending = xhrTransport().send(request({ signal: controller.signal, onProgress, ...facts }))
    return { sending, xhr: SteeredXhr.last, controller, onProgress }
  }
  afterEach(() => {
    vi.unstubAllGlobals()
  })

  test.each<[RequestCredentials, boolean]>([
    ['include', true],
    ['same-origin', false],
    ['omit', false],
  ])('credentials %s: withCredentials %s', (credentials, expected) => {
    const { xhr } = steer({ credentials })
    expect(xhr.withCredentials).toBe(expected)
    expect(xhr.open).toHaveBeenCalledWith('POST', url)
    expect(xhr.setRequestHeader.mock.calls).toEqual([
      ['content-type', 'application/x-any'],
      ['idempotency-key', 'k1'],
    ])
  })

  test.each(['open', 'setRequestHeader', 'send'] as const)('what %s throws is an invalid request', async (method) => {
    const cause = new DOMException('no', 'SyntaxError')
    class Throwing extends SteeredXhr {
      [method] = vi.fn(() => {
        throw cause
      })
    }
    vi.stubGlobal('XMLHttpRequest', Throwing)
    await expect(xhrTransport().send(request())).rejects.toMatchObject({ code: 'invalid-request', retryable: false, cause })
  })

  test('the headers of an answer are read', async () => {
    const { sending, xhr } = steer()
    Object.assign(xhr, { status: 201, responseURL: url, responseText: '{}' })
    xhr.reach(2)
    xhr.onload()
    const { headers } = await sending
    expect([...headers]).toEqual([
      ['content-type', 'application/json'],
      ['idempotency-key', 'k1'],
      ['x-list', 'a, b'],
    ])
  })

  test('a body that breaks off is told with what arrived, though the engine then forgets status and text', async () => {
    const { sending, xhr } = steer()
    Object.assign(xhr, { status: 201, responseURL: url })
    xhr.reach(2)
    xhr.responseText = '{"uploadId"'
    xhr.reach(3)
    Object.assign(xhr, { status: 0, responseText: '', responseURL: '' })
    xhr.reach(4)
    xhr.onerror()
    expect(await sending).toMatchObject({ status: 201, text: '{"uploadId"', broken: true, redirected: false })
  })

  test("the browser's own stop is a network error", async () => {
    const { sending, xhr } = steer()
    xhr.onabort()
    await expect(sending).rejects.toMatchObject({ code: 'network', retryable: true })
  })

  test('an error before the head is a network error', async () => {
    const { sending, xhr } = steer()
    xhr.onerror()
    await expect(sending).rejects.toMatchObject({ code: 'network' })
  })

  test.each([
    [url, false],
    [`${url}#part`, false],
    ['https://files.example/other', true],
    ['https://portal.example/uploads', true],
  ])('an answer from %s was redirected: %s', async (responseURL, redirected) => {
    const { sending, xhr } = steer()
    Object.assign(xhr, { status: 200, responseURL })
    xhr.onload()
    expect(await sending).toMatchObject({ redirected, url: responseURL })
  })

  test('an abort is answered at once, and what the engine reports later changes nothing', async () => {
    const { sending, xhr, controller } = steer()
    const reason = new Error('own reason')
    controller.abort(reason)
    await expect(sending).rejects.toBe(reason)
    expect(xhr.abort).toHaveBeenCalledOnce()
    xhr.status = 201
    xhr.onload()
    xhr.onerror()
    await expect(sending).rejects.toBe(reason)
  })

  test('an abort after the answer aborts nothing', async () => {
    const { sending, xhr, controller } = steer()
    Object.assign(xhr, { status: 201, responseURL: url })
    xhr.onload()
    await sending
    controller.abort()
    expect(xhr.abort).not.toHaveBeenCalled()
  })

  test('progress is passed on', () => {
    const { xhr, onProgress } = steer()
    xhr.upload.onprogress?.({ loaded: 3, total: 256 })
    expect(onProgress).toHaveBeenCalledWith(3, 256)
  })
})
