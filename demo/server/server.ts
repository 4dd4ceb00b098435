import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fastify, { type FastifyInstance, type FastifyRequest } from 'fastify'
import { addAlbumRoutes } from './albums.js'
import { Refusal } from './answer.js'
import { callerOf } from './caller.js'
import { type Connections, followConnections } from './connections.js'
import { applySchema, type OpenDatabase, openPglite, openPostgres } from './database.js'
import { idempotency, sendRefusal } from './fastify.js'
import { createFaults, type Faults } from './faults.js'
import { makeFolder } from './folder.js'
import { createUploadHandler, type UploadEvent, type UploadHandlerOptions, type UploadLimits, uploadLimits } from './handler.js'
import { addHealthRoute } from './health.js'
import { createIdempotency } from './idempotency.js'
import type { KeyStore } from './keys.js'
import { createSqlKeys, type Database } from './keys-sql.js'
import { type FolderLock, lockFolder } from './lock.js'
import { createLog, type FollowedRequest, type Log, refusalCode } from './log.js'
import { addCaptionRoute, addMediaRoutes, ownerOf } from './media.js'
import { addMetricsRoute, createMetrics, type Metrics } from './metrics.js'
import { expectsContinue, headersOf, sendResponse, toRequest, urlOf } from './node-http.js'
import { type ObjectStore, ObjectStoreError } from './objects.js'
import { createFolderObjects } from './objects-folder.js'
import { createS3Objects, type S3Options } from './objects-s3.js'
import { createOriginRule } from './origin.js'
import { addPageRoutes } from './static.js'

export interface ServerConfig extends Pick<UploadHandlerOptions, 'onStored' | 'onEvent' | 'onError'> {
  /** 0: any free port. */
  port: number
  host: string
  /** Folder of the objects and of the database, as far as no other place is named. */
  dataDir: string
  /** A PostgreSQL server. Absent: an embedded one in `dataDir`, which is then this process's alone. */
  databaseUrl?: string
  /** A bucket for the objects. */
  s3?: S3Options
  allowedOrigins?: readonly string[]
  limits?: Partial<UploadLimits>
  /** Whether faults can be ordered at `/demo/faults`. */
  faults?: boolean
  /** Where the built page is. Default `.build/page` in the repository. */
  pageDir?: string
  /** Instead of a database. */
  keys?: KeyStore
  /** Instead of a folder. */
  objects?: ObjectStore
  /** Time between two sweeps, in ms. Default 60 s. */
  sweepEveryMs?: number
  /** Takes the lines of the log, without their ends: one a request, and one a failure unless `onError` hears of it. Default none, and stderr for failures. */
  log?: (line: string) => void
  /** How long `close` waits for requests in flight, in ms. Default 10 s. */
  drainMs?: number
}

export interface RunningServer {
  /** `http://HOST:PORT`, with the real port. */
  url: string
  /** No new requests; those in flight end; stores close. */
  close(): Promise<void>
}

interface Stores {
  keys: KeyStore
  objects: ObjectStore
  /** Where the keys are; null for keys of the caller's. */
  database: Database | null
  /** Whether no other process can be using the stores. */
  isAlone: boolean
  close(): Promise<void>
}

const PROBLEM = 'application/problem+json'
const MINUTE = 60_000
const MiB = 1_048_576
/** https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html */
const MAX_PARTS = 10_000
const defaultPageDir = fileURLToPath(new URL('../../.build/page', import.meta.url))

async function openDatabase(
  config: ServerConfig,
  onError: (error: unknown) => void,
): Promise<{ database: OpenDatabase; lock: FolderLock | null }> {
  if (config.databaseUrl !== undefined) return { database: openPostgres({ url: config.databaseUrl, onError }), lock: null }
  const lock = await lockFolder(config.dataDir)
  try {
    return { database: await openPglite(join(config.dataDir, 'db')), lock }
  } catch (error) {
    lock.release()
    throw error
  }
}

/** Says at once that a bucket cannot be used. */
async function openBucket(s3: S3Options, { maxBytes }: UploadLimits): Promise<ObjectStore> {
  const objects = createS3Objects({ partBytes: Math.max(8 * MiB, Math.ceil(maxBytes / MAX_PARTS)), ...s3 })
  await objects.check()
  return objects
}

