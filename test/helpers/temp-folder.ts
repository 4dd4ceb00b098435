import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface TempFolder {
  path: string
  remove(): Promise<void>
}

export const makeTempFolder = async (purpose: string): Promise<TempFolder> => {
  const path = await mkdtemp(join(tmpdir(), `uponce-${purpose}-`))
  // a browser that is going down may still be writing
  return { path, remove: () => rm(path, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 }) }
}
