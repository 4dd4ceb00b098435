import { createHash, randomUUID } from 'node:crypto'
import { vi } from 'vitest'
import { createUploadHandler, type UploadEvent, type UploadHandlerOptions } from '../../demo/server/handler.js'
import { createIdempotency } from '../../demo/server/idempotency.js'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { createMemoryObjects } from '../../demo/server/objects.js'

export const MiB = 1_048_576
export const APP = 'https://app.example'
export const HOUR = 3_600_000

export const sha256 = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex')

export const everyByte = Uint8Array.from({ length: 256 }, (_, byte) => byte)

export const newKey = (): string => randomUUID()

export interface UploadFields {
  key?: string | null
  body?: Uint8Array | string | ReadableStream<Uint8Array>
  /** Declared; by default that of the body. Null: none. */
  digest?: string | null
  owner?: string | null
  type?: string
  headers?: Record<string, string>
  method?: string
  path?: string
  signal?: AbortSignal
}

/** POST /uploads as the client sends it. */
export function uploadRequest(fields: UploadFields = {}): Request {
  const {
    key = newKey(),
    body = 'hello',
    owner = 'alice',
    type = 'image/jpeg',
    headers = {},
    method = 'POST',
    path = '/uploads',
    signal,
  } = fields
  const isBytes = typeof body === 'string' || body instanceof Uint8Array
  const digest = fields.digest === undefined ? sha256(isBytes ? body : '') : fields.digest
  const sent = new Headers({ 'Content-Type': type })
  if (key !== null) sent.set('Idempotency-Key', key)
  if (digest !== null) sent.set('X-File-Sha256', digest)
  if (owner !== null) sent.set('Authorization', `Bearer ${owner}`)
  if (isBytes) sent.set('Content-Length', String(Buffer.byteLength(body)))
  for (const [name, value] of Object.entries(headers)) sent.set(name, value)
  const hasBody = method !== 'GET' && method !== 'OPTIONS'
  return new Request(`http://localhost:3000${path}`, {
    method,
    headers: sent,
    ...(signal ? { signal } : {}),
    ...(hasBody ? { body, duplex: 'half' } : {}),
  } as RequestInit)
}

/** A body that arrives when the test says so. */
export function heldBody() {
  let controller!: ReadableStreamDefaultController<Uint8Array>
  const stream = new ReadableStream<Uint8Array>({
    start(given) {
      controller = given
    },
  })
  return {
    stream,
    push: (bytes: Uint8Array | string) => controller.enqueue(typeof bytes === 'string' ? Buffer.from(bytes) : bytes),
    end: () => controller.close(),
    fail: () => controller.error(new Error('connection reset')),
  }
}

/** Bytes that are made while they are read. */
export function generatedBody(bytes: number, onChunk: (bytes: number) => void = () => {}): ReadableStream<Uint8Array> {
  let left = bytes
  return new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (left === 0) return controller.close()
        const size = Math.min(left, 65_536)
        left -= size
        onChunk(size)
        controller.enqueue(new Uint8Array(size))
      },
    },
    { highWaterMark: 0 },
  )
}

export const bearerOf = (request: Request): { owner: string } | null => {
  const owner = /^Bearer (\w+)$/.exec(request.headers.get('authorization') ?? '')?.[1]
  return owner === undefined ? null : { owner }
}

/** A handler on memory stores, with the clock in the hand of the test. The set-up of the conformance cases. */
export function createFixture(options: Partial<UploadHandlerOptions> = {}) {
  let now = Date.UTC(2026, 0, 1)
  const keys = createMemoryKeys({ clock: () => now })
  const objects = options.objects ?? createMemoryObjects()
  const errors: unknown[] = []
  const events: UploadEvent[] = []
  const { limits, ...others } = options
  const settings: UploadHandlerOptions = {
    keys,
    objects,
    authenticate: bearerOf,
    allowedOrigins: [APP],
    limits: { maxBytes: MiB, maxInFlightPerOwner: 4, ...limits },
    onError: (error) => errors.push(error),
    onEvent: (event) => events.push(event),
    ...others,
  }
  const handler = createUploadHandler(settings)
  const idempotency = createIdempotency({ keys })
  return {
    keys,
    objects,
    handler,
    errors,
    events,
    /** Another process on the same stores. */
    another: (changes: Partial<UploadHandlerOptions> = {}) => createUploadHandler({ ...settings, ...changes }),
    upload: (fields?: UploadFields) => handler(uploadRequest(fields)),
    outcome: (key: string, fields: UploadFields = {}) =>
      handler(uploadRequest({ key, method: 'GET', path: '/uploads/outcome', digest: null, ...fields })),
    elapse: (ms: number) => {
      now += ms
    },
    sweep: async () => {
      const day = 24 * HOUR
      for (let round = 0; round < 2; round++) {
        now += day
        await idempotency.sweep({ objects, graceMs: day / 2, finalGraceMs: day / 2 })
      }
    },
    /** Key rows / media rows / objects / pending objects. */
    async state(): Promise<string> {
      const count = keys.count()
      return `${count.keys}/${count.media}/${(await objects.list('')).length}/${count.pending}`
    },
  }
}

/** Waits for a condition, long enough for a busy machine. */
export const until = <Value>(condition: () => Value | Promise<Value>) => vi.waitUntil(condition, { timeout: 15_000 })

export const replayMarkers = (response: Response): (string | null)[] => [
  response.headers.get('Idempotent-Replayed'),
  response.headers.get('Idempotent-Replay'),
]

/** What a client sees of a refusal, with its promises about problem+json checked. */
export async function problemOf(response: Response): Promise<{ status: number; error: string }> {
  if (response.headers.get('Content-Type') !== 'application/problem+json') throw new Error(`not a problem document: ${response.status}`)
  const problem = (await response.json()) as Record<string, unknown>
  for (const member of ['type', 'title', 'detail', 'message']) if (typeof problem[member] !== 'string') throw new Error(`no ${member}`)
  if (problem.status !== response.status) throw new Error(`status ${problem.status} in an answer with ${response.status}`)
  return { status: response.status, error: problem.error as string }
}
