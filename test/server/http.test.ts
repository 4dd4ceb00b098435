import { randomUUID } from 'node:crypto'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { sendResponse, toRequest } from '../../demo/server/node-http.js'
import { type RunningServer, type ServerConfig, startServer } from '../../demo/server/server.js'
import { createFixture, MiB, newKey, problemOf, replayMarkers, sha256, until } from './fixture.js'
import { headOf, openWire, post } from './wire.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-http-'))
const opened: RunningServer[] = []
afterAll(async () => {
  await Promise.all(opened.map((server) => server.close()))
  await rm(folder, { recursive: true })
})

async function open(config: Partial<ServerConfig> = {}) {
  const keys = createMemoryKeys()
  const dataDir = join(folder, randomUUID())
  const errors: unknown[] = []
  const server = await startServer({
    port: 0,
    host: '127.0.0.1',
    dataDir,
    keys,
    limits: { maxBytes: MiB },
    onError: (error) => errors.push(error),
    ...config,
  })
  opened.push(server)
  return {
    ...server,
    keys,
    errors,
    /** Key rows / media rows / files of objects, half-written ones included / pending objects. */
    async state(): Promise<string> {
      const { keys: rows, media, pending } = keys.count()
      return `${rows}/${media}/${(await readdir(join(dataDir, 'objects'))).length}/${pending}`
    },
  }
}

const shared = await open()

