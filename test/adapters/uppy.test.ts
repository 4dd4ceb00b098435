import Uppy from '@uppy/core'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { Uponce, type UponceOptions } from '../../src/adapters/uppy.js'
import { createUploadQueue, type UploadQueue } from '../../src/index.js'
import { flush, until } from '../helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from '../helpers/transport.js'

let transport: TransportDouble
let queue: UploadQueue
let token = 'good'
const uppies: Uppy[] = []

const open = (options: Partial<UponceOptions> = {}): Uppy => {
  const logger = { debug() {}, warn() {}, error() {} }
  const uppy = new Uppy({ logger }).use(Uponce, { queue, ...options })
  uppies.push(uppy)
  return uppy
}
const add = (uppy: Uppy, name: string, meta: Record<string, unknown> = {}): string =>
  uppy.addFile({ name, type: 'text/plain', data: new File([name], name, { type: 'text/plain' }), meta })
const openQueue = (): UploadQueue =>
  createUploadQueue({ endpoint: 'http://localhost:3000/uploads', transport, headers: () => ({ Authorization: token }) })

beforeEach(() => {
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
  token = 'good'
  transport = createTransportDouble({ reportsBytes: true })
  queue = openQueue()
})
afterEach(async () => {
  for (const uppy of uppies.splice(0)) uppy.destroy()
  await queue.close()
  vi.unstubAllGlobals()
})

test('a file travels with its name, type and meta, its progress is shown, and its answer is the response', async () => {
  const uppy = open({ uploadUrl: ({ storageKey }) => `/media/${storageKey}` })
  const id = add(uppy, 'a.txt', { name: 'renamed.txt', album: 7, tags: ['x'], relativePath: null })
  const ended = uppy.upload()
  const request = await transport.nextRequest()
  expect(queue.getSnapshot()).toMatchObject([{ name: 'a.txt', type: 'text/plain', metadata: { album: '7', tags: '["x"]' } }])
  request.onProgress(2, 4)
  await until(() => uppy.getFile(id).progress.percentage === 50)
  request.store()
  expect(await ended).toMatchObject({ successful: [{ id }], failed: [] })
  expect(uppy.getFile(id)).toMatchObject({
    progress: { uploadComplete: true, percentage: 100 },
    response: { status: 200, body: { uploadId: `id-${request.key}` } },
    uploadURL: `/media/at-${request.key}`,
  })
})

test.each([
  [false, {}],
  [['album'], { album: 'summer' }],
])('of the meta fields those allowed travel: %j', async (allowedMetaFields, metadata) => {
  const uppy = open({ allowedMetaFields })
  add(uppy, 'a.txt', { album: 'summer', place: 'here' })
  uppy.upload()
  const request = await transport.nextRequest()
  expect(queue.getSnapshot()[0]?.metadata).toEqual(metadata)
  request.store()
})

test('a lost answer is no error: the bar begins again, and the replay ends it', async () => {
  const uppy = open()
  const id = add(uppy, 'a.txt')
  const ended = uppy.upload()
  const first = await transport.nextRequest()
  first.onProgress(4, 4)
  await until(() => uppy.getFile(id).progress.percentage === 100)
  first.lose()
  await until(() => uppy.getFile(id).progress.percentage === 0)
  expect(uppy.getFile(id).error).toBeFalsy()
  queue.retry()
  const second = await transport.nextRequest()
  expect(second.key).toBe(first.key)
  second.store()
  expect(await ended).toMatchObject({ successful: [{ id }] })
})

test('a refused sign-in is an error that retry, or the queue, takes back', async () => {
  const uppy = open()
  const id = add(uppy, 'a.txt')
  const ended = uppy.upload()
  for (let time = 0; time < 2; time++) (await transport.nextRequest()).respondWith({ status: 401 })
  expect(await ended).toMatchObject({ successful: [], failed: [{ id, response: { status: 401 } }] })
  expect(queue.getSnapshot()[0]?.status).toBe('blocked')
  await queue.resume()
  const request = await transport.nextRequest()
  expect([uppy.getFile(id).error, uppy.getState().error]).toEqual([null, null])
  request.store()
  await until(() => uppy.getFile(id).progress.uploadComplete === true)
})

