import { createHash } from 'node:crypto'
import { runInNewContext } from 'node:vm'
import { afterEach, expect, test, vi } from 'vitest'
import { wholeLimit } from '../src/digest.js'
import { UploadError } from '../src/errors.js'
import { blame, inlineLimit, takeIn, throwIfAborted } from '../src/intake.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)
const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')
const read = async (bytes: Blob | ArrayBuffer): Promise<Uint8Array> => new Uint8Array('size' in bytes ? await bytes.arrayBuffer() : bytes)
const gone = new DOMException('The requested file could not be read.', 'NotReadableError')

afterEach(() => {
  vi.restoreAllMocks()
})

/** A file that is there to see but not to read, as one that was moved, or a folder that was dropped. */
const unreadableFile = (size: number, error: unknown = gone): File => {
  const refuse = (): Promise<never> => Promise.reject(error)
  const piece = Object.assign(new Blob(['x']), { arrayBuffer: refuse })
  return Object.assign(new File([new Uint8Array(size)], 'a.bin'), { arrayBuffer: refuse, slice: () => piece })
}

/** What `showDirectoryPicker` gives. */
class FileSystemDirectoryHandle {
  readonly kind = 'directory'
  readonly name = 'folder'
  get [Symbol.toStringTag](): string {
    return 'FileSystemDirectoryHandle'
  }
}

test.each<[string, unknown]>([
  ['a string', 'data:,hello'],
  ['null', null],
  ['undefined', undefined],
  ['an empty object', {}],
  ['a list', []],
  ['a list of files', [new File(['x'], 'a')]],
  ['a number', 5],
  ['a function', () => new Blob()],
  ['a buffer', new ArrayBuffer(3)],
  ['bytes', new Uint8Array(3)],
  ['a folder handle', new FileSystemDirectoryHandle()],
  ['a stream', new ReadableStream()],
  ['a response', new Response('x')],
  ['an object that looks like a file', { size: 1, name: 'a', type: '', arrayBuffer: async () => new ArrayBuffer(1), slice: () => {} }],
  ['an object that says it is a File', { [Symbol.toStringTag]: 'File', size: 1 }],
])('%s is not a file', async (_name, value) => {
  await expect(takeIn(value, {}, undefined)).rejects.toMatchObject({ code: 'not-a-file', retryable: false })
})

test('a file gives its facts, its digest and its bytes', async () => {
  const file = new File([everyByte], '写真 (1).jpg', { type: 'image/jpeg', lastModified: 1_234 })
  const { bytes, ...facts } = await takeIn(file, {}, undefined)
  expect(facts).toEqual({ name: '写真 (1).jpg', type: 'image/jpeg', size: 256, lastModified: 1_234, sha256: sha256(everyByte) })
  expect(await read(bytes)).toEqual(everyByte)
})

test('an empty file is a file', async () => {
  const { bytes, ...facts } = await takeIn(new File([], 'empty.txt', { type: 'text/plain', lastModified: 1 }), {}, undefined)
  expect(facts).toEqual({ name: 'empty.txt', type: 'text/plain', size: 0, lastModified: 1, sha256: sha256(new Uint8Array()) })
  expect(await read(bytes)).toEqual(new Uint8Array())
})

test('a Blob has no name and no time, so it gets a name', async () => {
  expect(await takeIn(new Blob(['x'], { type: 'text/plain' }), {}, undefined)).toMatchObject({
    name: 'upload',
    lastModified: 0,
    type: 'text/plain',
  })
})

test('a file without a type stays without one', async () => {
  expect((await takeIn(new File(['x'], 'a'), {}, undefined)).type).toBe('')
})

test.each<[string, string, string]>([
  ['is kept as it is', 'Ä 写真 😀 "q" 100%.txt', 'Ä 写真 😀 "q" 100%.txt'],
  ['may be a path', '../../etc/passwd', '../../etc/passwd'],
  ['may be empty', '', ''],
  ['has no control characters', 'a\r\nb\u0000c\u009f.txt', 'a__b_c_.txt'],
  ['has no lone surrogates', 'a\ud83d.txt', 'a\ufffd.txt'],
])('a name %s', async (_name, name, expected) => {
  const file = Object.assign(new File(['x'], 'a'), {})
  Object.defineProperty(file, 'name', { value: name })
  expect((await takeIn(file, {}, undefined)).name).toBe(expected)
  expect((await takeIn(new Blob(['x']), { name }, undefined)).name).toBe(expected)
})

test("the app's name and type win over the file's", async () => {
  const file = new File(['x'], 'a.txt', { type: 'text/plain' })
  expect(await takeIn(file, { name: 'b.md', contentType: 'text/markdown' }, undefined)).toMatchObject({
    name: 'b.md',
    type: 'text/markdown',
  })
  expect(await takeIn(file, { name: '', contentType: '' }, undefined)).toMatchObject({ name: '', type: '' })
})

test('a file of another realm is a file', async () => {
  const bytes = Uint8Array.of(1, 2, 3)
  const file = runInNewContext(
    `class File { get [Symbol.toStringTag]() { return 'File' } size = 3; type = ''; name = 'a'; arrayBuffer = read }
     new File()`,
    { read: async () => bytes.slice().buffer },
  )
  expect(file instanceof File).toBe(false)
  expect(await takeIn(file, {}, undefined)).toMatchObject({ name: 'a', size: 3, sha256: sha256(bytes) })
})

