import { randomUUID } from 'node:crypto'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import type { UploadEvent } from '../../demo/server/handler.js'
import { createMemoryKeys, type KeyStore } from '../../demo/server/keys.js'
import { createLog } from '../../demo/server/log.js'
import { createMetrics } from '../../demo/server/metrics.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import { type RunningServer, type ServerConfig, startServer } from '../../demo/server/server.js'
import { startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { newKey, sha256, until } from './fixture.js'
import { parseMetrics } from './prometheus.js'
import { headOf, openWire, post } from './wire.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-operations-'))
const opened: RunningServer[] = []
afterAll(async () => {
  await Promise.all(opened.map((server) => server.close()))
  await rm(folder, { recursive: true })
})

async function open(config: Partial<ServerConfig> = {}) {
  const lines: string[] = []
  const server = await startServer({
    port: 0,
    host: '127.0.0.1',
    dataDir: join(folder, randomUUID()),
    keys: createMemoryKeys(),
    objects: createMemoryObjects(),
    log: (line) => lines.push(line),
    ...config,
  })
  opened.push(server)
  const requests = (): Record<string, unknown>[] => lines.map((line) => JSON.parse(line)).filter((line) => 'method' in line)
  return {
    ...server,
    lines,
    /** The lines of requests, when there are so many. */
    logged: async (count: number) => {
      await until(() => requests().length >= count)
      return requests()
    },
    metrics: async () => parseMetrics(await (await fetch(`${server.url}/metrics`)).text()),
    health: async () => {
      const answer = await fetch(`${server.url}/healthz`)
      return { status: answer.status, body: (await answer.json()) as unknown }
    },
  }
}

const broken = async (): Promise<never> => {
  throw new Error('broken on order')
}

describe('GET /healthz', () => {
  it('is 200 for anybody when both stores answer, and is not kept', async () => {
    const { url, health } = await open()
    expect(await health()).toEqual({ status: 200, body: { status: 'ok', database: 'ok', objects: 'ok' } })
    expect((await fetch(`${url}/healthz`)).headers.get('Cache-Control')).toBe('no-store')
  })

  it('is 503 and says which store has failed, until it works again', async () => {
    const [keys, objects] = [createMemoryKeys(), createMemoryObjects()]
    const { health } = await open({ keys, objects })
    const { read } = keys
    keys.read = broken
    expect(await health()).toEqual({ status: 503, body: { status: 'failed', database: 'failed', objects: 'ok' } })
    keys.read = read
    objects.check = broken
    expect(await health()).toEqual({ status: 503, body: { status: 'failed', database: 'ok', objects: 'failed' } })
    objects.check = async () => {}
    expect((await health()).status).toBe(200)
  })

  it('is 503 after 2 s when both stores hang, and asks each of them once meanwhile', async () => {
    let asked = 0
    const hang = (): Promise<never> => {
      asked++
      return new Promise(() => {})
    }
    const keys: KeyStore = { ...createMemoryKeys(), read: hang }
    const objects: ObjectStore = { ...createMemoryObjects(), check: hang }
    const { health } = await open({ keys, objects })
    const started = performance.now()
    const answers = await Promise.all(Array.from({ length: 5 }, health))
    expect(performance.now() - started).toBeGreaterThan(1_900)
    expect(performance.now() - started).toBeLessThan(8_000)
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([503]))
    expect(asked).toBe(2)
  })

  it.skipIf(!programs.postgres.path)('is 503 when PostgreSQL is gone', async () => {
    const postgres = (await startPostgres())!
    const place = { port: 0, host: '127.0.0.1', dataDir: join(folder, 'pg'), databaseUrl: postgres.url }
    const server = await startServer({ ...place, onError: () => {} })
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200)
    await postgres.stop()
    const answer = await fetch(`${server.url}/healthz`)
    expect([answer.status, await answer.json()]).toEqual([503, { status: 'failed', database: 'failed', objects: 'ok' }])
    await server.close()
  })
})