test('a file that cannot be saved is an error, and another try enqueues it', async () => {
  const uppy = open()
  const id = add(uppy, 'a.txt', { 'not allowed': 'as a key' })
  expect(await uppy.upload()).toMatchObject({ failed: [{ id }] })
  expect(uppy.getFile(id).error).toContain('metadata')
  uppy.setFileState(id, { meta: { name: 'a.txt' } })
  const ended = uppy.retryUpload(id)
  ;(await transport.nextRequest()).store()
  expect(await ended).toMatchObject({ successful: [{ id }] })
})

test('a file of another place is refused', async () => {
  const uppy = open()
  const remote = { companionUrl: '', url: '', requestClientId: '' }
  const id = uppy.addFile({ name: 'far', data: { size: 1 }, isRemote: true, remote } as never)
  expect(await uppy.upload()).toMatchObject({ failed: [{ id, error: 'uponce sends files of this device only.' }] })
})

test('what is cancelled in another tab goes, what is removed here is cancelled, and a file removed as it is saved too', async () => {
  const uppy = open()
  add(uppy, 'a.txt')
  const b = add(uppy, 'b.txt')
  const c = add(uppy, 'c.txt')
  const ended = uppy.upload()
  uppy.removeFile(c)
  await until(() => queue.getSnapshot().length === 2)
  await queue.cancel(queue.getSnapshot().find(({ name }) => name === 'a.txt')?.id as string)
  expect(uppy.getFiles().map(({ name }) => name)).toEqual(['b.txt'])
  uppy.removeFile(b)
  await until(() => queue.getSnapshot().length === 0)
  await ended
  await flush()
  expect(queue.getSnapshot()).toEqual([])
})

test('pausing in another tab is shown, and all that Uppy pauses is paused', async () => {
  const uppy = open()
  const id = add(uppy, 'a.txt')
  const ended = uppy.upload()
  await transport.nextRequest()
  const [upload] = queue.getSnapshot()
  await queue.pause(upload?.id as string)
  expect(uppy.getFile(id).isPaused).toBe(true)
  uppy.resumeAll()
  const again = await transport.nextRequest()
  uppy.pauseResume(id)
  await until(() => queue.getSnapshot()[0]?.status === 'paused')
  expect(again.signal.aborted).toBe(true)
  uppy.pauseResume(id)
  ;(await transport.nextRequest()).store()
  expect(await ended).toMatchObject({ successful: [{ id }] })
})

test('uploads left unfinished are shown as they are, the wanted ones, and go on', async () => {
  await queue.pause()
  await queue.enqueueAll(
    ['a.txt', 'b.txt', 'c.md'].map((name) => new File([name], name)),
    { metadata: { album: 'summer' } },
  )
  await queue.close()
  queue = openQueue()
  const uppy = open({ restore: ({ name }) => name.endsWith('.txt') })
  const results: unknown[] = []
  uppy.on('complete', (result) => results.push(result))
  await until(() => uppy.getFiles().length === 2)
  expect(uppy.getFiles()).toMatchObject([
    { name: 'a.txt', extension: 'txt', size: 5, isPaused: true, isGhost: false, meta: { album: 'summer', name: 'a.txt' } },
    { name: 'b.txt', isPaused: true },
  ])
  await queue.resume()
  for (let time = 0; time < 3; time++) (await transport.nextRequest()).store()
  await until(() => results.length === 1)
  expect(results).toMatchObject([{ successful: [{ name: 'a.txt' }, { name: 'b.txt' }], failed: [] }])
  const other = open({ restore: false })
  await flush()
  expect(other.getFiles()).toEqual([])
})