test.each([1, inlineLimit - 1, inlineLimit])('%i bytes are copied: what happens to the source later is no matter', async (size) => {
  const original = new Uint8Array(size).map((_, index) => index * 7)
  const buffer = original.slice().buffer
  const file = Object.assign(new File([original], 'a'), { arrayBuffer: async () => buffer })
  const taken = await takeIn(file, {}, undefined)
  const refuse = (): Promise<never> => Promise.reject(gone)
  Object.assign(file, { arrayBuffer: refuse, stream: refuse, slice: refuse })
  expect(taken.sha256).toBe(sha256(original))
  expect((await read(taken.bytes)).every((byte, index) => byte === original[index])).toBe(true)
  expect(taken.bytes).not.toBe(file)
})

test.each([inlineLimit + 1, wholeLimit])(
  'of %i bytes the digest is that of what was read, and the browser copies them as it stores them',
  async (size) => {
    const original = new Uint8Array(size).map((_, index) => index * 7)
    const file = new File([original], 'a')
    expect(await takeIn(file, {}, undefined)).toMatchObject({ sha256: sha256(original), size, bytes: file })
  },
)

test('a large file is not read whole, and hashed later', async () => {
  const file = new File([new Uint8Array(wholeLimit + 1)], 'large')
  const whole = vi.spyOn(file, 'arrayBuffer')
  expect(await takeIn(file, {}, undefined)).toMatchObject({ sha256: null, size: wholeLimit + 1, bytes: file })
  expect(whole).not.toHaveBeenCalled()
})

test.each([1, inlineLimit + 1, wholeLimit, wholeLimit + 1])(
  'a file of %i bytes that cannot be read is refused, with its cause',
  async (size) => {
    await expect(takeIn(unreadableFile(size), {}, undefined)).rejects.toMatchObject({
      code: 'file-unreadable',
      cause: gone,
      retryable: false,
    })
  },
)

test('a large file of which only the end cannot be read is refused', async () => {
  const file = new File([new Uint8Array(wholeLimit + 1)], 'large')
  const { slice } = Blob.prototype
  Object.assign(file, {
    slice: (start: number, end?: number) =>
      start < 0 ? Object.assign(new Blob(['x']), { arrayBuffer: () => Promise.reject(gone) }) : slice.call(file, start, end),
  })
  await expect(takeIn(file, {}, undefined)).rejects.toMatchObject({ code: 'file-unreadable', cause: gone })
})

test('a file that gives fewer or more bytes than it said is refused', async () => {
  for (const given of [0, 2, 4]) {
    const file = Object.assign(new File(['abc'], 'a'), { arrayBuffer: async () => new ArrayBuffer(given) })
    await expect(takeIn(file, {}, undefined)).rejects.toMatchObject({ code: 'file-unreadable' })
  }
})

test('an error of any kind on reading is told as file-unreadable, without the name of the file', async () => {
  for (const error of [new Error('secret.txt'), 'secret.txt', undefined]) {
    const thrown = await takeIn(unreadableFile(3, error), { name: 'secret.txt' }, undefined).catch((caught: Error) => caught)
    expect(thrown).toMatchObject({ code: 'file-unreadable' })
    expect((thrown as Error).message).not.toContain('secret')
  }
})

test('a file over the limit is refused before it is read, one at the limit is not', async () => {
  const file = new File(['abc'], 'a')
  const reads = vi.spyOn(file, 'arrayBuffer')
  await expect(takeIn(file, {}, 2)).rejects.toMatchObject({ code: 'file-too-large', message: expect.stringMatching(/3 bytes.*2 are/) })
  await expect(takeIn(file, {}, 0)).rejects.toMatchObject({ code: 'file-too-large' })
  expect(reads).not.toHaveBeenCalled()
  expect((await takeIn(file, {}, 3)).size).toBe(3)
  expect((await takeIn(new File([], 'a'), {}, 0)).size).toBe(0)
})

test('an aborted signal rejects with an AbortError and reads nothing', async () => {
  const file = new File(['abc'], 'a')
  const reads = vi.spyOn(file, 'arrayBuffer')
  await expect(takeIn(file, { signal: AbortSignal.abort() }, undefined)).rejects.toMatchObject({ name: 'AbortError' })
  expect(reads).not.toHaveBeenCalled()
})

test.each([3, inlineLimit + 1, wholeLimit + 1])(
  'an abort while %i bytes are read rejects with an AbortError, even if the reading fails',
  async (size) => {
    for (const end of ['fails', 'works'] as const) {
      const controller = new AbortController()
      const reading = async (): Promise<ArrayBuffer> => {
        controller.abort()
        if (end === 'fails') throw gone
        return new ArrayBuffer(size)
      }
      const file = Object.assign(new File([new Uint8Array(size)], 'a'), {
        arrayBuffer: reading,
        slice: () => Object.assign(new Blob(['x']), { arrayBuffer: reading }),
      })
      await expect(takeIn(file, { signal: controller.signal }, undefined)).rejects.toMatchObject({ name: 'AbortError' })
    }
  },
)

test('an abort for a reason of its own is an AbortError all the same, a DOMException is passed on', () => {
  expect(() => throwIfAborted(AbortSignal.abort('left'))).toThrow(expect.objectContaining({ name: 'AbortError' }))
  const timeout = new DOMException('late', 'TimeoutError')
  expect(() => throwIfAborted(AbortSignal.abort(timeout))).toThrow(timeout)
  throwIfAborted(new AbortController().signal)
  throwIfAborted(undefined)
})

test('bytes that could not be stored are blamed only if they cannot be read any more', async () => {
  const storeError = new UploadError('storage-failed', 'm')
  expect(await blame(new Blob(['x']), storeError)).toBe(storeError)
  expect(await blame(new ArrayBuffer(3), storeError)).toBe(storeError)
  expect(await blame(unreadableFile(3), storeError)).toMatchObject({ code: 'file-unreadable', cause: gone })
})
