import { existsSync } from 'node:fs'
import { cp, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { PGlite } from '@electric-sql/pglite'

const require = createRequire(import.meta.url)
const { version } = JSON.parse(await readFile(require.resolve('@electric-sql/pglite').replace(/dist\/[^/]*$/, 'package.json'), 'utf8')) as {
  version: string
}
const cache = fileURLToPath(new URL('../../node_modules/.cache/uponce/', import.meta.url))

/** For a process of Node that has an embedded database: V8 compiles it once and not twice, in half the time, and a test asks it little. */
export const pgliteFlags = ['--liftoff-only']

/** Made once for all test files, since creating a database takes a core some seconds. Each process may be the first. */
async function cached(name: string, make: (path: string) => Promise<void>): Promise<string> {
  const path = `${cache}pglite-${version}${name}`
  if (existsSync(path)) return path
  const own = `${path}.${process.pid}`
  await mkdir(cache, { recursive: true })
  await make(own)
  await rename(own, path).catch(() => rm(own, { recursive: true }))
  return path
}

/** An empty embedded database in memory. */
export async function startPglite(): Promise<PGlite> {
  const dump = await cached('.tar', async (path) => {
    const pglite = await PGlite.create()
    await writeFile(path, new Uint8Array(await (await pglite.dumpDataDir('none')).arrayBuffer()))
    await pglite.close()
  })
  return PGlite.create({ loadDataDir: new Blob([await readFile(dump)]) })
}

/** Puts an empty embedded database into a folder that does not exist yet. */
export async function putPglite(folder: string): Promise<void> {
  const empty = await cached('', async (path) => (await PGlite.create(path)).close())
  await cp(empty, folder, { recursive: true })
}
