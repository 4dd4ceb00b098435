import { HttpResponse, http } from 'msw'
import { setupServer } from 'msw/node'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { createUploadHandler } from '../demo/server/handler.js'
import { createMemoryKeys, type MemoryKeys, type StoredMedia } from '../demo/server/keys.js'
import { createMemoryObjects } from '../demo/server/objects.js'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../src/index.js'

// The real client and the real handler; between them msw, which loses, refuses and delays.

const endpoint = 'http://localhost:3000/uploads'
const network = setupServer()
let keys: MemoryKeys
let handle: (request: Request) => Promise<Response>
let requests: { method: string; key: string; sha256: string; name: string }[]
let queue: UploadQueue

const fast: Partial<UploadQueueOptions> = { endpoint, retry: { baseDelay: 1, maxDelay: 1 } }
const allBytes = (length: number): Uint8Array<ArrayBuffer> => Uint8Array.from({ length }, (_, i) => i % 256)

/** Passes a request on to the handler, as `through` says; the last one stays. */
const passOn = (...through: ((request: Request) => Promise<Response>)[]): void => {
  let turn = 0
  network.use(
    http.head(endpoint, () => new HttpResponse()),
    http.get(`${endpoint}/outcome`, ({ request }) => {
      requests.push({ method: 'GET', key: request.headers.get('Idempotency-Key') ?? '', sha256: '', name: '' })
      return handle(request) as never
    }),
    http.post(endpoint, async ({ request }) => {
      const { headers } = request
      requests.push({
        method: request.method,
        key: headers.get('Idempotency-Key') ?? '',
        sha256: headers.get('X-File-Sha256') ?? '',
        name: headers.get('X-File-Name') ?? '',
      })
      return (await through[Math.min(turn++, through.length - 1)]?.(request)) as never
    }),
  )
}

beforeAll(() => network.listen({ onUnhandledRequest: 'error' }))
afterAll(() => network.close())
beforeEach(() => {
  keys = createMemoryKeys()
  handle = createUploadHandler({ keys, objects: createMemoryObjects(), authenticate: () => ({ owner: 'alice' }) })
  requests = []
  queue = createUploadQueue(fast as UploadQueueOptions)
})
afterEach(async () => {
  await queue.close()
  network.resetHandlers()
})

const stored = (): Promise<StoredMedia[]> => keys.listMedia('alice', 100)