describe('GET /metrics', () => {
  it('is text that a strict parser takes, with every counter from 0 on', async () => {
    const { url, metrics } = await open()
    expect((await fetch(`${url}/metrics`)).headers.get('Content-Type')).toBe('text/plain; version=0.0.4; charset=utf-8')
    const families = [...(await metrics())]
    expect(families.length).toBeGreaterThan(12)
    expect(families.map(([, { value }]) => value).filter((value) => value !== 0)).toEqual([])
    expect(families.filter(([, { type }]) => type === 'gauge').map(([name]) => name)).toEqual(['uponce_uploads_in_flight'])
  })

  it('counts what becomes of uploads', async () => {
    const { url, metrics } = await open()
    const key = newKey()
    const wire = await openWire(url)
    wire.send(`${headOf(key, 'hello')}he`)
    await until(async () => (await metrics()).get('uponce_claims_total')!.value === 1)
    expect((await metrics()).get('uponce_uploads_in_flight')!.value).toBe(1)
    expect((await post(url, { key })).status).toBe(409)
    wire.send('llo')
    await wire.until('uploadId')
    wire.socket.destroy()
    expect((await post(url, { key })).status).toBe(201)
    expect((await post(url, { key, body: 'other!' })).status).toBe(422)
    expect((await post(url, { digest: sha256('else') })).status).toBe(400)
    const values = Object.fromEntries([...(await metrics())].filter(([, { value }]) => value > 0).map(([name, { value }]) => [name, value]))
    expect(values).toEqual({
      uponce_claims_total: 2,
      uponce_replays_total: 1,
      uponce_conflicts_total: 1,
      uponce_mismatches_total: 1,
      uponce_released_total: 1,
      uponce_files_stored_total: 1,
      uponce_rejected_total: 3,
      uponce_upload_bytes_total: 26,
    })
  })

  it.each<[UploadEvent['type'], string]>([
    ['claimed', 'uponce_claims_total'],
    ['taken-over', 'uponce_takeovers_total'],
    ['replayed', 'uponce_replays_total'],
    ['conflict', 'uponce_conflicts_total'],
    ['mismatch', 'uponce_mismatches_total'],
    ['too-many', 'uponce_too_many_total'],
    ['fenced', 'uponce_fenced_total'],
    ['committed', 'uponce_files_stored_total'],
    ['stored', 'uponce_answers_stored_total'],
    ['released', 'uponce_released_total'],
  ])('counts %s as %s and nothing else', (type, name) => {
    const metrics = createMetrics(() => 0)
    metrics.count({ type, owner: 'alice', key: 'k' } as UploadEvent)
    expect([...parseMetrics(metrics.text())].filter(([, { value }]) => value > 0)).toEqual([[name, expect.objectContaining({ value: 1 })]])
  })

  it('counts answers by their kind, and what sweeps remove', () => {
    const metrics = createMetrics(() => 3)
    for (const status of [201, 400, 499, 500, 503]) metrics.count({ type: 'answered', status, replayed: false, receivedBytes: 1e9 })
    metrics.swept({ reaped: 2, deleted: 5 })
    const values = [...parseMetrics(metrics.text())].filter(([, { value }]) => value > 0).map(([name, { value }]) => [name, value])
    expect(Object.fromEntries(values)).toEqual({
      uponce_rejected_total: 2,
      uponce_failed_total: 2,
      uponce_upload_bytes_total: 5e9,
      uponce_reaped_total: 2,
      uponce_swept_objects_total: 5,
      uponce_uploads_in_flight: 3,
    })
  })
})

