import { Readable } from 'node:stream'
import fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type InjectOptions,
  type LightMyRequestResponse,
} from 'fastify'
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { Refusal } from '../../demo/server/answer.js'
import { openPostgres } from '../../demo/server/database.js'
import { type FastifyIdempotencyOptions, idempotency, sendRefusal } from '../../demo/server/fastify.js'
import { createMemoryKeys, type KeyStore } from '../../demo/server/keys.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { HOUR, newKey, until } from './fixture.js'
import { pgliteSubject, postgresSubject, type SqlSubject } from './stores.js'

type Handler = (request: FastifyRequest, reply: FastifyReply) => unknown

interface Fields {
  key?: string | null
  body?: unknown
  url?: string
  method?: 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'GET'
  owner?: string | null
  headers?: Record<string, string>
}

const ownerOf = (request: FastifyRequest): string | null => /^Bearer (\w+)$/.exec(request.headers.authorization ?? '')?.[1] ?? null

const orderOf = ({
  key = newKey(),
  body = { item: 'tea' },
  url = '/orders',
  method = 'POST',
  owner = 'alice',
  headers,
}: Fields): InjectOptions => ({
  method,
  url,
  headers: {
    ...(body === null ? {} : { 'content-type': 'application/json' }),
    ...(key === null ? {} : { 'idempotency-key': key }),
    ...(owner === null ? {} : { authorization: `Bearer ${owner}` }),
    ...headers,
  },
  ...(body === null ? {} : { payload: typeof body === 'string' || body instanceof Readable ? body : JSON.stringify(body) }),
})

const opened: FastifyInstance[] = []
afterAll(() => Promise.all(opened.map((app) => app.close())))

/** An app with one guarded scope around a handler, on memory keys, which counts executions. */
async function createApp(
  handler: Handler = (_request, reply) => reply.code(201).send({ made: true }),
  options: Partial<FastifyIdempotencyOptions> = {},
  extend: (app: FastifyInstance) => void = () => {},
) {
  let now = Date.UTC(2026, 0, 1)
  const keys = createMemoryKeys({ clock: () => now })
  const errors: unknown[] = []
  const executed = vi.fn(handler)
  const app = fastify()
  opened.push(app)
  app.setErrorHandler((error: Error & { statusCode?: number }, _request, reply) => {
    if (error instanceof Refusal) return sendRefusal(reply, error)
    return reply.code(error.statusCode ?? 500).send({ failed: error.message })
  })
  app.register(async (scope) => {
    scope.register(idempotency, { keys, authenticate: ownerOf, onError: (error) => errors.push(error), ...options })
    const run = (request: FastifyRequest, reply: FastifyReply): unknown => executed(request, reply)
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE', 'GET'] as const) scope.route({ method, url: '/orders', handler: run })
    scope.route({ method: 'POST', url: '/orders/:id', handler: run })
    scope.route({ method: 'POST', url: '/invoices', handler: run })
    const schema = { body: { type: 'object', required: ['item'] } }
    scope.route({ method: 'POST', url: '/checked', schema, handler: run })
    extend(scope)
  })
  app.post('/elsewhere', async () => ({ free: true }))
  await app.ready()
  return {
    app,
    keys,
    errors,
    executed,
    call: (fields: Fields = {}) => app.inject(orderOf(fields)),
    elapse: (ms: number) => {
      now += ms
    },
  }
}

type Answer = LightMyRequestResponse
const isReplay = ({ headers }: Answer): boolean => headers['idempotent-replayed'] === 'true' && headers['idempotent-replay'] === 'true'
const isFirst = ({ headers }: Answer): boolean => headers['idempotent-replayed'] === undefined && headers['idempotent-replay'] === undefined

function problemOf(answer: Answer): string {
  const problem = answer.json() as { status: number; error: string }
  expect(answer.headers['content-type']).toBe('application/problem+json')
  expect(problem.status).toBe(answer.statusCode)
  return `${answer.statusCode} ${problem.error}`
}

