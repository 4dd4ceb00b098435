import { randomUUID } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { createMemoryObjects } from '../../demo/server/objects.js'
import { startServer } from '../../demo/server/server.js'
import { APP, newKey, problemOf, replayMarkers, until } from './fixture.js'
import { headOf, openWire, post } from './wire.js'

const dataDir = join(tmpdir(), `uponce-faults-${randomUUID()}`)
const keys = createMemoryKeys()
const { url, close } = await startServer({
  port: 0,
  host: '127.0.0.1',
  dataDir,
  keys,
  objects: createMemoryObjects(),
  faults: true,
  allowedOrigins: [APP],
})
afterAll(async () => {
  await close()
  await rm(dataDir, { recursive: true, force: true })
})

const as = (owner: string): Record<string, string> => ({ Authorization: `Bearer ${owner}`, 'Content-Type': 'application/json' })
const order = (fault: Record<string, unknown>, owner = 'alice') =>
  fetch(`${url}/demo/faults`, { method: 'POST', headers: as(owner), body: JSON.stringify(fault) })

interface State {
  media: { key: string; fileName: string | null }[]
  keys: { key: string; requests: Record<string, unknown>[] }[]
  objects: number
  faults: Record<string, unknown>
}
const stateOf = async (owner = 'alice'): Promise<State> =>
  (await fetch(`${url}/demo/state`, { headers: as(owner) })).json() as Promise<State>
const requestsOf = async (key: string) => (await stateOf()).keys.find((entry) => entry.key === key)?.requests ?? []

beforeEach(async () => {
  await fetch(`${url}/demo/faults`, { method: 'DELETE', headers: { Authorization: 'Bearer alice' } })
})

/** The upload over one bare connection, which has carried another request before if it is proven. */
async function sendOn(isProven: boolean, key: string, body = 'hello'): Promise<string> {
  const wire = await openWire(url)
  if (isProven) {
    wire.send('GET /media HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\r\n')
    await wire.until(']')
  }
  const before = wire.received().length
  wire.send(headOf(key, body) + body)
  await Promise.race([wire.closed, wire.until('HTTP/1.1 201'), wire.until('HTTP/1.1 4')]).catch(() => {})
  wire.socket.destroy()
  return wire.received().slice(before)
}

describe('the state', () => {
  it('shows files, requests and objects of the caller, and of nobody else', async () => {
    const key = newKey()
    await post(url, { key, owner: 'dora', headers: { 'X-File-Name': 'a.jpg' } })
    await post(url, { key, owner: 'dora', headers: { 'X-File-Name': 'a.jpg' } })
    const state = await stateOf('dora')
    expect(state.media).toEqual([expect.objectContaining({ key, fileName: 'a.jpg', bytes: 5, contentType: 'image/jpeg' })])
    expect(state.keys).toEqual([
      {
        key,
        requests: [
          { at: expect.any(String), status: 201, bytes: 5, replayed: false, fault: null, copy: false },
          { at: expect.any(String), status: 201, bytes: 5, replayed: true, fault: null, copy: false },
        ],
      },
    ])
    expect(state.objects).toBe(1)
    expect((await stateOf('erik')).keys).toEqual([])
    expect((await fetch(`${url}/demo/state`)).status).toBe(401)
  })

  it('remembers the last 200 keys', async () => {
    for (let n = 0; n < 205; n++) await post(url, { key: `key-number-${n}-0123456789`, owner: 'frida' })
    const { keys: seen } = await stateOf('frida')
    expect(seen).toHaveLength(200)
    expect(seen[0]!.key).toBe('key-number-5-0123456789')
  })
})

describe('orders', () => {
  it.each([
    {},
    { fault: 'fire' },
    { fault: 'slow', times: 0 },
    { fault: 'slow', times: 1.5 },
    { fault: 'away', seconds: -1 },
    { fault: 'away', seconds: '5' },
  ])('%j is a 400 that says what was expected', async (fault) => {
    const answer = await order(fault)
    expect(answer.status).toBe(400)
    expect(((await answer.json()) as { message: string }).message).toContain('expected')
  })

  it('are kept until they are used up or taken back', async () => {
    await order({ fault: 'unavailable', times: 2 })
    expect((await stateOf()).faults).toEqual({ unavailable: { times: 2, seconds: 5 } })
    await post(url)
    expect((await stateOf()).faults).toEqual({ unavailable: { times: 1, seconds: 5 } })
    await fetch(`${url}/demo/faults`, { method: 'DELETE', headers: { Authorization: 'Bearer alice' } })
    expect((await stateOf()).faults).toEqual({})
    expect((await post(url)).status).toBe(201)
  })

  it('of a page elsewhere are refused', async () => {
    const cookie = (await fetch(`${url}/`)).headers.getSetCookie()[0]!.split(';')[0]!
    const send = (headers: Record<string, string>) =>
      fetch(`${url}/demo/faults`, {
        method: 'POST',
        headers: { Cookie: cookie, 'Content-Type': 'application/json', ...headers },
        body: '{"fault":"slow"}',
      })
    expect((await send({ 'Sec-Fetch-Site': 'cross-site' })).status).toBe(403)
    expect((await send({ 'Sec-Fetch-Site': 'same-origin' })).status).toBe(200)
  })
})

