import { once } from 'node:events'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import type { FastifyInstance } from 'fastify'
import ts from 'typescript'
import { afterAll, describe, expect, it } from 'vitest'
import { applySchema, pgliteDatabase } from '../../demo/server/database.js'
import { createUploadHandler, type UploadHandlerOptions } from '../../demo/server/handler.js'
import { createSqlKeys, type Database } from '../../demo/server/keys-sql.js'
import { createMemoryObjects } from '../../demo/server/objects.js'
import { startPglite } from '../helpers/pglite.js'
import { bearerOf, newKey, problemOf, replayMarkers, sha256, uploadRequest } from './fixture.js'

/** The examples become modules beside each other, and find the server where it is. */
const folder = fileURLToPath(new URL(`../../.build/server-readme-${process.pid}/`, import.meta.url))
const readme = await readFile(new URL('../../demo/server/README.md', import.meta.url), 'utf8')
const examples = new Map([...readme.matchAll(/^```ts\n\/\/ (\S+)\n(.*?)^```$/gms)].map(([, name, code]) => [name!, code!]))
await mkdir(folder, { recursive: true })
for (const [name, code] of examples) {
  const moved = code.replace(/'\.\/([\w-]+)\.js'/g, (path, file) => (examples.has(`${file}.ts`) ? path : `'../../demo/server/${file}.js'`))
  await writeFile(`${folder}${name}`, moved)
}
afterAll(() => rm(folder, { recursive: true }))

const load = async <Module>(name: string): Promise<Module> => (await import(/* @vite-ignore */ `${folder}${name}`)) as Module

const uploadOf = (key: string) => ({
  method: 'POST',
  body: 'hello',
  headers: { Authorization: 'Bearer secret', 'Content-Type': 'image/jpeg', 'Idempotency-Key': key, 'X-File-Sha256': sha256('hello') },
})
const jsonOf = (key: string, body: unknown) => ({
  method: 'POST',
  body: JSON.stringify(body),
  headers: { Authorization: 'Bearer secret', 'Content-Type': 'application/json', 'Idempotency-Key': key },
})

/** Sends one request twice. */
async function expectOnce(send: () => Promise<Response>): Promise<unknown> {
  const [first, again] = [await send(), await send()]
  expect([first.status, again.status, replayMarkers(first)[0], replayMarkers(again)[0]]).toEqual([201, 201, null, 'true'])
  const text = await first.text()
  expect(await again.text()).toBe(text)
  return JSON.parse(text)
}

describe('the examples of demo/server/README.md', () => {
  it('are all run here', () => {
    expect([...examples.keys()]).toEqual(['uploads.ts', 'express.ts', 'fastify-uploads.ts', 'quota.ts', 'orders.ts', 'notes.ts'])
    expect(readme.match(/^```ts/gm)).toHaveLength(examples.size)
  })

  it('have no type errors', { timeout: 60_000 }, () => {
    const root = fileURLToPath(new URL('../../', import.meta.url))
    const { config } = ts.readConfigFile(`${root}tsconfig.json`, ts.sys.readFile)
    const { options } = ts.parseJsonConfigFileContent({ ...config, include: [] }, ts.sys, root)
    const files = [...examples.keys()].map((name) => `${folder}${name}`)
    const program = ts.createProgram(files, { ...options, noEmit: true })
    const errors = files.flatMap((file) => ts.getPreEmitDiagnostics(program, program.getSourceFile(file)))
    expect(errors.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'))).toEqual([])
  })

  it('uploads in a fetch runtime', async () => {
    const { uploads } = await load<{ uploads(request: Request): Promise<Response> }>('uploads.ts')
    const key = newKey()
    await expectOnce(() => uploads(new Request('http://localhost/uploads', uploadOf(key))))
    expect((await uploads(new Request('http://localhost/uploads', { method: 'POST', body: 'x' }))).status).toBe(401)
  })

  it('uploads in Express', async () => {
    type Mount = (req: unknown, res: unknown, next: (error?: unknown) => void) => void
    const { mountUploads } = await load<{ mountUploads: Mount }>('express.ts')
    const server = createServer((req, res) => mountUploads(req, res, () => res.writeHead(418).end())).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const key = newKey()
    await expectOnce(() => fetch(`${url}/uploads`, uploadOf(key)))
    expect((await fetch(`${url}/uploads/outcome`, { headers: uploadOf(key).headers })).status).toBe(200)
    expect((await fetch(`${url}/uploadsome`)).status).toBe(418)
    server.closeAllConnections()
    server.close()
  })

  it('uploads in Fastify', async () => {
    const { app } = await load<{ app: FastifyInstance }>('fastify-uploads.ts')
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    const key = newKey()
    await expectOnce(() => fetch(`${url}/uploads`, uploadOf(key)))
    expect((await fetch(`${url}/other`)).status).toBe(404)
    await app.close()
  })

  it('a quota', async () => {
    type Quota = (database: Database, maxBytes: number) => UploadHandlerOptions['onStored']
    const { quota } = await load<{ quota: Quota }>('quota.ts')
    const database = pgliteDatabase(await startPglite())
    await applySchema(database)
    const onStored = quota(database, 12)!
    const handler = createUploadHandler({ keys: createSqlKeys(database), objects: createMemoryObjects(), authenticate: bearerOf, onStored })
    const send = (key = newKey()) => handler(uploadRequest({ key, body: 'hello' }))
    const key = newKey()
    expect([(await send()).status, (await send(key)).status]).toEqual([201, 201])
    const third = newKey()
    for (const _ of ['first', 'again']) {
      const refused = await send(third)
      expect([refused.headers.get('Retry-After'), ...replayMarkers(refused)]).toEqual(['3600', null, null])
      expect(await problemOf(refused)).toEqual({ status: 429, error: 'quota_exceeded' })
    }
    expect(replayMarkers(await send(key))[0]).toBe('true')
    expect(await database.query('SELECT storage_key FROM pending_objects')).toEqual([])
    await database.query('DELETE FROM media WHERE idempotency_key <> $1', [key])
    expect((await send(third)).status).toBe(201)
    await database.close()
  })

  it('any fetch handler', async () => {
    const { orders } = await load<{ orders(request: Request, owner: string | null): Promise<Response> }>('orders.ts')
    const key = newKey()
    expect(await expectOnce(() => orders(new Request('http://localhost/orders', jsonOf(key, { item: 'tea' })), 'alice'))).toEqual({
      ordered: 'tea',
    })
    expect((await orders(new Request('http://localhost/orders', jsonOf(key, { item: 'tea' })), null)).status).toBe(401)
  })

  it('JSON routes in Fastify', async () => {
    const { createNotes } = await load<{ createNotes(database: Database): FastifyInstance }>('notes.ts')
    const database = pgliteDatabase(await startPglite())
    await applySchema(database)
    await database.query('CREATE TABLE notes (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text NOT NULL)')
    const app = createNotes(database)
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    const key = newKey()
    expect(await expectOnce(() => fetch(`${url}/notes`, jsonOf(key, { text: 'hi' })))).toEqual({ id: 1, text: 'hi' })
    expect(await database.query('SELECT text FROM notes')).toEqual([{ text: 'hi' }])
    await app.close()
    await database.close()
  })
})
