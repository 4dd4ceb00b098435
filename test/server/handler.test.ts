import { describe, expect, it, vi } from 'vitest'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import {
  APP,
  createFixture,
  everyByte,
  generatedBody,
  HOUR,
  heldBody,
  MiB,
  newKey,
  problemOf,
  replayMarkers,
  sha256,
  type UploadFields,
  until,
  uploadRequest,
} from './fixture.js'

const bytesOf = async (response: Response): Promise<string> => Buffer.from(await response.arrayBuffer()).toString('hex')
const uploadIdOf = async (response: Response): Promise<string> => ((await response.json()) as { uploadId: string }).uploadId
const isReplay = (response: Response): boolean => response.status === 201 && replayMarkers(response).every((marker) => marker === 'true')

describe('options', () => {
  const stores = { keys: createMemoryKeys(), objects: createMemoryObjects() }
  const authenticate = () => ({ owner: 'alice' })

  it('a handler that cannot tell its callers apart does not start', () => {
    expect(() => createUploadHandler({ ...stores } as never)).toThrow(TypeError)
  })

  it.each([{ leaseMs: 0 }, { leaseMs: -1 }, { leaseMs: 10, retentionMs: 10 }, { maxBytes: 0 }, { waitMs: -1 }, { leaseMs: Number.NaN }])(
    'a handler with %j does not start',
    (limits) => {
      expect(() => createUploadHandler({ ...stores, authenticate, limits })).toThrow(TypeError)
    },
  )
})

describe('key and digest', () => {
  const cases: [string, UploadFields, string][] = [
    ['no key', { key: null }, 'idempotency_key_required'],
    ['a key of 15 characters', { key: 'a'.repeat(15) }, 'idempotency_key_required'],
    ['a key of 256 characters', { key: 'a'.repeat(256) }, 'idempotency_key_required'],
    ['a key with a space', { key: 'aaaaaaaa aaaaaaaa' }, 'idempotency_key_invalid'],
    ['a key with a comma, as two header lines give', { key: 'aaaaaaaaaaaaaaaa, aaaaaaaaaaaaaaaa' }, 'idempotency_key_invalid'],
    ['a key with a byte from 0x80 on', { key: 'aaaaaaaaaaaaaaaa\u00e9' }, 'idempotency_key_invalid'],
    ['a key with a backslash', { key: 'aaaaaaaaaaaaaaaa\\' }, 'idempotency_key_invalid'],
    ['a quoted key with parameters', { key: '"aaaaaaaaaaaaaaaa";a=1' }, 'idempotency_key_invalid'],
    ['a key quoted on one side', { key: '"aaaaaaaaaaaaaaaaa' }, 'idempotency_key_invalid'],
    ['no digest', { digest: null }, 'digest_required'],
    ['a digest of zz', { digest: 'zz' }, 'digest_invalid'],
    ['a digest of 63 digits', { digest: 'a'.repeat(63) }, 'digest_invalid'],
    ['two digests that differ', { headers: { 'Repr-Digest': `sha-256=:${Buffer.alloc(32).toString('base64')}:` } }, 'digest_conflict'],
    ['a Repr-Digest of another algorithm', { digest: null, headers: { 'Repr-Digest': 'sha-512=:AAAA:' } }, 'digest_unsupported'],
    ['a Repr-Digest that is too short', { digest: null, headers: { 'Repr-Digest': 'sha-256=:AAAA:' } }, 'digest_invalid'],
    ['a Content-Digest that is no dictionary', { digest: null, headers: { 'Content-Digest': 'sha-256' } }, 'digest_invalid'],
    ['metadata that is not base64', { headers: { 'Upload-Metadata': 'album !!!' } }, 'metadata_invalid'],
    ['metadata with one key twice', { headers: { 'Upload-Metadata': 'a eA==,a eQ==' } }, 'metadata_invalid'],
    ['metadata with a NUL', { headers: { 'Upload-Metadata': 'a AA==' } }, 'metadata_invalid'],
  ]
  it.each(cases)('%s is a 400 that leaves nothing', async (_name, fields, error) => {
    const { upload, state } = createFixture()
    expect(await problemOf(await upload(fields))).toEqual({ status: 400, error })
    expect(await state()).toBe('0/0/0/0')
  })

  it.each([16, 255])('a key of %i characters is accepted', async (length) => {
    expect((await createFixture().upload({ key: 'k'.repeat(length) })).status).toBe(201)
  })

  it('quoted and bare forms are one key, and each is echoed as it came', async () => {
    const { upload } = createFixture()
    const key = newKey()
    const first = await upload({ key: `"${key}"` })
    expect([first.status, first.headers.get('Idempotency-Key')]).toEqual([201, `"${key}"`])
    const second = await upload({ key })
    expect(isReplay(second)).toBe(true)
    expect(second.headers.get('Idempotency-Key')).toBe(key)
  })

  it('keys that differ in case are two keys', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    for (const form of [key, key.toUpperCase()]) expect(replayMarkers(await upload({ key: form }))).toEqual([null, null])
    expect(await state()).toBe('2/2/2/0')
  })

  it('a digest may come in any of three headers, and they are one fact', async () => {
    const { upload } = createFixture()
    const key = newKey()
    const structured = `sha-512=:AAAA:, sha-256=:${Buffer.from(sha256('hello'), 'hex').toString('base64')}:`
    const forms: UploadFields[] = [
      { digest: null, headers: { 'Repr-Digest': structured } },
      { digest: null, headers: { 'Content-Digest': structured } },
      { digest: sha256('hello').toUpperCase() },
      { headers: { 'Repr-Digest': structured } },
    ]
    const answers = []
    for (const form of forms) answers.push(await upload({ key, ...form }))
    expect(answers.map(isReplay)).toEqual([false, true, true, true])
    expect(answers[0]!.status).toBe(201)
  })
})