async function openStores(config: ServerConfig, onError: (error: unknown) => void): Promise<Stores> {
  const bucket = config.s3 ? await openBucket(config.s3, uploadLimits(config.limits)) : null
  const openObjects = async (): Promise<ObjectStore> => {
    const given = config.objects ?? bucket
    if (given) return given
    const folder = join(config.dataDir, 'objects')
    await makeFolder(folder)
    return createFolderObjects(folder)
  }
  if (config.keys) return { keys: config.keys, objects: await openObjects(), database: null, isAlone: false, close: async () => {} }
  const { database, lock } = await openDatabase(config, onError)
  const close = async (): Promise<void> => {
    await database.close()
    lock?.release()
  }
  try {
    await applySchema(database)
    return { keys: createSqlKeys(database), objects: await openObjects(), database, isAlone: lock !== null, close }
  } catch (error) {
    await close().catch(onError)
    throw error
  }
}

interface Sweeper {
  /** Removes what dead processes left, before there is anything else. */
  first(): Promise<void>
  /** Sweeps now and then, until the returned function has resolved. */
  regularly(everyMs: number): () => Promise<void>
}

function createSweeper(
  { keys, objects, isAlone }: Stores,
  limits: UploadLimits,
  metrics: Metrics,
  onError: (error: unknown) => void,
): Sweeper {
  const { leaseMs, maxUploadMs, retentionMs } = limits
  const idempotency = createIdempotency({ keys, leaseMs, retentionMs, onError })
  const graceMs = maxUploadMs + leaseMs + MINUTE
  const sweep = async (grace: number): Promise<void> => {
    try {
      metrics.swept(await idempotency.sweep({ objects, graceMs: grace, finalGraceMs: MINUTE }))
    } catch {
      // Reported through onError. The next one makes up for it.
    }
  }
  return {
    // Where no other process can be at work, every pending object is a dead one's.
    first: () => sweep(isAlone ? 0 : graceMs),
    regularly(everyMs) {
      let running = Promise.resolve()
      const timer = setInterval(() => {
        running = running.then(() => sweep(graceMs))
      }, everyMs)
      timer.unref()
      return async () => {
        clearInterval(timer)
        await running
      }
    },
  }
}

/** What the log has to say of an answer besides its status. */
async function outcomeOf(response: Response): Promise<string | null> {
  if (response.headers.has('Idempotent-Replayed')) return 'replayed'
  return response.headers.get('Content-Type') === PROBLEM ? refusalCode(await response.clone().text()) : null
}

/** The uploads' addresses are not routes of Fastify's. */
const uploadPath = (pathname: string): string => (['/uploads', '/uploads/outcome'].includes(pathname) ? pathname : '/uploads/*')

