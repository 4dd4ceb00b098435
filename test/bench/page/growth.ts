/** How the cost of one thing grows with the number of uploads that the queue holds, and what is left of them in memory. */
import { createUploadQueue, type Transport, type UploadQueue } from 'uponce'

export interface Growth {
  /** Makes a queue of so many uploads, none of which runs. */
  fill(count: number): Promise<void>
  /** ms of one state change, and of one more upload; medians, without the first third, in which the engine still gets to know the code. */
  costs(): Promise<{ change: number; enqueue: number }>
  /** Sends so many, by a transport that answers at once, and forgets them. */
  forget(count: number): Promise<void>
}

declare global {
  var growth: Growth
}

const filesOf = (count: number): File[] => Array.from({ length: count }, (_, place) => new File([`${place}`.padEnd(1_000)], `${place}`))

async function medianOf(times: number, work: (time: number) => Promise<unknown>): Promise<number> {
  const all: number[] = []
  for (let time = 0; time < times; time++) {
    const began = performance.now()
    await work(time)
    all.push(performance.now() - began)
  }
  const late = all.slice(times / 3).sort((a, b) => a - b)
  return late[late.length >> 1]!
}

const atOnce: Transport = {
  reportsBytes: false,
  send: async ({ url, headers }) => {
    const key = headers.get('Idempotency-Key')
    const text = JSON.stringify({ uploadId: key, storageKey: key })
    return { status: 201, headers: new Headers(), url, redirected: false, text, broken: false }
  },
}

let queue: UploadQueue

globalThis.growth = {
  async fill(count) {
    queue = createUploadQueue({ endpoint: '/uploads', autoStart: false, persist: 'required' })
    // As any list of uploads does.
    queue.subscribe(() => queue.getSnapshot())
    await queue.enqueueAll(filesOf(count))
  },
  async costs() {
    const all = queue.getSnapshot()
    const { id } = all[all.length >> 1]!
    const [file] = filesOf(1)
    return {
      change: await medianOf(150, (time) => (time % 2 === 0 ? queue.pause(id) : queue.resume(id))),
      enqueue: await medianOf(60, () => queue.enqueue(file!)),
    }
  },
  async forget(count) {
    queue = createUploadQueue({ endpoint: '/uploads', transport: atOnce, concurrency: 6, persist: 'required' })
    queue.subscribe(() => queue.getSnapshot())
    await queue.enqueueAll(filesOf(count))
    const { succeeded, failed, left } = await queue.flush()
    if (failed + left > 0) throw new Error(`${succeeded} succeeded, ${failed} failed, ${left} are left`)
    await queue.clear({ status: 'succeeded' })
  },
}
