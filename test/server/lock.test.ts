import { spawn } from 'node:child_process'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { FolderInUse, lockFolder } from '../../demo/server/lock.js'
import { buildProgram, builtOf } from '../faults/program.js'

const SOURCE = 'demo/server/lock.ts'
await buildProgram(SOURCE)

const parent = await mkdtemp(join(tmpdir(), 'uponce-lock-'))
afterAll(() => rm(parent, { recursive: true }))

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(parent, 'f'))
})

/** Another process that takes the folder and says so, or says why not. */
function other(): { line: Promise<string>; kill(): Promise<void>; pid: number } {
  const program = `
    import { lockFolder } from ${JSON.stringify(pathToFileURL(builtOf(SOURCE)).href)}
    try { await lockFolder(process.argv[1]); console.log('taken') } catch (error) { console.log(error.name) }
    setInterval(() => {}, 1000)`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const closed = new Promise<void>((resolve) => child.on('close', () => resolve()))
  return {
    pid: child.pid!,
    line: new Promise((resolve) => child.stdout.once('data', (text: Buffer) => resolve(text.toString().trim()))),
    async kill() {
      child.kill('SIGKILL')
      await closed
    },
  }
}

it('a folder that another process holds is refused, and free once that one is killed', async () => {
  const holder = other()
  expect(await holder.line).toBe('taken')
  await expect(lockFolder(folder)).rejects.toThrow(new FolderInUse(folder, holder.pid))
  await holder.kill()
  const lock = await lockFolder(folder)
  expect(await readdir(folder)).toEqual([`lock-${process.pid}`])
  lock.release()
  expect(await readdir(folder)).toEqual([])
})

it('of several processes at once at most one has the folder', async () => {
  const processes = Array.from({ length: 4 }, other)
  const lines = await Promise.all(processes.map(({ line }) => line))
  expect(lines.filter((line) => line === 'taken').length).toBeLessThanOrEqual(1)
  await Promise.all(processes.map(({ kill }) => kill()))
})

it('a lock of a process that is dead, or whose number another one has by now, does not count', async () => {
  await writeFile(join(folder, 'lock-4194399'), 'some-boot-12345')
  await writeFile(join(folder, `lock-${process.ppid}`), 'an-earlier-boot-1')
  await writeFile(join(folder, 'lock-1'), '')
  const lock = await lockFolder(folder)
  expect(await readdir(folder)).toEqual([`lock-${process.pid}`])
  expect(await readFile(join(folder, `lock-${process.pid}`), 'utf8')).not.toBe('')
  lock.release()
})