describe('identity and origins', () => {
  it('a stranger gets the same 401 whether or not the key exists', async () => {
    const { upload, outcome } = createFixture()
    const key = newKey()
    const before = await upload({ key, owner: null })
    expect(before.headers.get('WWW-Authenticate')).toBe('Bearer')
    expect(before.status).toBe(401)
    await upload({ key })
    const after = await upload({ key, owner: null })
    expect(await after.text()).toBe(await before.text())
    expect((await outcome(key, { owner: null })).status).toBe(401)
  })

  it('two callers with one key have nothing to do with each other', async () => {
    const { upload, outcome, state } = createFixture()
    const key = newKey()
    const alice = await upload({ key, body: 'from alice' })
    const bob = await upload({ key, body: 'from bob', owner: 'bob' })
    expect([alice.status, bob.status]).toEqual([201, 201])
    expect(await uploadIdOf(alice)).not.toBe(await uploadIdOf(bob))
    expect(await state()).toBe('2/2/2/0')
    expect((await outcome(key, { owner: 'carol' })).status).toBe(404)
  })

  it('a preflight from an allowed origin is answered by name', async () => {
    const { handler } = createFixture()
    const answer = await handler(uploadRequest({ method: 'OPTIONS', owner: null, headers: { Origin: APP } }))
    expect(answer.status).toBe(204)
    expect(answer.headers.get('Access-Control-Allow-Origin')).toBe(APP)
    expect(answer.headers.get('Access-Control-Allow-Methods')).toContain('POST')
    expect(answer.headers.get('Access-Control-Allow-Headers')!.split(', ').sort()).toEqual([
      'authorization',
      'content-digest',
      'content-type',
      'idempotency-key',
      'repr-digest',
      'upload-metadata',
      'x-file-name',
      'x-file-sha256',
    ])
    expect(answer.headers.get('Access-Control-Max-Age')).toBe('7200')
    expect(answer.headers.get('Vary')).toBe('Origin')
    expect(answer.headers.get('Upload-Limit')).toBe(`max-size=${MiB}`)
  })

  it('another origin gets no permission, and its request changes nothing', async () => {
    const { handler, upload, state } = createFixture()
    const headers = { Origin: 'https://app.example.evil' }
    const preflight = await handler(uploadRequest({ method: 'OPTIONS', headers }))
    expect([...preflight.headers.keys()].filter((name) => name.startsWith('access-control'))).toEqual([])
    const answer = await upload({ headers })
    expect(await problemOf(answer)).toEqual({ status: 403, error: 'origin_not_allowed' })
    expect(answer.headers.get('Access-Control-Allow-Origin')).toBeNull()
    expect(await state()).toBe('0/0/0/0')
  })

  it('a caller known by a cookie must come from a page of ours', async () => {
    const { handler } = createFixture({ authenticate: () => ({ owner: 'visitor', ambient: true }) })
    const statusFrom = async (headers: Record<string, string>) => (await handler(uploadRequest({ headers }))).status
    expect(await statusFrom({})).toBe(403)
    expect(await statusFrom({ 'Sec-Fetch-Site': 'cross-site' })).toBe(403)
    expect(await statusFrom({ 'Sec-Fetch-Site': 'cross-site', Origin: 'https://evil.example' })).toBe(403)
    expect(await statusFrom({ 'Sec-Fetch-Site': 'same-origin', Origin: 'https://behind.a.proxy' })).toBe(201)
    expect(await statusFrom({ 'Sec-Fetch-Site': 'same-site' })).toBe(201)
    expect(await statusFrom({ Origin: APP })).toBe(201)
    expect(await statusFrom({ Origin: 'http://localhost:3000' })).toBe(201)
  })

  it('every answer can be read across origins', async () => {
    const broken: ObjectStore = { ...createMemoryObjects(), create: () => Promise.reject(new Error('disk full')) }
    const { upload, another } = createFixture()
    const headers = { Origin: APP }
    const key = newKey()
    const held = heldBody()
    const waiting = upload({ key, body: held.stream, digest: sha256('x') })
    const answers = [
      await upload({ key: null, headers }),
      await upload({ owner: null, headers }),
      await vi.waitFor(async () => {
        const answer = await upload({ key, body: 'x', headers })
        expect(answer.status).toBe(409)
        return answer
      }),
      await upload({ body: new Uint8Array(2 * MiB), headers }),
      await upload({ key, body: 'y', headers }),
      await another({ objects: broken })(uploadRequest({ headers })),
    ]
    held.push('x')
    held.end()
    await waiting
    answers.push(await upload({ key, body: 'x', headers }))
    expect(answers.map(({ status }) => status)).toEqual([400, 401, 409, 413, 422, 503, 201])
    for (const answer of answers) {
      expect(answer.headers.get('Access-Control-Allow-Origin')).toBe(APP)
      expect(answer.headers.get('Access-Control-Expose-Headers')).toContain('Retry-After')
      expect(answer.headers.get('Vary')).toBe('Origin')
    }
  })

  it.each([
    ['PUT', '/uploads', 405],
    ['PATCH', '/uploads', 405],
    ['DELETE', '/uploads', 405],
    ['POST', '/uploads/outcome', 405],
    ['POST', '/elsewhere', 404],
  ])('%s %s is %i', async (method, path, status) => {
    const { upload, state } = createFixture()
    expect((await upload({ method, path })).status).toBe(status)
    expect(await state()).toBe('0/0/0/0')
  })
})

