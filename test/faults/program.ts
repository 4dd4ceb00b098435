import { type ChildProcess, spawn } from 'node:child_process'
import { copyFileSync, readdirSync, readFileSync, readlinkSync, renameSync } from 'node:fs'
import { basename, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as esbuild from 'esbuild'

const at = (path: string): string => resolve(fileURLToPath(new URL('../..', import.meta.url)), path)
const schema = at('.build/server/schema.sql')
const MAIN = 'demo/server/main.ts'

/** Where `buildProgram` puts it. */
export const builtOf = (source = MAIN): string => at(`.build/server/${basename(source, '.ts')}.js`)

/**
 * The server's program, or another one, as one file: it starts in a fraction of the time, and its memory is its own and not that of a compiler.
 * Test files that run at the same time each build it, so it is put in its place as a whole.
 */
export function buildProgram(source = MAIN): Promise<void> {
  const building = builds.get(source) ?? build(source)
  builds.set(source, building)
  return building
}

const builds = new Map<string, Promise<void>>()

async function build(source: string): Promise<void> {
  const program = builtOf(source)
  const options = { bundle: true, platform: 'node', format: 'esm', packages: 'external', logLevel: 'error' } as const
  const own = (path: string): string => `${path}.${process.pid}`
  await esbuild.build({ ...options, entryPoints: [at(source)], outfile: own(program) })
  copyFileSync(at('demo/server/schema.sql'), own(schema))
  for (const path of [schema, program]) renameSync(own(path), path)
}

export interface Program {
  url: string
  /** Everything it has said on stderr. */
  errors(): string
  isAlive(): boolean
  kill(signal?: NodeJS.Signals): Promise<void>
  /** Resident memory, in bytes. Linux only. */
  memory(): number
  /** Open files below a folder. Linux only. */
  openFiles(folder: string): string[]
  /** Connections it has accepted and not yet closed. Linux only. */
  connections(): number
}

const children = new Set<ChildProcess>()
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL')
})

/** Runs it and waits until it listens. `buildProgram` comes first. */
export async function startProgram(env: Record<string, string>, source = MAIN): Promise<Program> {
  const { PATH = '', HOME = '' } = process.env
  const child = spawn(process.execPath, [builtOf(source)], { env: { PATH, HOME, PORT: '0', ...env } })
  children.add(child)
  let [stdout, stderr] = ['', '']
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })
  const exited = new Promise<void>((resolve) => child.on('close', () => resolve())).finally(() => children.delete(child))
  const url = await new Promise<string>((resolve, reject) => {
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text
      const line = / on (http:\S+)\n/.exec(stdout)
      if (line) resolve(line[1]!)
    })
    void exited.then(() => reject(new Error(`the server ended before it listened: ${stderr}`)))
  })
  const proc = `/proc/${child.pid}`
  const port = Number(new URL(url).port).toString(16).toUpperCase().padStart(4, '0')
  return {
    url,
    errors: () => stderr,
    isAlive: () => child.exitCode === null && child.signalCode === null,
    kill(signal = 'SIGKILL') {
      child.kill(signal)
      return exited
    },
    memory: () => Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`${proc}/status`, 'utf8'))![1]) * 1024,
    openFiles: (folder) =>
      readdirSync(`${proc}/fd`).flatMap((fd) => {
        try {
          const path = readlinkSync(`${proc}/fd/${fd}`)
          return path.startsWith(folder) ? [path] : []
        } catch {
          return []
        }
      }),
    connections: () =>
      readFileSync('/proc/net/tcp', 'utf8')
        .split('\n')
        // Local address, remote address, state: 01 is established, 08 waits for our own end to be closed.
        .filter((line) => new RegExp(`^\\s*\\d+: 0100007F:${port} \\S+ (01|08) `).test(line)).length,
  }
}

/** The most resident memory while something ran, in bytes. */
export async function memoryPeak(program: Program, work: () => Promise<void>): Promise<number> {
  let most = program.memory()
  const timer = setInterval(() => {
    most = Math.max(most, program.memory())
  }, 20)
  try {
    await work()
  } finally {
    clearInterval(timer)
  }
  return most
}
