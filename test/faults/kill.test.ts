import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { type OpenDatabase, openPostgres } from '../../demo/server/database.js'
import { describeWith } from '../helpers/describe-with.js'
import { startPostgres } from '../helpers/postgres.js'
import { programs } from '../helpers/programs.js'
import { createRandom, freshSeed } from '../helpers/random.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { MiB, sha256 } from '../server/fixture.js'
import { post } from '../server/wire.js'
import { buildProgram, startProgram } from './program.js'

const KILLS = 20
const CLIENTS = 16
const LEASE_MS = 300
const seed = Number(process.env.FAULTS_SEED ?? freshSeed())

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

interface Done {
  key: string
  owner: string
  body: Uint8Array
  uploadId: string
}

describeWith(programs.postgres, 'a server that is killed again and again', () => {
  const ends: (() => Promise<unknown>)[] = []
  afterAll(async () => {
    for (const end of ends.reverse()) await end()
  })

  /** Makes everything that is pending as old as the sweeper wants it to be. */
  const age = (database: OpenDatabase): Promise<unknown> =>
    database.query(`UPDATE pending_objects SET created_at = created_at - interval '1 day', dead_at = dead_at - interval '1 day'`)

  it(`has every file once and nothing else, after ${KILLS} kills under ${CLIENTS} parallel uploads`, async () => {
    console.log(`seed ${seed}`)
    const random = createRandom(seed)
    const postgres = (await startPostgres())!
    ends.push(() => postgres.stop())
    const folder = await makeTempFolder('kill')
    ends.push(() => folder.remove())
    const database = openPostgres({ url: postgres.url, max: 2 })
    ends.push(() => database.close())

    const env = { DATABASE_URL: postgres.url, DATA_DIR: folder.path, LEASE_MS: String(LEASE_MS) }
    await buildProgram()
    let server = await startProgram(env)
    ends.push(() => server.kill())
    const { url } = server
    const restart = async (): Promise<void> => {
      await server.kill()
      server = await startProgram({ ...env, PORT: new URL(url).port })
    }

    let isOver = false
    const done: Done[] = []
    let lost = 0
    /** Sends one file after the other, each until it is told that it is stored. */
    async function client(owner: string): Promise<void> {
      for (let n = 0; !isOver; n++) {
        const key = `${owner}-number-${n}-of-it`
        const body = new Uint8Array(random.chance(0.3) ? random.integer(0, 2000) : random.integer(0, 2 * MiB)).fill(random.integer(0, 255))
        for (;;) {
          const answer = await post(url, { key, owner, body }).catch(() => null)
          const stored = answer?.ok ? ((await answer.json().catch(() => null)) as { uploadId: string } | null) : null
          if (answer && !answer.ok) {
            await answer.text().catch(() => {})
            expect([409, 503]).toContain(answer.status)
          }
          if (stored) {
            done.push({ key, owner, body, uploadId: stored.uploadId })
            break
          }
          lost++
          await pause(50)
        }
      }
    }
    const clients = Array.from({ length: CLIENTS }, (_, n) => client(`client${n}`))
    const killing = async (): Promise<void> => {
      for (let kill = 0; kill < KILLS; kill++) {
        await pause(random.integer(10, 800))
        await restart()
      }
      isOver = true
    }
    await Promise.all([killing(), ...clients])

    // Whoever asks again is told the same.
    for (const { key, owner, body, uploadId } of done) {
      const answer = await post(url, { key, owner, body })
      expect([answer.status, ((await answer.json()) as { uploadId: string }).uploadId]).toEqual([201, uploadId])
    }

    const media = await database.query(`SELECT owner, idempotency_key AS key, storage_key, encode(sha256, 'hex') AS sha256 FROM media`)
    const nameOf = (row: { owner?: unknown; key?: unknown }): string => `${row.owner} ${row.key}`
    expect(media.map(nameOf).sort()).toEqual(done.map(nameOf).sort())
    const digests = new Map(done.map((upload) => [nameOf(upload), sha256(upload.body)]))
    const objects = join(folder.path, 'objects')
    for (const row of media) {
      const digest = createHash('sha256')
        .update(await readFile(join(objects, row.storage_key as string)))
        .digest('hex')
      expect([digest, row.sha256]).toEqual([digests.get(nameOf(row)), digests.get(nameOf(row))])
    }

    const left = (await readdir(objects)).length - media.length
    // Each start sweeps: the first takes what is pending, the second what may have been written since.
    for (let sweep = 0; sweep < 2; sweep++) {
      await age(database)
      await restart()
    }
    expect((await readdir(objects)).sort()).toEqual(media.map((row) => row.storage_key as string).sort())
    expect(await database.query('SELECT storage_key FROM pending_objects')).toEqual([])
    expect(await database.query(`SELECT key FROM idempotency_keys WHERE state = 'in_flight'`)).toEqual([])
    console.log(`${done.length} files, ${lost} attempts failed, ${left} half-written files were swept`)
  }, 150_000)
})