describe('a drill by hand', () => {
  it('the same upload twice gets the same bytes, the second time marked as a replay', async () => {
    const key = newKey()
    const first = await post(shared.url, { key })
    const second = await post(shared.url, { key })
    expect([first.status, second.status]).toEqual([201, 201])
    expect(Buffer.from(await second.arrayBuffer())).toEqual(Buffer.from(await first.arrayBuffer()))
    expect(replayMarkers(first)).toEqual([null, null])
    expect(replayMarkers(second)).toEqual(['true', 'true'])
    expect(second.headers.get('Idempotency-Key')).toBe(key)
  })

  it('a refusal names the list of its code as its type, or the registered type of its kind', async () => {
    const typeOf = async (answer: Response): Promise<unknown> => ((await answer.json()) as { type: unknown }).type
    expect(await typeOf(await post(shared.url, { key: 'short' }))).toBe('https://www.npmjs.com/package/uponce#problem-codes')
    expect(await typeOf(await fetch(`${shared.url}/none`))).toBe('https://www.npmjs.com/package/uponce#problem-codes')
    expect(await typeOf(await post(shared.url, { headers: { 'X-File-Sha256': 'x' } }))).toBe(
      'https://iana.org/assignments/http-problem-types#digest-invalid-values',
    )
  })

  it('the same key with other bytes is a 422', async () => {
    const key = newKey()
    await post(shared.url, { key })
    expect(await problemOf(await post(shared.url, { key, body: 'other' }))).toEqual({ status: 422, error: 'idempotency_key_reuse' })
  })

  it('no credentials, or ones that make no sense, are a 401', async () => {
    for (const authorization of ['', 'Basic YTpi', 'Bearer', 'Bearer a b', 'Bearer ü']) {
      const answer = await post(shared.url, { headers: { Authorization: authorization } })
      expect([answer.status, answer.headers.get('WWW-Authenticate')]).toEqual([401, 'Bearer'])
    }
    const { status } = await fetch(`${shared.url}/uploads`, { method: 'POST', body: 'x' })
    expect(status).toBe(401)
  })

  it('a bearer cannot be a visitor by cookie', async () => {
    const page = await fetch(`${shared.url}/`)
    const cookie = page.headers.getSetCookie()[0]!
    expect(cookie).toMatch(/^uponce=[0-9a-f-]{36}; Path=\/; HttpOnly; SameSite=Lax; Max-Age=\d+$/)
    const own = { Cookie: cookie.split(';')[0]!, 'Sec-Fetch-Site': 'same-origin' }
    const headers = { ...own, 'Idempotency-Key': newKey(), 'X-File-Sha256': sha256('mine') }
    expect((await fetch(`${shared.url}/uploads`, { method: 'POST', body: 'mine', headers })).status).toBe(201)
    const list = (await (await fetch(`${shared.url}/media`, { headers: own })).json()) as { sha256: string }[]
    expect(list.map((media) => media.sha256)).toEqual([sha256('mine')])
    expect((await fetch(`${shared.url}/`, { headers: own })).headers.getSetCookie()).toEqual([])
    const elsewhere = { ...headers, 'Idempotency-Key': newKey(), 'Sec-Fetch-Site': 'cross-site' }
    expect((await fetch(`${shared.url}/uploads`, { method: 'POST', body: 'mine', headers: elsewhere })).status).toBe(403)
  })

  it('a page elsewhere cannot pass for ours by what it writes into the address', async () => {
    const cookie = (await fetch(`${shared.url}/`)).headers.getSetCookie()[0]!.split(';')[0]!
    const head = headOf(newKey(), 'hello', ['Origin: http://evil.example', `Cookie: ${cookie}`]).replace(
      'Authorization: Bearer alice\r\n',
      '',
    )
    for (const target of ['/uploads', '//evil.example/uploads', 'http://evil.example/uploads', '//']) {
      const wire = await openWire(shared.url)
      wire.send(`${head.replace('/uploads', target)}hello`)
      await wire.until('\r\n\r\n')
      expect(wire.received()).toMatch(/^HTTP\/1.1 40[34] /)
      wire.socket.destroy()
    }
  })

  it('two key lines are a 400, also when they are alike', async () => {
    const key = newKey()
    const wire = await openWire(shared.url)
    wire.send(`${headOf(key, 'hello', [`Idempotency-Key: ${key}`])}hello`)
    expect(await wire.until('idempotency_key_invalid')).toMatch(/^HTTP\/1.1 400 /)
    wire.socket.destroy()
  })

  it('while an upload streams, another one with its key is a 409 with a time to come back', async () => {
    const key = newKey()
    const wire = await openWire(shared.url)
    wire.send(`${headOf(key, 'hello')}he`)
    await until(() => shared.keys.read('alice', key))
    const second = await post(shared.url, { key })
    expect(await problemOf(second)).toEqual({ status: 409, error: 'idempotency_in_progress' })
    expect(second.headers.get('Retry-After')).toBe('2')
    wire.send('llo')
    expect(await wire.until('uploadId')).toMatch(/^HTTP\/1.1 201 /)
    wire.socket.destroy()
    expect(replayMarkers(await post(shared.url, { key }))).toEqual(['true', 'true'])
  })

  it('an address under the endpoint that means nothing is a 404, a probe a 204, a broken Host no 500', async () => {
    const authorization = { Authorization: 'Bearer alice' }
    expect((await fetch(`${shared.url}/uploads/else`, { headers: authorization })).status).toBe(404)
    expect((await fetch(`${shared.url}/uploads`, { method: 'HEAD' })).status).toBe(204)
    const wire = await openWire(shared.url)
    wire.send(`${headOf(newKey(), 'hello').replace('Host: localhost', 'Host: a b/c')}hello`)
    expect(await wire.until('uploadId')).toMatch(/^HTTP\/1.1 201 /)
    wire.socket.destroy()
    expect(shared.errors).toEqual([])
  })
})

