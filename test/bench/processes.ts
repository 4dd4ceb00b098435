import { readdirSync, readFileSync } from 'node:fs'

/** What a process and all below it use. Linux only. */
export interface Processes {
  /** Processor time since they began, ms, to 10 ms. */
  time(): number
  /** Resident memory, MiB. What processes share counts for each of them. */
  resident(): number
  /** Proportional set size: memory, with what is shared counted once. MiB. It costs much to know: a few ms a process. */
  memory(): number
}

const ticksPerSecond = 100
const pagesPerMiB = 256

/** A process may end while its files are read. */
const read = (path: string): string => {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** What follows the name of the program, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html */
const statOf = (pid: string): string[] =>
  read(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ')

function treeOf(root: number): string[] {
  const parents = new Map<string, string>()
  for (const pid of readdirSync('/proc')) if (/^\d+$/.test(pid)) parents.set(pid, statOf(pid)[1] ?? '')
  const tree = [String(root)]
  for (const above of tree) for (const [pid, parent] of parents) if (parent === above) tree.push(pid)
  return tree
}

const sum = (numbers: number[]): number => numbers.reduce((all, one) => all + one, 0)

export function createProcesses(root: number): Processes {
  return {
    // User and system time, their own and that of children that have ended.
    time: () => (sum(treeOf(root).flatMap((pid) => statOf(pid).slice(11, 15).map(Number))) / ticksPerSecond) * 1_000,
    resident: () => sum(treeOf(root).map((pid) => Number(read(`/proc/${pid}/statm`).split(' ')[1] ?? 0))) / pagesPerMiB,
    memory: () => sum(treeOf(root).map((pid) => Number(/^Pss:\s+(\d+)/m.exec(read(`/proc/${pid}/smaps_rollup`))?.[1] ?? 0))) / 1_024,
  }
}
