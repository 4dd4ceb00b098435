import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { makeFolder } from './folder.js'

/** The folder is in use by another process. */
export class FolderInUse extends Error {
  override name = 'FolderInUse'
  readonly pid: number

  constructor(folder: string, pid: number) {
    super(`${folder} is in use by process ${pid}`)
    this.pid = pid
  }
}

export interface FolderLock {
  release(): void
}

/**
 * When a process began, as far as the system tells; null when there is no such process. A number alone would not do: after a reboot another
 * process may have it.
 */
function beginningOf(pid: number): string | null {
  try {
    process.kill(pid, 0)
  } catch (error) {
    // EPERM: it is there, and somebody else's.
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return null
  }
  try {
    // The name in parentheses may hold spaces; the 20th field after it is the start, in ticks since boot.
    const ticks = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\)/s, '').trim().split(' ')[19]
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()}-${ticks}`
  } catch {
    // Not Linux.
  }
  try {
    return execFileSync('ps', ['-o', 'lstart=', '-p', String(pid)], { encoding: 'utf8' })
      .trim()
      .replace(/\W+/g, '-')
  } catch {
    return 'unknown'
  }
}

const LOCK = /^lock-(\d+)$/

/** The process that holds the folder, apart from ourselves. Locks of dead ones are removed. */
function holderOf(folder: string): number | null {
  for (const name of readdirSync(folder)) {
    const pid = Number(LOCK.exec(name)?.[1])
    if (!pid || pid === process.pid) continue
    const path = join(folder, name)
    let written: string
    try {
      written = readFileSync(path, 'utf8')
    } catch {
      // Released between the two calls.
      continue
    }
    if (beginningOf(pid) === written) return pid
    rmSync(path, { force: true })
  }
  return null
}

const ATTEMPTS = 4

/**
 * Takes a folder for this process. Each process writes a lock of its own name and then looks for others, so of two that come at once at least
 * one sees the other; a lock left by a dead process never counts. Throws `FolderInUse` and `FolderUnusable`.
 */
export async function lockFolder(folder: string): Promise<FolderLock> {
  await makeFolder(folder)
  const path = join(folder, `lock-${process.pid}`)
  const release = (): void => rmSync(path, { force: true })
  for (let attempt = 1; ; attempt++) {
    writeFileSync(path, beginningOf(process.pid) ?? 'unknown')
    const holder = holderOf(folder)
    if (holder === null) return { release }
    release()
    if (attempt === ATTEMPTS) throw new FolderInUse(folder, holder)
    // Both may have stepped back: whoever comes again first has it.
    await new Promise((resolve) => setTimeout(resolve, 50 + Math.random() * 150))
  }
}