describe('replay', () => {
  it('the first answer names what was stored, without a marker', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    const answer = await upload({ key, body: everyByte })
    expect(answer.status).toBe(201)
    expect(replayMarkers(answer)).toEqual([null, null])
    expect(answer.headers.get('Cache-Control')).toBe('no-store')
    expect(answer.headers.get('Idempotency-Retention')).toBe('259200')
    expect(answer.headers.get('Idempotency-Outcome')).toBe('/uploads/outcome')
    expect(answer.headers.get('Idempotency-Key')).toBe(key)
    const receipt = (await answer.json()) as Record<string, string>
    expect(receipt).toEqual({ uploadId: expect.any(String), storageKey: expect.any(String), bytes: 256, sha256: sha256(everyByte) })
    expect(answer.headers.get('Location')).toBe(`/media/${receipt.uploadId}`)
    expect(await state()).toBe('1/1/1/0')
  })

  it('50 repeats get the same bytes, and one file is stored', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    const first = await upload({ key })
    const expected = await bytesOf(first)
    for (let repeat = 0; repeat < 50; repeat++) {
      const answer = await upload({ key })
      expect(isReplay(answer)).toBe(true)
      expect(await bytesOf(answer)).toBe(expected)
      expect(answer.headers.get('Location')).toBe(first.headers.get('Location'))
      expect(answer.headers.get('Content-Type')).toBe(first.headers.get('Content-Type'))
    }
    expect(await state()).toBe('1/1/1/0')
  })

  it('another process on the same stores replays too', async () => {
    const { upload, another } = createFixture()
    const key = newKey()
    await upload({ key })
    expect(isReplay(await another()(uploadRequest({ key })))).toBe(true)
  })

  it('all 256 byte values are stored as they came', async () => {
    const { upload, objects } = createFixture()
    const { storageKey } = (await (await upload({ body: everyByte })).json()) as { storageKey: string }
    expect(new Uint8Array(await new Response(await objects.open(storageKey)).arrayBuffer())).toEqual(everyByte)
  })

  it('other bytes under the same declared digest are answered by the replay, and the object stays', async () => {
    const { upload, objects } = createFixture()
    const key = newKey()
    const { storageKey } = (await (await upload({ key, body: 'right' })).json()) as { storageKey: string }
    expect(isReplay(await upload({ key, body: 'wrong', digest: sha256('right') }))).toBe(true)
    expect(await new Response(await objects.open(storageKey)).text()).toBe('right')
  })

  it('is the same bytes for a file with a name that is not ASCII', async () => {
    const { upload } = createFixture()
    const fields = { key: newKey(), headers: { 'X-File-Name': encodeURIComponent('Übung 東京 🎈.jpg') } }
    expect(await bytesOf(await upload(fields))).toBe(await bytesOf(await upload(fields)))
  })

  it('an empty file is a file', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    expect((await upload({ key, body: new Uint8Array() })).status).toBe(201)
    expect(isReplay(await upload({ key, body: new Uint8Array() }))).toBe(true)
    expect(await state()).toBe('1/1/1/0')
  })
})

describe('mismatch', () => {
  it.each<[string, UploadFields]>([
    ['other bytes', { body: 'other' }],
    ['another type', { type: 'image/png' }],
    ['another digest', { digest: '0'.repeat(64) }],
    ['other metadata', { headers: { 'Upload-Metadata': 'album d2ludGVy' } }],
    ['another name', { headers: { 'X-File-Name': 'other.jpg' } }],
  ])('%s under the same key is a 422 that changes nothing', async (_name, fields) => {
    const { upload, keys } = createFixture()
    const key = newKey()
    await upload({ key })
    const before = await keys.read('alice', key)
    expect(await problemOf(await upload({ key, ...fields }))).toEqual({ status: 422, error: 'idempotency_key_reuse' })
    expect(await keys.read('alice', key)).toEqual(before)
    expect(isReplay(await upload({ key }))).toBe(true)
  })

  it('is a 422 at once while the first is in flight, which then ends well', async () => {
    const { upload, keys } = createFixture({ limits: { waitMs: 60_000 } })
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('slow') })
    await until(() => keys.read('alice', key))
    const before = await keys.read('alice', key)
    expect((await upload({ key, body: 'other' })).status).toBe(422)
    expect(await keys.read('alice', key)).toEqual(before)
    held.push('slow')
    held.end()
    expect((await first).status).toBe(201)
  })

  it('is none for another order or spacing of metadata, nor for parameters of the type', async () => {
    const { upload } = createFixture()
    const key = newKey()
    await upload({ key, type: 'Image/JPEG', headers: { 'Upload-Metadata': 'a eA==,b eQ==' } })
    expect(
      isReplay(await upload({ key, type: 'image/jpeg; q=1', path: '/uploads?x=1', headers: { 'Upload-Metadata': ' b eQ== , a eA==' } })),
    ).toBe(true)
  })
})

