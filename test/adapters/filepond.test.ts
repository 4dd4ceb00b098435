import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createServer, type FilePondOptions } from '../../src/adapters/filepond.js'
import { createUploadQueue, type UploadQueue, type UploadReceipt } from '../../src/index.js'
import { flush, until } from '../helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from '../helpers/transport.js'

let transport: TransportDouble
let queue: UploadQueue
/** What FilePond is told. */
let told: unknown[]

beforeEach(() => {
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
  told = []
  transport = createTransportDouble({ reportsBytes: true })
  queue = createUploadQueue({ endpoint: 'http://localhost:3000/uploads', transport })
})
afterEach(async () => {
  await queue.close()
  vi.unstubAllGlobals()
})

const tell =
  (what: string) =>
  (...values: unknown[]): void =>
    void told.push([what, ...values])
const [load, fail, progress, abort, transfer] = ['load', 'error', 'progress', 'abort', 'transfer'].map(tell) as [
  never,
  never,
  never,
  never,
  never,
]
const file = new File(['hello'], 'a.txt', { type: 'text/plain' })

const process = (options: FilePondOptions<UploadReceipt> = {}, chunkTransferId?: string): { abort: () => void } =>
  createServer(queue, options).process('files', file, { album: 'summer' }, load, fail, progress, abort, transfer, {
    ...(chunkTransferId !== undefined && { chunkTransferId }),
  })
const restore = (id: string, options: FilePondOptions<UploadReceipt> = {}, server = createServer(queue, options)): { abort: () => void } =>
  server.restore(
    id,
    (loaded) => tell('load')((loaded as unknown as { body: File }).body),
    fail,
    progress,
    abort,
    () => {},
  )
const theUpload = () => queue.getSnapshot()[0]!

test('process enqueues with the options for the file, tells progress, and gives the id of the server', async () => {
  process({ enqueue: ({ name }, metadata) => ({ metadata: { ...(metadata as { album: string }), name } }) })
  const request = await transport.nextRequest()
  expect(theUpload().metadata).toEqual({ album: 'summer', name: 'a.txt' })
  request.onProgress(2, 5)
  await until(() => told.length === 2)
  request.store()
  await until(() => told.length === 3)
  expect(told).toEqual([
    ['transfer', theUpload().id],
    ['progress', true, 2, 5],
    ['load', `id-${request.key}`],
  ])
})

test('process tells the code of what was refused, and goes on with the same upload when asked again', async () => {
  process()
  const first = await transport.nextRequest()
  first.respondWith({ status: 403 })
  const { id } = theUpload()
  await until(() => told.length === 2)
  expect(told[1]).toEqual(['error', 'rejected'])
  process({ serverId: ({ storageKey }) => storageKey }, id)
  const second = await transport.nextRequest()
  expect(second.key).toBe(first.key)
  second.store()
  await until(() => told.length === 3)
  expect(told[2]).toEqual(['load', `at-${first.key}`])
})

test('a refused sign-in is an error, a file that cannot be saved too', async () => {
  process()
  for (let time = 0; time < 2; time++) (await transport.nextRequest()).respondWith({ status: 401 })
  await until(() => told.length === 2)
  process({ enqueue: { metadata: { 'not allowed': '' } } })
  await until(() => told.length === 3)
  expect(told.slice(1)).toEqual([
    ['error', 'unauthorized'],
    ['error', 'TypeError'],
  ])
})

test('aborting cancels, before the file is saved and after', async () => {
  process().abort()
  expect(told).toEqual([['abort']])
  await until(() => told.length === 2)
  // It was saved meanwhile, and perhaps under way.
  await vi.waitUntil(() => queue.getSnapshot().length === 0)
  const { abort } = process()
  await until(() => theUpload()?.status === 'uploading')
  abort()
  await vi.waitUntil(() => queue.getSnapshot().length === 0)
  await flush()
  expect(told.filter((words) => (words as string[])[0] === 'abort')).toEqual([['abort'], ['abort']])
  process()
  await until(() => theUpload()?.status === 'uploading')
  await queue.cancel(theUpload().id)
  await until(() => told.filter((words) => (words as string[])[0] === 'abort').length === 3)
})

test('revert cancels what is not stored yet, and has the app remove what is', async () => {
  const removed: string[] = []
  const server = createServer(queue, {
    remove: async (id) => {
      removed.push(id)
      if (id === 'unknown') throw new RangeError(id)
    },
  })
  await queue.pause()
  const { id } = await queue.enqueue(file)
  server.revert(id, load, fail)
  await until(() => told.length === 1)
  expect([queue.getSnapshot(), removed]).toEqual([[], []])
  await queue.resume()
  const { done } = await queue.enqueue(file)
  ;(await transport.nextRequest()).store()
  const { uploadId } = await done
  server.revert(uploadId, load, fail)
  server.revert('unknown', load, fail)
  createServer(queue).revert('unknown', load, fail)
  await until(() => told.length === 4)
  expect(removed).toEqual([uploadId, 'unknown'])
  expect(told.slice(1).map(String).sort()).toEqual(['error,RangeError', 'load,', 'load,'])
})

test('restore shows a stored upload by its name and size, by whichever id', async () => {
  const { done, id } = await queue.enqueue(file)
  ;(await transport.nextRequest()).store()
  const { uploadId } = await done
  for (const known of [id, uploadId, `${id}/a.txt`]) restore(known)
  restore('unknown')
  await until(() => told.length === 4)
  expect(told.filter((words) => (words as string[])[0] === 'error')).toEqual([['error', 'not-found']])
  const files = told.map((words) => (words as [string, File])[1]).filter((value) => value instanceof File)
  expect(files.map(({ name, size, type }) => ({ name, size, type }))).toEqual(Array(3).fill({ name: 'a.txt', size: 5, type: 'text/plain' }))
})

test('restore tells of a failure, and tries again when asked again', async () => {
  const { id } = await queue.enqueue(file)
  ;(await transport.nextRequest()).respondWith({ status: 403 })
  await until(() => theUpload().status === 'failed')
  const server = createServer(queue)
  restore(id, {}, server)
  await until(() => told.length === 1)
  expect(told).toEqual([['error', 'rejected']])
  restore(id, {}, server)
  ;(await transport.nextRequest()).store()
  await until(() => told.length === 2)
  expect((told[1] as string[])[0]).toBe('load')
})