describe('refusals of clients that are still sending', () => {
  const body = new Uint8Array(9 * MiB)

  it('8 MiB too much is seen as a 413, 20 times of 20', async () => {
    for (let time = 0; time < 20; time++) {
      const answer = await post(shared.url, { body })
      expect([answer.status, answer.headers.get('Upload-Limit')]).toEqual([413, 'max-size=1048576'])
    }
  }, 60_000)

  it('8 MiB too much are read to the end, so the connection can go on', async () => {
    const wire = await openWire(shared.url)
    wire.send(headOf(newKey(), body))
    wire.send(body)
    expect(await wire.until('payload_too_large')).toMatch(/^HTTP\/1.1 413 /)
    wire.send(`${headOf(newKey(), 'hello')}hello`)
    expect(await wire.until('uploadId')).toContain('HTTP/1.1 201 ')
    wire.socket.destroy()
  })

  it('409, 422 and a replay of 9 MiB are seen as such, 20 times of 20', async () => {
    const { url, keys } = await open({ limits: { maxBytes: 16 * MiB } })
    const [stored, held] = [newKey(), newKey()]
    await post(url, { key: stored, body })
    const wire = await openWire(url)
    wire.send(headOf(held, body))
    await until(() => keys.read('alice', held))
    const other = new Uint8Array(9 * MiB).fill(1)
    for (let time = 0; time < 20; time++) {
      const [replay, reuse, conflict] = [
        await post(url, { key: stored, body }),
        await post(url, { key: stored, body: other }),
        await post(url, { key: held, body }),
      ]
      expect([replay.status, replayMarkers(replay)[0], reuse.status, conflict.status]).toEqual([201, 'true', 422, 409])
    }
    wire.socket.destroy()
  }, 120_000)

  it('one that sends more than is thrown away gets its answer and loses its connection', async () => {
    const { url } = await open({ limits: { maxBytes: 1000, discardBytes: 100_000 } })
    const wire = await openWire(url)
    wire.send(headOf(newKey(), new Uint8Array(4 * MiB)))
    wire.send(new Uint8Array(200_000))
    await wire.closed
    expect(wire.received()).toMatch(/^HTTP\/1.1 413 /)
  })

  it('one that waits for 100 Continue is refused without it, and asked for the body when it may send', async () => {
    const refused = await openWire(shared.url)
    refused.send(headOf('short', 'hello', ['Expect: 100-continue']))
    expect(await refused.until('idempotency_key_required')).toMatch(/^HTTP\/1.1 400 /)
    const welcome = await openWire(shared.url)
    welcome.send(headOf(newKey(), 'hello', ['Expect: 100-continue']))
    await welcome.until('HTTP/1.1 100 Continue')
    welcome.send('hello')
    await welcome.until('HTTP/1.1 201 Created')
    for (const wire of [refused, welcome]) wire.socket.destroy()
  })

  it('one that falls silent gets a 408, and its connection ends', async () => {
    const { url, state } = await open({ limits: { idleMs: 200 } })
    const wire = await openWire(url)
    wire.send(`${headOf(newKey(), 'hello')}he`)
    await wire.closed
    expect(wire.received()).toMatch(/^HTTP\/1.1 408 /)
    expect(await state()).toBe('0/0/0/0')
  })
})

describe("Node's own limit on a whole request", () => {
  /** The handler behind Node's server, with its 300 s scaled down; 0 is none. */
  async function openNode(requestTimeout: number) {
    const { handler, state } = createFixture()
    const node = createServer({ requestTimeout, connectionsCheckingInterval: 50 }, async (req, res) => {
      await sendResponse(await handler(toRequest(req, res)), req, res)
    }).listen(0, '127.0.0.1')
    await once(node, 'listening')
    const url = `http://127.0.0.1:${(node.address() as AddressInfo).port}`
    return { url, state, close: () => node.close() }
  }

  /** One byte every 50 ms, for 1.5 s. */
  async function trickle(url: string, key: string): Promise<string> {
    const body = 'x'.repeat(30)
    const wire = await openWire(url)
    wire.send(headOf(key, body))
    for (const byte of body) {
      await new Promise((resolve) => setTimeout(resolve, 50))
      wire.send(byte)
    }
    const answer = await wire.until('\r\n\r\n').catch(() => wire.received())
    wire.socket.destroy()
    return answer.split('\r\n')[0]!
  }

  it('is off in our server', async () => {
    const limits: number[] = []
    const note = (message: unknown): void => void limits.push((message as { server: Server }).server.requestTimeout)
    subscribe('http.server.request.start', note)
    const { url } = await open()
    await post(url)
    unsubscribe('http.server.request.start', note)
    expect(limits).toEqual([0])
  })

  it('cuts an upload that moves but takes longer: it leaves nothing, and its key is free', async () => {
    const { url, state, close } = await openNode(500)
    const key = newKey()
    expect(await trickle(url, key)).not.toContain('201')
    await until(async () => (await state()) === '0/0/0/0')
    expect((await post(url, { key, body: 'x'.repeat(30) })).status).toBe(201)
    close()
  })

  it('switched off lets it end', async () => {
    const { url, state, close } = await openNode(0)
    expect(await trickle(url, newKey())).toBe('HTTP/1.1 201 Created')
    expect(await state()).toBe('1/1/1/0')
    close()
  })
})

