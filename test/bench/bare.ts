/**
 * What nobody can do without: a stream to a file, and its hash. `KIND` says how: `fastify`; `fastify+fsync`, which answers when the file is on
 * disk, as the folder store does; `http`, which is Node alone, and like them only hashes.
 */
import { createHash, randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import fastify from 'fastify'

const { KIND = '', FOLDER = '.' } = process.env

async function store(body: NodeJS.ReadableStream): Promise<string> {
  const hash = createHash('sha256')
  const hashed = new Transform({
    transform(chunk, _encoding, done) {
      hash.update(chunk)
      done(null, chunk)
    },
  })
  // `flush` is an fsync before the file is closed.
  await pipeline(body, hashed, createWriteStream(join(FOLDER, randomUUID()), { flush: KIND === 'fastify+fsync' }))
  return JSON.stringify({ sha256: hash.digest('hex') })
}

async function listen(): Promise<string> {
  if (KIND === 'http') {
    const server = createServer({ keepAliveTimeout: 72_000 }, async (request, response) =>
      response.writeHead(201).end(await store(request)),
    )
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()))
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }
  const app = fastify({ bodyLimit: 2048 * 1_048_576 })
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
  app.post('/uploads', async (request, reply) => reply.code(201).send(await store(request.body as NodeJS.ReadableStream)))
  return app.listen({ port: 0, host: '127.0.0.1' })
}

console.log(`${KIND} on ${await listen()}`)
