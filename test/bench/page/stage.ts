import type { Contestant, CreateContestant, Setting } from './contestant.js'

/** What a page had of something that it did, ms. */
export interface Course {
  drained: number
  /** When the last byte was on disk; `null`: never. */
  durable: number | null
  /** The longest task of the main thread, of those over 50 ms. */
  task: number
  /** The longest that a timer of 10 ms kept waiting. */
  gap: number
}

export interface Stage {
  create(setting: Omit<Setting, 'onDurable'>): void
  drain(): Promise<Course>
  /** Of each of the picked files, ms until it was on disk. */
  save(): Promise<number[]>
  /** Leaves so many files of 1 KB for a later page. */
  leave(count: number): Promise<void>
  /** ms from navigation until all that was left was known, and until the first request began. */
  resume(): Promise<Pick<Course, 'task' | 'gap'> & { count: number; listed: number; sent: number }>
}

declare global {
  var stage: Stage
}

/** Watches the main thread until it is told to stop. */
function watchThread(): () => Pick<Course, 'task' | 'gap'> {
  let [task, gap, last] = [0, 0, performance.now()]
  const note = (entries: PerformanceEntry[]): void => {
    for (const { duration } of entries) task = Math.max(task, duration)
  }
  const observer = new PerformanceObserver((list) => note(list.getEntries()))
  observer.observe({ type: 'longtask' })
  const timer = setInterval(() => {
    const now = performance.now()
    gap = Math.max(gap, now - last)
    last = now
  }, 10)
  return () => {
    clearInterval(timer)
    note(observer.takeRecords())
    observer.disconnect()
    return { task, gap }
  }
}

/** When the first request leaves, ms from navigation, whichever way it goes. */
function watchSending(): Promise<number> {
  const { fetch } = globalThis
  const { send } = XMLHttpRequest.prototype
  return new Promise((resolve) => {
    globalThis.fetch = (...call) => {
      resolve(performance.now())
      return fetch(...call)
    }
    XMLHttpRequest.prototype.send = function (body) {
      resolve(performance.now())
      send.call(this, body)
    }
  })
}

/** A long task is told of after its end, ms. */
const settleTime = 100
/** What goes on behind the scenes is waited for no longer, ms. */
const outlastLimit = 60_000

const picked = (): File[] => [...document.querySelector('input')!.files!]
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Puts a contestant on the page's stage. A page that says `resume` in its address takes up at once what an earlier one left. */
export function enter(createContestant: CreateContestant): void {
  let contestant: Contestant
  let durable: number | null = null
  const create = (setting: Omit<Setting, 'onDurable'>): void => {
    contestant = createContestant({
      ...setting,
      onDurable() {
        durable = performance.now()
      },
    })
  }
  let resumed: ReturnType<Stage['resume']> | undefined
  const asked = new URLSearchParams(location.search).get('resume')
  if (asked !== null) {
    const stop = watchThread()
    const sending = watchSending()
    create(JSON.parse(asked))
    const listing = contestant!.resume!().then((count) => ({ count, listed: performance.now() }))
    resumed = Promise.all([listing, sending]).then(async ([list, sent]) => {
      await pause(settleTime)
      return { ...list, sent, ...stop() }
    })
  }

  globalThis.stage = {
    create,
    async drain() {
      const files = picked()
      const stop = watchThread()
      const began = performance.now()
      await contestant.drain!(files)
      const drained = performance.now() - began
      await Promise.race([contestant.outlast?.(), pause(outlastLimit)])
      await pause(settleTime)
      return { drained, durable: durable && durable - began, ...stop() }
    },
    async save() {
      const times: number[] = []
      for (const file of picked()) {
        const began = performance.now()
        await contestant.save!(file)
        times.push(performance.now() - began)
      }
      return times
    },
    leave: (count) => contestant.leave!(Array.from({ length: count }, (_, place) => new File([`${place}`.padEnd(1_000)], `left-${place}`))),
    resume: () => resumed!,
  }
}