describe('clients that vanish', () => {
  it('half-way, leave nothing', async () => {
    const { url, state, errors } = await open()
    const body = new Uint8Array(MiB)
    const key = newKey()
    const wire = await openWire(url)
    wire.send(headOf(key, body))
    wire.send(body.subarray(0, MiB / 2))
    await until(async () => (await state()) === '1/0/1/1')
    wire.socket.destroy()
    await vi.waitUntil(async () => (await state()) === '0/0/0/0', { timeout: 2000 })
    expect((await post(url, { key, body })).status).toBe(201)
    expect(await state()).toBe('1/1/1/0')
    expect(errors).toEqual([])
  })

  it('at 30 points, leave nothing, no fault, and every key usable', async () => {
    const { url, state, errors } = await open({ limits: { maxBytes: MiB, maxInFlightPerOwner: 100 } })
    const body = new Uint8Array(300_000)
    const keys = Array.from({ length: 30 }, newKey)
    await Promise.all(
      keys.map(async (key, index) => {
        const wire = await openWire(url)
        const whole = Buffer.concat([Buffer.from(headOf(key, body)), body])
        wire.socket.write(whole.subarray(0, Math.floor((whole.length - 1) * (index / 29))), () => wire.socket.resetAndDestroy())
        await wire.closed
      }),
    )
    await vi.waitUntil(async () => (await state()) === '0/0/0/0', { timeout: 5000 })
    // The last cut request may only now be read: until it is seen to be cut, its key is in flight.
    for (const key of keys) await vi.waitUntil(async () => (await post(url, { key, body })).status === 201, { timeout: 5000 })
    expect(await state()).toBe('30/30/30/0')
    expect(errors).toEqual([])
  })

  it('after the last byte, have their file stored', async () => {
    let release!: () => void
    const held = new Promise<undefined>((resolve) => {
      release = () => resolve(undefined)
    })
    const onStored = vi.fn(() => held)
    const { url, state } = await open({ onStored })
    const key = newKey()
    const wire = await openWire(url)
    wire.send(`${headOf(key, 'hello')}hello`)
    await until(() => onStored.mock.calls.length === 1)
    wire.socket.destroy()
    await wire.closed
    release()
    await until(async () => (await state()) === '1/1/1/0')
    expect(replayMarkers(await post(url, { key }))).toEqual(['true', 'true'])
  })
})