function createApp(
  config: ServerConfig,
  stores: Stores,
  connections: Connections,
  server: Server,
  log: Log | null,
  onError: (error: unknown) => void,
) {
  const { allowedOrigins = [], onStored } = config
  const limits = uploadLimits(config.limits)
  const inFlight = new Set<Promise<void>>()
  const metrics = createMetrics(() => inFlight.size)
  const onEvent = (event: UploadEvent): void => {
    metrics.count(event)
    config.onEvent?.(event)
  }
  const handler = createUploadHandler({
    ...stores,
    authenticate: (request) => callerOf(request.headers),
    allowedOrigins,
    limits,
    onEvent,
    onError,
    ...(onStored ? { onStored } : {}),
  })
  const faults: Faults | null = config.faults ? createFaults({ ...stores, connections, allowedOrigins, limits }) : null
  const followed = new WeakMap<IncomingMessage, FollowedRequest>()

  async function exchange(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    try {
      const request = toRequest(incoming, outgoing)
      const response = await (faults ? faults.pass(incoming, request, handler) : handler(request))
      if (!response) return
      const line = followed.get(incoming)
      if (line) line.outcome = await outcomeOf(response)
      await sendResponse(response, incoming, outgoing)
    } catch (error) {
      if (!outgoing.destroyed) onError(error)
      incoming.socket.destroy()
    }
  }

  const app: FastifyInstance = fastify({
    // Fastify configures the server it is given only in part: see listen().
    serverFactory: (handle) => server.on('request', handle),
    forceCloseConnections: false,
    return503OnClosing: false,
  })
  app.addHook('onRequest', async (request, reply) => {
    const { pathname } = urlOf(request.raw)
    const isUpload = pathname === '/uploads' || pathname.startsWith('/uploads/')
    const path = isUpload ? uploadPath(pathname) : (request.routeOptions.url ?? '*')
    if (log) followed.set(request.raw, log.follow(request.raw, reply.raw, path))
    if (faults?.isAway() && !pathname.startsWith('/demo/')) {
      reply.hijack()
      request.raw.socket.destroy()
      return
    }
    if (isUpload) {
      // Before Fastify looks at the body: it is the handler's.
      reply.hijack()
      const work = exchange(request.raw, reply.raw).finally(() => inFlight.delete(work))
      inFlight.add(work)
      return
    }
    reply.header('X-Content-Type-Options', 'nosniff')
  })
  app.addHook('onSend', async (request, reply, payload) => {
    const line = followed.get(request.raw)
    if (!line) return payload
    if (reply.hasHeader('Idempotent-Replayed')) line.outcome = 'replayed'
    else if (reply.getHeader('Content-Type') === PROBLEM) line.outcome = refusalCode(String(payload))
    return payload
  })
  app.setErrorHandler((error, _request, reply) => {
    if (error instanceof Refusal) return sendRefusal(reply, error)
    if (error instanceof ObjectStoreError) {
      onError(error)
      return sendRefusal(reply, new Refusal('storage_unavailable', [['Retry-After', '1']]))
    }
    const { statusCode } = error as { statusCode?: number }
    if (statusCode !== undefined && statusCode < 500) return reply.send(error)
    onError(error)
    return sendRefusal(reply, new Refusal('internal_error'))
  })
  app.setNotFoundHandler((_request, reply) => sendRefusal(reply, new Refusal('not_found')))
  addHealthRoute(app, stores)
  addMetricsRoute(app, metrics)
  addMediaRoutes(app, stores)
  const { database } = stores
  if (database) {
    const { leaseMs, retentionMs, waitMs } = limits
    const origins = createOriginRule(allowedOrigins)
    const authenticate = (request: FastifyRequest): string => {
      const { method, raw } = request
      const headers = headersOf(raw)
      origins.check(new Request(urlOf(raw), { method, headers }), callerOf(headers)?.ambient === true)
      return ownerOf(request)
    }
    app.register(async (json) => {
      json.register(idempotency, { keys: createSqlKeys(database), authenticate, leaseMs, retentionMs, waitMs, onEvent, onError })
      addCaptionRoute(json)
      addAlbumRoutes(json, database)
    })
  }
  faults?.addRoutes(app)
  addPageRoutes(app, config.pageDir ?? defaultPageDir)
  return { app, inFlight, limits, metrics }
}

function createHttpServer(): Server {
  // requestTimeout 0: Node would cut every upload that takes longer than 300 s. The handler has limits of its own for a body.
  const server = createServer({ requestTimeout: 0, headersTimeout: 15_000, keepAliveTimeout: 72_000, connectionsCheckingInterval: 5_000 })
  server.on('checkContinue', (incoming, outgoing) => {
    expectsContinue(incoming)
    server.emit('request', incoming, outgoing)
  })
  return server
}

const urlOfServer = (host: string, server: Server): string => {
  const { port } = server.address() as AddressInfo
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}

const reportError = (error: unknown): void => console.error(error)

/** Opens the stores and listens. Rejects when the port is taken, the folder in use, or the database not to be had; then nothing stays open. */
export async function startServer(config: ServerConfig): Promise<RunningServer> {
  const log = config.log ? createLog(config.log) : null
  const onError = config.onError ?? log?.error ?? reportError
  const stores = await openStores(config, onError)
  try {
    const server = createHttpServer()
    const connections = followConnections(server)
    const { app, inFlight, limits, metrics } = createApp(config, stores, connections, server, log, onError)
    const sweeper = createSweeper(stores, limits, metrics, onError)
    await sweeper.first()
    await app.listen({ port: config.port, host: config.host })
    const endSweeps = sweeper.regularly(config.sweepEveryMs ?? MINUTE)

    const close = async (): Promise<void> => {
      const cut = setTimeout(() => connections.destroy(), config.drainMs ?? 10_000)
      const closed = app.close()
      connections.drain()
      await closed
      clearTimeout(cut)
      await Promise.allSettled(inFlight)
      await endSweeps()
      await stores.close()
    }
    let closing: Promise<void> | undefined
    return { url: urlOfServer(config.host, server), close: () => (closing ??= close()) }
  } catch (error) {
    await stores.close().catch(onError)
    throw error
  }
}
