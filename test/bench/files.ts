import { createHash, randomFillSync } from 'node:crypto'
import { closeSync, mkdtempSync, openSync, writeSync } from 'node:fs'
import { join } from 'node:path'

export interface Files {
  paths: string[]
  /** By name. */
  digests: Record<string, string>
}

const MiB = 2 ** 20

/** Files of random bytes in a new folder below `folder`. */
export function writeFiles(folder: string, count: number, bytes: number): Files {
  const own = mkdtempSync(join(folder, 'files-'))
  const files: Files = { paths: [], digests: {} }
  const buffer = Buffer.alloc(Math.min(bytes, MiB))
  for (let place = 0; place < count; place++) {
    const name = `file-${place}`
    const hash = createHash('sha256')
    const file = openSync(join(own, name), 'w')
    for (let left = bytes; left > 0; left -= buffer.length) {
      const part = randomFillSync(buffer).subarray(0, left)
      hash.update(part)
      writeSync(file, part)
    }
    closeSync(file)
    files.paths.push(join(own, name))
    files.digests[name] = hash.digest('hex')
  }
  return files
}
