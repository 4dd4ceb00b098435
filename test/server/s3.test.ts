import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ownerPrefix, type UploadHandlerOptions } from '../../demo/server/handler.js'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { type ObjectStore, ObjectStoreError } from '../../demo/server/objects.js'
import { createS3Objects, type S3Options } from '../../demo/server/objects-s3.js'
import { startServer } from '../../demo/server/server.js'
import { describeWith } from '../helpers/describe-with.js'
import { startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { type S3, startS3 } from '../helpers/s3.js'
import { createFixture, everyByte, generatedBody, MiB, newKey, problemOf, replayMarkers, sha256 } from './fixture.js'
import { objectStoreSuite, patternOf, readObject, writeObject } from './object-store-suite.js'
import { startMain } from './process.js'
import { closedEndpoint, type Fate, type S3Call, type S3Proxy, startS3Proxy } from './s3-proxy.js'
import { post } from './wire.js'

const PART = 8 * MiB

const errorOf = async (work: Promise<unknown>): Promise<ObjectStoreError> => {
  const error = await work.then(
    () => null,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(ObjectStoreError)
  return error as ObjectStoreError
}

const nowhere: S3Options = {
  endpoint: await closedEndpoint(),
  bucket: 'files',
  region: 'us-east-1',
  accessKeyId: 'testkey',
  secretAccessKey: 'testsecret',
}

const opened: S3Proxy[] = []
afterAll(() => Promise.all(opened.map((proxy) => proxy.close())))

/** Objects behind a proxy. `target` hears the calls that pass. */
async function behindProxy(target: S3Options, decide: (call: S3Call) => Fate, options: Partial<S3Options> = {}) {
  const proxy = await startS3Proxy(target.endpoint, decide)
  opened.push(proxy)
  return { proxy, objects: createS3Objects({ ...target, endpoint: proxy.endpoint, ...options }) }
}

describe('objects in an S3 that is not well', () => {
  it('that does not listen: rejects within 20 s, whatever is asked', async () => {
    const objects = createS3Objects(nowhere)
    const object = await objects.create('a-1')
    await object.write(everyByte)
    const started = performance.now()
    const asked = [object.finish(), objects.open('a-1'), objects.stat('a-1'), objects.delete('a-1'), objects.list('a-'), objects.check()]
    for (const work of asked.map(errorOf))
      expect(await work).toMatchObject({ status: null, message: expect.stringContaining('cannot be reached: ECONNREFUSED') })
    expect(performance.now() - started).toBeLessThan(20_000)
  })

  it('that never answers: rejects when the time is up', async () => {
    const { objects, proxy } = await behindProxy(nowhere, () => 'hang', { attemptMs: 100, retryMs: 300 })
    expect((await errorOf(objects.stat('a-1'))).message).toBe('S3 cannot be reached: no answer within 100 ms (HEAD of an object)')
    expect(proxy.calls.length).toBeGreaterThan(1)
  })

  it.each([429, 500, 503])('that answers %i: is asked 5 times, then the answer counts', async (status) => {
    const body = '<Error><Code>SlowDown</Code></Error>'
    const { objects, proxy } = await behindProxy(nowhere, () => ({ status, body }))
    expect(await errorOf(objects.open('a-1'))).toMatchObject({ status, code: 'SlowDown' })
    expect(proxy.calls).toHaveLength(5)
  })

  it.each([301, 400, 403])('that answers %i: is asked once', async (status) => {
    const headers = { Location: 'http://elsewhere.invalid/' }
    const { objects, proxy } = await behindProxy(nowhere, () => ({ status, headers }))
    expect(await errorOf(objects.open('a-1'))).toMatchObject({ status, code: null })
    expect(proxy.calls).toHaveLength(1)
  })

  it('is asked once by a check', async () => {
    const { objects, proxy } = await behindProxy(nowhere, () => ({ status: 503 }))
    await errorOf(objects.check())
    expect(proxy.calls).toEqual(['GET /files/?list-type=2&max-keys=1'])
  })

  it('whose answer makes no sense: rejects', async () => {
    const { objects } = await behindProxy(nowhere, () => ({ status: 200, body: '<html>' }), { partBytes: 4 })
    const object = await objects.create('a-1')
    expect((await errorOf(object.write(everyByte))).message).toContain('without saying its id')
  })

  it('makes the handler answer 503, leaves a free key, and never shows a credential', async () => {
    const { upload, state, errors } = createFixture({ objects: withList(createS3Objects(nowhere)) })
    const answer = await upload()
    expect(answer.headers.get('Retry-After')).toBe('1')
    expect(await problemOf(answer)).toEqual({ status: 503, error: 'storage_unavailable' })
    // The deletion has failed too, so the object is still on the list of the sweeper.
    expect(await state()).toBe('0/0/0/1')
    expect(errors.length).toBeGreaterThan(0)
    expect(JSON.stringify(errors.map((error) => [(error as Error).stack, String((error as Error).cause)]))).not.toMatch(
      /testkey|testsecret/,
    )
  })

  it('goes through all pages of a list', async () => {
    const pageOf = (key: string, next: string): string => `<L><Key>${key}</Key>${next}</L>`
    const { objects, proxy } = await behindProxy(nowhere, ({ url }) => {
      const isSecond = url.includes('continuation-token')
      const next = '<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b/=</NextContinuationToken>'
      return { status: 200, body: isSecond ? pageOf('e-2', '<IsTruncated>false</IsTruncated>') : pageOf('e-1', next) }
    })
    expect(await objects.list('e-')).toEqual(['e-1', 'e-2'])
    expect(proxy.calls[1]).toBe('GET /files/?list-type=2&prefix=e-&continuation-token=a%26b%2F%3D')
  })

  it('takes 150 MB through memory for a few parts', async () => {
    const answers: Record<string, string> = {
      'POST ?uploads=': '<UploadId>1</UploadId>',
      'POST ?uploadId=1': '<CompleteMultipartUploadResult/>',
    }
    let sent = 0
    const { objects } = await behindProxy(nowhere, ({ method, url, body }) => {
      if (method === 'PUT') sent += body.byteLength
      return { status: 200, headers: { ETag: '"x"' }, body: answers[`${method} ${new URL(url, 'http://x').search}`] ?? '' }
    })
    const object = await objects.create('a-1')
    const before = process.memoryUsage().arrayBuffers
    let peak = 0
    for await (const chunk of generatedBody(150_000_000)) {
      await object.write(chunk)
      peak = Math.max(peak, process.memoryUsage().arrayBuffers)
    }
    await object.finish()
    expect(sent).toBe(150_000_000)
    // Ours, the copy fetch() makes, and the proxy's two, with some garbage.
    expect(peak - before).toBeLessThan(12 * PART)
  })
})

/** For the fixture's count, where S3 cannot be asked. */
const withList = (objects: ObjectStore): ObjectStore => ({ ...objects, list: async () => [] })

describeWith(programs.rados, 'objects in a real S3', () => {
  let s3: S3
  beforeAll(async () => {
    s3 = await startS3()
  }, 120_000)
  afterAll(() => s3?.stop())

  /** The suite is set up before the server has started. */
  const objects = new Proxy({} as ObjectStore, { get: (_target, name) => createS3Objects(s3)[name as keyof ObjectStore] })

  objectStoreSuite(objects, () => s3.uploads())

  it('small ones cost one call, larger ones one for each part and two more', async () => {
    const { objects, proxy } = await behindProxy(s3, () => 'pass')
    await writeObject(objects, 'calls-1', patternOf(PART))
    expect(proxy.calls).toEqual(['PUT /uponce/calls-1'])
    proxy.calls.length = 0
    await writeObject(objects, 'calls-2', patternOf(PART + 1))
    expect(proxy.calls.map((call) => call.replace(/uploadId=.+/, 'uploadId'))).toEqual([
      'POST /uponce/calls-2?uploads=',
      'PUT /uponce/calls-2?partNumber=1&uploadId',
      'PUT /uponce/calls-2?partNumber=2&uploadId',
      'POST /uponce/calls-2?uploadId',
    ])
  })

  it('are whole although every call fails at first, each time in another way', async () => {
    const fates: Fate[] = ['drop', 'lose', { status: 503 }, { status: 429 }]
    const seen = new Map<string, number>()
    const { objects, proxy } = await behindProxy(s3, ({ method, url }) => {
      const name = `${method} ${url}`
      const times = seen.get(name) ?? 0
      seen.set(name, times + 1)
      return times === 0 ? fates[seen.size % fates.length]! : 'pass'
    })
    const pattern = patternOf(2 * PART + 7)
    await writeObject(objects, 'faults-1', pattern)
    expect(await readObject(objects, 'faults-1')).toEqual({ bytes: pattern.byteLength, sha256: sha256(pattern) })
    await writeObject(objects, 'faults-2', everyByte)
    expect(await objects.stat('faults-2')).toEqual({ bytes: 256 })
    expect(proxy.calls.length).toBeGreaterThan(10)
    for (const key of ['faults-1', 'faults-2']) await objects.delete(key)
    expect([await objects.list('faults-'), await s3.uploads()]).toEqual([[], []])
  })

  it('are there when the answer to the last call gets lost, and the upload is no longer known', async () => {
    let times = 0
    const { objects } = await behindProxy(s3, ({ method, url }) => {
      if (method !== 'POST' || !url.includes('uploadId')) return 'pass'
      return times++ === 0 ? 'lose' : { status: 404, body: '<Error><Code>NoSuchUpload</Code></Error>' }
    })
    await writeObject(objects, 'lost-1', patternOf(PART + 1))
    expect(times).toBe(2)
    expect(await objects.stat('lost-1')).toEqual({ bytes: PART + 1 })
  })

  it('are not there when the upload is no longer known and nothing is', async () => {
    const { objects } = await behindProxy(s3, ({ method, url }) => {
      const isLast = method === 'POST' && url.includes('uploadId')
      return isLast ? { status: 404, body: '<Error><Code>NoSuchUpload</Code></Error>' } : 'pass'
    })
    const object = await objects.create('lost-2')
    await object.write(patternOf(PART + 1))
    expect(await errorOf(object.finish())).toMatchObject({ status: 404, code: 'NoSuchUpload' })
    await object.abort()
    expect([await objects.list('lost-2'), await s3.uploads()]).toEqual([[], []])
  })

  it('are not there when the last call says 200 and then that it failed', async () => {
    let times = 0
    const { objects } = await behindProxy(s3, ({ method, url }) => {
      const isLast = method === 'POST' && url.includes('uploadId')
      if (!isLast || times++ > 0) return 'pass'
      return { status: 200, body: '<?xml version="1.0"?>\n<Error><Code>InternalError</Code></Error>' }
    })
    await writeObject(objects, 'late-error', patternOf(PART + 1))
    expect(times).toBe(2)
    expect(await objects.stat('late-error')).toEqual({ bytes: PART + 1 })
  })

  it.each([
    ['small', 256],
    ['in parts', PART + 1],
  ])('are refused when damaged on the way, and an abort leaves nothing: %s', async (_name, bytes) => {
    const { objects } = await behindProxy(s3, ({ method, body }) => {
      if (method === 'PUT') body[5]! ^= 1
      return 'pass'
    })
    const object = await objects.create('damaged')
    const work = object.write(patternOf(bytes)).then(() => object.finish())
    expect(await errorOf(work)).toMatchObject({ status: 400, code: 'XAmzContentSHA256Mismatch' })
    await object.abort()
    expect([await objects.list('damaged'), await s3.uploads()]).toEqual([[], []])
  })

  it('go when a dead process had begun them, in parts or to the end', async () => {
    const object = await objects.create('dead-1')
    await object.write(patternOf(2 * PART))
    expect(await s3.uploads()).toEqual(['dead-1'])
    await createS3Objects(s3).delete('dead-1')
    expect(await s3.uploads()).toEqual([])
    expect(await errorOf(object.finish())).toMatchObject({ status: 404 })
  })

  it('of an S3 that dies in the middle: the rest is refused in bounded time, and goes when it is back', async () => {
    let isDead = false
    const { objects } = await behindProxy(s3, () => (isDead ? 'drop' : 'pass'), { retryMs: 500 })
    const object = await objects.create('middle-1')
    await object.write(patternOf(PART + 1))
    isDead = true
    const started = performance.now()
    await errorOf(object.write(patternOf(PART)))
    await errorOf(object.abort())
    expect(performance.now() - started).toBeLessThan(20_000)
    expect(await s3.uploads()).toEqual(['middle-1'])
    isDead = false
    await object.abort()
    expect(await s3.uploads()).toEqual([])
  })

  it('of a bucket that is not there, or with a wrong secret: the check says which', async () => {
    const check = (changes: Partial<S3Options>) => errorOf(createS3Objects({ ...s3, ...changes }).check())
    expect(await check({ bucket: 'nothing-here' })).toMatchObject({ status: 404, code: 'NoSuchBucket' })
    expect(await check({ secretAccessKey: 'wrong' })).toMatchObject({ status: 403, code: 'SignatureDoesNotMatch' })
  })

  /** An upload that ends without a file, while S3 has something of it still to do. */
  async function late(decide: (call: S3Call) => Fate, body: Uint8Array, options: Partial<UploadHandlerOptions> = {}) {
    const { objects: behind, proxy } = await behindProxy(s3, decide, { attemptMs: 300, retryMs: 3000 })
    const { upload, keys, sweep } = createFixture({ objects: behind, limits: { maxBytes: 64 * MiB }, ...options })
    const left = async () => ({
      objects: await objects.list(ownerPrefix('alice')),
      uploads: await s3.uploads(),
      pending: keys.count().pending,
    })
    const before = await left()
    expect(before).toEqual({ objects: [], uploads: [], pending: 0 })
    const answer = await upload({ body })
    expect(await left()).toEqual({ objects: [], uploads: [], pending: 1 })
    return { answer, deliver: proxy.deliver, left, sweep }
  }
  const nothing = { objects: [], uploads: [], pending: 0 }

  it('written by S3 after their time was up and after they were deleted go with the sweeps', async () => {
    const { answer, deliver, left, sweep } = await late(({ method }) => (method === 'PUT' ? 'late' : 'pass'), everyByte)
    expect(await problemOf(answer)).toEqual({ status: 503, error: 'storage_unavailable' })
    expect([...new Set(await deliver())]).toEqual([200])
    expect(await left()).toMatchObject({ objects: [expect.any(String)], pending: 1 })
    await sweep()
    expect(await left()).toEqual(nothing)
  })

  it('refused by the app, and written again by an attempt that was given up, go with the sweeps', async () => {
    let puts = 0
    const decide = ({ method }: S3Call): Fate => (method === 'PUT' && puts++ === 0 ? 'late' : 'pass')
    const onStored = () => new Response('no', { status: 422 })
    const { answer, deliver, left, sweep } = await late(decide, everyByte, { onStored })
    expect([answer.status, await deliver()]).toEqual([422, [200]])
    expect(await left()).toMatchObject({ objects: [expect.any(String)], pending: 1 })
    await sweep()
    expect(await left()).toEqual(nothing)
  })

  it('begun in parts after they were given up go with the sweeps', async () => {
    const decide = ({ method, url }: S3Call): Fate => (method === 'POST' && url.endsWith('?uploads=') ? 'late' : 'pass')
    const { answer, deliver, left, sweep } = await late(decide, patternOf(PART + 1))
    expect(answer.status).toBe(503)
    await deliver()
    expect((await left()).uploads.length).toBeGreaterThan(0)
    await sweep()
    expect(await left()).toEqual(nothing)
  })

  it.skipIf(!programs.postgres.path)(
    'two servers on one PostgreSQL and one bucket store a file once, and either gives it back',
    async () => {
      const postgres = (await startPostgres())!
      const { endpoint, bucket, region, accessKeyId, secretAccessKey } = s3
      const env = {
        DATABASE_URL: postgres.url,
        S3_ENDPOINT: endpoint,
        S3_BUCKET: bucket,
        S3_REGION: region,
        AWS_ACCESS_KEY_ID: accessKeyId,
        AWS_SECRET_ACCESS_KEY: secretAccessKey,
        DATA_DIR: '/dev/null/not-a-folder',
      }
      const [first, second] = await Promise.all([startMain(env), startMain(env)])
      const before = await objects.list('')
      for (const body of [patternOf(2 * PART + 1), everyByte]) {
        const key = newKey()
        const answers = await Promise.all([first, second].map(({ url }) => post(url, { key, body })))
        expect(answers.map(({ status }) => status).filter((status) => status !== 201 && status !== 409)).toEqual([])
        const replay = await post(second.url, { key, body })
        expect(replayMarkers(replay)).toEqual(['true', 'true'])
        const { storageKey, sha256: digest } = (await replay.json()) as { storageKey: string; sha256: string }
        expect(await objects.stat(storageKey)).toEqual({ bytes: body.byteLength })
        for (const { url } of [first, second]) {
          const file = await fetch(url + replay.headers.get('Location')!, { headers: { Authorization: 'Bearer alice' } })
          expect(sha256(new Uint8Array(await file.arrayBuffer()))).toBe(digest)
        }
      }
      const wrong = await post(first.url, { body: patternOf(PART + 1), digest: sha256('other') })
      expect(await problemOf(wrong)).toEqual({ status: 400, error: 'digest_mismatch' })
      expect((await objects.list('')).length - before.length).toBe(2)
      expect(await s3.uploads()).toEqual([])
      expect(await Promise.all([first, second].map((server) => server.stop('SIGTERM')))).toMatchObject([{ code: 0 }, { code: 0 }])
      await postgres.stop()
    },
    90_000,
  )

  it('that is stopped: a download is answered 503, and the server is not well', async () => {
    const keys = createMemoryKeys()
    const server = await startServer({ port: 0, host: '127.0.0.1', dataDir: '/dev/null/not-a-folder', keys, s3, onError: () => {} })
    const stored = await post(server.url)
    expect(stored.status).toBe(201)
    await s3.stop()
    const file = await fetch(server.url + stored.headers.get('Location')!, { headers: { Authorization: 'Bearer alice' } })
    expect(file.headers.get('Retry-After')).toBe('1')
    expect(await problemOf(file)).toEqual({ status: 503, error: 'storage_unavailable' })
    expect(await (await fetch(`${server.url}/healthz`)).json()).toEqual({ status: 'failed', database: 'ok', objects: 'failed' })
    await server.close()
  })
})