describe('concurrency', () => {
  it('of 20 at once one is stored', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 20 }, () => upload({ key })))
    const firsts = answers.filter((answer) => answer.status === 201 && !isReplay(answer))
    expect(firsts).toHaveLength(1)
    expect(answers.filter((answer) => answer.status !== 409 && !isReplay(answer))).toEqual(firsts)
    expect(await state()).toBe('1/1/1/0')
  })

  it('a second one while the first is streaming gets 409 and a time to come back', async () => {
    const { upload, keys, state } = createFixture()
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('slow') })
    await until(() => keys.read('alice', key))
    const before = await keys.read('alice', key)
    const second = await upload({ key, body: 'slow' })
    expect(await problemOf(second)).toEqual({ status: 409, error: 'idempotency_in_progress' })
    expect(second.headers.get('Retry-After')).toBe('2')
    expect(await keys.read('alice', key)).toEqual(before)
    held.push('slow')
    held.end()
    expect((await first).status).toBe(201)
    expect(isReplay(await upload({ key, body: 'slow' }))).toBe(true)
    expect(await state()).toBe('1/1/1/0')
  })

  it('a second one waits for the first where the server is told to', async () => {
    const { upload, keys, events } = createFixture({ limits: { waitMs: 5000 } })
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('slow') })
    await until(() => keys.read('alice', key))
    let isAnswered = false
    const second = upload({ key, body: 'slow' }).finally(() => {
      isAnswered = true
    })
    held.push('slow')
    expect(isAnswered).toBe(false)
    held.end()
    expect((await first).status).toBe(201)
    expect(isReplay(await second)).toBe(true)
    expect(events.filter(({ type }) => type === 'claimed')).toHaveLength(1)
  })

  it('a waiting one runs when the first gives up, and gets 409 when it does not end in time', async () => {
    const { upload, keys } = createFixture({ limits: { waitMs: 300 } })
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('slow') })
    await until(() => keys.read('alice', key))
    expect((await upload({ key, body: 'slow' })).status).toBe(409)
    const waiting = upload({ key, body: 'slow' })
    held.fail()
    expect((await first).status).toBe(408)
    expect(replayMarkers(await waiting)).toEqual([null, null])
    expect((await waiting).status).toBe(201)
  })

  it('one file under two keys is stored twice: another key is another intention', async () => {
    const { upload, state } = createFixture()
    await Promise.all([upload({ body: 'same' }), upload({ body: 'same' })])
    expect(await state()).toBe('2/2/2/0')
  })
})