describe('stored files', () => {
  it('are listed newest first and given out as attachments, to their owner alone', async () => {
    const { url } = await open()
    const html = '<script>alert(1)</script>'
    await post(url, { body: 'older' })
    const headers = { 'Content-Type': 'text/html', 'X-File-Name': encodeURIComponent("it's 東京.html") }
    const { headers: stored } = await post(url, { body: html, headers })
    const alice = { headers: { Authorization: 'Bearer alice' } }
    const list = (await (await fetch(`${url}/media`, alice)).json()) as Record<string, unknown>[]
    expect(list.map((media) => media.sha256)).toEqual([sha256(html), sha256('older')])
    expect(list[0]).toMatchObject({ fileName: "it's 東京.html", contentType: 'text/html', bytes: html.length })
    const file = await fetch(url + stored.get('Location')!, alice)
    expect(await file.text()).toBe(html)
    expect(file.headers.get('Content-Type')).toBe('text/html')
    expect(file.headers.get('Content-Disposition')).toBe("attachment; filename*=UTF-8''it%27s%20%E6%9D%B1%E4%BA%AC.html")
    expect(file.headers.get('X-Content-Type-Options')).toBe('nosniff')
    const bob = { headers: { Authorization: 'Bearer bob' } }
    expect(await (await fetch(`${url}/media`, bob)).json()).toEqual([])
    expect((await fetch(url + stored.get('Location')!, bob)).status).toBe(404)
    expect((await fetch(`${url}/media`)).status).toBe(401)
    expect((await fetch(`${url}/media/..%2f..`, alice)).status).toBe(404)
  })
})

describe('the page', () => {
  it('comes with a policy, and nothing outside its folder does', async () => {
    const pageDir = join(folder, 'page')
    await mkdir(join(pageDir, 'assets'), { recursive: true })
    await writeFile(join(pageDir, 'index.html'), '<h1>demo</h1>')
    await writeFile(join(pageDir, 'assets', 'a.js'), 'run()')
    await writeFile(join(folder, 'secret.txt'), 'secret')
    const { url } = await open({ pageDir })
    const index = await fetch(`${url}/`)
    expect(await index.text()).toBe('<h1>demo</h1>')
    expect(index.headers.get('Content-Type')).toBe('text/html; charset=utf-8')
    expect(index.headers.get('Content-Security-Policy')).toContain("default-src 'self'")
    expect(index.headers.get('X-Content-Type-Options')).toBe('nosniff')
    const script = await fetch(`${url}/assets/a.js`)
    expect([script.headers.get('Content-Type'), script.headers.get('Cache-Control')]).toEqual([
      'text/javascript; charset=utf-8',
      'public, max-age=31536000, immutable',
    ])
    for (const path of ['/..%2fsecret.txt', '/assets/..%2f..%2fsecret.txt', '/%2e%2e/secret.txt', '/assets', '/none.js', '/%00']) {
      const wire = await openWire(url)
      wire.send(`GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`)
      await wire.closed
      expect(wire.received()).toMatch(/^HTTP\/1.1 40[04] /)
      expect(wire.received()).not.toContain('secret\n')
    }
  })

  it('says how to build it when it has not been built', async () => {
    const { url } = await open({ pageDir: join(folder, 'nothing') })
    const answer = await fetch(`${url}/`)
    expect(answer.status).toBe(503)
    expect(await answer.text()).toContain('npm run build:page')
  })
})

describe('closing', () => {
  it('lets an upload in flight end, and does not wait for connections nobody uses', async () => {
    const { url, close, state } = await open()
    const idle = await openWire(url)
    const key = newKey()
    const busy = await openWire(url)
    busy.send(`${headOf(key, 'hello')}he`)
    await until(async () => (await state()) === '1/0/1/1')
    const closed = close()
    await idle.closed
    await vi.waitFor(() => expect(openWire(url)).rejects.toThrow('connection refused'))
    busy.send('llo')
    await closed
    await busy.closed
    expect(busy.received()).toMatch(/^HTTP\/1.1 201 /)
    expect(await state()).toBe('1/1/1/0')
  })

  it('cuts an upload that does not end in time, and leaves nothing of it', async () => {
    const { url, close, state, errors } = await open({ drainMs: 100 })
    const wire = await openWire(url)
    wire.send(`${headOf(newKey(), 'hello')}he`)
    await until(async () => (await state()) === '1/0/1/1')
    await close()
    expect(await state()).toBe('0/0/0/0')
    expect(errors).toEqual([])
  })
})
