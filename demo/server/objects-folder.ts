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

/** Bytes that go to the disk at once: each call costs as much as a few of the small pieces that a connection gives. */
const BATCH = 262_144

interface BatchWriter {
  write(chunk: Uint8Array): Promise<void>
  /** Everything has been handed to the file, or the reason why not. */
  flush(): Promise<void>
}

/** Writes in batches, and takes the next one while the last one is on its way. A failure is told at the next call. */
function writeInBatches(file: FileHandle): BatchWriter {
  let [batch, spare] = [Buffer.alloc(0), Buffer.alloc(0)]
  let used = 0
  let onItsWay = Promise.resolve()

  const writeAll = async (bytes: Uint8Array): Promise<void> => {
    for (let at = 0; at < bytes.byteLength; ) at += (await file.write(bytes, at)).bytesWritten
  }
  const send = async (): Promise<void> => {
    await onItsWay
    onItsWay = writeAll(batch.subarray(0, used))
    // It is awaited by the next call.
    onItsWay.catch(() => {})
    ;[batch, spare] = [spare, batch]
    used = 0
  }
  return {
    async write(chunk) {
      for (let at = 0; at < chunk.byteLength; ) {
        if (batch.byteLength === 0) batch = Buffer.allocUnsafeSlow(BATCH)
        const taken = Math.min(chunk.byteLength - at, BATCH - used)
        batch.set(chunk.subarray(at, at + taken), used)
        at += taken
        used += taken
        if (used === BATCH) await send()
      }
    },
    async flush() {
      if (used > 0) await send()
      await onItsWay
    },
  }
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
      const batches = writeInBatches(file)
      let isClosed = false
      const checkOpen = (): void => {
        if (isClosed) throw new TypeError('the object is finished or aborted')
      }
      return {
        async write(chunk) {
          checkOpen()
          await batches.write(chunk)
        },
        async finish() {
          checkOpen()
          await batches.flush()
          isClosed = true
          await file.sync()
          await file.close()
          await rename(part, path)
          await syncFolder(folder)
        },
        async abort() {
          isClosed = true
          // It waits for what is on its way.
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