describe('faults', () => {
  /** An object store whose `step` fails the first time. */
  const failingOnce = (objects: ObjectStore, step: 'create' | 'write' | 'finish'): ObjectStore => {
    let left = 1
    const fails = (at: string): void => {
      if (at === step && left-- > 0) throw new Error('disk full')
    }
    return {
      ...objects,
      async create(key) {
        fails('create')
        const object = await objects.create(key)
        return {
          ...object,
          write: async (chunk) => {
            fails('write')
            await object.write(chunk)
          },
          finish: async () => {
            await object.finish()
            fails('finish')
          },
        }
      },
    }
  }

  it.each(['create', 'write', 'finish'] as const)('an object store that fails in %s is a 503 that leaves nothing', async (step) => {
    const { another, objects, state, errors } = createFixture()
    const handler = another({ objects: failingOnce(objects, step) })
    const key = newKey()
    const answer = await handler(uploadRequest({ key }))
    expect(await problemOf(answer)).toEqual({ status: 503, error: 'storage_unavailable' })
    expect(answer.headers.get('Retry-After')).toBe('1')
    expect(errors).toHaveLength(1)
    expect(await state()).toBe('0/0/0/0')
    expect((await handler(uploadRequest({ key }))).status).toBe(201)
    expect(await state()).toBe('1/1/1/0')
  })

  it.each(['claim', 'read', 'intend', 'commit'] as const)('a key store that fails in %s is a 503, and the key is free', async (step) => {
    const { keys, another, state } = createFixture()
    let left = 1
    const failing = {
      ...keys,
      [step]: (...args: never[]) =>
        left-- > 0 ? Promise.reject(new Error('no database')) : (keys[step] as (...args: never[]) => unknown)(...args),
    }
    const handler = another({ keys: failing })
    const key = newKey()
    if (step === 'read') await handler(uploadRequest({ key }))
    const answer = await handler(uploadRequest({ key }))
    expect(await problemOf(answer)).toEqual({ status: 503, error: 'store_unavailable' })
    if (step !== 'read') expect(await state()).toBe('0/0/0/0')
    expect((await handler(uploadRequest({ key }))).status).toBe(201)
    expect(await state()).toBe('1/1/1/0')
  })

  it('a claim that was made although the store reported a fault is not left in the way', async () => {
    const { keys, another, state } = createFixture()
    const lossy = {
      ...keys,
      claim: async (request: Parameters<typeof keys.claim>[0]) => {
        await keys.claim(request)
        throw new Error('connection lost')
      },
    }
    expect((await another({ keys: lossy })(uploadRequest())).status).toBe(503)
    expect(await state()).toBe('0/0/0/0')
  })

  it('a commit that happened although its answer was lost is answered with what was stored', async () => {
    const { keys, another, state } = createFixture()
    const lossy = {
      ...keys,
      commit: async (...args: Parameters<typeof keys.commit>) => {
        await keys.commit(...args)
        throw new Error('connection lost')
      },
    }
    const key = newKey()
    const answer = await another({ keys: lossy })(uploadRequest({ key }))
    expect([answer.status, ...replayMarkers(answer)]).toEqual([201, null, null])
    expect(await state()).toBe('1/1/1/0')
    const replay = await another()(uploadRequest({ key }))
    expect(isReplay(replay)).toBe(true)
    expect(await bytesOf(replay)).toBe(await bytesOf(answer))
  })

  it('after a commit nobody can tell the end of, the object stays until the sweeper knows', async () => {
    const { keys, another, state, sweep } = createFixture()
    let isDown = false
    const down = new Proxy(keys, {
      get: (target, name) =>
        name === 'commit'
          ? async () => {
              isDown = true
              throw new Error('connection lost')
            }
          : isDown
            ? () => Promise.reject(new Error('no database'))
            : target[name as 'read'],
    })
    expect((await another({ keys: down })(uploadRequest())).status).toBe(503)
    expect(await state()).toBe('1/0/1/1')
    await sweep()
    expect((await state()).slice(1)).toBe('/0/0/0')
  })

  it('a refusal of the app is stored with its bytes, and the app is not asked again', async () => {
    const onStored = vi.fn(async () =>
      Response.json({ error: 'no_cats', reason: 'Käse' }, { status: 422, headers: { 'Set-Cookie': 'a=b', 'X-Own': '1' } }),
    )
    const { upload, state } = createFixture({ onStored })
    const key = newKey()
    const first = await upload({ key })
    expect([first.status, first.headers.get('Set-Cookie'), first.headers.get('X-Own')]).toEqual([422, null, null])
    expect(await state()).toBe('1/0/0/0')
    const again = await upload({ key })
    expect(again.status).toBe(422)
    expect(replayMarkers(again)).toEqual(['true', 'true'])
    expect(await bytesOf(again)).toBe(await bytesOf(first))
    expect(onStored).toHaveBeenCalledTimes(1)
  })

  it('a refusal that is too long to keep is repeated in short, and the app is not asked again', async () => {
    const onStored = vi.fn(() => new Response('x'.repeat(65_537), { status: 422 }))
    const { upload } = createFixture({ onStored })
    const key = newKey()
    const first = await bytesOf(await upload({ key }))
    expect(await bytesOf(await upload({ key }))).toBe(first)
    expect(onStored).toHaveBeenCalledTimes(1)
  })

  it.each([
    ['throws', () => Promise.reject(new Error('bug')), 500],
    ['answers 503', () => new Response(null, { status: 503 }), 503],
    ['answers 200', () => new Response(null, { status: 200 }), 500],
  ])('an app that %s leaves the key free', async (_name, hook, status) => {
    const onStored = vi.fn<() => Response | undefined | Promise<Response>>(() => undefined).mockImplementationOnce(hook)
    const { upload, state } = createFixture({ onStored })
    const key = newKey()
    expect((await upload({ key })).status).toBe(status)
    expect(await state()).toBe('0/0/0/0')
    expect((await upload({ key })).status).toBe(201)
  })

  it('the policy decides which refusals are kept', async () => {
    const respondPolicy = vi.fn(() => 'store' as const)
    const { upload, state } = createFixture({ respondPolicy })
    const key = newKey()
    await upload({ key, body: 'wrong', digest: sha256('right') })
    expect(respondPolicy).toHaveBeenCalledWith({ status: 400, error: 'digest_mismatch' })
    expect(await state()).toBe('1/0/0/0')
    const again = await upload({ key, body: 'right' })
    expect(await problemOf(again)).toEqual({ status: 400, error: 'digest_mismatch' })
    expect(replayMarkers(again)).toEqual(['true', 'true'])
  })

  it('a client that vanishes half-way leaves nothing', async () => {
    const { upload, state } = createFixture({ respondPolicy: () => 'store' })
    const key = newKey()
    for (const vanish of ['body', 'signal']) {
      const held = heldBody()
      const gone = new AbortController()
      const first = upload({ key, body: held.stream, digest: sha256('whole'), signal: gone.signal })
      held.push('who')
      await until(async () => (await state()) === '1/0/0/1')
      if (vanish === 'body') held.fail()
      else gone.abort()
      await first
      expect(await state()).toBe('0/0/0/0')
    }
    expect((await upload({ key, body: 'whole' })).status).toBe(201)
  })

  it('a client that vanishes after the last byte has its file stored', async () => {
    const gone = new AbortController()
    const { upload, state } = createFixture({
      onStored: () => {
        gone.abort()
        return undefined
      },
    })
    const key = newKey()
    await upload({ key, signal: gone.signal })
    expect(await state()).toBe('1/1/1/0')
    expect(isReplay(await upload({ key }))).toBe(true)
  })

  it('a body shorter than declared leaves nothing', async () => {
    const { upload, state } = createFixture()
    expect((await upload({ headers: { 'Content-Length': '6' } })).status).toBe(408)
    expect(await state()).toBe('0/0/0/0')
  })

  it('what a dead process held is free when its lease has lapsed, and its object goes', async () => {
    const { upload, another, state, elapse, sweep, objects } = createFixture()
    const key = newKey()
    const held = heldBody()
    void another()(uploadRequest({ key, body: held.stream, digest: sha256('whole') }))
    await until(async () => (await state()) === '1/0/0/1')
    // What it had finished, but not committed.
    await (await objects.create('left-behind')).finish()
    expect((await upload({ key, body: 'whole' })).status).toBe(409)
    elapse(61_000)
    expect((await upload({ key, body: 'whole' })).status).toBe(201)
    expect(await state()).toBe('1/1/2/1')
    await objects.delete('left-behind')
    await sweep()
    expect((await state()).slice(1)).toBe('/1/1/0')
  })

  it('shortly before a lease lapses, the time to come back is what is left of it', async () => {
    const { upload, keys, elapse } = createFixture()
    const key = newKey()
    void upload({ key, body: heldBody().stream, digest: sha256('hello') })
    await until(() => keys.read('alice', key))
    elapse(59_500)
    expect((await upload({ key })).headers.get('Retry-After')).toBe('1')
  })

  it('a worker that slept through its lease answers with what the other one stored', async () => {
    const { upload, keys, state, elapse, events } = createFixture()
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('whole') })
    await until(() => keys.read('alice', key))
    elapse(61_000)
    const second = await upload({ key, body: 'whole' })
    expect([second.status, ...replayMarkers(second)]).toEqual([201, null, null])
    held.push('whole')
    held.end()
    const late = await first
    expect(isReplay(late)).toBe(true)
    expect(await bytesOf(late)).toBe(await bytesOf(second))
    expect(await state()).toBe('1/1/1/0')
    expect(events.map(({ type }) => type)).toEqual(expect.arrayContaining(['taken-over', 'fenced']))
  })

  it('a worker that slept through its lease gets 409 for its client while the other one works', async () => {
    const { upload, keys, elapse, state } = createFixture()
    const key = newKey()
    const bodies = [heldBody(), heldBody()] as const
    const first = upload({ key, body: bodies[0].stream, digest: sha256('whole') })
    await until(() => keys.read('alice', key))
    const fence = (await keys.read('alice', key))!.fence
    elapse(61_000)
    const second = upload({ key, body: bodies[1].stream, digest: sha256('whole') })
    await until(async () => (await keys.read('alice', key))!.fence !== fence)
    for (const body of bodies) body.push('whole')
    bodies[0].end()
    expect((await first).status).toBe(409)
    bodies[1].end()
    expect((await second).status).toBe(201)
    expect(await state()).toBe('1/1/1/0')
  })

  it('a lease is renewed while bytes flow, whatever the upload lasts', async () => {
    const leaseMs = 90
    const { handler, keys, elapse, events } = createFixture({ limits: { leaseMs } })
    const renew = vi.spyOn(keys, 'renew')
    const key = newKey()
    const held = heldBody()
    const whole = 'x'.repeat(10)
    const first = handler(uploadRequest({ key, body: held.stream, digest: sha256(whole) }))
    await until(() => keys.read('alice', key))
    for (let chunk = 1; chunk <= 10; chunk++) {
      held.push('x')
      await until(() => renew.mock.calls.length >= chunk)
      elapse(leaseMs / 2)
      expect((await handler(uploadRequest({ key, body: whole }))).status).toBe(409)
    }
    held.end()
    expect((await first).status).toBe(201)
    expect(events.filter(({ type }) => type === 'taken-over' || type === 'fenced')).toEqual([])
  })

  it('a lease is not renewed while nothing arrives', async () => {
    const keys = createMemoryKeys()
    const renew = vi.spyOn(keys, 'renew')
    const { handler } = createFixture({ keys, limits: { leaseMs: 300 } })
    const key = newKey()
    const held = heldBody()
    const stalled = handler(uploadRequest({ key, body: held.stream, digest: sha256('whole') }))
    await vi.waitUntil(async () => ((await keys.read('alice', key))?.leaseLeftMs ?? 1) < 0, { timeout: 5000 })
    expect(renew).not.toHaveBeenCalled()
    expect((await handler(uploadRequest({ key, body: 'whole' }))).status).toBe(201)
    held.push('whole')
    held.end()
    expect(isReplay(await stalled)).toBe(true)
  })

  it('a worker whose renewal is refused stops at once', async () => {
    const keys = createMemoryKeys()
    const { handler, objects } = createFixture({ keys, limits: { leaseMs: 300 } })
    const key = newKey()
    const held = heldBody()
    const first = handler(uploadRequest({ key, body: held.stream, digest: sha256('whole') }))
    await until(() => keys.read('alice', key))
    await keys.release((await keys.read('alice', key).then((row) => ({ owner: 'alice', key, fence: row!.fence })))!)
    held.push('who')
    await vi.waitUntil(() => keys.count().pending === 0, { timeout: 5000 })
    held.end()
    expect((await first).status).toBe(503)
    expect(await objects.list('')).toEqual([])
  })

  it('an upload that takes longer than allowed ends', async () => {
    const { upload, state } = createFixture({ limits: { maxUploadMs: 200 } })
    expect((await upload({ body: heldBody().stream, digest: sha256('x'), headers: {}, signal: AbortSignal.timeout(2000) })).status).toBe(
      408,
    )
    expect(await state()).toBe('0/0/0/0')
  })
})

