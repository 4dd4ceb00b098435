import type { FastifyInstance } from 'fastify'
import type { KeyStore } from './keys.js'
import type { ObjectStore } from './objects.js'

export interface HealthOptions {
  keys: KeyStore
  objects: ObjectStore
  /** A part that has not answered by then counts as failed, in ms. Default 2 s. */
  timeoutMs?: number
}

export type PartHealth = 'ok' | 'failed'

export interface Health {
  database: PartHealth
  objects: PartHealth
}

/** Whether a part works. However often it is asked, one question is on its way at a time, since a store that hangs must not collect them. */
function createProbe(ask: () => Promise<unknown>, timeoutMs: number): () => Promise<PartHealth> {
  let running: Promise<PartHealth> | null = null
  return async () => {
    running ??= ask()
      .then(
        (): PartHealth => 'ok',
        (): PartHealth => 'failed',
      )
      .finally(() => {
        running = null
      })
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<PartHealth>((resolve) => {
      timer = setTimeout(() => resolve('failed'), timeoutMs)
    })
    return Promise.race([running, late]).finally(() => clearTimeout(timer))
  }
}

/** Asks the database for one row by its key, and the object store whether it works. Never rejects. */
export function createHealth({ keys, objects, timeoutMs = 2_000 }: HealthOptions): () => Promise<Health> {
  const database = createProbe(() => keys.read('', 'healthz'), timeoutMs)
  const storage = createProbe(() => objects.check(), timeoutMs)
  return async () => {
    const [first, second] = await Promise.all([database(), storage()])
    return { database: first, objects: second }
  }
}

/** `GET /healthz`, for load balancers: 200, or 503 when a part has failed. */
export function addHealthRoute(app: FastifyInstance, options: HealthOptions): void {
  const health = createHealth(options)
  app.get('/healthz', async (_request, reply) => {
    const parts = await health()
    const isWell = parts.database === 'ok' && parts.objects === 'ok'
    return reply
      .code(isWell ? 200 : 503)
      .header('Cache-Control', 'no-store')
      .send({ status: isWell ? 'ok' : 'failed', ...parts })
  })
}
