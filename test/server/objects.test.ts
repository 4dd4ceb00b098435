import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-objects-'))
afterAll(() => rm(folder, { recursive: true }))

const everyByte = Uint8Array.from({ length: 256 }, (_, byte) => byte)

const stores: [string, ObjectStore][] = [
  ['memory', createMemoryObjects()],
  ['a folder', await createFolderObjects(join(folder, 'made', 'on demand'))],
]

describe.each(stores)('an object store in %s', (_name, objects) => {
  const bytesOf = async (key: string): Promise<Uint8Array | null> => {
    const stream = await objects.open(key)
    return stream && new Uint8Array(await new Response(stream).arrayBuffer())
  }

  it('gives back every byte of what was written in several chunks', async () => {
    const object = await objects.create('a-1')
    await object.write(everyByte)
    await object.write(everyByte.subarray(10, 20))
    await object.finish()
    expect(await bytesOf('a-1')).toEqual(new Uint8Array([...everyByte, ...everyByte.subarray(10, 20)]))
    expect(await objects.stat('a-1')).toEqual({ bytes: 266 })
  })

  it('keeps an empty object', async () => {
    await (await objects.create('a-empty')).finish()
    expect(await objects.stat('a-empty')).toEqual({ bytes: 0 })
    expect(await bytesOf('a-empty')).toEqual(new Uint8Array())
  })

  it('shows nothing before the end', async () => {
    const object = await objects.create('b-1')
    await object.write(everyByte)
    expect(await objects.stat('b-1')).toBeNull()
    expect(await objects.open('b-1')).toBeNull()
    expect(await objects.list('b-')).toEqual([])
    await object.finish()
    expect(await objects.list('b-')).toEqual(['b-1'])
  })

  it('leaves nothing after an abort', async () => {
    const object = await objects.create('c-1')
    await object.write(everyByte)
    await object.abort()
    await object.abort()
    expect(await objects.stat('c-1')).toBeNull()
  })

  it('deletes what is there, what is half written, and nothing, alike', async () => {
    await (await objects.create('d-1')).finish()
    const half = await objects.create('d-2')
    await half.write(everyByte)
    for (const key of ['d-1', 'd-2', 'd-3']) await objects.delete(key)
    expect(await objects.list('d-')).toEqual([])
    await half.abort()
  })

  it('lists by prefix', async () => {
    for (const key of ['e-1', 'e-2', 'f-1']) await (await objects.create(key)).finish()
    expect((await objects.list('e-')).sort()).toEqual(['e-1', 'e-2'])
  })

  it.each(['../up', 'a/b', '', '.', 'a.part', 'a\0', 'a'.repeat(201)])('refuses the key %j', async (key) => {
    await expect(objects.create(key)).rejects.toThrow(TypeError)
    await expect(objects.open(key)).rejects.toThrow(TypeError)
    await expect(objects.delete(key)).rejects.toThrow(TypeError)
  })
})

it('a folder holds a .part while an object is written, and only finished objects afterwards', async () => {
  const own = join(folder, 'parts')
  const objects = await createFolderObjects(own)
  const object = await objects.create('a-1')
  expect(await readdir(own)).toEqual(['a-1.part'])
  await object.finish()
  expect(await readdir(own)).toEqual(['a-1'])
  expect(await (await createFolderObjects(own)).stat('a-1')).toEqual({ bytes: 0 })
})