describe('the path of one file through the real handler', () => {
  test('it is stored once, with its name, type, metadata and digest', async () => {
    passOn(handle)
    const file = new File([allBytes(100_000)], '写真 "50%".jpg', { type: 'image/jpeg' })
    const upload = await queue.enqueue(file, { metadata: { album: 'été' } })
    const receipt = await upload.done
    const [media, ...others] = await stored()
    expect(others).toEqual([])
    expect(media).toMatchObject({
      id: receipt.uploadId,
      fileName: '写真 "50%".jpg',
      contentType: 'image/jpeg',
      bytes: 100_000,
      metadata: { album: 'été' },
    })
    expect(media?.sha256).toBe(upload.snapshot?.sha256)
  })

  test('a lost answer is answered by the replay, and one object exists', async () => {
    passOn(async (request) => {
      await handle(request)
      return HttpResponse.error()
    }, handle)
    const replayed = vi.fn()
    queue.on('succeeded', ({ replayed: was }) => replayed(was))
    const upload = await queue.enqueue(new Blob([allBytes(2_000_000)]))
    const receipt = await upload.done
    expect(requests).toHaveLength(2)
    expect(requests[1]).toEqual(requests[0])
    expect(replayed).toHaveBeenCalledExactlyOnceWith(true)
    expect((await stored()).map(({ id }) => id)).toEqual([receipt.uploadId])
  })

  test('once the server has said where, the outcome of a large upload is asked for before it is sent again', async () => {
    const lose = async (request: Request): Promise<Response> => {
      await handle(request)
      return HttpResponse.error()
    }
    passOn(handle, lose)
    await (await queue.enqueue(new Blob(['small']))).done
    requests = []
    const upload = await queue.enqueue(new Blob([allBytes(2_000_000)]))
    const receipt = await upload.done
    expect(requests.map(({ method }) => method)).toEqual(['POST', 'GET'])
    expect(upload.snapshot).toMatchObject({ replayed: true, result: { uploadId: receipt.uploadId } })
    expect(await stored()).toHaveLength(2)
  })

  test('an outcome that is not known means that the bytes have to be sent; the next page remembers where to ask', async () => {
    passOn(handle, async () => HttpResponse.error(), handle)
    await (await queue.enqueue(new Blob(['small']))).done
    await queue.close()
    queue = createUploadQueue(fast as UploadQueueOptions)
    requests = []
    await (await queue.enqueue(new Blob([allBytes(2_000_000)]))).done
    expect(requests.map(({ method }) => method)).toEqual(['POST', 'GET', 'POST'])
  })

  test('bytes that change on the way are refused by the server, and the right ones are sent again', async () => {
    passOn((request) => handle(new Request(request, { body: 'other bytes', duplex: 'half' } as RequestInit)), handle)
    const upload = await queue.enqueue(new Blob(['the right bytes']))
    await upload.done
    expect(requests).toHaveLength(2)
    expect((await stored()).map(({ bytes }) => bytes)).toEqual([15])
  })

  test('an empty file and one without a type', async () => {
    passOn(handle)
    const upload = await queue.enqueue(new File([], 'empty'))
    await upload.done
    expect(await stored()).toMatchObject([{ bytes: 0, contentType: 'application/octet-stream' }])
  })

  test('a key that the server knows with other bytes fails at once', async () => {
    passOn(handle)
    const first = await queue.enqueue(new Blob(['one']))
    await first.done
    const key = first.snapshot?.idempotencyKey as string
    const other = createUploadQueue({ ...fast, endpoint, name: 'other' }, { uuid: () => key })
    const second = await other.enqueue(new Blob(['two']))
    await expect(second.done).rejects.toMatchObject({ code: 'key-reused', status: 422, problem: { error: 'idempotency_key_reuse' } })
    await other.close()
    expect(await stored()).toHaveLength(1)
  })

  test('a refusal of the server ends it after one request, and its words reach the app', async () => {
    const refusing = createUploadHandler({
      keys,
      objects: createMemoryObjects(),
      authenticate: () => ({ owner: 'alice' }),
      limits: { maxBytes: 10 },
    })
    passOn(refusing)
    const upload = await queue.enqueue(new Blob(['more than ten bytes']))
    await expect(upload.done).rejects.toMatchObject({ code: 'rejected', status: 413, problem: { error: 'payload_too_large' } })
    expect(requests).toHaveLength(1)
  })

  test('a server that is away is waited for, and stores the file once it is back', async () => {
    passOn(async () => HttpResponse.error(), handle)
    network.use(http.head(endpoint, () => HttpResponse.error()))
    const offline = new Promise<void>((resolve) => queue.on('offline', () => resolve()))
    const upload = await queue.enqueue(new Blob(['x']))
    await offline
    expect(upload.snapshot).toMatchObject({ attempts: 0 })
    network.use(http.head(endpoint, () => new HttpResponse()))
    dispatchEvent(new Event('online'))
    await upload.done
    expect(await stored()).toHaveLength(1)
  })

  test('both digest headers, the quoted key and another name header are understood', async () => {
    passOn(handle)
    const other = createUploadQueue({ ...fast, endpoint, name: 'other', digestHeader: 'both', keyFormat: 'quoted' })
    const upload = await other.enqueue(new File(['x'], 'x'))
    await upload.done
    expect(upload.snapshot?.idempotencyKey).toMatch(/^".+"$/)
    await other.close()
  })
})
