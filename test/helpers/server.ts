import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { buildProgram, builtOf } from '../faults/program.js'
import { pgliteFlags, putPglite } from './pglite.js'
import { makeTempFolder } from './temp-folder.js'

export interface Server {
  /** The same after a restart. */
  readonly url: string
  /** Of its process; another one after a restart. */
  readonly pid: number
  /** Ends the process at once; nothing is cleaned up. */
  kill(signal?: NodeJS.Signals): Promise<void>
  /** Starts it again on the same data and the same port. */
  restart(): Promise<void>
  /** Ends it politely and removes its data. */
  stop(): Promise<void>
}

/** The reference server, in a process of its own, with the fault panel's routes on. */
export const startServer = async (env: Record<string, string> = {}): Promise<Server> => {
  await buildProgram()
  const folder = await makeTempFolder('server')
  if (env.DATABASE_URL === undefined) await putPglite(`${folder.path}/db`)
  const listen = (port: string) => spawnServer({ PORT: port, DATA_DIR: folder.path, DEMO_FAULTS: '1', ...env })
  let { child, url } = await listen('0')
  const kill = async (signal: NodeJS.Signals = 'SIGKILL'): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill(signal)
    await exited
  }
  return {
    url,
    get pid() {
      return child.pid!
    },
    kill,
    async restart() {
      await kill()
      child = (await listen(new URL(url).port)).child
    },
    async stop() {
      await kill('SIGTERM')
      await folder.remove()
    },
  }
}

/** As `npm start` starts it: what is soon garbage gets no more room than this, MB for each half, however many chunks a body comes in. */
const youngHeap = '--max-semi-space-size=4'

const spawnServer = async (env: Record<string, string>): Promise<{ child: ChildProcess; url: string }> => {
  const { NODE_ENV: _, DATABASE_URL: __, ...own } = process.env
  const child = spawn(process.execPath, [...pgliteFlags, youngHeap, builtOf()], {
    env: { ...own, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const killChild = (): void => void child.kill('SIGKILL')
  process.once('exit', killChild)
  child.once('exit', () => process.off('exit', killChild))
  let output = ''
  return new Promise((resolve, reject) => {
    const read = (data: Buffer): void => {
      output += data
      const url = /^uponce demo on (http:\S+)$/m.exec(output)?.[1]
      if (url) resolve({ child, url })
    }
    child.stdout.on('data', read)
    child.stderr.on('data', read)
    child.once('exit', () => reject(new Error(`The server ended before it listened:\n${output}`)))
  })
}
