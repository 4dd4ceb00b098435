import { createHash } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { chunksOf, toHex } from '../src/chunks.js'
import { type DigestMessage, digest, wholeLimit } from '../src/digest.js'
import { advance, fakeClock, flush } from './helpers/fake-clock.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)
/** That many bytes, no two chunks alike. */
const bytesOf = (size: number): Uint8Array<ArrayBuffer> => {
  const bytes = new Uint8Array(size)
  for (let index = 0; index < size; index++) bytes[index] = index * 31 + (index >> 12)
  return bytes
}
const nodeDigest = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

/** Bytes whose reads are refused, as of a file that was moved. */
const unreadable = (size: number, error: unknown): Blob => {
  const refuse = (): Promise<never> => Promise.reject(error)
  const blob = Object.assign(new Blob([new Uint8Array(size)]), { arrayBuffer: refuse })
  return Object.assign(blob, { slice: () => Object.assign(new Blob(['x']), { arrayBuffer: refuse }) })
}
const gone = new DOMException('The file was moved.', 'NotReadableError')

const withoutSubtle = (): void => {
  vi.stubGlobal('crypto', { getRandomValues: crypto.getRandomValues.bind(crypto) })
}

beforeEach(() => {
  vi.stubGlobal('Worker', undefined)
})
afterEach(() => {
  vi.unstubAllGlobals()
  vi.restoreAllMocks()
})

