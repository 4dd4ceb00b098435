import { access, constants, type FileHandle, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { checkObjectKey, type ObjectStore } from './objects.js'

const isMissing = (error: unknown): boolean => (error as NodeJS.ErrnoException | null)?.code === 'ENOENT'

/** Undefined instead of the error of a missing file. */
const ifThere = async <Result>(work: Promise<Result>): Promise<Result | undefined> => {
  try {
    return await work
  } catch (error) {
    if (isMissing(error)) return undefined
    throw error
  }
}

const writeAll = async (file: FileHandle, chunk: Uint8Array): Promise<void> => {
  for (let at = 0; at < chunk.byteLength; ) at += (await file.write(chunk, at)).bytesWritten
}

/** A name is durable when its folder is. Windows cannot open a folder, and keeps names by itself. */
const syncFolder = async (folder: string): Promise<void> => {
  if (process.platform === 'win32') return
  const handle = await open(folder, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** One file per object in `folder`, which is made when missing. A file under its final name is complete and on disk. */
export async function createFolderObjects(folder: string): Promise<ObjectStore> {
  await mkdir(folder, { recursive: true })
  const pathOf = (key: string): string => join(folder, checkObjectKey(key))

  return {
    async create(key) {
      const path = pathOf(key)
      const part = `${path}.part`
      const file = await open(part, 'wx')
      return {
        write: (chunk) => writeAll(file, chunk),
        async finish() {
          await file.sync()
          await file.close()
          await rename(part, path)
          await syncFolder(folder)
        },
        async abort() {
          await file.close().catch(() => {})
          await rm(part, { force: true })
        },
      }
    },
    async open(key) {
      const file = await ifThere(open(pathOf(key), 'r'))
      return file ? (Readable.toWeb(file.createReadStream()) as ReadableStream<Uint8Array>) : null
    },
    async delete(key) {
      await rm(pathOf(key), { force: true })
      await rm(`${pathOf(key)}.part`, { force: true })
    },
    async stat(key) {
      const found = await ifThere(stat(pathOf(key)))
      return found ? { bytes: found.size } : null
    },
    async list(prefix) {
      return (await readdir(folder)).filter((name) => name.startsWith(prefix) && !name.endsWith('.part'))
    },
    check: () => access(folder, constants.R_OK | constants.W_OK),
  }
}