describe('the five outcomes', () => {
  it('the first request runs, and gets the answer of its route', async () => {
    const { call, executed } = await createApp()
    const first = await call()
    expect([first.statusCode, first.json(), isFirst(first), executed.mock.calls.length]).toEqual([201, { made: true }, true, 1])
  })

  it('a repeat gets the same bytes, marked, and nothing runs', async () => {
    let count = 0
    const { call, executed } = await createApp((_request, reply) =>
      reply
        .code(201)
        .headers({ Location: '/orders/1', 'X-Own': '1', 'Set-Cookie': ['a=1', 'b=2'] })
        .send({ count: ++count }),
    )
    const key = newKey()
    const first = await call({ key })
    const again = await call({ key })
    expect([again.statusCode, again.body, again.headers.location, again.headers['content-type']]).toEqual([
      201,
      first.body,
      '/orders/1',
      'application/json; charset=utf-8',
    ])
    expect([first.headers['set-cookie'], again.headers['set-cookie'], again.headers['x-own']]).toEqual([
      ['a=1', 'b=2'],
      undefined,
      undefined,
    ])
    expect([isFirst(first), isReplay(again), executed.mock.calls.length]).toEqual([true, true, 1])
  })

  it('a repeat gets cookies line by line where the plugin is told to keep them', async () => {
    const { call } = await createApp((_request, reply) => reply.headers({ 'Set-Cookie': ['a=1', 'b=2'] }).send({}), {
      keepHeaders: ['set-cookie'],
    })
    const key = newKey()
    await call({ key })
    expect((await call({ key })).headers['set-cookie']).toEqual(['a=1', 'b=2'])
  })

  it('a request beside one that runs is a 409, and gets the answer later', async () => {
    let finish!: (value: unknown) => void
    const { call, executed } = await createApp(() => new Promise((resolve) => (finish = resolve)))
    const key = newKey()
    const first = call({ key })
    await until(() => executed.mock.calls.length === 1)
    const others = await Promise.all(Array.from({ length: 19 }, () => call({ key })))
    expect(new Set(others.map(problemOf))).toEqual(new Set(['409 idempotency_in_progress']))
    expect(others[0]!.headers['retry-after']).toBe('2')
    expect(problemOf(await call({ key, body: { item: 'milk' } }))).toBe('422 idempotency_key_reuse')
    finish({ made: true })
    expect(isFirst(await first)).toBe(true)
    expect([isReplay(await call({ key })), executed.mock.calls.length]).toEqual([true, 1])
  })

  it('a request beside one that runs waits for it where it may', async () => {
    let finish!: (value: unknown) => void
    const { call, executed } = await createApp(() => new Promise((resolve) => (finish = resolve)), { waitMs: 20_000 })
    const key = newKey()
    const answers = [call({ key }), call({ key }), call({ key })]
    await until(() => executed.mock.calls.length === 1)
    finish({ made: true })
    const all = await Promise.all(answers)
    expect([all.filter(isFirst).length, all.filter(isReplay).length, executed.mock.calls.length]).toEqual([1, 2, 1])
  })

  it('another body under the same key is a 422 that changes nothing', async () => {
    const { call, executed } = await createApp()
    const key = newKey()
    await call({ key })
    for (const body of [{ item: 'milk' }, { item: 'tea', amount: 1 }, [], null]) {
      expect(problemOf(await call({ key, body }))).toBe('422 idempotency_key_reuse')
    }
    expect([isReplay(await call({ key })), executed.mock.calls.length]).toEqual([true, 1])
  })

  it('order of members, white space and forms of numbers do not make another body', async () => {
    const { call, executed } = await createApp()
    const key = newKey()
    await call({ key, body: '{"item":"tea","amount":{"value":10,"unit":"g"}}' })
    const again = await call({
      key,
      body: '{ "amount" : {"unit":"\\u0067", "value":1.0e1},\n"item":"tea" }',
      headers: { 'content-type': 'application/json ; charset=utf-8' },
    })
    expect([isReplay(again), executed.mock.calls.length]).toEqual([true, 1])
  })

  it('no key, or one that is none, is a 400, and a missing account a 401, before any look-up', async () => {
    const asked = vi.fn()
    const keys = new Proxy({} as KeyStore, { get: () => asked, has: () => false })
    const { call, executed } = await createApp(undefined, { keys })
    expect(problemOf(await call({ key: null }))).toBe('400 idempotency_key_required')
    expect(problemOf(await call({ key: 'aaaaaaaa aaaaaaaa' }))).toBe('400 idempotency_key_invalid')
    expect(problemOf(await call({ headers: { 'idempotency-key': `${newKey()}, ${newKey()}` } }))).toBe('400 idempotency_key_invalid')
    const refused = await call({ owner: null })
    expect([problemOf(refused), refused.headers['www-authenticate']]).toEqual(['401 unauthorized', 'Bearer'])
    expect([executed.mock.calls.length, asked.mock.calls.length]).toEqual([0, 0])
  })
})

