import { AsyncLocalStorage } from 'node:async_hooks'

/** A server process: it can be paused, and it can die, and then nothing of it goes on. */
export interface Process {
  name: string
  alive: boolean
  frozen: boolean
  onCrash: (() => void)[]
}

/** What is going on in a process or at a client: one exchange, one sweep. */
export interface Thread {
  name: string
  process: Process | null
  simulation: Simulation
}

/** How a step ends: done, not done and failed, done and its answer lost, or with the death of the process before or after it. */
export type Fate = 'go' | 'fail before' | 'fail after' | 'crash before' | 'crash after'

/** A thread waiting for its turn. */
export interface Gate {
  thread: Thread
  label: string
  canFail: boolean
  open(fate: Fate): void
  /** The process is dead. A transaction has to know, for its connection to be given back. */
  lose(): void
}

export interface Timer {
  thread: Thread
  ms: number
  repeats: boolean
  /** Somebody looks again and again: such a one is as ready to go on as who waits at a gate. */
  isPause: boolean
  run: () => void
}

export interface PassOptions {
  canFail?: boolean
  inTransaction?: boolean
  /** Told of a step that has failed, or died, without having been done. */
  onNotDone?: () => void
}

export class InjectedFault extends Error {
  override name = 'InjectedFault'
}

/** Ends a transaction whose process has died. */
class Crashed extends Error {
  override name = 'Crashed'
}

export const threads = new AsyncLocalStorage<Thread>()

const never = (): Promise<never> => new Promise(() => {})
const immediate = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/**
 * Decides who goes next. Whatever the code under test awaits outside of itself passes a gate, and whatever timer it sets is ours, so that one
 * seed gives one order of events.
 */
export class Simulation {
  gates: Gate[] = []
  timers: Timer[] = []
  /** Gates stand open. */
  isFree = false
  /** Passes with the pauses, in ms: what `performance.now()` says inside of it. */
  now = 0
  openTransactions = 0
  #running = new Set<object>()
  #blocked = new Set<object>()
  #activity = 0
  #wake: (() => void) | undefined
  /** Calls of which nobody knows whether they will still be carried out. */
  late: (() => Promise<void>)[] = []
  /** How many statements wait for a lock. */
  readonly #lockWaits: () => Promise<number>

  constructor(lockWaits: () => Promise<number>) {
    this.#lockWaits = lockWaits
  }

  run<Result>(name: string, process: Process | null, work: () => Promise<Result>): Promise<Result> {
    return threads.run({ name, process, simulation: this }, work)
  }

  park(label: string, { canFail = true, inTransaction = false }: PassOptions = {}): Promise<Fate> {
    const thread = threads.getStore()!
    if (thread.process?.alive === false) return this.#gone(inTransaction)
    if (this.isFree) return Promise.resolve('go')
    this.#activity++
    return new Promise((resolve, reject) => {
      const gate: Gate = {
        thread,
        label,
        canFail,
        open: (fate) => {
          this.gates.splice(this.gates.indexOf(gate), 1)
          resolve(fate)
        },
        lose: () => {
          if (inTransaction) reject(new Crashed())
        },
      }
      this.gates.push(gate)
    })
  }

  /** Waits for its turn, does it, and ends as it is fated to. */
  async pass<Result>(label: string, work: () => Promise<Result>, options: PassOptions = {}): Promise<Result> {
    const { process } = threads.getStore()!
    const isDead = (): boolean => process?.alive === false
    const { inTransaction = false } = options
    const fate = await this.park(label, options)
    if (fate === 'fail before' || fate === 'crash before') options.onNotDone?.()
    if (fate === 'fail before') throw new InjectedFault(`${label} failed`)
    if (fate === 'crash before') this.crash(process!)
    if (isDead()) return this.#gone(inTransaction)
    const end = this.begin()
    const [outcome] = await Promise.allSettled([threads.exit(work)])
    end()
    if (fate === 'crash after') this.crash(process!)
    if (isDead()) return this.#gone(inTransaction)
    if (fate === 'fail after') throw new InjectedFault(`the answer to ${label} was lost`)
    if (outcome.status === 'rejected') throw outcome.reason
    return outcome.value
  }

  /** What was given up is carried out all the same. */
  async deliverLate(): Promise<void> {
    const call = this.late.shift()
    if (call) await threads.exit(call)
  }

