import { createHash } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { piecesOf, sliceLimit, slicesOf, streamLimit } from '../src/chunks.js'
import { digest, wholeLimit } from '../src/digest.js'
import type { DigestMessage } from '../src/digest-in-worker.js'
import { toHex } from '../src/hex.js'
import { advance, fakeClock, flush, until } from './helpers/fake-clock.js'

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
  const stream = (): ReadableStream => new ReadableStream({ type: 'bytes', pull: refuse })
  const blob = Object.assign(new Blob([new Uint8Array(size)]), { arrayBuffer: refuse, stream })
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

/** A slice that is never read, and how often one was asked for. */
const silence = (blob: Blob, from: number): { asked: number } => {
  const seen = { asked: 0 }
  vi.spyOn(blob, 'slice').mockImplementation((start = 0, end) => {
    const slice = Blob.prototype.slice.call(blob, start, end)
    if (start < from) return slice
    seen.asked += 1
    return Object.assign(slice, { arrayBuffer: () => new Promise(() => {}) })
  })
  return seen
}

test('an abort ends hashing by script at once, with its reason, also where the bytes do not come', async () => {
  const controller = new AbortController()
  const reason = new Error('own reason')
  const blob = new Blob([bytesOf(5 * wholeLimit)])
  const seen = silence(blob, 2 * wholeLimit)
  const hashing = digest(blob, controller.signal)
  await until(() => seen.asked === 1)
  controller.abort(reason)
  await expect(hashing).rejects.toBe(reason)
  expect(seen.asked).toBe(1)
})

test('bytes that do not come for 20 s are a time-out, worth another attempt, and no timer is left', async () => {
  fakeClock()
  const blob = new Blob([bytesOf(3 * wholeLimit)])
  const seen = silence(blob, wholeLimit)
  const rejected = expect(digest(blob)).rejects.toMatchObject({ code: 'timeout', retryable: true, cause: { name: 'TimeoutError' } })
  await until(() => seen.asked === 1)
  await advance(sliceLimit)
  await rejected
  expect(vi.getTimerCount()).toBe(0)
})

test('progress is told piece by piece, up to the last byte', async () => {
  const told: number[] = []
  const size = 3 * wholeLimit + 5
  await digest(new Blob([bytesOf(size)]), undefined, (loaded) => told.push(loaded))
  expect(told.at(-1)).toBe(size)
  expect(told.length).toBeGreaterThanOrEqual(4)
  expect(told).toEqual([...told].sort((a, b) => a - b))
})

describe('many small files', () => {
  /** Answers of the browser, given when the test says so. */
  const hold = (): (() => void)[] => {
    const answers: (() => void)[] = []
    vi.spyOn(crypto.subtle, 'digest').mockImplementation(() => new Promise((resolve) => answers.push(() => resolve(new ArrayBuffer(32)))))
    return answers
  }
  const zeros = '00'.repeat(32)

  test('are handed to the browser four at a time, in the order of the calls', async () => {
    const answers = hold()
    const done: number[] = []
    const hashing = Array.from({ length: 10 }, (_, place) => digest(new ArrayBuffer(place)).then(() => done.push(place)))
    for (let place = 0; place < 10; place++) {
      await until(() => answers.length === Math.min(4 + place, 10))
      answers[place]?.()
    }
    await Promise.all(hashing)
    expect(done).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
  })

  test('one that is aborted while it waits is never handed over, and keeps nobody waiting', async () => {
    const answers = hold()
    const controller = new AbortController()
    const reason = new Error('own reason')
    const first = Array.from({ length: 4 }, () => digest(new ArrayBuffer(1)))
    const aborted = digest(new ArrayBuffer(2), controller.signal)
    const last = digest(new ArrayBuffer(3))
    await until(() => answers.length === 4)
    controller.abort(reason)
    await expect(aborted).rejects.toBe(reason)
    answers[0]?.()
    await until(() => answers.length === 5)
    for (const answer of answers) answer()
    expect(await Promise.all([...first, last])).toEqual(Array(5).fill(zeros))
    expect(crypto.subtle.digest).toHaveBeenCalledTimes(5)
  })

  test('one that the browser refuses to hash makes room for the next', async () => {
    vi.spyOn(crypto.subtle, 'digest').mockRejectedValue(gone)
    for (let place = 0; place < 9; place++) await expect(digest(new ArrayBuffer(1))).rejects.toBe(gone)
  })
})

