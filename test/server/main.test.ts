import { randomUUID } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { openPostgres } from '../../demo/server/database.js'
import { startPostgres } from '../helpers/postgres.js'
import { newKey, replayMarkers, until } from './fixture.js'
import { built, type Exited, fromSource, runMain, startMain } from './process.js'
import { closedEndpoint } from './s3-proxy.js'
import { headOf, openWire, post } from './wire.js'

const folder = await mkdtemp(join(tmpdir(), 'uponce-main-'))
const postgres = await startPostgres()
afterAll(async () => {
  await postgres?.stop()
  await rm(folder, { recursive: true })
})

const listOf = async (url: string): Promise<unknown[]> =>
  (await (await fetch(`${url}/media`, { headers: { Authorization: 'Bearer alice' } })).json()) as unknown[]

/** The log, which is all there is on stderr. */
const logOf = ({ stderr }: Exited): Record<string, unknown>[] =>
  stderr
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line))

describe('the program', () => {
  it.each([
    [{ PORT: 'abc' }, 'uponce demo: PORT is "abc", expected an integer from 0 to 65535\n'],
    [
      { S3_ENDPOINT: 'http://s3', S3_BUCKET: 'files' },
      'uponce demo: S3_REGION is missing: S3_ENDPOINT is set, and objects in S3 take all of S3_ENDPOINT, S3_BUCKET, S3_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY\n',
    ],
  ])('%j: one line, status 1, and nothing was opened', async (env, stderr) => {
    const dataDir = join(folder, randomUUID())
    expect(await runMain({ ...env, DATA_DIR: dataDir })).toEqual({ code: 1, stdout: '', stderr })
    expect(await runMain({ ...env, DATA_DIR: dataDir }, '--check')).toEqual({ code: 1, stdout: '', stderr })
    await expect(readdir(dataDir)).rejects.toThrow('ENOENT')
  })

  it('with --check it says nothing of an environment it can use, and opens nothing', async () => {
    const dataDir = join(folder, 'checked')
    expect(await runMain({ DATA_DIR: dataDir }, '--check')).toEqual({ code: 0, stdout: '', stderr: '' })
    await expect(readdir(dataDir)).rejects.toThrow('ENOENT')
  })

  it.each(['', '/below/it'])('says in one line that DATA_DIR is a file: file%s', async (below) => {
    const file = join(folder, 'file')
    await writeFile(file, '')
    const refused = { code: 1, stdout: '', stderr: `uponce demo: DATA_DIR: ${file} is a file, expected a folder\n` }
    expect(await runMain({ DATA_DIR: file + below })).toEqual(refused)
    expect(await runMain({ DATA_DIR: file + below }, '--check')).toEqual(refused)
  })

  it.skipIf(process.platform !== 'linux').each([{}, { DATABASE_URL: postgres?.url ?? '' }])(
    'says in one line that DATA_DIR cannot be made: %j',
    async (env) => {
      const { code, stdout, stderr } = await runMain({ ...env, DATA_DIR: '/proc/nope/data' })
      expect([code, stdout]).toEqual([1, ''])
      expect(stderr).toMatch(/^uponce demo: DATA_DIR: \/proc\/nope cannot be made \(ENOENT[^\n]*\)\n$/)
    },
  )

  it('says in one line that the database cannot be reached', async () => {
    const { code, stdout, stderr } = await runMain({ DATABASE_URL: 'postgres://u:secret@127.0.0.1:1/x', DATA_DIR: join(folder, 'none') })
    expect([code, stdout]).toEqual([1, ''])
    expect(stderr).toMatch(/^uponce demo: the database of DATABASE_URL cannot be used: [^\n]*ECONNREFUSED[^\n]*\n$/)
    expect(stderr).not.toContain('secret')
  })

  it('says in one line that the bucket cannot be reached, and opens nothing else', async () => {
    const dataDir = join(folder, 'no-bucket')
    const s3 = {
      S3_ENDPOINT: await closedEndpoint(),
      S3_BUCKET: 'files',
      S3_REGION: 'x',
      AWS_ACCESS_KEY_ID: 'id',
      AWS_SECRET_ACCESS_KEY: 'secret',
    }
    const { code, stdout, stderr } = await runMain({ ...s3, DATA_DIR: dataDir })
    expect([code, stdout]).toEqual([1, ''])
    expect(stderr).toMatch(/^uponce demo: the bucket of S3_BUCKET cannot be used: S3 cannot be reached: ECONNREFUSED[^\n]*\n$/)
    await expect(readdir(dataDir)).rejects.toThrow('ENOENT')
  })

  it('killed in the middle of a body, it stores the file once when the client comes again', async () => {
    const dataDir = join(folder, 'killed')
    const env = { DATA_DIR: dataDir, LEASE_MS: '3000' }
    const first = await startMain(env)

    // A second one on the same folder has no chance.
    const { code, stdout, stderr } = await runMain(env)
    expect({ code, stdout, stderr }).toEqual({
      code: 1,
      stdout: '',
      stderr: `uponce demo: DATA_DIR ${dataDir} is in use by process ${first.pid}; stop it, or give this one another folder\n`,
    })

    const [cut, lost] = [newKey(), newKey()]
    const body = new Uint8Array(1_000_000).fill(7)
    const wire = await openWire(first.url)
    wire.send(headOf(cut, body))
    wire.send(body.subarray(0, 500_000))
    expect((await post(first.url, { key: lost })).status).toBe(201)
    await until(async () => (await readdir(join(dataDir, 'objects'))).some((name) => name.endsWith('.part')))
    await first.stop('SIGKILL')

    const second = await startMain(env)
    // What was committed is there, what was not is soon free.
    expect(replayMarkers(await post(second.url, { key: lost }))).toEqual(['true', 'true'])
    const answer = await vi.waitFor(
      async () => {
        const given = await post(second.url, { key: cut, body })
        expect(given.status).toBe(201)
        return given
      },
      { timeout: 10_000, interval: 200 },
    )
    expect(replayMarkers(answer)).toEqual([null, null])
    expect(await listOf(second.url)).toHaveLength(2)
    // The half-written file went with the first sweep.
    await until(async () => (await readdir(join(dataDir, 'objects'))).length === 2)

    const late = await openWire(second.url)
    late.send(`${headOf(newKey(), 'hello')}he`)
    await until(async () => (await readdir(join(dataDir, 'objects'))).length === 3)
    const ended = second.stop('SIGTERM')
    late.send('llo')
    const exited = await ended
    expect(exited).toMatchObject({ code: 0, stdout: `uponce demo on ${second.url}\n` })
    expect(logOf(exited).at(-1)).toMatchObject({ method: 'POST', path: '/uploads', status: 201, outcome: 'ok' })
    expect(logOf(exited).filter(({ level }) => level !== 'info')).toEqual([])
    expect(late.received()).toMatch(/^HTTP\/1.1 201 /)
    expect((await readdir(dataDir)).sort()).toEqual(['db', 'objects'])
  }, 90_000)

  it.skipIf(!postgres)(
    'runs on a PostgreSQL server, says when its port is taken, and ends on SIGINT',
    async () => {
      const env = { DATABASE_URL: postgres!.url, DATA_DIR: join(folder, 'pg') }
      const server = await startMain(env, fromSource)
      const key = newKey()
      expect((await post(server.url, { key })).status).toBe(201)
      const port = new URL(server.url).port
      expect(await runMain({ ...env, PORT: port })).toEqual({
        code: 1,
        stdout: '',
        stderr: `uponce demo: PORT ${port} on 127.0.0.1 is in use by another program\n`,
      })
      // Two servers may share a database, and the folder of the objects.
      const other = await startMain(env)
      expect(replayMarkers(await post(other.url, { key }))).toEqual(['true', 'true'])
      expect(await listOf(other.url)).toHaveLength(1)
      const ended = await Promise.all([server.stop('SIGINT'), other.stop('SIGTERM')])
      expect(ended.map(({ code }) => code)).toEqual([0, 0])
      expect(ended.map(logOf).map((lines) => lines.map(({ path, outcome }) => `${path} ${outcome}`))).toEqual([
        ['/uploads ok'],
        ['/uploads replayed'],
      ])
    },
    60_000,
  )

  it.skipIf(!postgres)(
    'killed between a file on disk and its commit: a repeat stores it once, and the first object goes with the sweeps',
    async () => {
      const database = openPostgres({ url: postgres!.url, max: 1 })
      const env = { DATABASE_URL: postgres!.url, DATA_DIR: join(folder, 'parked'), LEASE_MS: '1000' }
      const filesOf = (key: string) => database.query('SELECT storage_key FROM media WHERE idempotency_key = $1', [key])
      const objects = (): Promise<string[]> => readdir(join(folder, 'parked', 'objects'))
      const key = newKey()
      const body = 'parked between finish and commit'
      const first = await startMain(env, built(fileURLToPath(new URL('./parked.ts', import.meta.url))))
      const lost = post(first.url, { key, body }).catch(() => 'lost')
      await until(() => first.output.stdout.endsWith('parked\n'))
      const [orphan, ...others] = await objects()
      expect([await readFile(join(folder, 'parked', 'objects', orphan!), 'utf8'), others, await filesOf(key)]).toEqual([body, [], []])
      await first.stop('SIGKILL')
      expect(await lost).toBe('lost')

      const second = await startMain(env)
      const answer = await until(async () => {
        const attempt = await post(second.url, { key, body })
        expect([201, 409]).toContain(attempt.status)
        return attempt.status === 201 && attempt
      })
      const { storageKey } = (await answer.json()) as { storageKey: string }
      expect([await filesOf(key), (await objects()).sort()]).toEqual([[{ storage_key: storageKey }], [orphan, storageKey].sort()])
      expect(await readFile(join(folder, 'parked', 'objects', storageKey), 'utf8')).toBe(body)
      await second.stop('SIGTERM')

      // Each start sweeps: first it is marked dead and deleted, then it is deleted once more and forgotten.
      for (let sweep = 0; sweep < 2; sweep++) {
        await database.query(`UPDATE pending_objects SET created_at = created_at - interval '1 day', dead_at = dead_at - interval '1 day'`)
        await (await startMain(env)).stop('SIGTERM')
        expect(await objects()).toEqual([storageKey])
      }
      expect([await filesOf(key), await database.query('SELECT storage_key FROM pending_objects')]).toEqual([
        [{ storage_key: storageKey }],
        [],
      ])
      await database.close()
    },
    90_000,
  )

  it('leaves the folder free when its port is taken', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => taken.once('listening', resolve))
    const { port } = taken.address() as { port: number }
    const dataDir = join(folder, 'killed')
    const { code, stderr } = await runMain({ PORT: String(port), DATA_DIR: dataDir })
    expect([code, stderr]).toEqual([1, `uponce demo: PORT ${port} on 127.0.0.1 is in use by another program\n`])
    expect((await readdir(dataDir)).sort()).toEqual(['db', 'objects'])
    taken.close()
  }, 60_000)
})