describe('retention', () => {
  it.each([
    [71, false],
    [73, false],
    [73, true],
  ])('after %i h the same file is still the answer (reaped: %s)', async (hours, isReaped) => {
    const { upload, elapse, keys, state } = createFixture()
    const key = newKey()
    const first = await upload({ key })
    elapse(hours * HOUR)
    if (isReaped) expect(await keys.reap(100)).toBe(1)
    const late = await upload({ key })
    expect(isReplay(late)).toBe(true)
    expect(await bytesOf(late)).toBe(await bytesOf(first))
    expect(isReplay(await upload({ key }))).toBe(true)
    expect(await state()).toBe('1/1/1/0')
  })

  it('other bytes under a forgotten key are still a 422, and the key is left free', async () => {
    const { upload, elapse, state } = createFixture()
    const key = newKey()
    await upload({ key })
    elapse(73 * HOUR)
    expect((await upload({ key, body: 'other' })).status).toBe(422)
    expect(await state()).toBe('0/1/1/0')
    expect(isReplay(await upload({ key }))).toBe(true)
  })

  it('a file that another worker stored behind the back of this one is the answer', async () => {
    const { keys, upload, another, elapse, state, errors } = createFixture()
    const key = newKey()
    const first = await upload({ key })
    elapse(73 * HOUR)
    const blind = {
      ...keys,
      claim: async (request: Parameters<typeof keys.claim>[0]) => {
        const claimed = await keys.claim(request)
        return claimed && { ...claimed, media: null }
      },
    }
    const late = await another({ keys: blind })(uploadRequest({ key }))
    expect(isReplay(late)).toBe(true)
    expect(await bytesOf(late)).toBe(await bytesOf(first))
    expect(errors).toEqual([])
    expect(await state()).toBe('1/1/1/0')
  })
})

