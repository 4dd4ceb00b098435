import { describe, expect, it, vi } from 'vitest'
import { UnreplayableAnswer } from '../../demo/server/answer.js'
import type { IdempotencyEvent } from '../../demo/server/idempotency.js'
import { createMemoryKeys, type KeyStore } from '../../demo/server/keys.js'
import { createIdempotentHandler, type FetchHandler, type IdempotentHandlerOptions } from '../../demo/server/wrapper.js'
import { generatedBody, HOUR, heldBody, MiB, newKey, problemOf, replayMarkers, until } from './fixture.js'

interface Fields {
  key?: string | null
  body?: BodyInit | null
  method?: string
  path?: string
  type?: string
  owner?: string | null
  signal?: AbortSignal
  scope?: string
}

const orderRequest = ({ key = newKey(), body = '{"item":"tea"}', method = 'POST', path = '/orders', type, signal }: Fields = {}): Request =>
  new Request(`http://localhost:3000${path}`, {
    method,
    headers: { 'Content-Type': type ?? 'application/json', ...(key === null ? {} : { 'Idempotency-Key': key }) },
    ...(body === null || method === 'GET' || method === 'HEAD' ? {} : { body, duplex: 'half' }),
    ...(signal ? { signal } : {}),
  } as RequestInit)

/** A wrapped handler on memory keys, which counts its executions. */
function createFixture(
  handler: FetchHandler = () => Response.json({ ok: true }, { status: 201 }),
  options: Partial<IdempotentHandlerOptions> = {},
) {
  let now = Date.UTC(2026, 0, 1)
  const keys = createMemoryKeys({ clock: () => now })
  const errors: unknown[] = []
  const events: IdempotencyEvent['type'][] = []
  const idempotent = createIdempotentHandler({
    keys,
    onError: (error) => errors.push(error),
    onEvent: ({ type }) => events.push(type),
    ...options,
  })
  const executed = vi.fn(handler)
  return {
    keys,
    errors,
    events,
    executed,
    call: ({ owner = 'alice', scope, ...fields }: Fields = {}, other: FetchHandler = executed) =>
      idempotent.handle(orderRequest(fields), { owner, ...(scope === undefined ? {} : { scope }) }, other),
    elapse: (ms: number) => {
      now += ms
    },
  }
}

/** A handler whose answers the test gives. */
function heldHandler() {
  const calls: { request: Request; answer: (response: Response) => void; fail: (error: unknown) => void }[] = []
  const handler: FetchHandler = (request) => new Promise((answer, fail) => calls.push({ request, answer, fail }))
  return { handler, calls, called: (times: number) => until(() => calls.length === times) }
}

const isReplay = (response: Response): boolean => replayMarkers(response).every((marker) => marker === 'true')
const isFirst = (response: Response): boolean => replayMarkers(response).every((marker) => marker === null)

const failing = (keys: KeyStore, methods: (keyof KeyStore)[]): KeyStore =>
  new Proxy(keys, {
    get: (target, name) => (methods.includes(name as keyof KeyStore) ? () => Promise.reject(new Error('away')) : Reflect.get(target, name)),
  })

describe('a first request', () => {
  it('gets the answer of the handler, which has the whole request', async () => {
    let seen: unknown
    const { call } = createFixture(async (request) => {
      seen = [request.method, new URL(request.url).pathname, request.headers.get('content-type'), await request.json()]
      return new Response('done', { status: 202, headers: { 'X-Own': 'yes', 'Content-Type': 'text/x', RateLimit: 'limit=1' } })
    })
    const first = await call()
    expect(seen).toEqual(['POST', '/orders', 'application/json', { item: 'tea' }])
    expect([first.status, await first.text(), first.headers.get('X-Own'), first.headers.get('RateLimit')]).toEqual([
      202,
      'done',
      'yes',
      'limit=1',
    ])
    expect(isFirst(first)).toBe(true)
  })

  it.each(['GET', 'HEAD'])('with %s goes straight to the handler', async (method) => {
    const { call, executed, keys } = createFixture()
    await call({ method, key: null, owner: null })
    await call({ method, key: null, owner: null })
    expect([executed.mock.calls.length, keys.count().keys]).toEqual([2, 0])
  })
})