describe('a request that Fastify itself refuses', () => {
  it.each<[string, Fields, string]>([
    ['does not fit the schema', { url: '/checked', body: {} }, '400 request_invalid'],
    ['is no JSON', { body: '{"item":' }, '400 request_invalid'],
    ['has no JSON where it says so', { body: '' }, '400 request_invalid'],
    ['would change a prototype', { body: '{"__proto__":{}}' }, '400 request_invalid'],
    ['is of a type nobody reads', { body: '<item/>', headers: { 'content-type': 'text/xml' } }, '415 unsupported_media_type'],
    ['is longer than the app takes', { body: 'x'.repeat(1_100_000) }, '413 payload_too_large'],
  ])('because it %s gets a problem document, and its key stays free', async (_name, fields, problem) => {
    const { call, executed } = await createApp()
    const key = newKey()
    expect(problemOf(await call({ key, ...fields }))).toBe(problem)
    expect((await call({ key, ...(fields.url ? { url: fields.url } : {}) })).statusCode).toBe(201)
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it('is told what is wrong with it, and outside the scope the app answers as it likes', async () => {
    const { app, call } = await createApp()
    expect((await call({ url: '/checked', body: {} })).json()).toMatchObject({ detail: "body must have required property 'item'" })
    const outside = await app.inject(orderOf({ url: '/elsewhere', body: '{' }))
    expect([outside.statusCode, Object.keys(outside.json() as object)]).toEqual([400, ['failed']])
  })

  it('in an app without an error handler gets a problem document too, and so does a refusal that a route throws', async () => {
    const app = fastify()
    opened.push(app)
    app.register(async (scope) => {
      scope.register(idempotency, { keys: createMemoryKeys(), authenticate: ownerOf })
      scope.post('/orders', async () => {
        throw new Refusal('media_unknown')
      })
    })
    expect(problemOf(await app.inject(orderOf({ body: '{' })))).toBe('400 request_invalid')
    expect(problemOf(await app.inject(orderOf({})))).toBe('404 media_unknown')
  })
})

describe('scope', () => {
  it.each<[string, Fields]>([
    ['owner', { owner: 'bob' }],
    ['route', { url: '/invoices' }],
    ['method', { method: 'PUT' }],
  ])('another %s never gets the answer', async (_name, fields) => {
    let count = 0
    const { call } = await createApp(() => ({ count: ++count }))
    const key = newKey()
    await call({ key })
    const other = await call({ key, ...fields })
    expect([isFirst(other), other.json()]).toEqual([true, { count: 2 }])
  })

  it('another parameter of the route is a 422', async () => {
    const { call } = await createApp()
    const key = newKey()
    expect((await call({ key, url: '/orders/1' })).statusCode).toBe(201)
    expect(problemOf(await call({ key, url: '/orders/2' }))).toBe('422 idempotency_key_reuse')
    expect(isReplay(await call({ key, url: '/orders/1' }))).toBe(true)
  })

  it('GET and routes of other scopes are left alone', async () => {
    const { call, executed } = await createApp()
    expect((await call({ method: 'GET', key: null, owner: null, body: null })).statusCode).toBe(201)
    expect((await call({ url: '/elsewhere', key: null, owner: null })).json()).toEqual({ free: true })
    expect(executed).toHaveBeenCalledTimes(1)
  })

  it('a key is optional where none is required', async () => {
    const { call, executed, keys } = await createApp(undefined, { required: false })
    await call({ key: null })
    await call({ key: null })
    expect([executed.mock.calls.length, keys.count().keys]).toEqual([2, 0])
  })

  it('a request without a body is guarded as well', async () => {
    const { call, executed } = await createApp((_request, reply) => reply.code(204).send())
    const key = newKey()
    const answers = [await call({ key, method: 'DELETE', body: null }), await call({ key, method: 'DELETE', body: null })]
    expect(answers.map(({ statusCode, body, headers }) => [statusCode, body, headers['content-length']])).toEqual([
      [204, '', undefined],
      [204, '', undefined],
    ])
    expect([isReplay(answers[1]!), executed.mock.calls.length]).toEqual([true, 1])
  })

  it('a body that is no JSON is a 415', async () => {
    const { call, executed } = await createApp(undefined, {}, (app) =>
      app.addContentTypeParser('multipart/form-data', async () => undefined),
    )
    for (const type of ['text/plain', 'multipart/form-data; boundary=x']) {
      expect(problemOf(await call({ body: 'x', headers: { 'content-type': type } }))).toBe('415 unsupported_media_type')
    }
    expect(executed).not.toHaveBeenCalled()
  })

  it('a body that the schema refuses is not stored', async () => {
    const { call, executed } = await createApp()
    const key = newKey()
    expect((await call({ key, url: '/checked', body: {} })).statusCode).toBe(400)
    expect((await call({ key, url: '/checked' })).statusCode).toBe(201)
    expect(executed).toHaveBeenCalledTimes(1)
  })
})

describe('answers', () => {
  it.each<[string, Handler, number]>([
    ['that are sent', (_request, reply) => reply.code(404).send({ no: 1 }), 404],
    ['with 500 that are sent', (_request, reply) => reply.code(500).send({ no: 1 }), 500],
    [
      'of the error handler',
      () => {
        throw new Refusal('media_unknown')
      },
      404,
    ],
    ['of the error handler for a status', () => Promise.reject(Object.assign(new Error('taken'), { statusCode: 409 })), 409],
    [
      'of a serializer',
      (_request, reply) =>
        reply
          .type('text/x')
          .serializer(() => 'custom')
          .send({ no: 1 }),
      200,
    ],
    ['that are text', (_request, reply) => reply.type('text/x').send('text'), 200],
    ['that are bytes', (_request, reply) => reply.send(Buffer.from([0, 255, 1])), 200],
    ['that are a stream', (_request, reply) => reply.type('text/x').send(Readable.from(['a', 'b'])), 200],
    ['that are a web stream', (_request, reply) => reply.type('text/x').send(new Blob(['ab']).stream()), 200],
    [
      'that are a Response',
      (_request, reply) => reply.send(new Response('ab', { status: 203, headers: { 'content-type': 'text/x' } })),
      203,
    ],
    ['without a body', (_request, reply) => reply.code(201).send(), 201],
  ])('%s are repeated', async (_name, handler, status) => {
    const { call, executed } = await createApp(handler)
    const key = newKey()
    const first = await call({ key })
    const again = await call({ key })
    expect([first.statusCode, again.statusCode, again.headers['content-type']]).toEqual([status, status, first.headers['content-type']])
    expect(again.rawPayload).toEqual(first.rawPayload)
    expect([isFirst(first), isReplay(again), executed.mock.calls.length]).toEqual([true, true, 1])
  })

  it.each<[string, Handler]>([
    ['in one piece', (_request, reply) => reply.header('Location', '/orders/1').send({ long: 'x'.repeat(70_000) })],
    ['in a stream', (_request, reply) => reply.header('Location', '/orders/1').send(Readable.from(Array(70).fill('x'.repeat(1000))))],
  ])('past 64 KiB %s reach the first caller whole, and a repeat is told what was made', async (_name, handler) => {
    const { call, executed } = await createApp(handler)
    const key = newKey()
    expect((await call({ key })).rawPayload.length).toBeGreaterThanOrEqual(70_000)
    const again = await call({ key })
    expect([again.statusCode, again.headers.location, again.json().error, executed.mock.calls.length]).toEqual([
      200,
      '/orders/1',
      'answer_not_kept',
      1,
    ])
  })

  it('with 429 are not kept, nor others that the policy releases', async () => {
    for (const [status, options] of [
      [429, {}],
      [503, { respondPolicy: ({ status }) => (status >= 500 ? 'release' : 'store') }],
    ] as [number, Partial<FastifyIdempotencyOptions>][]) {
      const { call, executed } = await createApp((_request, reply) => reply.code(status).send({}), options)
      const key = newKey()
      await call({ key })
      expect(isFirst(await call({ key }))).toBe(true)
      expect(executed).toHaveBeenCalledTimes(2)
    }
  })

  it('can be changed on their way by other hooks, and are repeated as they were', async () => {
    const { call } = await createApp(undefined, {}, (app) => app.addHook('onSend', async (_request, _reply, payload) => payload))
    const key = newKey()
    expect((await call({ key })).body).toBe((await call({ key })).body)
  })
})

describe('a handler that fails', () => {
  it('keeps its key until the lease runs out, and then runs again', async () => {
    let failures = 1
    const { call, elapse, executed } = await createApp(() => (failures-- > 0 ? Promise.reject(new Error('half-way')) : { made: true }))
    const key = newKey()
    const failed = await call({ key })
    expect([failed.statusCode, failed.json()]).toEqual([500, { failed: 'half-way' }])
    expect(problemOf(await call({ key }))).toBe('409 idempotency_in_progress')
    elapse(61_000)
    const again = await call({ key })
    expect([again.json(), isFirst(again), executed.mock.calls.length]).toEqual([{ made: true }, true, 2])
  })

  it('frees its key at once where the policy says that nothing is left behind', async () => {
    let failures = 1
    const { call } = await createApp(() => (failures-- > 0 ? Promise.reject(new Error('rolled back')) : { made: true }), {
      respondPolicy: ({ thrown, status }) => (thrown && status >= 500 ? 'release' : 'store'),
    })
    const key = newKey()
    expect((await call({ key })).statusCode).toBe(500)
    expect((await call({ key })).json()).toEqual({ made: true })
  })

  it('with an answer that cannot be repeated keeps its key, and so does a stream that breaks', async () => {
    const broken = new Readable({ read: (): void => void broken.destroy(new Error('broken')) })
    for (const handler of [
      (_request: FastifyRequest, reply: FastifyReply) => reply.code(304).send('body'),
      (_request: FastifyRequest, reply: FastifyReply) => reply.send(broken),
    ]) {
      const { call } = await createApp(handler)
      const key = newKey()
      expect((await call({ key })).statusCode).toBe(500)
      expect((await call({ key })).statusCode).toBe(409)
    }
  })

  it('by hijacking its reply is neither stored nor released, and its lease runs out', async () => {
    const { call, executed } = await createApp(
      (_request, reply) => {
        reply.hijack()
        reply.raw.end('raw')
      },
      { keys: createMemoryKeys(), leaseMs: 900 },
    )
    const key = newKey()
    expect((await call({ key })).body).toBe('raw')
    expect((await call({ key })).statusCode).toBe(409)
    await vi.waitFor(async () => expect((await call({ key })).body).toBe('raw'), { timeout: 10_000 })
    expect(executed).toHaveBeenCalledTimes(2)
  })

  it('by losing its claim gets the answer of the one who took over', async () => {
    const finish: ((value: unknown) => void)[] = []
    const { call, elapse } = await createApp(() => new Promise((resolve) => finish.push(resolve)))
    const key = newKey()
    const first = call({ key })
    await until(() => finish.length === 1)
    elapse(61_000)
    const second = call({ key })
    await until(() => finish.length === 2)
    finish[1]!({ by: 'second' })
    expect((await second).json()).toEqual({ by: 'second' })
    finish[0]!({ by: 'first' })
    const late = await first
    expect([late.json(), isReplay(late)]).toEqual([{ by: 'second' }, true])
  })

  it('has its answer sent when the store fails after it, and is not run when the store fails before', async () => {
    const failing = (method: keyof KeyStore): KeyStore =>
      new Proxy(createMemoryKeys(), {
        get: (store, name) => (name === method ? () => Promise.reject(new Error('away')) : Reflect.get(store, name)),
      })
    const before = await createApp(undefined, { keys: failing('claim') })
    const refused = await before.call()
    expect([problemOf(refused), refused.headers['retry-after'], before.executed.mock.calls.length]).toEqual([
      '503 store_unavailable',
      '1',
      0,
    ])
    const after = await createApp(undefined, { keys: failing('reject') })
    expect([(await after.call()).json(), after.errors]).toEqual([{ made: true }, [new Error('away')]])
  })
})

const postgres = await postgresSubject()
const subjects: [string, SqlSubject][] = [['PGlite', await pgliteSubject()]]
if (postgres) subjects.push(['PostgreSQL', postgres])

describe.each(subjects)('a transaction on %s', (_name, subject) => {
  const { database, url } = subject
  beforeEach(async () => {
    await subject.empty()
    await database.query('CREATE TABLE IF NOT EXISTS orders (item text NOT NULL)')
    await database.query('DELETE FROM orders')
  })
  afterAll(() => subject.close())

  const insert: Handler = (request, reply) =>
    request.idempotency.transaction(reply, async (tx) => {
      await tx.query('INSERT INTO orders VALUES ($1)', [(request.body as { item: string }).item])
      reply.code(201).header('Location', '/orders/1')
      return { made: true }
    })
  const orders = async (): Promise<number> => Number((await database.query('SELECT count(*) AS n FROM orders'))[0]!.n)
  const open = (on: Database = database, handler = insert, options: Partial<FastifyIdempotencyOptions> = {}) =>
    createApp(handler, { keys: createSqlKeys(on), ...options })

  it('has the row and the answer, and a repeat changes nothing', async () => {
    const { call, executed } = await open()
    const key = newKey()
    const first = await call({ key })
    const again = await call({ key })
    expect([first.statusCode, first.json(), first.headers.location, first.headers['content-type']]).toEqual([
      201,
      { made: true },
      '/orders/1',
      'application/json; charset=utf-8',
    ])
    expect([again.statusCode, again.body, again.headers.location, isReplay(again)]).toEqual([201, first.body, '/orders/1', true])
    expect([executed.mock.calls.length, await orders()]).toEqual([1, 1])
  })

  it('runs once for 20 requests at once', async () => {
    const { call } = await open()
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 20 }, () => call({ key })))
    expect(answers.filter((answer) => answer.statusCode === 201 && isFirst(answer))).toHaveLength(1)
    expect(answers.filter((answer) => answer.statusCode !== 409 && answer.statusCode !== 201)).toEqual([])
    expect(await orders()).toBe(1)
  })

  it('that breaks between the row and the answer leaves neither, and runs when the lease has run out', async () => {
    let isBroken = true
    const breaking: Database = {
      ...database,
      transaction: (run) =>
        database.transaction((tx) =>
          run({
            query: (text, params) =>
              isBroken && text.includes(`state = 'completed'`) ? Promise.reject(new Error('failed on order')) : tx.query(text, params),
          }),
        ),
    }
    const { call, errors } = await open(breaking)
    const key = newKey()
    const failed = await call({ key })
    expect([problemOf(failed), failed.headers.location]).toEqual(['503 store_unavailable', undefined])
    expect([await orders(), errors]).toEqual([0, [new Error('failed on order')]])
    expect((await call({ key })).statusCode).toBe(409)
    isBroken = false
    await subject.elapse(61_000)
    expect(isFirst(await call({ key }))).toBe(true)
    expect(await orders()).toBe(1)
  })

  it('whose COMMIT fails leaves neither, and frees its key where the policy says so', async () => {
    let isBroken = true
    const breaking: Database = {
      ...database,
      transaction: (run) =>
        database.transaction(async (tx) => {
          const result = await run(tx)
          if (isBroken) throw new Error('no commit')
          return result
        }),
    }
    const { call } = await open(breaking, insert, { respondPolicy: ({ thrown }) => (thrown ? 'release' : 'store') })
    const key = newKey()
    expect(problemOf(await call({ key }))).toBe('503 store_unavailable')
    expect(await orders()).toBe(0)
    isBroken = false
    expect((await call({ key })).statusCode).toBe(201)
    expect(await orders()).toBe(1)
  })

  it('whose COMMIT was lost on its way back is repeated as it was, whatever the policy says', async () => {
    const losing: Database = {
      ...database,
      async transaction(run) {
        await database.transaction(run)
        throw new Error('the connection broke')
      },
    }
    const { call } = await open(losing, insert, { respondPolicy: ({ thrown }) => (thrown ? 'release' : 'store') })
    const key = newKey()
    expect(problemOf(await call({ key }))).toBe('503 store_unavailable')
    const again = await call({ key })
    expect([again.statusCode, again.json(), isReplay(again), await orders()]).toEqual([201, { made: true }, true, 1])
  })

  it('whose claim was taken over leaves no row, and its client gets the answer of the other', async () => {
    let arrived = 0
    const goes: (() => void)[] = []
    const slow: Handler = async (request, reply) => {
      const turn = ++arrived
      await new Promise<void>((resolve) => goes.push(resolve))
      await request.idempotency.transaction(reply, async (tx) => {
        await tx.query('INSERT INTO orders VALUES ($1)', [`by ${turn}`])
        reply.headers({ Location: `/orders/${turn}`, 'Set-Cookie': `turn=${turn}`, Vary: 'Origin' })
        return { turn }
      })
    }
    const { call } = await open(database, slow)
    const key = newKey()
    const first = call({ key })
    await until(() => goes.length === 1)
    await subject.elapse(61_000)
    const second = call({ key })
    await until(() => goes.length === 2)
    goes[1]!()
    expect((await second).json()).toEqual({ turn: 2 })
    goes[0]!()
    const late = await first
    expect([late.json(), isReplay(late)]).toEqual([{ turn: 2 }, true])
    expect([late.headers.location, late.headers['set-cookie'], late.headers.vary]).toEqual(['/orders/2', undefined, 'Origin'])
    expect(await database.query('SELECT item FROM orders')).toEqual([{ item: 'by 2' }])
  })

  it('that throws rolls back; below 500 its answer is kept, from 500 on the key is held', async () => {
    const failing =
      (error: Error): Handler =>
      (request, reply) =>
        request.idempotency.transaction(reply, async (tx) => {
          await tx.query('INSERT INTO orders VALUES ($1)', ['x'])
          throw error
        })
    const refusing = await open(database, failing(new Refusal('media_unknown')))
    const key = newKey()
    expect(problemOf(await refusing.call({ key }))).toBe('404 media_unknown')
    expect([isReplay(await refusing.call({ key })), refusing.executed.mock.calls.length]).toEqual([true, 1])
    const breaking = await open(database, failing(new Error('half-way')))
    const other = newKey()
    expect((await breaking.call({ key: other })).statusCode).toBe(500)
    expect((await breaking.call({ key: other })).statusCode).toBe(409)
    expect(await orders()).toBe(0)
  })

  it('is a plain one for a request without a key', async () => {
    const { call } = await open(database, insert, { required: false })
    expect([(await call({ key: null })).statusCode, (await call({ key: null })).statusCode]).toEqual([201, 201])
    expect(await orders()).toBe(2)
    expect((await subject.count()).keys).toBe(0)
  })

  it('is refused for a request that has been answered', async () => {
    const failures: unknown[] = []
    const { call } = await open(database, async (request, reply) => {
      await insert(request, reply)
      await Promise.resolve(insert(request, reply)).catch((error) => failures.push(error))
    })
    expect((await call()).statusCode).toBe(201)
    await until(() => failures.length === 1)
    expect([failures[0] instanceof TypeError, await orders()]).toEqual([true, 1])
  })

  it('with an answer past 64 KiB or without a body is repeated as far as it can be', async () => {
    for (const [body, payload] of [
      [{ long: 'x'.repeat(70_000) }, 'answer_not_kept'],
      [undefined, ''],
    ]) {
      const { call } = await open(database, (request, reply) => request.idempotency.transaction(reply, async () => body))
      const key = newKey()
      const first = await call({ key })
      expect([first.statusCode, first.body]).toEqual([200, body === undefined ? '' : JSON.stringify(body)])
      const again = await call({ key })
      expect([again.statusCode, isReplay(again), again.body.includes(payload as string)]).toEqual([200, true, true])
    }
  })

  it('needs keys in a database', async () => {
    const { call } = await createApp(insert)
    expect((await call()).json().failed).toContain('createSqlKeys')
  })

  const betweenServers = async (address: string): Promise<void> => {
    const pools = [openPostgres({ url: address, max: 3 }), openPostgres({ url: address, max: 3 })]
    const servers = await Promise.all(pools.map((pool) => open(pool, insert, { retentionMs: HOUR })))
    const key = newKey()
    const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => servers[n % 2]!.call({ key })))
    expect(answers.filter((answer) => answer.statusCode === 201 && isFirst(answer))).toHaveLength(1)
    expect(answers.filter((answer) => answer.statusCode !== 409 && answer.statusCode !== 201)).toEqual([])
    expect([await orders(), isReplay(await servers[1]!.call({ key })), isReplay(await servers[0]!.call({ key }))]).toEqual([1, true, true])
    await Promise.all(pools.map((pool) => pool.close()))
  }
  if (url !== null) it('runs once for 20 requests to two servers', () => betweenServers(url))
})
