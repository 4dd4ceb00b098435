import { execFile, spawnSync } from 'node:child_process'
import { existsSync, rmSync } from 'node:fs'
import { chown, mkdtemp, readdir } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

export interface Postgres {
  url: string
  stop(): Promise<void>
}

const INSTALL = 'PostgreSQL is not installed: apt-get install postgresql'

/** Debian keeps the programs of the server out of the PATH. */
async function findPrograms(): Promise<string | null> {
  const versions = await readdir('/usr/lib/postgresql').catch(() => [])
  const newest = versions.sort((a, b) => Number(b) - Number(a))[0]
  const folders = [...(newest ? [`/usr/lib/postgresql/${newest}/bin`] : []), ...(process.env.PATH ?? '').split(':')]
  return folders.find((folder) => existsSync(join(folder, 'initdb'))) ?? null
}

const freePort = (): Promise<number> =>
  new Promise((resolve, reject) => {
    const server = createServer()
    server.on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })

/** PostgreSQL refuses to run as root. */
async function unprivileged(): Promise<{ uid?: number; gid?: number }> {
  if (process.getuid?.() !== 0) return {}
  const [uid, gid] = await Promise.all(['-u', '-g'].map(async (flag) => Number((await run('id', [flag, 'postgres'])).stdout)))
  return { uid: uid!, gid: gid! }
}

/**
 * A PostgreSQL of its own for a test file, on a free port, gone after `stop` or at the end of the process. Null, with a loud line, where none is
 * installed; with `CI=true` that is an error.
 */
export async function startPostgres(): Promise<Postgres | null> {
  const bin = await findPrograms()
  if (bin === null) {
    if (process.env.CI === 'true') throw new Error(INSTALL)
    console.warn(`\n*** SKIPPED: tests against a real database. ${INSTALL}\n`)
    return null
  }
  const folder = await mkdtemp(join(tmpdir(), 'uponce-pg-'))
  const user = await unprivileged()
  if (user.uid !== undefined) await chown(folder, user.uid, user.gid!)
  const options = { ...user, cwd: folder, env: { ...process.env, HOME: folder, LC_ALL: 'C' } }
  const data = join(folder, 'data')
  const port = await freePort()
  const settings = `-p ${port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=${folder} -c fsync=off -c max_connections=60`

  const stopNow = (): void => {
    spawnSync(join(bin, 'pg_ctl'), ['-D', data, '-m', 'immediate', 'stop'], options)
    rmSync(folder, { recursive: true, force: true })
  }
  process.on('exit', stopNow)
  await run(join(bin, 'initdb'), ['-D', data, '-U', 'postgres', '-A', 'trust', '-N', '--no-instructions'], options)
  // The server would keep the pipes of execFile open for as long as it lives, hence the log file and no output.
  await run(join(bin, 'pg_ctl'), ['-D', data, '-w', '-s', '-l', join(folder, 'log'), '-o', settings, 'start'], options)
  return {
    url: `postgres://postgres@127.0.0.1:${port}/postgres`,
    async stop() {
      process.off('exit', stopNow)
      stopNow()
    },
  }
}
