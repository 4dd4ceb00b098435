import type { Idempotency } from '../../demo/server/idempotency.js'
import type { ClaimId, KeyStore } from '../../demo/server/keys.js'
import { createMemoryObjects, type ObjectStore } from '../../demo/server/objects.js'
import type { Random } from '../helpers/random.js'
import { HOUR } from '../server/fixture.js'
import type { Code } from './code.js'
import { createRealm, type Realm } from './realm.js'
import { CheapResponse } from './response.js'
import type { Timeline } from './timeline.js'
import type { Witness } from './witness.js'

export const LEASE = 60_000
export const RETENTION = 72 * HOUR
/** As the server has it. */
const SWEEP = { graceMs: 6 * HOUR + LEASE + 60_000, finalGraceMs: 60_000 }

/** One process of the server. */
export interface Process {
  realm: Realm
  handle(request: Request): Promise<Response>
  idempotency: Idempotency
}

/** The server: processes that come and go, and what they share. */
export interface Server {
  processes: Process[]
  keys: KeyStore
  objects: ObjectStore
  /** How the next calls of a store end: done, not done and failed, or done and failed. */
  troubles: ('fail before' | 'fail after')[]
  /** Sign-ins that are over. */
  revoked: Set<string>
  start(): void
  sweep(process: Process): void
}

export interface ServerOptions {
  timeline: Timeline
  code: Code
  seed: number
  random: Random
  witness: Witness
  /** Default: in memory. */
  keys?: KeyStore | undefined
}

export function createServer({ timeline, code, seed, random, witness, ...given }: ServerOptions): Server {
  const shared = createRealm({ timeline, name: 'database', seed })
  const keys = given.keys ?? code.loadProgram(shared.globals).createMemoryKeys({ clock: () => timeline.now })
  const objects = createMemoryObjects()
  const maxInFlightPerOwner = random.pick([2, 8, 8])
  let started = 0

  /** A store is elsewhere: a call takes a while each way, may fail, and comes back to nobody. */
  const remote = <T>(realm: Realm, work: () => Promise<T>): Promise<T> =>
    new Promise((resolve, reject) => {
      const back = (settle: () => void): void => realm.later(random.integer(0, 2), settle)
      const fail = (): void => back(() => reject(new Error('The store does not answer.')))
      realm.later(random.integer(0, 2), () => {
        const trouble = server.troubles.shift()
        if (trouble === 'fail before') return fail()
        work().then(
          (result) => (trouble ? fail() : back(() => resolve(result))),
          (error) => back(() => reject(error)),
        )
      })
    })

  const remoteStore = <Store extends object>(realm: Realm, store: Store): Store =>
    new Proxy(store, {
      get(target, name) {
        const method = target[name as keyof Store] as (...args: unknown[]) => Promise<unknown>
        return (...args: unknown[]) => remote(realm, () => witness.call(name as string, args, () => method(...args)))
      },
    })

  const server: Server = {
    processes: [],
    keys,
    objects,
    troubles: [],
    revoked: new Set(),
    start() {
      started += 1
      const realm = createRealm({ timeline, name: `process ${started}`, seed: seed + started })
      realm.onKill.push(() => {
        server.processes = server.processes.filter((process) => process.realm !== realm)
      })
      const { createUploadHandler, createIdempotency } = code.loadProgram(realm.globals)
      const uuid = (realm.globals.crypto as Crypto).randomUUID
      const own = remoteStore(realm, keys)
      const store: ObjectStore = {
        ...remoteStore(realm, objects),
        delete: (key) => remote(realm, () => objects.delete(key)),
        async create(key) {
          const writer = await remote(realm, () => objects.create(key))
          return {
            write: (chunk) => remote(realm, () => writer.write(chunk)),
            finish: () => remote(realm, () => writer.finish()),
            abort: () => remote(realm, () => writer.abort()),
          }
        },
      }
      server.processes.push({
        realm,
        handle: createUploadHandler({
          keys: own,
          objects: store,
          random: uuid,
          limits: { leaseMs: LEASE, retentionMs: RETENTION, maxInFlightPerOwner },
          authenticate(request) {
            const token = request.headers.get('Authorization')?.slice('Bearer '.length)
            return token === undefined || server.revoked.has(token) ? null : { owner: token.split('.', 1)[0]! }
          },
          onStored: ({ fileName }) =>
            fileName?.startsWith('refused') ? (new CheapResponse('No.', { status: 422 }) as unknown as Response) : undefined,
        }),
        idempotency: createIdempotency({ keys: own, random: uuid, leaseMs: LEASE, retentionMs: RETENTION }),
      })
    },
    sweep(process) {
      process.idempotency.sweep({ objects: remoteStore(process.realm, objects), ...SWEEP }).catch(() => {
        // The next one does it.
      })
    },
  }
  return server
}

/** The claim that a call of the key store is about. */
export const claimOf = (args: readonly unknown[]): ClaimId => args[0] as ClaimId
