/** What the test page has at hand as `tools`: a queue whose events are noted, and the raw database below it. */
import type { EnqueueOptions, UploadQueue, UploadQueueEventName, UploadQueueOptions } from 'uponce'

/** The same bytes in the page and in Node; from 256 on every byte value is among them. */
export const bytesOf = (size: number, seed = 0): Uint8Array<ArrayBuffer> => {
  const bytes = new Uint8Array(size)
  for (let at = 0; at < size; at++) bytes[at] = at * 31 + (at >> 8) + seed * 7
  return bytes
}

interface Noted {
  event: UploadQueueEventName
  id?: string
  code?: string
}

/** What the queue told in this page, oldest first; progress apart. */
export const noted: Noted[] = []
/** The keys of the requests that this page sent, in order. */
export const sent: string[] = []

const events: UploadQueueEventName[] = [
  ...(['added', 'started', 'retrying', 'succeeded', 'failed', 'blocked', 'paused', 'resumed', 'cancelled', 'warning'] as const),
]

/** Starts the queue of this account, in a database of its own. */
export const start = (account: string, options: Partial<UploadQueueOptions<never>> = {}): void => {
  const { fetch } = globalThis
  globalThis.fetch = (input, init) => {
    const key = new Headers(init?.headers).get('Idempotency-Key')
    if (key && init?.method === 'POST') sent.push(key)
    return fetch(input, init)
  }
  globalThis.queue = uponce.createUploadQueue({
    endpoint: '/uploads',
    name: account,
    headers: { Authorization: `Bearer ${account}` },
    retry: { baseDelay: 300, maxDelay: 1_000 },
    ...options,
  })
  for (const event of events)
    queue.on(event, (payload) => {
      const { upload, error } = payload as { upload?: { id: string }; error?: { code: string } }
      noted.push({ event, ...(upload && { id: upload.id }), ...(error && { code: error.code }) })
    })
}

export interface FileFacts {
  size: number
  seed?: number
  name?: string
}

export const enqueue = async ({ size, seed = 0, name = 'file.bin' }: FileFacts, options?: EnqueueOptions) => {
  const { id } = await queue.enqueue(new File([bytesOf(size, seed)], name), options)
  return { id, key: queue.get(id)!.idempotencyKey }
}

interface Tale {
  /** Why it was tried again, each time, and how it ended; `(free)`: that one was not counted. */
  tale: string[]
  /** The time before which it was not to be tried again, each time, ms since 1970. */
  notBefore: number[]
}
/** Queues beside the account's own, by name, with what each told: by file name, and of itself. */
const others: Record<string, { queue: UploadQueue; tales: Record<string, Tale>; told: UploadQueueEventName[] }> = {}

/** Starts another queue in this page. It tells the server which attempt each request is. */
export const open = (name: string, { headers, ...options }: UploadQueueOptions<never>): UploadQueue => {
  const own = typeof headers === 'function' ? headers : () => headers
  const queue = uponce.createUploadQueue<never>({
    name,
    headers: async (upload, context) => {
      const made = new Headers(await own(upload, context))
      made.set('Test-Attempt', String(context.attempt))
      return made
    },
    ...options,
  })
  const tales: Record<string, Tale> = {}
  const told: UploadQueueEventName[] = []
  const taleOf = ({ name }: { name: string }): Tale => (tales[name] ??= { tale: [], notBefore: [] })
  queue.on('retrying', ({ upload, reason, counted, delay }) => {
    taleOf(upload).tale.push(counted ? reason : `${reason} (free)`)
    taleOf(upload).notBefore.push(Date.now() + delay)
  })
  queue.on('succeeded', ({ upload }) => taleOf(upload).tale.push('succeeded'))
  queue.on('failed', ({ upload, error }) => taleOf(upload).tale.push(`failed ${error.code}`))
  queue.on('blocked', ({ upload, error }) => taleOf(upload).tale.push(`blocked ${error.code}`))
  for (const event of ['offline', 'online', 'warning'] as const) queue.on(event, () => told.push(event))
  others[name] = { queue, tales, told }
  return queue
}

export const other = (name: string): UploadQueue => others[name]!.queue

/** How all uploads of those queues fare. */
export const faring = () =>
  Object.entries(others).flatMap(([name, { queue, tales, told }]) =>
    queue.getSnapshot().map(({ name: file, status, attempts, requests, idempotencyKey: key, result }) => ({
      ...{ queue: name, file, status, attempts, requests, key, result },
      ...(tales[file] ?? { tale: [], notBefore: [] }),
      // Each its own: what occurs twice does not travel out of every engine.
      told: [...told],
    })),
  )

export const closeOthers = (): Promise<unknown> => Promise.all(Object.values(others).map(({ queue }) => queue.close()))

/** How a promise settles: `fine`, or the code of its error, and after how many ms. */
export const settled = async (promise: Promise<unknown>): Promise<{ end: string; ms: number }> => {
  const since = performance.now()
  const end = await promise.then(
    () => 'fine',
    ({ code, name }) => (typeof code === 'string' ? code : name),
  )
  return { end, ms: performance.now() - since }
}

export const promised = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })

/** The database of this account, as it is. */
export const openRaw = (account: string): Promise<IDBDatabase> => promised(indexedDB.open(`uponce:${account}`))

export const deleteRaw = (account: string): Promise<unknown> => promised(indexedDB.deleteDatabase(`uponce:${account}`))

const change = async (account: string, storeName: string, work: (store: IDBObjectStore) => void): Promise<void> => {
  const database = await openRaw(account)
  const transaction = database.transaction(storeName, 'readwrite')
  work(transaction.objectStore(storeName))
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve
    transaction.onabort = () => reject(transaction.error)
  })
  database.close()
}

export const putRaw = (account: string, storeName: string, key: string, value: unknown): Promise<void> =>
  change(account, storeName, (store) => store.put(value, key))

export const dropRaw = (account: string, storeName: string, key: string): Promise<void> =>
  change(account, storeName, (store) => store.delete(key))

/** What a database holds: the rows, and how many bytes are beside them. */
export const held = async (account: string): Promise<{ rows: Record<string, Record<string, unknown>>; bytes: Record<string, number> }> => {
  const database = await openRaw(account)
  const transaction = database.transaction(['uploads', 'bytes'])
  const read = async (name: string): Promise<[string, never][]> => {
    const store = transaction.objectStore(name)
    const [keys, values] = await Promise.all([promised(store.getAllKeys()), promised(store.getAll())])
    return keys.map((key, place) => [String(key), values[place] as never])
  }
  const [rows, bytes] = await Promise.all([read('uploads'), read('bytes')])
  database.close()
  const sizeOf = (value: Blob | ArrayBuffer): number => ('size' in value ? value.size : value.byteLength)
  return { rows: Object.fromEntries(rows), bytes: Object.fromEntries(bytes.map(([key, value]) => [key, sizeOf(value)])) }
}

declare global {
  var tools: typeof import('./page-tools.js')
}
