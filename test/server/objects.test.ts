import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { createMemoryObjects } from '../../demo/server/objects.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'
import { objectStoreSuite } from './object-store-suite.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-objects-'))
afterAll(() => rm(folder, { recursive: true }))

describe('an object store in memory', () => {
  objectStoreSuite(createMemoryObjects(), async () => [])
})

describe('an object store in a folder', async () => {
  const path = join(folder, 'made', 'on demand')
  objectStoreSuite(await createFolderObjects(path), async () => (await readdir(path)).filter((name) => name.endsWith('.part')))

  it('holds a .part while an object is written, and only finished objects afterwards', async () => {
    const own = join(folder, 'parts')
    const objects = await createFolderObjects(own)
    const object = await objects.create('a-1')
    expect(await readdir(own)).toEqual(['a-1.part'])
    await object.finish()
    expect(await readdir(own)).toEqual(['a-1'])
    expect(await (await createFolderObjects(own)).stat('a-1')).toEqual({ bytes: 0 })
  })

  it('says that it does not work when its folder is gone', async () => {
    const own = join(folder, 'gone')
    const objects = await createFolderObjects(own)
    await rm(own, { recursive: true })
    await expect(objects.check()).rejects.toThrow('ENOENT')
  })
})
