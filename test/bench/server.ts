import { randomUUID } from 'node:crypto'
import { mkdir, readdir, rm } from 'node:fs/promises'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { applySchema, openPostgres } from '../../demo/server/database.js'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { createFolderObjects } from '../../demo/server/objects-folder.js'
import { buildProgram, memoryPeak, type Program, startProgram } from '../faults/program.js'
import { startPostgres } from '../helpers/postgres.js'
import { makeTempFolder } from '../helpers/temp-folder.js'
import { bearerOf, MiB, sha256, uploadRequest } from '../server/fixture.js'
import { post, postStream } from '../server/wire.js'

const ROUNDS = 5
const UPLOADS = 12
const AT_ONCE = 4
const BODY_BYTES = 10 * MiB
const BARE = 'test/bench/bare.ts'
const OURS = 'upload handler on a folder and PostgreSQL'

const median = (values: number[]): number => values.sort((a, b) => a - b)[Math.floor(values.length / 2)]!

const empty = async (folder: string): Promise<void> => {
  for (const name of await readdir(folder)) await rm(join(folder, name))
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

/** Each in a process of its own, so that none pays for another, nor for the client. */
async function compareThroughput(start: Record<string, () => Promise<Program>>, folder: string): Promise<void> {
  const body = new Uint8Array(BODY_BYTES).fill(7)
  const digest = sha256(body)
  const names = Object.keys(start)
  const programs = new Map<string, Program>()
  const speeds = new Map<string, number[]>(names.map((name) => [name, []]))
  try {
    for (const name of names) programs.set(name, await start[name]!())
    for (let round = -1; round < ROUNDS; round++) {
      for (let n = 0; n < names.length; n++) {
        const name = names[(n + round + 1) % names.length]!
        const speed = await throughput(programs.get(name)!.url, body, digest)
        // The first round is for warming up.
        if (round >= 0) speeds.get(name)!.push(speed)
        await empty(folder)
      }
    }
  } finally {
    for (const program of programs.values()) await program.kill()
  }
  const load = loadavg()[0]!.toFixed(1)
  console.log(`server: ${UPLOADS} × 10 MiB, ${AT_ONCE} at once, medians of ${ROUNDS} rounds, load ${load}`)
  for (const name of names) console.log(`server: ${name} ${median([...speeds.get(name)!]).toFixed(0)} MiB/s`)
  const ours = speeds.get(OURS)!
  for (const name of names.filter((name) => name !== OURS)) {
    const ratio = median(ours.map((speed, round) => speed / speeds.get(name)![round]!))
    console.log(`server: ratio to ${name} ${ratio.toFixed(2)} (aim: 0.85 or more)`)
  }
}

/** What a process grows by from its start on, while bodies stream: first a short one, then a long one. */
async function compareMemory(start: Record<string, () => Promise<Program>>, folder: string): Promise<void> {
  const grown: Record<string, number[]> = {}
  for (const [name, begin] of Object.entries(start)) {
    const program = await begin()
    try {
      const idle = program.memory()
      grown[name] = []
      for (const bytes of [64 * MiB, 2048 * MiB]) {
        const peak = await memoryPeak(program, async () => {
          const answer = await postStream(program.url, bytes)
          if (answer.status !== 201) throw new Error(`answered ${answer.status}`)
          await answer.arrayBuffer()
        })
        grown[name].push((peak - idle) / MiB)
        await empty(folder)
      }
      const [short, long] = grown[name].map((some) => some.toFixed(0))
      console.log(
        `server: memory of ${name}: ${(idle / MiB).toFixed(0)} MiB at first, ${short} more while 64 MiB stream, ${long} more while 2 GiB do`,
      )
    } finally {
      await program.kill()
    }
  }
}

export async function benchServer(): Promise<void> {
  const postgres = await startPostgres()
  if (!postgres) return
  const folder = await makeTempFolder('bench')
  const objects = join(folder.path, 'objects')
  const bare = (KIND: string) => () => startProgram({ KIND, FOLDER: objects }, BARE)
  const ours = () => startProgram({ DATABASE_URL: postgres.url, DATA_DIR: folder.path })
  try {
    await buildProgram()
    await buildProgram(BARE)
    await mkdir(objects)
    await compareThroughput(
      { 'bare Fastify route': bare('fastify'), 'bare Fastify route with fsync': bare('fastify+fsync'), [OURS]: ours },
      objects,
    )
    await compareMemory({ 'bare node:http': bare('http'), [OURS]: ours }, objects)
    const database = openPostgres({ url: postgres.url, max: 1 })
    await applySchema(database)
    await database.close()
    const { claim, commit, replay } = await roundTrips(postgres.url, objects)
    console.log(
      `server: round trips of a claim ${claim}, of a replay ${replay}: ${claim + replay} (aim: 4 or fewer); of storing a file ${commit} more`,
    )
  } finally {
    await postgres.stop()
    await folder.remove()
  }
}
