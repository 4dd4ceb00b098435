import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { FolderUnusable, makeFolder, missingFolders } from '../../demo/server/folder.js'

const parent = await mkdtemp(join(tmpdir(), 'uponce-folder-'))
afterAll(() => rm(parent, { recursive: true }))

it('a folder is made with what it lies in, by several at once too, and one that is there is left alone', async () => {
  const outer = join(parent, 'a')
  const inner = join(outer, 'b')
  expect(await missingFolders(inner)).toEqual([outer, inner])
  await Promise.all([makeFolder(inner), makeFolder(inner), makeFolder(outer)])
  await writeFile(join(inner, 'file'), '')
  await makeFolder(inner)
  expect(await missingFolders(inner)).toEqual([])
  expect(await readdir(inner)).toEqual(['file'])
})

it('a file in the way is named, and nothing is made', async () => {
  const file = join(parent, 'file')
  await writeFile(file, '')
  for (const folder of [file, join(file, 'below', 'it')]) {
    await expect(makeFolder(folder)).rejects.toThrow(new FolderUnusable(`${file} is a file, expected a folder`))
    await expect(missingFolders(folder)).rejects.toThrow(FolderUnusable)
  }
})

it.skipIf(process.platform === 'win32')('a link to nothing is no folder, and one to a folder is', async () => {
  await symlink(join(parent, 'nothing'), join(parent, 'broken'))
  await expect(makeFolder(join(parent, 'broken'))).rejects.toThrow(/broken cannot be made \(EEXIST/)
  await mkdir(join(parent, 'real'))
  await symlink(join(parent, 'real'), join(parent, 'link'))
  await makeFolder(join(parent, 'link', 'inner'))
  expect(await readdir(join(parent, 'real'))).toEqual(['inner'])
})

it.skipIf(process.platform !== 'linux')('a folder that the system does not make is an error, not a wait without end', async () => {
  await expect(makeFolder('/proc/nope/data')).rejects.toThrow(/^\/proc\/nope cannot be made \(ENOENT/)
})
