import type { OpenDatabase } from '../../demo/server/database.js'
import type { createUploadHandler, UploadHandlerOptions } from '../../demo/server/handler.js'
import type { createIdempotency, RespondPolicy, SweepOptions } from '../../demo/server/idempotency.js'
import type { createSqlKeys, Database, Queryable, Row } from '../../demo/server/keys-sql.js'
import type { ObjectStore, ObjectWriter } from '../../demo/server/objects.js'
import { createIdempotentHandler, type FetchHandler } from '../../demo/server/wrapper.js'
import { type PassOptions, type Process, type Simulation, type Thread, threads } from './simulation.js'

/** The server's code: as it is, or with a fault planted. */
export interface Code {
  createUploadHandler: typeof createUploadHandler
  createIdempotency: typeof createIdempotency
  createSqlKeys: typeof createSqlKeys
  /** Absent: as it is. */
  createIdempotentHandler?: typeof createIdempotentHandler
}

export type StatementKind =
  | 'CLAIM'
  | 'RENEW'
  | 'COMPLETE'
  | 'RELEASE'
  | 'REAP'
  | 'INTEND'
  | 'PUBLISH'
  | 'FORGET'
  | 'CONDEMN'
  | 'MEDIA'
  | 'READ'

/** A statement that has been carried out. */
export interface Statement {
  kind: StatementKind
  params: unknown[]
  rows: number
  thread: Thread
}

const kinds: [StatementKind, RegExp][] = [
  ['CLAIM', /^INSERT INTO idempotency_keys/],
  ['RENEW', /^UPDATE idempotency_keys SET leased_until/],
  ['COMPLETE', /^UPDATE idempotency_keys SET state = 'completed'/],
  ['REAP', /^DELETE FROM idempotency_keys WHERE \(owner, key\) IN/],
  ['RELEASE', /^DELETE FROM idempotency_keys/],
  ['INTEND', /^INSERT INTO pending_objects/],
  ['PUBLISH', /^DELETE FROM pending_objects WHERE storage_key = \$1 AND/],
  ['FORGET', /^DELETE FROM pending_objects/],
  ['CONDEMN', /^UPDATE pending_objects/],
  ['MEDIA', /^INSERT INTO media/],
  ['READ', /^SELECT/],
]

function kindOf(text: string): StatementKind {
  const found = kinds.find(([, pattern]) => pattern.test(text.trim()))
  if (!found) throw new Error(`a statement this test does not know: ${text}`)
  return found[0]
}

export interface WorkerOptions {
  name: string
  code: Code
  simulation: Simulation
  /** The pool of this worker. */
  database: OpenDatabase
  objects: ObjectStore
  /** Whether an object can be written after its writer was told that it failed. */
  mayBeLate: boolean
  settings: Omit<UploadHandlerOptions, 'keys' | 'objects'>
  /** What becomes of the keys of other requests than uploads. */
  policy: RespondPolicy
  /** Told of every object that is begun. */
  onWriter: (writer: ObjectWriter) => void
  /** Told when a statement can have had its effect: at once, or at the COMMIT of its transaction. */
  onEffect: (statements: Statement[]) => void
}

export interface Worker {
  name: string
  process: Process
  handle(request: Request): Promise<Response>
  /** Any other request, which a buffered handler carries out. */
  order(request: Request, owner: string, handler: FetchHandler): Promise<Response>
  sweep(options: Omit<SweepOptions, 'objects'>): Promise<void>
  /** A new process in place of the dead one, on the same pool. */
  restart(): void
}