describe('a refusal', () => {
  it('is a 400 without a key, or with one that is none', async () => {
    const { call, executed, keys } = createFixture()
    expect(await problemOf(await call({ key: null }))).toEqual({ status: 400, error: 'idempotency_key_required' })
    expect(await problemOf(await call({ key: 'short' }))).toEqual({ status: 400, error: 'idempotency_key_required' })
    expect(await problemOf(await call({ key: 'aaaaaaaa aaaaaaaa' }))).toEqual({ status: 400, error: 'idempotency_key_invalid' })
    expect([executed.mock.calls.length, keys.count().keys]).toEqual([0, 0])
  })

  it('is not made for a missing key where none is required', async () => {
    const { call, executed } = createFixture(undefined, { required: false })
    expect((await call({ key: null })).status).toBe(201)
    expect((await call({ key: 'short' })).status).toBe(400)
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it.each([null, '', undefined])('is a 401 for the owner %j, before the store is asked', async (owner) => {
    const read = vi.fn()
    const keys = new Proxy({} as KeyStore, { get: () => read })
    const idempotent = createIdempotentHandler({ keys })
    const answer = await idempotent.handle(orderRequest(), { owner: owner as null }, () => new Response())
    expect(await problemOf(answer)).toEqual({ status: 401, error: 'unauthorized' })
    expect(answer.headers.get('WWW-Authenticate')).toBe('Bearer')
    expect(read).not.toHaveBeenCalled()
  })

  it('is a 413 for a body that is too long, which is read to its end', async () => {
    const { call, executed, keys } = createFixture()
    let produced = 0
    const body = generatedBody(4 * MiB, (bytes) => {
      produced += bytes
    })
    expect(await problemOf(await call({ body }))).toEqual({ status: 413, error: 'payload_too_large' })
    expect([produced, executed.mock.calls.length, keys.count().keys]).toEqual([4 * MiB, 0, 0])
  })

  it('is a 408 for a body that breaks off', async () => {
    const { call, executed, keys } = createFixture()
    const body = heldBody()
    const answer = call({ body: body.stream })
    body.push('{"item"')
    body.fail()
    expect(await problemOf(await answer)).toEqual({ status: 408, error: 'upload_timeout' })
    expect([executed.mock.calls.length, keys.count().keys]).toEqual([0, 0])
  })
})

describe('a repeat', () => {
  it('gets the same bytes, marked, and nothing is executed', async () => {
    const { call, executed } = createFixture(() => {
      const bytes = Uint8Array.from({ length: 256 }, (_, byte) => byte)
      return new Response(bytes, { status: 201, headers: { 'Content-Type': 'application/x', Location: '/orders/1', ETag: '"1"' } })
    })
    const key = newKey()
    const first = await call({ key })
    const again = await call({ key })
    expect(Buffer.from(await again.arrayBuffer())).toEqual(Buffer.from(await first.arrayBuffer()))
    expect([again.status, ...['Content-Type', 'Location', 'ETag', 'Content-Length'].map((name) => again.headers.get(name))]).toEqual([
      201,
      'application/x',
      '/orders/1',
      '"1"',
      '256',
    ])
    expect([isFirst(first), isReplay(again), executed.mock.calls.length]).toEqual([true, true, 1])
  })

  it('may write its JSON another way', async () => {
    const { call, executed } = createFixture()
    const key = newKey()
    await call({ key, body: '{"item":"tea","amount":1}' })
    expect(isReplay(await call({ key, body: ' { "amount": 1.0,\n "item": "\\u0074ea" }', type: 'Application/JSON ;charset=utf-8' }))).toBe(
      true,
    )
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it.each<[string, Fields]>([
    ['another value', { body: '{"item":"milk"}' }],
    ['another type', { type: 'text/plain' }],
    ['another query', { path: '/orders?dry=1' }],
    ['white space in what is not JSON', { type: 'text/plain', body: ' {"item":"tea"}' }],
    ['no body', { body: null }],
  ])('with %s is a 422 that changes nothing', async (_name, fields) => {
    const { call, executed } = createFixture()
    const key = newKey()
    await call({ key })
    expect(await problemOf(await call({ key, ...fields }))).toEqual({ status: 422, error: 'idempotency_key_reuse' })
    expect(isReplay(await call({ key }))).toBe(true)
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it('after the retention is a first request', async () => {
    const { call, executed, elapse } = createFixture()
    const key = newKey()
    await call({ key })
    elapse(71 * HOUR)
    expect(isReplay(await call({ key }))).toBe(true)
    elapse(2 * HOUR)
    expect(isFirst(await call({ key }))).toBe(true)
    expect(executed).toHaveBeenCalledTimes(2)
  })

  it.each<[string, Fields]>([
    ['another owner', { owner: 'bob' }],
    ['another path', { path: '/invoices' }],
    ['another method', { method: 'PUT' }],
    ['another scope', { scope: 'elsewhere' }],
  ])('never gets an answer of %s', async (_name, fields) => {
    let count = 0
    const { call } = createFixture(() => Response.json({ count: ++count }))
    const key = newKey()
    await call({ key })
    const other = await call({ key, ...fields })
    expect([isFirst(other), await other.json()]).toEqual([true, { count: 2 }])
  })

  it('of two long paths that begin alike gets no answer of the other', async () => {
    const { call } = createFixture()
    const key = newKey()
    const path = `/${'a'.repeat(4000)}`
    expect((await call({ key, path: `${path}1` })).status).toBe(201)
    expect((await call({ key, path: `${path}2` })).status).toBe(422)
  })
})

describe('what a replay sends', () => {
  const headers: [string, string][] = [
    ['Content-Type', 'application/json'],
    ['Content-Language', 'de'],
    ['Set-Cookie', 'a=1; Path=/'],
    ['Set-Cookie', 'b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT'],
    ['WWW-Authenticate', 'Bearer'],
    ['Connection', 'close'],
    ['Keep-Alive', 'timeout=5'],
    ['Date', 'Wed, 21 Oct 2026 07:28:00 GMT'],
    ['Content-Length', '2'],
    ['Access-Control-Allow-Origin', '*'],
    ['RateLimit-Remaining', '1'],
    ['X-RateLimit-Reset', '1'],
    ['X-Request-Id', '7'],
  ]
  const handler: FetchHandler = () => new Response('{}', { headers })

  it('leaves out what belongs to one exchange, cookies too', async () => {
    const { call } = createFixture(handler)
    const key = newKey()
    const first = await call({ key })
    expect(first.headers.getSetCookie()).toHaveLength(2)
    expect(first.headers.get('X-Request-Id')).toBe('7')
    expect([...(await call({ key })).headers].map(([name]) => name)).toEqual([
      'content-language',
      'content-length',
      'content-type',
      'idempotent-replay',
      'idempotent-replayed',
    ])
  })

  it('repeats cookies line by line where it is told to', async () => {
    const { call } = createFixture(handler, { keepHeaders: ['Set-Cookie', 'x-request-id'] })
    const key = newKey()
    await call({ key })
    const again = await call({ key })
    expect(again.headers.getSetCookie()).toEqual(['a=1; Path=/', 'b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT'])
    expect(again.headers.get('X-Request-Id')).toBe('7')
  })

  it.each([
    'Date',
    'WWW-Authenticate',
    'content-length',
    'Connection',
    'access-control-allow-origin',
    'RateLimit',
    'X-RateLimit-Limit',
    'Idempotent-Replay',
  ])('cannot be told to repeat %s', (name) => {
    expect(() => createIdempotentHandler({ keys: createMemoryKeys(), keepHeaders: [name] })).toThrow(TypeError)
  })

  it.each([204, 205, 304])('has no body with %i', async (status) => {
    const { call, executed } = createFixture(() => new Response(null, { status }))
    const key = newKey()
    const answers = [await call({ key }), await call({ key })]
    expect(answers.map((answer) => [answer.status, answer.body, answer.headers.get('Content-Length')])).toEqual([
      [status, null, null],
      [status, null, null],
    ])
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it('is every answer but 429, a 500 included', async () => {
    for (const status of [200, 400, 404, 409, 500, 503, 599]) {
      const { call, executed } = createFixture(() => new Response('x', { status }))
      const key = newKey()
      await call({ key })
      const again = await call({ key })
      expect([again.status, isReplay(again), executed.mock.calls.length]).toEqual([status, true, 1])
    }
    const { call, executed } = createFixture(() => new Response('x', { status: 429, headers: { 'Retry-After': '1' } }))
    const key = newKey()
    await call({ key })
    expect(isFirst(await call({ key }))).toBe(true)
    expect(executed).toHaveBeenCalledTimes(2)
  })

  it('is not a 5xx where the policy releases it', async () => {
    const { call, executed } = createFixture(() => new Response('x', { status: 502 }), {
      respondPolicy: ({ status }) => (status >= 500 ? 'release' : 'store'),
    })
    const key = newKey()
    await call({ key })
    expect(isFirst(await call({ key }))).toBe(true)
    expect(executed).toHaveBeenCalledTimes(2)
  })
})

describe('an answer that cannot be kept', () => {
  it('past 64 KiB reaches the first caller whole, and a repeat is told what was made, and nothing runs', async () => {
    const { call, executed } = createFixture(
      () =>
        new Response(generatedBody(300_000), {
          status: 201,
          headers: { Location: '/orders/1', 'Content-Type': 'image/png', 'Content-Length': '300000' },
        }),
    )
    const key = newKey()
    const first = await call({ key })
    expect([(await first.arrayBuffer()).byteLength, first.headers.get('Content-Type')]).toEqual([300_000, 'image/png'])
    const again = await call({ key })
    expect([again.status, isReplay(again), again.headers.get('Location'), again.headers.get('Content-Type')]).toEqual([
      201,
      true,
      '/orders/1',
      'application/json',
    ])
    expect(await again.json()).toEqual({ error: 'answer_not_kept', message: 'The answer was longer than 65536 bytes and is not kept.' })
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it('of exactly 64 KiB is kept', async () => {
    const { call } = createFixture(() => new Response(generatedBody(65_536)))
    const key = newKey()
    await call({ key })
    expect((await (await call({ key })).arrayBuffer()).byteLength).toBe(65_536)
  })

  const withBody = (status: number): Response => Object.defineProperty(new Response('x'), 'status', { value: status })
  it.each<[string, () => unknown]>([
    ['a network error', () => Response.error()],
    ['status 101', () => withBody(101)],
    ['status 600', () => withBody(600)],
    ['a body with 204', () => withBody(204)],
    ['a body with 205', () => withBody(205)],
    ['a body with 304', () => withBody(304)],
    ['nothing', () => undefined],
  ])('such as %s rejects, before the store is touched, and the key is held until the lease runs out', async (_name, given) => {
    const { call, keys, events, elapse } = createFixture()
    const key = newKey()
    await expect(call({ key }, given as FetchHandler)).rejects.toThrow(UnreplayableAnswer)
    expect(events).toEqual(['claimed'])
    expect(await problemOf(await call({ key }))).toEqual({ status: 409, error: 'idempotency_in_progress' })
    elapse(61_000)
    expect(isFirst(await call({ key }))).toBe(true)
    expect(keys.count().keys).toBe(1)
  })

  it('since its body has been read rejects', async () => {
    const { call } = createFixture(async () => {
      const response = new Response('x')
      await response.text()
      return response
    })
    await expect(call()).rejects.toThrow(UnreplayableAnswer)
  })
})

describe('requests at once', () => {
  it('are executed once, and the others are told to come again', async () => {
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler)
    const key = newKey()
    const answers = Array.from({ length: 20 }, () => call({ key }))
    await called(1)
    const first = Promise.race(answers.map(async (answer) => ((await answer).status === 201 ? answer : new Promise<never>(() => {}))))
    const refused = await Promise.race(answers)
    expect([refused.headers.get('Retry-After'), await problemOf(refused)]).toEqual(['2', { status: 409, error: 'idempotency_in_progress' }])
    expect((await call({ key, body: '{}' })).status).toBe(422)
    calls[0]!.answer(new Response('made', { status: 201 }))
    expect(isFirst(await first)).toBe(true)
    expect((await Promise.all(answers)).filter(({ status }) => status === 409)).toHaveLength(19)
    expect([isReplay(await call({ key })), calls.length]).toEqual([true, 1])
  })

  it('wait for the first where they may, and get its answer', async () => {
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler, { waitMs: 20_000 })
    const key = newKey()
    const answers = Array.from({ length: 5 }, () => call({ key }))
    await called(1)
    calls[0]!.answer(new Response('made', { status: 201 }))
    const all = await Promise.all(answers)
    expect([all.filter(isFirst).length, all.filter(isReplay).length, calls.length]).toEqual([1, 4, 1])
  })
})

describe('a handler that fails', () => {
  it('by throwing keeps its key until the lease runs out, and then it runs again', async () => {
    const { call, elapse, executed } = createFixture()
    const key = newKey()
    const failure = new Error('half-way')
    await expect(
      call({ key }, () => {
        throw failure
      }),
    ).rejects.toBe(failure)
    elapse(59_000)
    expect((await call({ key })).status).toBe(409)
    elapse(2_000)
    expect([(await call({ key })).status, executed.mock.calls.length]).toEqual([201, 1])
  })

  it('by throwing frees its key where the policy says that nothing is left behind', async () => {
    const { call } = createFixture(undefined, { respondPolicy: ({ thrown }) => (thrown ? 'release' : 'store') })
    const key = newKey()
    await expect(call({ key }, () => Promise.reject(new Error('rolled back')))).rejects.toThrow('rolled back')
    expect(isFirst(await call({ key }))).toBe(true)
  })

  it('in the middle of its body has failed', async () => {
    const { call, events } = createFixture()
    const key = newKey()
    const body = heldBody()
    body.fail()
    await expect(call({ key }, () => new Response(body.stream))).rejects.toThrow('connection reset')
    expect(events).toEqual(['claimed'])
    expect((await call({ key })).status).toBe(409)
  })

  it('by never answering is given up, and its lease runs out', async () => {
    const keys = createMemoryKeys()
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler, { keys, leaseMs: 600, retentionMs: HOUR, maxRunMs: 2_500 })
    const key = newKey()
    const first = call({ key })
    await called(1)
    // Longer than a lease, and still nobody else may run.
    const started = performance.now()
    await until(() => performance.now() - started > 1_300)
    expect((await call({ key })).status).toBe(409)
    const given = await first
    expect([given.headers.get('Retry-After'), await problemOf(given)]).toEqual(['1', { status: 503, error: 'run_timeout' }])
    expect(calls[0]!.request.signal.aborted).toBe(true)
    const second = await vi.waitFor(
      async () => {
        const answer = await call({ key }, () => new Response('second'))
        expect(answer.status).toBe(200)
        return answer
      },
      { timeout: 10_000 },
    )
    expect(await second.text()).toBe('second')
    // The first one wakes up: nobody gets its answer any more.
    calls[0]!.answer(new Response('first'))
    expect(await (await call({ key })).text()).toBe('second')
  })

  it('by answering too late is stored all the same while nobody has taken over', async () => {
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler, { leaseMs: 60_000, maxRunMs: 50 })
    const key = newKey()
    const first = call({ key })
    await called(1)
    expect((await first).status).toBe(503)
    calls[0]!.answer(new Response('late', { status: 201 }))
    const again = await vi.waitFor(
      async () => {
        const answer = await call({ key })
        expect(answer.status).toBe(201)
        return answer
      },
      { timeout: 10_000 },
    )
    expect([isReplay(again), await again.text(), calls.length]).toEqual([true, 'late', 1])
  })

  it('by losing its claim gets the answer of the one who took over', async () => {
    const { handler, calls, called } = heldHandler()
    const { call, elapse } = createFixture(handler)
    const key = newKey()
    const first = call({ key })
    await called(1)
    elapse(61_000)
    const second = call({ key })
    await called(2)
    calls[0]!.answer(new Response('first'))
    expect(await problemOf(await first)).toEqual({ status: 409, error: 'idempotency_in_progress' })
    calls[1]!.answer(new Response('second'))
    expect([isFirst(await second), await (await second).text()]).toEqual([true, 'second'])
    expect(await (await call({ key })).text()).toBe('second')
  })

  it('is told by its signal that it was taken over, and its client gets the answer of the other', async () => {
    const keys = createMemoryKeys()
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler, { keys, leaseMs: 300, retentionMs: HOUR })
    const key = newKey()
    const first = call({ key })
    await called(1)
    const row = (await keys.read('alice', `POST /orders ${key}`))!
    // As if the lease had lapsed, and another worker had come, done it, and stored its answer.
    await keys.release({ owner: 'alice', key: `POST /orders ${key}`, fence: row.fence })
    const other = { owner: 'alice', key: `POST /orders ${key}`, fence: newKey() }
    await keys.claim({ ...other, fingerprint: row.fingerprint, sha256: null, leaseMs: 60_000, retentionMs: HOUR })
    await keys.reject(other, { status: 201, headers: [], body: Buffer.from('other') }, HOUR)
    const given = await first
    expect([isReplay(given), await given.text(), calls[0]!.request.signal.aborted]).toEqual([true, 'other', true])
    calls[0]!.fail(new Error('stopped'))
  })

  it('does not hear of a client that is gone', async () => {
    const { handler, calls, called } = heldHandler()
    const { call } = createFixture(handler)
    const key = newKey()
    const gone = new AbortController()
    const first = call({ key, signal: gone.signal })
    await called(1)
    gone.abort()
    expect(calls[0]!.request.signal.aborted).toBe(false)
    calls[0]!.answer(new Response('made', { status: 201 }))
    await first
    expect(isReplay(await call({ key }))).toBe(true)
  })
})

describe('a store that fails', () => {
  it('before the handler runs is a 503, and nothing runs', async () => {
    const { call, executed, errors } = createFixture(undefined, { keys: failing(createMemoryKeys(), ['claim']) })
    const answer = await call()
    expect([answer.headers.get('Retry-After'), await problemOf(answer)]).toEqual(['1', { status: 503, error: 'store_unavailable' }])
    expect([executed.mock.calls.length, errors.length]).toEqual([0, 1])
  })

  it.each<[keyof KeyStore, number]>([
    ['reject', 201],
    ['release', 429],
  ])('after it (%s) does not keep the answer from its client, and is reported', async (method, status) => {
    const memory = createMemoryKeys()
    const { call, errors } = createFixture(() => new Response('made', { status }), { keys: failing(memory, [method]) })
    const key = newKey()
    const first = await call({ key })
    expect([first.status, await first.text(), isFirst(first)]).toEqual([status, 'made', true])
    expect(errors).toEqual([new Error('away')])
    expect((await call({ key })).status).toBe(409)
  })
})