test("when another account signs in, the earlier one's files go from the list and stay in the queue; its own are shown, and the others when they are back", async () => {
  await queue.close()
  let owner: string | null = 'ann'
  queue = createUploadQueue({ endpoint: 'http://localhost:3000/uploads', transport, owner: () => owner })
  await queue.pause()
  const signIn = async (next: string | null): Promise<void> => {
    owner = next
    await queue.start()
  }
  const uppy = open()
  const names = (): string =>
    uppy
      .getFiles()
      .map(({ name }) => name)
      .join()
  add(uppy, 'of-ann.txt')
  const ended = uppy.upload()
  await until(() => queue.getSnapshot().length === 1)
  await signIn('bob')
  await until(() => names() === '')
  await ended
  add(uppy, 'of-bob.txt')
  const endedToo = uppy.upload()
  await until(() => queue.getSnapshot().length === 1)
  await flush()
  expect(names()).toBe('of-bob.txt')
  const { id } = queue.getSnapshot()[0]!
  await signIn(null)
  await endedToo
  await until(() => names() === '')
  await signIn('ann')
  await until(() => names() === 'of-ann.txt')
  await signIn('bob')
  await until(() => names() === 'of-bob.txt')
  expect(queue.get(id)?.status).toBe('paused')
  const other = open()
  await until(() => other.getFiles().length === 1)
})

test('an account that signs in later finds what it left, and a page is not shown what another tab picks', async () => {
  await queue.close()
  const openAs = (owner: () => string | null): UploadQueue =>
    createUploadQueue({ endpoint: 'http://localhost:3000/uploads', transport, owner })
  const earlier = openAs(() => 'ann')
  await earlier.pause()
  await earlier.enqueue(new File(['a'], 'left.txt'))
  await earlier.close()
  await new Promise((resolve) => setTimeout(resolve, 5))
  let owner: string | null = null
  queue = openAs(() => owner)
  const uppy = open()
  await queue.ready()
  await flush()
  expect(uppy.getFiles()).toEqual([])
  owner = 'ann'
  await queue.start()
  await until(() => uppy.getFiles().length === 1)
  await queue.enqueue(new File(['b'], 'elsewhere.txt'))
  await flush()
  expect(uppy.getFiles().map(({ name }) => name)).toEqual(['left.txt'])
})

test('two tries of a file at once end together', async () => {
  const uppy = open()
  const id = add(uppy, 'a.txt')
  uppy.upload()
  ;(await transport.nextRequest()).respondWith({ status: 403 })
  await until(() => Boolean(uppy.getFile(id).error))
  const ended = Promise.all([uppy.retryUpload(id), uppy.retryUpload(id)])
  ;(await transport.nextRequest()).store()
  expect(await ended).toMatchObject([{ successful: [{ id }] }, { successful: [{ id }] }])
  expect(uppy.getState().currentUploads).toEqual({})
})

test('a plugin that is taken out takes along what is under way, and the next one shows it, once', async () => {
  const uppy = open()
  const names = (): string[] => uppy.getFiles().map(({ name }) => name as string)
  add(uppy, 'done.txt')
  const ended = uppy.upload()
  ;(await transport.nextRequest()).store()
  await ended
  add(uppy, 'on-its-way.txt')
  uppy.upload()
  const request = await transport.nextRequest()
  uppy.removePlugin(uppy.getPlugin('Uponce')!)
  expect(names()).toEqual(['done.txt'])
  uppy.use(Uponce, { queue })
  await until(() => names().length === 2)
  request.store()
  await until(() => uppy.getFiles().every(({ progress }) => progress.uploadComplete === true))
  expect(names().sort()).toEqual(['done.txt', 'on-its-way.txt'])
  expect(queue.getSnapshot()).toHaveLength(2)
})

test('a missing queue is told at once', () => {
  expect(() => new Uppy().use(Uponce, {} as never)).toThrow(new TypeError('queue: undefined is not valid; expected an UploadQueue.'))
})