describe('the fault', () => {
  it.each([
    ['unavailable', 503, '7', 'store_unavailable'],
    ['too-many', 429, '7', 'too_many_in_flight'],
    ['server-error', 500, null, 'internal_error'],
  ])('%s is answered with %i to one upload of the one who ordered it', async (fault, status, retryAfter, error) => {
    await order({ fault, seconds: 7 })
    expect((await post(url, { owner: 'bob' })).status).toBe(201)
    const key = newKey()
    const answer = await post(url, { key, headers: { Origin: APP }, body: new Uint8Array(3_000_000) })
    expect(answer.headers.get('Retry-After')).toBe(retryAfter)
    expect(answer.headers.get('Access-Control-Allow-Origin')).toBe(APP)
    expect(await problemOf(answer)).toEqual({ status, error })
    expect(await keys.read('alice', key)).toBeNull()
    expect((await post(url, { key, body: new Uint8Array(3_000_000) })).status).toBe(201)
    expect(await requestsOf(key)).toMatchObject([
      { status, bytes: 3_000_000, fault },
      { status: 201, replayed: false, fault: null },
    ])
  })

  it('lose-answer stores the file, and nobody hears of it until the client asks again', async () => {
    await order({ fault: 'lose-answer' })
    const key = newKey()
    expect(await sendOn(false, key)).toBe('')
    expect((await keys.mediaByKey('alice', key))?.bytes).toBe(5)
    const retry = await post(url, { key })
    expect([retry.status, ...replayMarkers(retry)]).toEqual([201, 'true', 'true'])
    expect(await requestsOf(key)).toMatchObject([
      { status: null, fault: 'lose-answer', copy: false },
      { status: 201, replayed: true, fault: null },
    ])
  })

  it('cut-body ends the connection half-way, and the key is free', async () => {
    await order({ fault: 'cut-body' })
    const key = newKey()
    expect(await sendOn(false, key, 'x'.repeat(1_000_000))).toBe('')
    await until(async () => (await keys.read('alice', key)) === null)
    expect((await post(url, { key, body: 'x'.repeat(1_000_000) })).status).toBe(201)
    const [cut] = await requestsOf(key)
    expect(cut).toMatchObject({ status: null, fault: 'cut-body' })
    expect(cut!.bytes).toBeGreaterThanOrEqual(500_000)
    expect(cut!.bytes).toBeLessThan(1_000_000)
  })

  it.each(['lose-answer', 'cut-body'])('%s also strikes the copies a browser sends by itself, and only those', async (fault) => {
    await order({ fault })
    const key = newKey()
    expect(await sendOn(true, key)).toBe('')
    expect(await sendOn(true, key)).toBe('')
    expect(await sendOn(false, key)).toBe('')
    expect(await sendOn(false, key)).toContain('201 Created')
    expect(await requestsOf(key)).toMatchObject([
      { fault, copy: false, status: null },
      { fault, copy: true, status: null },
      { fault, copy: true, status: null },
      { fault: null, copy: false, status: 201 },
    ])
  })

  it("does not take the client's own retry for a copy, nor another upload", async () => {
    await order({ fault: 'lose-answer' })
    const key = newKey()
    expect(await sendOn(true, key)).toBe('')
    expect((await post(url)).status).toBe(201)
    await new Promise((resolve) => setTimeout(resolve, 250))
    expect(await sendOn(true, key)).toContain('201 Created')
  })

  it('strikes as often as ordered', async () => {
    await order({ fault: 'lose-answer', times: 2 })
    const key = newKey()
    expect([await sendOn(false, key), await sendOn(false, key)]).toEqual(['', ''])
    expect(await sendOn(false, key)).toContain('201 Created')
  })

  it('slow takes the body at 64 KiB a second', async () => {
    await order({ fault: 'slow' })
    const started = performance.now()
    expect((await post(url, { body: new Uint8Array(98_304) })).status).toBe(201)
    expect(performance.now() - started).toBeGreaterThan(1_400)
  })

  it('away ends every connection without an answer, but for the panel', async () => {
    const key = newKey()
    const inFlight = await openWire(url)
    inFlight.send(`${headOf(key, 'hello')}he`)
    await until(() => keys.read('alice', key))
    expect(await (await order({ fault: 'away', seconds: 30 })).json()).toEqual({ away: { seconds: 30 } })
    await inFlight.closed
    expect(inFlight.received()).toBe('')
    for (const path of ['/', '/uploads', '/media', '/uploads/outcome']) await expect(fetch(url + path)).rejects.toThrow('fetch failed')
    await expect(post(url, { key, owner: 'bob' })).rejects.toThrow('fetch failed')
    expect((await stateOf()).faults).toHaveProperty('away')
    await fetch(`${url}/demo/faults`, { method: 'DELETE', headers: { Authorization: 'Bearer alice' } })
    expect((await post(url, { key })).status).toBe(201)
  })

  it('away ends by itself', async () => {
    await order({ fault: 'away', seconds: 2 })
    await expect(fetch(url)).rejects.toThrow('fetch failed')
    await vi.waitFor(() => fetch(url), { timeout: 15_000 })
  })
})

it('without faults the panel does not exist', async () => {
  const plain = await startServer({ port: 0, host: '127.0.0.1', dataDir, keys, objects: createMemoryObjects() })
  expect((await fetch(`${plain.url}/demo/state`, { headers: as('alice') })).status).toBe(404)
  expect((await fetch(`${plain.url}/demo/faults`, { method: 'POST', headers: as('alice'), body: '{}' })).status).toBe(404)
  await plain.close()
})