describe('integrity and limits', () => {
  it('wrong bytes are a 400 that says nothing about them, and the right ones are welcome under the same key', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    const answer = await upload({ key, body: 'wrong', digest: sha256('right') })
    expect(await answer.clone().text()).not.toContain(sha256('wrong'))
    expect(await problemOf(answer)).toEqual({ status: 400, error: 'digest_mismatch' })
    expect(await state()).toBe('0/0/0/0')
    expect((await upload({ key, body: 'right' })).status).toBe(201)
  })

  it('a body declared too large is a 413 without a trace', async () => {
    const { upload, state } = createFixture()
    const answer = await upload({ body: new Uint8Array(2 * MiB) })
    expect(await problemOf(answer)).toEqual({ status: 413, error: 'payload_too_large' })
    expect(answer.headers.get('Upload-Limit')).toBe('max-size=1048576')
    expect(await state()).toBe('0/0/0/0')
  })

  it('a body that proves too large is a 413 that is remembered', async () => {
    const { upload, state } = createFixture()
    const key = newKey()
    const send = () => upload({ key, body: generatedBody(2 * MiB), digest: sha256(new Uint8Array(2 * MiB)) })
    const answer = await send()
    expect([answer.status, answer.headers.get('Upload-Limit')]).toEqual([413, 'max-size=1048576'])
    expect(await state()).toBe('1/0/0/0')
    const again = await send()
    expect([again.status, ...replayMarkers(again), again.headers.get('Upload-Limit')]).toEqual([413, 'true', 'true', 'max-size=1048576'])
  })

  it('a body of exactly the limit is accepted', async () => {
    expect((await createFixture().upload({ body: new Uint8Array(MiB) })).status).toBe(201)
  })

  it.each<[string, UploadFields]>([
    ['multipart', { type: 'multipart/form-data; boundary=x' }],
    ['a form', { type: 'application/x-www-form-urlencoded' }],
    ['gzip', { headers: { 'Content-Encoding': 'gzip' } }],
    ['no type at all', { type: 'jpeg' }],
  ])('%s is a 415', async (_name, fields) => {
    const { upload, state } = createFixture()
    expect((await upload(fields)).status).toBe(415)
    expect(await state()).toBe('0/0/0/0')
  })

  it('a refused body is read to its end, and no further than the cap', async () => {
    let read = 0
    const counting = (bytes: number) =>
      generatedBody(bytes, (chunk) => {
        read += chunk
      })
    const { upload } = createFixture({ limits: { discardBytes: 4 * MiB } })
    await upload({ key: null, body: counting(3 * MiB), digest: null })
    expect(read).toBe(3 * MiB)
    read = 0
    await upload({ key: null, body: counting(300 * MiB), digest: null })
    expect(read).toBeGreaterThan(4 * MiB)
    expect(read).toBeLessThanOrEqual(4 * MiB + 2 * 65_536)
  })

  it('a body that stops arriving is a 408, and the key is free', async () => {
    const { upload, state } = createFixture({ limits: { idleMs: 100 } })
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('whole') })
    held.push('who')
    expect(await problemOf(await first)).toEqual({ status: 408, error: 'upload_timeout' })
    expect(await state()).toBe('0/0/0/0')
    expect((await upload({ key, body: 'whole' })).status).toBe(201)
  })

  it('a body that trickles is a 408, and a slow one that keeps the pace is not', async () => {
    const limits = { rateGraceMs: 200, minBytesPerSecond: 1000 }
    const pace = async (bytes: number) => {
      const { upload } = createFixture({ limits })
      const held = heldBody()
      let isDone = false
      const answer = upload({ body: held.stream, digest: sha256(new Uint8Array(bytes * 12)) }).finally(() => {
        isDone = true
      })
      for (let chunk = 0; chunk < 12 && !isDone; chunk++) {
        held.push(new Uint8Array(bytes))
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
      if (!isDone) held.end()
      return (await answer).status
    }
    expect(await pace(1)).toBe(408)
    expect(await pace(2000)).toBe(201)
  })

  it('a client that waits for 100 Continue is refused without its body', async () => {
    const { upload } = createFixture()
    const answer = await upload({ key: null, body: heldBody().stream, digest: null, headers: { Expect: '100-continue' } })
    expect(answer.status).toBe(400)
  })
})

