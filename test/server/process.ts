import { type ChildProcess, spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { buildProgram, builtOf } from '../faults/program.js'
import { pgliteFlags } from '../helpers/pglite.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface Exited {
  code: number | null
  stdout: string
  stderr: string
}

export interface ServerProcess {
  url: string
  pid: number
  /** What it has said so far. */
  output: Omit<Exited, 'code'>
  /** Sends the signal and waits for the end. */
  stop(signal: NodeJS.Signals): Promise<Exited>
  exited: Promise<Exited>
}

/** What Node is called with. */
type Command = readonly string[]

/** As `npm start` does it. Takes longer, most of it for the compiler. */
export const fromSource: Command = ['--import', 'tsx', 'demo/server/main.ts']

/** The server's program, or another one that says the same line, as one file. */
export async function built(source?: string): Promise<Command> {
  await buildProgram(source)
  return [...pgliteFlags, builtOf(source)]
}

function run(
  env: Record<string, string>,
  command: Command,
): { child: ChildProcess; exited: Promise<Exited>; output: { stdout: string; stderr: string } } {
  const { PATH = '', HOME = '' } = process.env
  const child = spawn(process.execPath, command, {
    cwd: root,
    env: { PATH, HOME, PORT: '0', ...env },
  })
  const output = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text
    })
  }
  const exited = new Promise<Exited>((resolve) => child.on('close', (code) => resolve({ code, ...output })))
  return { child, exited, output }
}

/** Runs the server's program to its end. */
export const runMain = async (env: Record<string, string>, ...flags: string[]): Promise<Exited> =>
  run(env, [...(await built()), ...flags]).exited

/** Starts it, and waits until it listens. */
export async function startMain(env: Record<string, string>, command: Command | Promise<Command> = built()): Promise<ServerProcess> {
  const { child, exited, output } = run(env, await command)
  const url = await new Promise<string>((resolve, reject) => {
    child.stdout!.on('data', () => {
      const line = /^uponce demo on (http:\S+)\n/.exec(output.stdout)
      if (line) resolve(line[1]!)
    })
    void exited.then(({ stderr }) => reject(new Error(`the server ended before it listened: ${stderr}`)))
  })
  return {
    url,
    pid: child.pid!,
    output,
    exited,
    stop(signal) {
      child.kill(signal)
      return exited
    },
  }
}