  async deliverAllLate(): Promise<void> {
    while (this.late.length > 0) await this.deliverLate()
  }

  /** Something real goes on, until the returned function is called. */
  begin(): () => void {
    const work = {}
    this.#running.add(work)
    return () => {
      this.#running.delete(work)
      this.#activity++
      this.#wake?.()
    }
  }

  /** A transaction is over, so that others may get its locks. */
  transactionEnded(): void {
    this.openTransactions--
    this.#blocked.clear()
  }

  crash(process: Process): void {
    process.alive = false
    const lost = this.gates.filter((gate) => gate.thread.process === process)
    this.gates = this.gates.filter((gate) => gate.thread.process !== process)
    this.timers = this.timers.filter((timer) => timer.thread.process !== process)
    for (const gate of lost) gate.lose()
    for (const told of process.onCrash) told()
  }

  /** Until every thread waits at a gate, or for a lock that a waiting one holds. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 2; ) {
      const before = this.#activity
      await immediate()
      if ([...this.#running].some((work) => !this.#blocked.has(work))) {
        quiet = 0
        await this.#progress()
      } else quiet = this.#activity === before ? quiet + 1 : 0
    }
  }

  async #progress(): Promise<void> {
    const before = this.#activity
    await new Promise<void>((resolve) => {
      const timer = this.openTransactions > 0 ? setTimeout(resolve, 5) : undefined
      this.#wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
    this.#wake = undefined
    if (this.#activity !== before || this.openTransactions === 0) return
    if ((await this.#lockWaits()) >= this.#running.size && this.#activity === before)
      for (const work of this.#running) this.#blocked.add(work)
  }

  #gone(inTransaction: boolean): Promise<never> {
    return inTransaction ? Promise.reject(new Crashed()) : never()
  }

  /** A transaction of a dead process: rolled back, and nobody hears of it. */
  whenCrashed(error: unknown): Promise<never> {
    if (error instanceof Crashed) return never()
    throw error
  }
}

/** Longest time between two looks, in ms. */
const PAUSE_MS = 100

/** Takes over the timers that are set inside a simulation, and its time; all others stay as they are. The returned function undoes it. */
export function simulateTimers(): () => void {
  const {
    setTimeout: realTimeout,
    setInterval: realInterval,
    clearTimeout: realClearTimeout,
    clearInterval: realClearInterval,
  } = globalThis
  const realNow = performance.now.bind(performance)
  const simulated = new WeakSet<object>()

  const set = (real: typeof setTimeout | typeof setInterval, repeats: boolean) =>
    ((run: () => void, ms = 0, ...rest: unknown[]) => {
      const thread = threads.getStore()
      if (!thread || thread.simulation.isFree) return real(run, ms, ...rest)
      const { simulation } = thread
      const timer: Timer = {
        thread,
        ms,
        repeats,
        isPause: !repeats && ms <= PAUSE_MS,
        run: () => {
          if (!repeats) clear(timer)
          if (timer.isPause) simulation.now += ms
          threads.run(thread, run)
        },
      }
      simulated.add(timer)
      if (thread.process?.alive !== false) simulation.timers.push(timer)
      return timer
    }) as unknown as typeof setTimeout
  const clear = (timer: Timer): void => {
    const { simulation } = timer.thread
    simulation.timers = simulation.timers.filter((other) => other !== timer)
  }
  const clearOr = (real: (timer: never) => void) => (timer: unknown) => {
    if (typeof timer === 'object' && timer !== null && simulated.has(timer)) clear(timer as Timer)
    else real(timer as never)
  }

  performance.now = () => {
    const simulation = threads.getStore()?.simulation
    return simulation && !simulation.isFree ? simulation.now : realNow()
  }
  globalThis.setTimeout = set(realTimeout, false)
  globalThis.setInterval = set(realInterval, true) as unknown as typeof setInterval
  globalThis.clearTimeout = clearOr(realClearTimeout) as typeof clearTimeout
  globalThis.clearInterval = clearOr(realClearInterval) as typeof clearInterval
  return () => {
    performance.now = realNow
    Object.assign(globalThis, {
      setTimeout: realTimeout,
      setInterval: realInterval,
      clearTimeout: realClearTimeout,
      clearInterval: realClearInterval,
    })
  }
}
