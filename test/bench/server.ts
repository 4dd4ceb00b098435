import { createHash, randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import fastify from 'fastify'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'
import { startServer } from '../../demo/server/server.js'
import { startPostgres } from '../helpers/postgres.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { bearerOf, MiB, sha256, uploadRequest } from '../server/fixture.js'
import { post } from '../server/wire.js'

const ROUNDS = 5
const UPLOADS = 12
const AT_ONCE = 4
const BODY_BYTES = 10 * MiB

const median = (values: number[]): number => values.sort((a, b) => a - b)[Math.floor(values.length / 2)]!

/** What nobody can do without: the same stream to a file, and its hash. */
async function startBare(folder: string): Promise<{ url: string; close(): Promise<unknown> }> {
  const app = fastify({ bodyLimit: 2048 * MiB })
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
  app.post('/uploads', async (request, reply) => {
    const hash = createHash('sha256')
    const hashed = new Transform({
      transform(chunk, _encoding, done) {
        hash.update(chunk)
        done(null, chunk)
      },
    })
    await pipeline(request.body as NodeJS.ReadableStream, hashed, createWriteStream(join(folder, randomUUID())))
    return reply.code(201).send({ sha256: hash.digest('hex') })
  })
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  return { url, close: () => app.close() }
}

/** MiB/s of some uploads, a few at a time. */
async function throughput(url: string, body: Uint8Array, digest: string): Promise<number> {
  let left = UPLOADS
  const send = async (): Promise<void> => {
    while (left-- > 0) {
      const answer = await post(url, { body, digest })
      if (answer.status !== 201) throw new Error(`answered ${answer.status}`)
      await answer.arrayBuffer()
    }
  }
  const started = performance.now()
  await Promise.all(Array.from({ length: AT_ONCE }, send))
  return ((UPLOADS * BODY_BYTES) / MiB / (performance.now() - started)) * 1000
}

/** Statements that a claim, and then a replay, of 10 KiB takes. */
async function roundTrips(url: string, folder: string): Promise<{ claim: number; commit: number; replay: number }> {
  const pool = openPostgres({ url, max: 2 })
  const statements: string[] = []
  const counted: Database = {
    query(text, params) {
      statements.push(text)
      return pool.query(text, params)
    },
    transaction: (run) => {
      statements.push('BEGIN', 'COMMIT')
      return pool.transaction((tx) =>
        run({
          query(text, params) {
            statements.push(text)
            return tx.query(text, params)
          },
        }),
      )
    },
  }
  const handler = createUploadHandler({
    keys: createSqlKeys(counted),
    objects: await createFolderObjects(folder),
    authenticate: bearerOf,
  })
  const key = randomUUID()
  const body = new Uint8Array(10_240)
  await handler(uploadRequest({ key, body }))
  const claim = statements.findIndex((text) => text.includes('INSERT INTO pending_objects'))
  const commit = statements.splice(0).length - claim
  await handler(uploadRequest({ key, body }))
  const replay = statements.length
  await pool.close()
  return { claim, commit, replay }
}

export async function benchServer(): Promise<void> {
  const postgres = await startPostgres()
  if (!postgres) return
  const folder = await makeTempFolder('bench')
  const server = await startServer({ port: 0, host: '127.0.0.1', dataDir: folder.path, databaseUrl: postgres.url })
  const bare = await startBare(folder.path)
  const body = new Uint8Array(BODY_BYTES).fill(7)
  const digest = sha256(body)
  const measured = { bare: [] as number[], server: [] as number[], ratio: [] as number[] }
  try {
    for (const { url } of [bare, server]) await throughput(url, body, digest)
    for (let round = 0; round < ROUNDS; round++) {
      const order = round % 2 === 0 ? (['bare', 'server'] as const) : (['server', 'bare'] as const)
      for (const name of order) measured[name].push(await throughput((name === 'bare' ? bare : server).url, body, digest))
      measured.ratio.push(measured.server.at(-1)! / measured.bare.at(-1)!)
      await rm(join(folder.path, 'objects'), { recursive: true }).then(() => createFolderObjects(join(folder.path, 'objects')))
    }
    const [one, other, ratio] = [measured.bare, measured.server, measured.ratio].map((values) => median([...values]))
    console.log(
      `server: ${UPLOADS} × 10 MiB, ${AT_ONCE} at once, medians of ${ROUNDS} rounds: bare route ${one!.toFixed(0)} MiB/s, upload handler on a folder and PostgreSQL ${other!.toFixed(0)} MiB/s`,
    )
    console.log(`server: ratio ${ratio!.toFixed(2)} (aim: 0.85 or more)`)
    const database = openPostgres({ url: postgres.url, max: 1 })
    await applySchema(database)
    await database.close()
    const { claim, commit, replay } = await roundTrips(postgres.url, join(folder.path, 'objects'))
    console.log(
      `server: round trips of a claim ${claim}, of a replay ${replay}: ${claim + replay} (aim: 4 or fewer); of storing a file ${commit} more`,
    )
  } finally {
    await bare.close()
    await server.close()
    await postgres.stop()
    await folder.remove()
  }
}