describe('the log', () => {
  it('has one line a request, of the route and not the address, without whole keys, credentials or names', async () => {
    const { url, logged, lines } = await open()
    const key = newKey()
    const headers = { 'X-File-Name': 'my-face.jpg', Authorization: 'Bearer s3cret-token' }
    const { headers: stored } = await post(url, { key, headers })
    await post(url, { key, headers: { ...headers, 'Idempotency-Key': `"${key}"` } })
    await post(url, { key, headers, body: 'other' })
    await fetch(url + stored.get('Location')!, { headers })
    await fetch(`${url}/media/unknown-id`, { headers })
    await fetch(`${url}/media`)
    await fetch(`${url}/uploads/outcome?secret=1`, { headers: { ...headers, 'Idempotency-Key': key } })
    await fetch(`${url}/uploads/my-face.jpg`, { headers })
    await fetch(`${url}/my-face.jpg`, { method: 'DELETE', headers })
    await post(url, { key: 'too-short', headers })
    const requests = await logged(10)
    const owner = sha256('s3cret-token').slice(0, 16)
    const begins = key.slice(0, 8)
    expect(
      requests.map(({ method, path, status, bytes, outcome, owner, key }) => [method, path, status, bytes, outcome, owner, key]),
    ).toEqual([
      ['POST', '/uploads', 201, 5, 'ok', owner, begins],
      ['POST', '/uploads', 201, 5, 'replayed', owner, begins],
      ['POST', '/uploads', 422, 5, 'idempotency_key_reuse', owner, begins],
      ['GET', '/media/:id', 200, 0, 'ok', owner, null],
      ['GET', '/media/:id', 404, 0, 'not_found', owner, null],
      ['GET', '/media', 401, 0, 'unauthorized', null, null],
      ['GET', '/uploads/outcome', 200, 0, 'ok', owner, begins],
      ['GET', '/uploads/*', 404, 0, 'not_found', owner, null],
      ['DELETE', '*', 404, 0, 'not_found', owner, null],
      ['POST', '/uploads', 400, 5, 'idempotency_key_required', owner, null],
    ])
    expect(Object.keys(requests[0]!)).toEqual(['time', 'level', 'method', 'path', 'status', 'ms', 'bytes', 'outcome', 'owner', 'key'])
    expect(
      requests.every(({ time, level, ms }) => !Number.isNaN(Date.parse(time as string)) && level === 'info' && (ms as number) >= 0),
    ).toBe(true)
    for (const secret of [key, key.slice(0, 9), 's3cret', 'my-face', 'too-short', 'unknown-id', 'secret=1'])
      expect(lines.join('\n')).not.toContain(secret)
  })

  it('has a line for a client that did not wait, and for an answer that was lost', async () => {
    const { url, logged } = await open({ faults: true })
    const wire = await openWire(url)
    wire.send(`${headOf(newKey(), 'hello')}he`)
    wire.socket.destroy()
    expect(await logged(1)).toMatchObject([{ method: 'POST', path: '/uploads', outcome: 'gone' }])
    const headers = { Authorization: 'Bearer alice', 'Content-Type': 'application/json' }
    await fetch(`${url}/demo/faults`, { method: 'POST', headers, body: JSON.stringify({ fault: 'lose-answer' }) })
    await expect(post(url)).rejects.toThrow()
    expect((await logged(3)).slice(1)).toMatchObject([
      { method: 'POST', path: '/demo/faults', status: 200, bytes: 23, outcome: 'ok' },
      { method: 'POST', path: '/uploads', status: null, bytes: 5, outcome: 'gone' },
    ])
  })

  it('is silent about the page, its files and its polls while all is well', async () => {
    const pageDir = join(folder, 'page')
    await mkdir(join(pageDir, 'assets'), { recursive: true })
    for (const name of ['index.html', 'icon.svg', 'assets/page-1.js']) await writeFile(join(pageDir, name), 'x')
    const { url, logged } = await open({ pageDir, faults: true })
    const headers = { Authorization: 'Bearer alice' }
    for (const path of ['/', '/icon.svg', '/assets/page-1.js', '/demo/state', '/media'])
      expect([path, (await fetch(url + path, { headers })).status]).toEqual([path, 200])
    for (const path of ['/secret.js', '/assets/secret.js', '/demo/state/secret', '/a/secret.js', '/media']) await fetch(url + path)
    await rm(join(pageDir, 'index.html'))
    await fetch(`${url}/`)
    expect((await logged(6)).map(({ path, status, outcome }) => [path, status, outcome])).toEqual([
      ['/:name', 404, 'not_found'],
      ['/assets/:name', 404, 'not_found'],
      ['*', 404, 'not_found'],
      ['*', 404, 'not_found'],
      ['/media', 401, 'unauthorized'],
      ['/', 503, 'failed'],
    ])
  })

  it('is silent about health and metrics while all is well', async () => {
    const objects = createMemoryObjects()
    const { health, metrics, logged } = await open({ objects })
    await health()
    await metrics()
    objects.check = broken
    await health()
    expect(await logged(1)).toMatchObject([{ path: '/healthz', status: 503, level: 'error', outcome: 'failed' }])
  })

  it('has a line for a failure, with its causes and without the rows a database puts into it', async () => {
    const row = Object.assign(new Error('duplicate key'), { detail: 'Key (owner, key)=(alice, 1234)' })
    const { url, lines, logged } = await open({
      keys: { ...createMemoryKeys(), listMedia: () => Promise.reject(new Error('outer', { cause: row })) },
    })
    expect((await fetch(`${url}/media`, { headers: { Authorization: 'Bearer alice' } })).status).toBe(500)
    expect(await logged(1)).toMatchObject([{ path: '/media', status: 500, level: 'error', outcome: 'internal_error' }])
    const [failure] = lines.map((line) => JSON.parse(line) as Record<string, string>).filter((line) => 'error' in line)
    expect(failure).toMatchObject({ level: 'error', error: expect.stringMatching(/^Error: outer\n.*caused by Error: duplicate key\n/s) })
    expect(lines.join('\n')).not.toContain('alice')
  })

  it('takes failures that are no errors, and causes that are their own', () => {
    const lines: string[] = []
    const log = createLog((line) => lines.push(line))
    log.error('text')
    const own = new Error('own')
    own.cause = own
    log.error(own)
    expect(lines.map((line) => (JSON.parse(line) as { error: string }).error.split('\n')[0])).toEqual(['text', 'Error: own'])
  })
})