/** Every statement and every step of a transaction waits for its turn. */
function gatedDatabase({ simulation, database, onEffect }: WorkerOptions): Database {
  const gated = (on: Queryable, effects: (statement: Statement) => void, options: PassOptions = {}) => {
    return async (text: string, params: unknown[] = []): Promise<Row[]> => {
      const kind = kindOf(text)
      const thread = threads.getStore()!
      return simulation.pass(
        kind,
        async () => {
          const rows = await on.query(text, params)
          effects({ kind, params, rows: rows.length, thread })
          return rows
        },
        options,
      )
    }
  }

  return {
    query: gated(database, (statement) => onEffect([statement])),
    async transaction(run) {
      await simulation.pass('BEGIN', async () => {})
      const { process } = threads.getStore()!
      const statements: Statement[] = []
      let fate = 'go'
      let end = simulation.begin()
      let isOpen = false
      const work = database.transaction(async (tx) => {
        end()
        isOpen = true
        simulation.openTransactions++
        try {
          const result = await run({ query: gated(tx, (statement) => statements.push(statement), { inTransaction: true }) })
          fate = await simulation.park('COMMIT', { inTransaction: true })
          if (fate === 'fail before') throw new Error('the connection broke before COMMIT')
          if (fate === 'crash before') simulation.crash(process!)
          // A dead process's transaction is rolled back.
          if (process?.alive === false) await simulation.park('COMMIT', { inTransaction: true })
          return result
        } finally {
          end = simulation.begin()
        }
      })
      const [outcome] = await Promise.allSettled([work])
      if (outcome.status === 'fulfilled') onEffect(statements)
      if (isOpen) simulation.transactionEnded()
      end()
      if (fate === 'crash after') simulation.crash(process!)
      if (outcome.status === 'rejected') return simulation.whenCrashed(outcome.reason)
      if (process?.alive === false) return new Promise(() => {})
      if (fate === 'fail after') throw new Error('the answer to COMMIT was lost')
      return outcome.value
    },
  }
}

/** Every call waits for its turn. */
function gatedObjects({ simulation, objects, mayBeLate, onWriter }: WorkerOptions): ObjectStore {
  return {
    ...objects,
    create: (key) =>
      simulation.pass('create', async () => {
        const writer = await objects.create(key)
        onWriter(writer)
        const chunks: Uint8Array[] = []
        let isUnsettled = false
        /** As S3 does: the call has failed for its caller, and is carried out at some time after it. */
        const finishLate = async (): Promise<void> => {
          await objects.delete(key)
          const again = await objects.create(key)
          for (const chunk of chunks) await again.write(chunk)
          await again.finish()
        }
        return {
          // The chunk may be reused by the caller once this is answered, even by a failure.
          write: (chunk) => {
            chunks.push(chunk.slice())
            return simulation.pass('write', () => writer.write(chunk))
          },
          finish: () =>
            simulation.pass('finish', () => writer.finish(), {
              onNotDone: () => {
                if (!mayBeLate) return
                isUnsettled = true
                simulation.late.push(finishLate)
              },
            }),
          abort: () => simulation.pass('abort', () => writer.abort()),
          isUnsettled: () => isUnsettled,
        }
      }),
    delete: (key) => simulation.pass('delete', () => objects.delete(key)),
  }
}

export function createWorker(options: WorkerOptions): Worker {
  const { name, code, settings, policy } = options
  const { leaseMs, retentionMs, waitMs } = { ...settings.limits }
  const createOrders = code.createIdempotentHandler ?? createIdempotentHandler
  const keys = code.createSqlKeys(gatedDatabase(options))
  const objects = gatedObjects(options)
  const idempotency = code.createIdempotency({ keys })
  const start = () => ({
    process: { name, alive: true, frozen: false, onCrash: [] } as Process,
    handle: code.createUploadHandler({ ...settings, keys, objects }),
    orders: createOrders({ keys, leaseMs: leaseMs!, retentionMs: retentionMs!, waitMs: waitMs!, respondPolicy: policy }),
  })
  let running = start()
  return {
    name,
    get process() {
      return running.process
    },
    handle: (request) => running.handle(request),
    order: (request, owner, handler) => running.orders.handle(request, { owner }, handler),
    // Its failures are those that were injected; the next sweep makes up for them.
    sweep: (limits) =>
      idempotency.sweep({ ...limits, objects }).then(
        () => {},
        () => {},
      ),
    restart() {
      running = start()
    },
  }
}