/** FIPS 180-4, and NIST's "SHA Test Vectors". */
const vectors: [name: string, text: string, hex: string][] = [
  ['nothing', '', 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'],
  ['abc', 'abc', 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'],
  [
    '448 bits',
    'abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq',
    '248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1',
  ],
  [
    '896 bits',
    'abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu',
    'cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1',
  ],
  ['a million times a', 'a'.repeat(1_000_000), 'cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0'],
]

describe.each([
  ['by the browser', true],
  ['by script, on an insecure origin', false],
])('%s', (_name, hasSubtle) => {
  beforeEach(() => {
    if (!hasSubtle) withoutSubtle()
  })

  test.each(vectors)('the digest of %s is that of the standard', async (_vector, text, hex) => {
    const bytes = new TextEncoder().encode(text)
    expect(await digest(new Blob([bytes]))).toBe(hex)
    expect(await digest(bytes.buffer)).toBe(hex)
  })

  test('every byte value counts', async () => {
    expect(await digest(new Blob([everyByte]))).toBe('40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880')
  })

  test.each([1, wholeLimit - 1, wholeLimit, wholeLimit + 1, 2 * wholeLimit, 2 * wholeLimit + 1])('%i bytes', async (size) => {
    const bytes = bytesOf(size)
    const expected = nodeDigest(bytes)
    expect(await digest(new Blob([bytes]))).toBe(expected)
    expect(await digest(bytes.buffer)).toBe(expected)
  })

  test.each([10, wholeLimit + 10])('%i bytes that cannot be read reject with the error of the engine', async (size) => {
    await expect(digest(unreadable(size, gone))).rejects.toBe(gone)
  })

  test.each([10, wholeLimit + 10])('an aborted signal rejects with its reason: %i bytes', async (size) => {
    const reason = new Error('own reason')
    await expect(digest(new Blob([bytesOf(size)]), AbortSignal.abort(reason))).rejects.toBe(reason)
  })
})

test('only what is small is handed to the browser whole', async () => {
  const whole = vi.spyOn(crypto.subtle, 'digest')
  await digest(new Blob([bytesOf(wholeLimit + 1)]))
  expect(whole).not.toHaveBeenCalled()
  await digest(new Blob([bytesOf(wholeLimit)]))
  expect(whole).toHaveBeenCalledOnce()
})

test('an abort between two pieces ends hashing there, with its reason', async () => {
  const controller = new AbortController()
  const reason = new Error('own reason')
  const blob = new Blob([bytesOf(5 * wholeLimit)])
  const slice = vi.spyOn(blob, 'slice').mockImplementation((...range) => {
    if (slice.mock.calls.length === 2) controller.abort(reason)
    return Blob.prototype.slice.apply(blob, range)
  })
  await expect(digest(blob, controller.signal)).rejects.toBe(reason)
  expect(slice).toHaveBeenCalledTimes(2)
})

test('hashing code that does not load, after a deploy say, is no fault of the file', async () => {
  withoutSubtle()
  vi.resetModules()
  vi.doMock('@noble/hashes/sha2.js', () => {
    throw new TypeError('Failed to fetch dynamically imported module')
  })
  const { digest } = await import('../src/digest.js')
  try {
    await expect(digest(new Blob(['abc']))).rejects.toMatchObject({ code: 'network', retryable: true })
  } finally {
    vi.doUnmock('@noble/hashes/sha2.js')
    vi.resetModules()
  }
})

/** A worker that the test speaks for. */
class SteeredWorker {
  static made: SteeredWorker[] = []
  onmessage: (event: { data: DigestMessage }) => void = () => {}
  onerror: (event: { preventDefault(): void }) => void = () => {}
  postMessage = vi.fn()
  terminate = vi.fn()
  constructor(
    readonly url: URL,
    readonly options: WorkerOptions,
  ) {
    SteeredWorker.made.push(this)
  }
  say(data: DigestMessage): void {
    this.onmessage({ data })
  }
}

describe('in a worker', () => {
  const large = new Blob([bytesOf(wholeLimit + 1)])
  const expected = nodeDigest(bytesOf(wholeLimit + 1))
  const preventDefault = vi.fn()
  const begin = (signal?: AbortSignal): { hashing: Promise<string>; worker: SteeredWorker } => {
    SteeredWorker.made = []
    vi.stubGlobal('Worker', SteeredWorker)
    const hashing = digest(large, signal)
    return { hashing, worker: SteeredWorker.made[0] as SteeredWorker }
  }

  test('it gets the bytes by reference, answers, and is ended', async () => {
    const { hashing, worker } = begin()
    expect([worker.url.pathname.endsWith('/digest.worker.js'), worker.options]).toEqual([true, { type: 'module' }])
    expect(worker.postMessage).toHaveBeenCalledWith(large)
    worker.say({ type: 'ready' })
    worker.say({ type: 'digest', sha256: 'cd'.repeat(32) })
    expect(await hashing).toBe('cd'.repeat(32))
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test('small bytes need none', async () => {
    begin()
    await digest(new Blob(['abc']))
    expect(SteeredWorker.made).toHaveLength(1)
  })

  test('one that fails to load is made up for on this thread, and no error reaches the page', async () => {
    const { hashing, worker } = begin()
    worker.onerror({ preventDefault })
    expect(await hashing).toBe(expected)
    expect(preventDefault).toHaveBeenCalled()
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test('one that dies at work is made up for as well', async () => {
    const { hashing, worker } = begin()
    worker.say({ type: 'ready' })
    worker.onerror({ preventDefault })
    expect(await hashing).toBe(expected)
  })

  test('one that cannot be made is made up for', async () => {
    vi.stubGlobal(
      'Worker',
      class {
        constructor() {
          throw new DOMException('forbidden by the Content-Security-Policy', 'SecurityError')
        }
      },
    )
    expect(await digest(large)).toBe(expected)
  })

  test('one that says nothing for 10 s is given up, one that has said it is there is not', async () => {
    fakeClock()
    const silent = begin()
    await advance(10_000)
    expect(await silent.hashing).toBe(expected)
    expect(silent.worker.terminate).toHaveBeenCalledOnce()
    const slow = begin()
    slow.worker.say({ type: 'ready' })
    await advance(3_600_000)
    expect(slow.worker.terminate).not.toHaveBeenCalled()
    slow.worker.say({ type: 'digest', sha256: 'ef'.repeat(32) })
    expect(await slow.hashing).toBe('ef'.repeat(32))
    expect(vi.getTimerCount()).toBe(0)
  })

  test('bytes that it cannot read reject with the error of the engine', async () => {
    const { hashing, worker } = begin()
    worker.say({ type: 'unreadable', name: 'NotReadableError', message: 'The file was moved.' })
    await expect(hashing).rejects.toMatchObject({ name: 'NotReadableError', message: 'The file was moved.' })
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test('an abort ends it at once, with its reason and no timer left', async () => {
    fakeClock()
    const controller = new AbortController()
    const { hashing, worker } = begin(controller.signal)
    const reason = new Error('own reason')
    controller.abort(reason)
    await expect(hashing).rejects.toBe(reason)
    expect(worker.terminate).toHaveBeenCalledOnce()
    expect(vi.getTimerCount()).toBe(0)
  })

  test('an aborted signal leaves no worker behind', async () => {
    const { hashing, worker } = begin(AbortSignal.abort(gone))
    await expect(hashing).rejects.toBe(gone)
    await flush()
    expect(worker?.terminate).toHaveBeenCalledOnce()
    expect(worker?.postMessage).not.toHaveBeenCalled()
  })
})

describe('the worker itself', () => {
  const said: DigestMessage[] = []
  let scope: { onmessage?: (event: { data: Blob }) => Promise<void>; postMessage: (message: DigestMessage) => void }
  beforeEach(async () => {
    said.length = 0
    scope = { postMessage: (message) => void said.push(structuredClone(message)) }
    vi.stubGlobal('self', scope)
    vi.resetModules()
    await import('../src/digest.worker.js' as string)
  })

  test('it says that it is there, and then the digest', async () => {
    expect(said).toEqual([{ type: 'ready' }])
    await scope.onmessage?.({ data: new Blob([bytesOf(3 * wholeLimit + 7)]) })
    expect(said[1]).toEqual({ type: 'digest', sha256: nodeDigest(bytesOf(3 * wholeLimit + 7)) })
  })

  test('it says what it cannot read', async () => {
    await scope.onmessage?.({ data: unreadable(10, gone) })
    expect(said[1]).toEqual({ type: 'unreadable', name: 'NotReadableError', message: 'The file was moved.' })
  })
})

test.each([0, 1, wholeLimit, wholeLimit + 1, 2 * wholeLimit, 2 * wholeLimit + 5])('the pieces of %i bytes are the bytes', async (size) => {
  const bytes = bytesOf(size)
  const pieces: Uint8Array[] = []
  for await (const piece of chunksOf(new Blob([bytes]))) {
    expect(piece.byteLength).toBeLessThanOrEqual(2 ** 20)
    pieces.push(piece)
  }
  expect(pieces).toHaveLength(Math.ceil(size / 2 ** 20))
  expect(Buffer.concat(pieces).equals(Buffer.from(bytes))).toBe(true)
})

test('hex has two lower-case digits for each byte', () => {
  expect(toHex(Uint8Array.of(0, 1, 15, 16, 171, 255))).toBe('00010f10abff')
  expect(toHex(new Uint8Array())).toBe('')
})
