import { createHash } from 'node:crypto'
import { expect, it } from 'vitest'
import type { ObjectStore } from '../../demo/server/objects.js'
import { everyByte, MiB, sha256 } from './fixture.js'

/** What one object holds at most before it is stored in parts, where it is. */
const PART = 8 * MiB

/** Bytes that differ from one place to the next, so that a part out of order shows. */
export function patternOf(bytes: number): Uint8Array {
  const words = new Uint32Array(Math.ceil(bytes / 4))
  for (let at = 0; at < words.length; at++) words[at] = Math.imul(at + 1, 2_654_435_761)
  return new Uint8Array(words.buffer, 0, bytes)
}

export async function writeObject(objects: ObjectStore, key: string, bytes: Uint8Array, chunkBytes = 65_536): Promise<void> {
  const object = await objects.create(key)
  for (let at = 0; at < bytes.byteLength; at += chunkBytes) await object.write(bytes.subarray(at, at + chunkBytes))
  await object.finish()
}

export async function readObject(objects: ObjectStore, key: string): Promise<{ bytes: number; sha256: string } | null> {
  const stream = await objects.open(key)
  if (!stream) return null
  const hash = createHash('sha256')
  let bytes = 0
  for await (const chunk of stream) {
    bytes += chunk.byteLength
    hash.update(chunk)
  }
  return { bytes, sha256: hash.digest('hex') }
}

/**
 * The promises of every ObjectStore, as tests.
 *
 * @param leftovers what the place holds besides finished objects
 */
export function objectStoreSuite(objects: ObjectStore, leftovers: () => Promise<string[]>): void {
  it.each([
    ['no byte', 0],
    ['one byte', 1],
    ['exactly one part', PART],
    ['one part and a byte', PART + 1],
    ['20 MB', 20_000_000],
  ])('gives back %s as it was written', async (_name, bytes) => {
    const pattern = patternOf(bytes)
    await writeObject(objects, `size-${bytes}`, pattern)
    expect(await objects.stat(`size-${bytes}`)).toEqual({ bytes })
    expect(await readObject(objects, `size-${bytes}`)).toEqual({ bytes, sha256: sha256(pattern) })
    await objects.delete(`size-${bytes}`)
  })

  it('gives back a chunk larger than two parts, followed by an empty one', async () => {
    const pattern = patternOf(2 * PART + 5)
    const object = await objects.create('large-chunk')
    await object.write(pattern)
    await object.write(new Uint8Array())
    await object.finish()
    expect(await readObject(objects, 'large-chunk')).toEqual({ bytes: pattern.byteLength, sha256: sha256(pattern) })
    await objects.delete('large-chunk')
  })

  it('keeps all 256 byte values, written in chunks whose memory is used again', async () => {
    const object = await objects.create('a-1')
    const reused = everyByte.slice()
    await object.write(reused)
    reused.fill(0)
    await object.write(everyByte.subarray(10, 20))
    await object.finish()
    const stored = new Uint8Array(await new Response(await objects.open('a-1')).arrayBuffer())
    expect(stored).toEqual(new Uint8Array([...everyByte, ...everyByte.subarray(10, 20)]))
  })

  it.each([
    ['a small object', 256],
    ['one in parts', PART + 1],
  ])('shows nothing of %s before the end', async (_name, bytes) => {
    const key = `hidden-${bytes}`
    const object = await objects.create(key)
    await object.write(patternOf(bytes))
    expect([await objects.stat(key), await objects.open(key), await objects.list('hidden-')]).toEqual([null, null, []])
    await object.finish()
    expect(await objects.list('hidden-')).toEqual([key])
    expect(await leftovers()).toEqual([])
    await objects.delete(key)
  })

  it.each([
    ['before the first byte', 0],
    ['of a small object', 256],
    ['of one in parts', 2 * PART],
  ])('leaves nothing after an abort %s, and takes no more bytes', async (_name, bytes) => {
    const object = await objects.create('c-1')
    await object.write(patternOf(bytes))
    await object.abort()
    await object.abort()
    await expect(object.write(everyByte)).rejects.toThrow()
    await expect(object.finish()).rejects.toThrow()
    expect([await objects.stat('c-1'), await objects.list('c-'), await leftovers()]).toEqual([null, [], []])
  })

  it('takes no bytes after the end, and an abort then changes nothing', async () => {
    const object = await objects.create('late-1')
    await object.write(everyByte)
    await object.finish()
    await expect(object.write(everyByte)).rejects.toThrow()
    await object.abort()
    expect(await objects.stat('late-1')).toEqual({ bytes: 256 })
  })

  it('replaces an object as a whole when its key is written again', async () => {
    await writeObject(objects, 'again-1', everyByte)
    const object = await objects.create('again-1')
    await object.write(everyByte.subarray(0, 3))
    expect(await objects.stat('again-1')).toEqual({ bytes: 256 })
    await object.finish()
    expect(await readObject(objects, 'again-1')).toEqual({ bytes: 3, sha256: sha256(everyByte.subarray(0, 3)) })
  })

  it('deletes what is there, what is half written, what is gone already, and nothing, alike', async () => {
    await writeObject(objects, 'd-1', everyByte)
    const half = await objects.create('d-2')
    await half.write(patternOf(PART + 1))
    for (const key of ['d-1', 'd-2', 'd-1', 'd-3']) await objects.delete(key)
    expect([await objects.list('d-'), await objects.open('d-1'), await leftovers()]).toEqual([[], null, []])
    await half.abort()
  })

  it('leaves an upload of a longer key alone when it deletes one that begins the same', async () => {
    const longer = await objects.create('prefix-10')
    await longer.write(patternOf(PART + 1))
    await objects.delete('prefix-1')
    await longer.finish()
    expect(await objects.stat('prefix-10')).toEqual({ bytes: PART + 1 })
    await objects.delete('prefix-10')
  })

  it('lists by prefix', async () => {
    for (const key of ['e-1', 'e-2', 'f-1']) await writeObject(objects, key, everyByte)
    expect((await objects.list('e-')).sort()).toEqual(['e-1', 'e-2'])
  })

  it('says that it works', async () => {
    await objects.check()
  })

  it.each(['../up', 'a/b', '', '.', 'a.part', 'a\0', 'a'.repeat(201)])('refuses the key %j', async (key) => {
    await expect(objects.create(key)).rejects.toThrow(TypeError)
    await expect(objects.open(key)).rejects.toThrow(TypeError)
    await expect(objects.stat(key)).rejects.toThrow(TypeError)
    await expect(objects.delete(key)).rejects.toThrow(TypeError)
  })
}