test('hashing code that does not load, after a deploy say, is no fault of the file', async () => {
  withoutSubtle()
  vi.resetModules()
  vi.doMock('../src/digest-by-script.js', () => {
    throw new TypeError('Failed to fetch dynamically imported module')
  })
  const { digest } = await import('../src/digest.js')
  try {
    await expect(digest(new Blob(['abc']))).rejects.toMatchObject({ code: 'network', retryable: true })
  } finally {
    vi.doUnmock('../src/digest-by-script.js')
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
  const begin = async (
    signal?: AbortSignal,
    onProgress?: (loaded: number) => void,
  ): Promise<{ hashing: Promise<string>; worker: SteeredWorker }> => {
    SteeredWorker.made = []
    vi.stubGlobal('Worker', SteeredWorker)
    const hashing = digest(large, signal, onProgress)
    await until(() => SteeredWorker.made.length > 0)
    return { hashing, worker: SteeredWorker.made[0]! }
  }

  test('it gets the bytes by reference, tells how far it is, answers, and is ended', async () => {
    const onProgress = vi.fn()
    const { hashing, worker } = await begin(undefined, onProgress)
    expect([worker.url.pathname.endsWith('/digest.worker.js'), worker.options]).toEqual([true, { type: 'module' }])
    expect(worker.postMessage).toHaveBeenCalledWith(large)
    worker.say({ type: 'ready' })
    worker.say({ type: 'progress', loaded: 7 })
    expect(onProgress.mock.calls).toEqual([[7]])
    worker.say({ type: 'digest', sha256: 'cd'.repeat(32) })
    expect(await hashing).toBe('cd'.repeat(32))
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test('small bytes need none', async () => {
    SteeredWorker.made = []
    vi.stubGlobal('Worker', SteeredWorker)
    await digest(new Blob(['abc']))
    withoutSubtle()
    await digest(new Blob(['abc']))
    expect(SteeredWorker.made).toEqual([])
  })

  test('one that fails to load is made up for on this thread, and no error reaches the page', async () => {
    const { hashing, worker } = await begin()
    worker.onerror({ preventDefault })
    expect(await hashing).toBe(expected)
    expect(preventDefault).toHaveBeenCalled()
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test.each<[string, (worker: SteeredWorker) => void]>([
    ['dies at work', (worker) => worker.onerror({ preventDefault })],
    ['cannot go on', (worker) => worker.say({ type: 'failed' })],
  ])('one that %s is made up for as well, from the first byte on', async (_name, end) => {
    const told: number[] = []
    const { hashing, worker } = await begin(undefined, (loaded) => told.push(loaded))
    worker.say({ type: 'ready' })
    worker.say({ type: 'progress', loaded: 1_000_000 })
    end(worker)
    expect(await hashing).toBe(expected)
    expect(told.slice(0, 2)).toEqual([1_000_000, 2 ** 18])
    expect(worker.terminate).toHaveBeenCalledOnce()
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

  test('one that is not there after 10 s is given up', async () => {
    fakeClock()
    const { hashing, worker } = await begin()
    await advance(9_999)
    expect(worker.terminate).not.toHaveBeenCalled()
    await advance(1)
    expect(await hashing).toBe(expected)
    expect(worker.terminate).toHaveBeenCalledOnce()
    expect(vi.getTimerCount()).toBe(0)
  })

  test('one that falls silent at work is given up after 50 s, one that goes on telling how far it is never is', async () => {
    fakeClock()
    const { hashing, worker } = await begin()
    worker.say({ type: 'ready' })
    for (let loaded = 1; loaded < 100; loaded++) {
      await advance(40_000, 10_000)
      worker.say({ type: 'progress', loaded })
    }
    await advance(40_000, 10_000)
    expect(worker.terminate).not.toHaveBeenCalled()
    await advance(10_000)
    expect(await hashing).toBe(expected)
    expect(worker.terminate).toHaveBeenCalledOnce()
    expect(vi.getTimerCount()).toBe(0)
  })

  test('bytes that it cannot read reject with the error of the engine', async () => {
    const { hashing, worker } = await begin()
    worker.say({ type: 'unreadable', name: 'NotReadableError', message: 'The file was moved.' })
    await expect(hashing).rejects.toMatchObject({ name: 'NotReadableError', message: 'The file was moved.' })
    expect(worker.terminate).toHaveBeenCalledOnce()
  })

  test('bytes that do not come there are a time-out', async () => {
    const { hashing, worker } = await begin()
    worker.say({ type: 'unreadable', name: 'TimeoutError', message: 'It took too long.' })
    await expect(hashing).rejects.toMatchObject({ code: 'timeout', retryable: true })
  })

  test('an abort ends it at once, with its reason and no timer left', async () => {
    fakeClock()
    const controller = new AbortController()
    const { hashing, worker } = await begin(controller.signal)
    const reason = new DOMException('own reason', 'TimeoutError')
    controller.abort(reason)
    await expect(hashing).rejects.toBe(reason)
    expect(worker.terminate).toHaveBeenCalledOnce()
    expect(vi.getTimerCount()).toBe(0)
  })

  test('an aborted signal makes none', async () => {
    SteeredWorker.made = []
    vi.stubGlobal('Worker', SteeredWorker)
    await expect(digest(large, AbortSignal.abort(gone))).rejects.toBe(gone)
    expect(SteeredWorker.made).toEqual([])
  })

  test.each([
    [1, 2],
    [2, 2],
    [3, 3],
    [64, 4],
  ])('on %i cores %i work at a time; one that is aborted while it waits is never made', async (cores, limit) => {
    SteeredWorker.made = []
    vi.stubGlobal('Worker', SteeredWorker)
    vi.stubGlobal('navigator', { hardwareConcurrency: cores })
    vi.resetModules()
    const { digest } = await import('../src/digest.js')
    const controller = new AbortController()
    const working = Array.from({ length: limit }, () => digest(large))
    await until(() => SteeredWorker.made.length === limit)
    const aborted = digest(large, controller.signal)
    const waiting = digest(large)
    await flush()
    controller.abort(gone)
    await expect(aborted).rejects.toBe(gone)
    expect(SteeredWorker.made).toHaveLength(limit)
    SteeredWorker.made[0]?.say({ type: 'digest', sha256: 'the first' })
    expect(await working[0]).toBe('the first')
    await until(() => SteeredWorker.made.length === limit + 1)
    for (const worker of SteeredWorker.made) worker.say({ type: 'digest', sha256: 'another' })
    expect(await waiting).toBe('another')
    await Promise.all(working)
    expect(SteeredWorker.made).toHaveLength(limit + 1)
  })

  test('code for it that does not load, after a deploy say, is no fault of the file', async () => {
    vi.stubGlobal('Worker', SteeredWorker)
    vi.resetModules()
    vi.doMock('../src/digest-in-worker.js', () => {
      throw new TypeError('Failed to fetch dynamically imported module')
    })
    const { digest } = await import('../src/digest.js')
    try {
      await expect(digest(large)).rejects.toMatchObject({ code: 'network', retryable: true })
    } finally {
      vi.doUnmock('../src/digest-in-worker.js')
      vi.resetModules()
    }
  })
})

/** Blobs as engines have them that know no byte streams. */
const withoutByteStreams = (): void => {
  vi.spyOn(Blob.prototype, 'stream').mockImplementation(() => new ReadableStream())
}

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
  const answer = async (blob: Blob): Promise<DigestMessage | undefined> => {
    await scope.onmessage?.({ data: blob })
    return said.at(-1)
  }

  test('says that it is there, and then the digest', async () => {
    expect(said).toEqual([{ type: 'ready' }])
    expect(await answer(new Blob([bytesOf(3 * wholeLimit + 7)]))).toEqual({
      type: 'digest',
      sha256: nodeDigest(bytesOf(3 * wholeLimit + 7)),
    })
    expect(said.filter(({ type }) => type !== 'progress')).toHaveLength(2)
  })

  test('says how far it is, ten times a second', async () => {
    let now = 0
    vi.spyOn(performance, 'now').mockImplementation(() => now)
    withoutByteStreams()
    const blob = new Blob([bytesOf(6 * wholeLimit)])
    vi.spyOn(blob, 'slice').mockImplementation((...range) => {
      now += 60
      return Blob.prototype.slice.apply(blob, range)
    })
    await answer(blob)
    expect(said.map((message) => ('loaded' in message ? message.loaded / wholeLimit : message.type))).toEqual(['ready', 1, 3, 5, 'digest'])
  })

  test('says what it cannot read', async () => {
    expect(await answer(unreadable(10, gone))).toEqual({ type: 'unreadable', name: 'NotReadableError', message: 'The file was moved.' })
  })

  test('says that bytes do not come, 10 s by stream and 20 s by slice: sooner than it is taken for dead', async () => {
    fakeClock()
    const blob = Object.assign(new Blob([bytesOf(10)]), { stream: () => new ReadableStream({ type: 'bytes' }) })
    silence(blob, 0)
    const answering = answer(blob)
    await advance(streamLimit)
    await advance(sliceLimit)
    expect(await answering).toMatchObject({ type: 'unreadable', name: 'TimeoutError' })
  })

  test('says that it cannot go on where that is not the fault of the bytes', async () => {
    expect(await answer(unreadable(10, new RangeError('Array buffer allocation failed')))).toEqual({ type: 'failed' })
  })

  const everyWay = [
    { hash: 'in WebAssembly', reader: 'by stream' },
    { hash: 'in WebAssembly', reader: 'by slices' },
    { hash: 'by script, under a Content-Security-Policy', reader: 'by stream' },
    { hash: 'by script, in an engine without WebAssembly', reader: 'by slices' },
  ]
  describe.each(everyWay)('$hash, $reader', ({ hash, reader }) => {
    const instantiate = vi.fn()
    beforeEach(() => {
      instantiate.mockReset()
      if (reader === 'by slices') withoutByteStreams()
      if (hash.includes('engine')) return vi.stubGlobal('WebAssembly', undefined)
      if (hash.includes('Policy'))
        instantiate.mockRejectedValue(new WebAssembly.CompileError('violates the Content Security Policy directive'))
      else instantiate.mockImplementation(WebAssembly.instantiate)
      vi.spyOn(WebAssembly, 'instantiate').mockImplementation(instantiate)
    })

    test.each(vectors)('the digest of %s is that of the standard', async (_vector, text, hex) => {
      expect(await answer(new Blob([text]))).toEqual({ type: 'digest', sha256: hex })
      expect(instantiate).toHaveBeenCalledTimes(hash.includes('engine') ? 0 : 1)
    })

    test.each([wholeLimit - 1, wholeLimit, wholeLimit + 1, 3 * wholeLimit + 64])('%i bytes', async (size) => {
      expect(await answer(new Blob([bytesOf(size)]))).toEqual({ type: 'digest', sha256: nodeDigest(bytesOf(size)) })
    })
  })
})

describe('the pieces', () => {
  const read = async (pieces: AsyncIterable<Uint8Array>): Promise<Buffer[]> => {
    const copies: Buffer[] = []
    for await (const piece of pieces) copies.push(Buffer.from(piece))
    return copies
  }

  test.each([0, 1, wholeLimit, wholeLimit + 1, 2 * wholeLimit, 2 * wholeLimit + 5])('of %i bytes are the bytes', async (size) => {
    const bytes = bytesOf(size)
    for (const pieces of [piecesOf(new Blob([bytes])), slicesOf(new Blob([bytes]))]) {
      const copies = await read(pieces)
      expect(copies.every(({ length }) => length > 0 && length <= 2 ** 20)).toBe(true)
      expect(Buffer.concat(copies).equals(Buffer.from(bytes))).toBe(true)
    }
    expect(await read(slicesOf(new Blob([bytes])))).toHaveLength(Math.ceil(size / 2 ** 20))
  })

  test('of a stream lie in one buffer that is filled again and again', async () => {
    const bytes = bytesOf(5 * wholeLimit)
    const given: ArrayBufferLike[] = []
    const stream = new ReadableStream({
      type: 'bytes',
      pull(controller) {
        const view = controller.byobRequest!.view as Uint8Array
        given.push(view.buffer)
        const at = (given.length - 1) * wholeLimit
        view.set(bytes.subarray(at, at + view.byteLength))
        if (at >= bytes.length) controller.close()
        controller.byobRequest!.respond(Math.min(view.byteLength, bytes.length - at))
      },
    })
    const slice = vi.fn()
    const copies = await read(piecesOf(Object.assign(new Blob([bytes]), { stream: () => stream, slice })))
    expect(Buffer.concat(copies).equals(Buffer.from(bytes))).toBe(true)
    expect(slice).not.toHaveBeenCalled()
  })

  /** A stream of the first bytes, which then goes wrong. */
  const streamThat = (end: 'hangs' | 'fails' | 'ends too soon', bytes: Uint8Array): ReadableStream =>
    new ReadableStream({
      type: 'bytes',
      start: (controller) => controller.enqueue(bytes.slice(0, 700_000)),
      pull(controller) {
        if (end === 'hangs') return new Promise(() => {})
        if (end === 'fails') controller.error(new TypeError('Error in input stream'))
        else {
          controller.close()
          controller.byobRequest?.respond(0)
        }
        return undefined
      },
    })

  test.each(['hangs', 'fails', 'ends too soon'] as const)('of a stream that %s are followed by slices, from there on', async (end) => {
    fakeClock()
    const bytes = bytesOf(2 * wholeLimit)
    const blob = Object.assign(new Blob([bytes]), { stream: () => streamThat(end, bytes) })
    const slice = vi.spyOn(blob, 'slice')
    const reading = read(piecesOf(blob))
    await flush()
    if (end === 'hangs') {
      expect(slice).not.toHaveBeenCalled()
      await advance(streamLimit)
    }
    expect(Buffer.concat(await reading).equals(Buffer.from(bytes))).toBe(true)
    expect(slice.mock.calls[0]?.[0]).toBe(700_000)
    expect(vi.getTimerCount()).toBe(0)
  })

  test('by slice are read one ahead, and no error of one that is not wanted any more is left', async () => {
    const blob = new Blob([bytesOf(4 * wholeLimit)])
    const slice = vi.spyOn(blob, 'slice').mockImplementation((start = 0, end) => {
      const piece = Blob.prototype.slice.call(blob, start, end)
      return start === 0 ? piece : Object.assign(piece, { arrayBuffer: () => Promise.reject(gone) })
    })
    for await (const piece of slicesOf(blob)) {
      expect(piece.byteLength).toBe(wholeLimit)
      break
    }
    await flush()
    expect(slice).toHaveBeenCalledTimes(2)
  })
})

test('hex has two lower-case digits for each byte', () => {
  expect(toHex(Uint8Array.of(0, 1, 15, 16, 171, 255))).toBe('00010f10abff')
  expect(toHex(new Uint8Array())).toBe('')
})