describe('quota and names', () => {
  it('one upload more than allowed at once is a 429 without a trace, and others are not affected', async () => {
    const { upload, state } = createFixture()
    const bodies = Array.from({ length: 4 }, heldBody)
    const open = bodies.map((body) => upload({ body: body.stream, digest: sha256('x') }))
    await until(async () => (await state()) === '4/0/0/4')
    const key = newKey()
    const refused = await upload({ key, body: 'x' })
    expect(await problemOf(refused)).toEqual({ status: 429, error: 'too_many_in_flight' })
    expect(Number(refused.headers.get('Retry-After'))).toBeGreaterThan(0)
    expect(await state()).toBe('4/0/0/4')
    expect((await upload({ body: 'x', owner: 'bob' })).status).toBe(201)
    for (const body of bodies) {
      body.push('x')
      body.end()
    }
    for (const answer of await Promise.all(open)) expect(answer.status).toBe(201)
    expect((await upload({ key, body: 'x' })).status).toBe(201)
  })

  it.each([
    ['..%2F..%2Fetc%2Fpasswd', 'passwd'],
    ['C%3A%5Ctemp%5Ca.txt', 'a.txt'],
    [encodeURIComponent('東京 "Übung" 🎈 50%.jpg'), '東京 "Übung" 🎈 50%.jpg'],
    [encodeURIComponent('e\u0301.txt'), '\u00e9.txt'],
    [encodeURIComponent('a\r\nb\0c\u202egnp.exe'), 'abcgnp.exe'],
    ['100%.txt', '100%.txt'],
    [encodeURIComponent('ä'.repeat(200)), 'ä'.repeat(127)],
    ['', null],
    ['%2F', null],
  ])('the name %j is kept as %j', async (header, name) => {
    const { upload, keys, objects } = createFixture()
    await upload({ headers: { 'X-File-Name': header } })
    const [media] = await keys.listMedia('alice', 10)
    expect(media!.fileName).toBe(name)
    expect(await objects.list('')).toEqual([media!.storageKey])
    expect(media!.storageKey).toMatch(/^[a-z0-9-]+$/)
  })

  it('metadata is kept as text', async () => {
    const { upload, keys } = createFixture()
    const base64 = (text: string) => Buffer.from(text).toString('base64')
    await upload({ headers: { 'Upload-Metadata': `album ${base64('Sommer ☀')},empty ,flag` } })
    expect((await keys.listMedia('alice', 10))[0]!.metadata).toEqual({ album: 'Sommer ☀', empty: '', flag: '' })
  })
})

describe('outcome', () => {
  it('of a key nobody has used is a 404', async () => {
    const { outcome, state } = createFixture()
    expect(await problemOf(await outcome(newKey()))).toEqual({ status: 404, error: 'idempotency_key_unknown' })
    expect(await problemOf(await outcome('short'))).toEqual({ status: 400, error: 'idempotency_key_required' })
    expect(await state()).toBe('0/0/0/0')
  })

  it('of an upload in flight says how far it is and when to ask again', async () => {
    const { upload, outcome, keys, elapse } = createFixture()
    const key = newKey()
    const held = heldBody()
    const first = upload({ key, body: held.stream, digest: sha256('whole') })
    held.push('who')
    const answer = await vi.waitFor(async () => {
      const given = await outcome(key)
      expect(await given.clone().json()).toEqual({ state: 'in_flight', retryAfter: 2, bytesReceived: 3 })
      return given
    })
    expect(answer.headers.get('Retry-After')).toBe('2')
    expect(answer.headers.get('Cache-Control')).toBe('no-store')
    const before = await keys.read('alice', key)
    await outcome(key)
    expect(await keys.read('alice', key)).toEqual(before)
    elapse(61_000)
    expect((await outcome(key)).status).toBe(404)
    held.push('le')
    held.end()
    await first
  })

  it('of a stored file is the very answer, and after the retention it is told from the file', async () => {
    const { upload, outcome, elapse, keys } = createFixture()
    const key = newKey()
    const first = await upload({ key })
    const body = await first.text()
    const known = (await (await outcome(key)).json()) as Record<string, unknown>
    expect(known).toEqual({
      state: 'completed',
      status: 201,
      headers: [
        ['Content-Type', 'application/json'],
        ['Location', first.headers.get('Location')],
      ],
      body,
      bodyEncoding: 'utf8',
      expiresAt: '2026-01-04T00:00:00.000Z',
      source: 'key',
    })
    elapse(73 * HOUR)
    expect(await (await outcome(key)).json()).toEqual({ ...known, expiresAt: null, source: 'media' })
    await keys.reap(10)
    expect(await (await outcome(key)).json()).toEqual({ ...known, expiresAt: null, source: 'media' })
  })

  it('of a refusal that is not text is given in base64', async () => {
    const { upload, outcome } = createFixture({ onStored: () => new Response(everyByte, { status: 422 }) })
    const key = newKey()
    await upload({ key })
    expect(await (await outcome(key)).json()).toMatchObject({
      status: 422,
      bodyEncoding: 'base64',
      body: Buffer.from(everyByte).toString('base64'),
    })
  })

  it('with another digest is a 422', async () => {
    const { upload, outcome, elapse } = createFixture()
    const key = newKey()
    await upload({ key })
    expect((await outcome(key, { digest: sha256('hello') })).status).toBe(200)
    expect((await outcome(key, { digest: sha256('other') })).status).toBe(422)
    elapse(73 * HOUR)
    expect((await outcome(key, { digest: sha256('other') })).status).toBe(422)
  })
})
