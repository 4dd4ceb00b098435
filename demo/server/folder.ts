import { mkdir, stat } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'

/** There is no such folder, and none can be made. */
export class FolderUnusable extends Error {
  override name = 'FolderUnusable'
}

const isFolder = async (path: string): Promise<boolean | undefined> => {
  try {
    return (await stat(path)).isDirectory()
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined
    throw new FolderUnusable(message, { cause: error })
  }
}

/** What has to be made for `folder` to be there, outermost first. Throws `FolderUnusable` where a file is in the way. */
export async function missingFolders(folder: string): Promise<string[]> {
  const missing: string[] = []
  let path = resolve(folder)
  for (let found = await isFolder(path); !found; found = await isFolder(path)) {
    if (found === false) throw new FolderUnusable(`${path} is a file, expected a folder`)
    missing.unshift(path)
    if (dirname(path) === path) break
    path = dirname(path)
  }
  return missing
}

/**
 * Makes a folder and what it lies in, one step after the other: Node's recursive `mkdir` never ends where the system says that the parent is
 * missing although it is there, as below /proc. Throws `FolderUnusable`.
 */
export async function makeFolder(folder: string): Promise<void> {
  for (const path of await missingFolders(folder)) {
    try {
      await mkdir(path)
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      // Another process may have been quicker.
      if (code === 'EEXIST' && (await isFolder(path))) continue
      throw new FolderUnusable(`${path} cannot be made (${message})`, { cause: error })
    }
  }
}
