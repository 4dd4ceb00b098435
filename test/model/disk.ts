import 'fake-indexeddb/auto'
import type { PendingUpload } from '../../src/record.js'
import type { Realm } from './realm.js'
import type { Timeline } from './timeline.js'

/** What a device keeps: one IndexedDB for all its pages. */
export interface Disk {
  /** What has no room: nothing, the bytes of further files, or anything at all. */
  full: 'no' | 'bytes' | 'all'
  /** The factory as one page sees it. */
  indexedDbOf(realm: Realm): IDBFactory
  /** Everything that is stored; `null` while some of it is being written. */
  read(): Stored | null
  /** The browser removes all of it. */
  lose(): void
}

export interface Stored {
  uploads: Map<string, PendingUpload>
  bytes: Map<string, Blob | ArrayBuffer>
}

// What fake-indexeddb has inside, which says what is stored without a request that would change the order of things.

interface Transaction extends IDBTransaction {
  _scope: Set<string>
  _state: 'active' | 'inactive' | 'committing' | 'finished'
  _started: boolean
  _requests: unknown[]
  _start(): void
  _abort(name: string | null): void
  _markFinished(): void
}
interface Connection extends IDBDatabase {
  _rawDatabase: Database
  _closePending: boolean
  _closed: boolean
}
interface Database {
  processTransactions(): void
  transactions: Transaction[]
  connections: Connection[]
  rawObjectStores: Map<string, { records: { values(): Iterable<{ key: string; value: unknown }> } }>
}
interface Factory extends IDBFactory {
  _databases: Map<string, Database>
}

const realms = new WeakMap<object, Realm>()
const disks = new WeakMap<object, Disk>()
/** Transactions that the browser will not carry out for want of room. */
const doomed = new WeakSet<object>()

const prototype = IDBTransaction.prototype as Transaction
const { _start: start } = prototype
// A frozen page hears nothing, and holds what it has begun. (Not a database that is being made: it could not be opened by anybody any more.)
prototype._start = function (this: Transaction) {
  const realm = realms.get(this.db)
  if (realm?.frozen && realm.alive && this.mode !== 'versionchange') {
    this._started = true
    realm.parked.push(() => start.call(this))
  } else if (doomed.has(this) && this._requests.length === 0 && this._state !== 'finished') this._abort('QuotaExceededError')
  else start.call(this)
}

const { _markFinished: markFinished } = prototype
// What is done is at once no longer there, and connections that waited for it close: nobody has to look again and again.
prototype._markFinished = function (this: Transaction) {
  if (this.mode === 'versionchange') markFinished.call(this)
  this._state = 'finished'
  const database = (this.db as Connection)._rawDatabase
  if (this.mode !== 'versionchange') database.transactions = database.transactions.filter((other) => other !== this)
  for (const connection of database.connections) if (connection._closePending) closeIfUnused(connection)
}

/** Starts what waits, one in a task; where nothing waits, which is half of the times it is asked to, there is no task. */
function startOneByOne(database: Database): void {
  let isAsked = false
  const isFree = (transaction: Transaction, before: readonly Transaction[]): boolean =>
    !before.some(
      ({ mode, _scope, _started }) =>
        !(_started && mode === 'readonly' && transaction.mode === 'readonly') && [..._scope].some((name) => transaction._scope.has(name)),
    )
  const ask = (): void => {
    if (isAsked || database.transactions.every(({ _started, _state }) => _started || _state === 'finished')) return
    isAsked = true
    setImmediate(() => {
      isAsked = false
      const open = database.transactions.filter(({ _state }) => _state !== 'finished')
      const next = open.find((transaction, place) => {
        if (transaction._started) return false
        return isFree(transaction, [...open.slice(0, place), ...open.slice(place + 1).filter(({ _started }) => _started)])
      })
      if (!next) return
      next.addEventListener('complete', ask)
      next.addEventListener('abort', ask)
      next._start()
      ask()
    })
  }
  database.processTransactions = ask
}

class Databases extends Map<string, Database> {
  override set(name: string, database: Database): this {
    startOneByOne(database)
    return super.set(name, database)
  }
}

function closeIfUnused(connection: Connection): void {
  const { transactions, connections } = connection._rawDatabase
  if (transactions.some(({ db, _state }) => db === connection && _state !== 'finished')) return
  connection._closed = true
  connection._rawDatabase.connections = connections.filter((other) => other !== connection)
  if (lost.delete(connection)) connection.dispatchEvent(Object.assign(new IDBVersionChangeEvent('close'), { eventPath: [] }))
}

/** Connections that the browser closes, and says so. */
const lost = new WeakSet<Connection>()

IDBDatabase.prototype.close = function (this: Connection) {
  this._closePending = true
  closeIfUnused(this)
}

function forceClose(connection: Connection): void {
  if (connection._closed) return
  lost.add(connection)
  connection.close()
}

const { put } = IDBObjectStore.prototype
IDBObjectStore.prototype.put = function (...given: Parameters<typeof put>) {
  const full = disks.get(this.transaction.db)?.full ?? 'no'
  if (full === 'all' || (full === 'bytes' && this.name === 'bytes')) doomed.add(this.transaction)
  return put.apply(this, given)
}

export function createDisk(timeline: Timeline): Disk {
  const factory = Object.assign(new IDBFactory(), { _databases: new Databases() }) as Factory
  const disk: Disk = {
    full: 'no',
    indexedDbOf(realm) {
      const connect = (connection: Connection): void => {
        // What was lost while it was being opened is nobody's any more.
        const isLost = factory._databases.get(connection.name) !== connection._rawDatabase
        if (isLost) timeline.later(realm, 0, () => forceClose(connection))
        if (!realm.alive) connection.close()
        if (realms.has(connection)) return
        realms.set(connection, realm)
        disks.set(connection, disk)
        realm.onKill.push(() => {
          const open = connection._rawDatabase.transactions.filter(({ db }) => db === connection)
          for (const transaction of open) {
            const { _state, mode } = transaction
            // What was to be committed is.
            if (_state === 'committing') timeline.later(null, 0, () => start.call(transaction))
            else if (_state !== 'finished' && mode !== 'versionchange') transaction._abort(null)
          }
          connection.close()
        })
      }
      return {
        open(name: string, version?: number) {
          // A page that is gone is told nothing any more.
          if (!realm.alive) return new IDBOpenDBRequest()
          const request = factory.open(name, version)
          request.addEventListener('success', () => connect(request.result as Connection))
          return request
        },
      } as unknown as IDBFactory
    },
    read() {
      const stored: Stored = { uploads: new Map(), bytes: new Map() }
      for (const database of factory._databases.values()) {
        if (database.transactions.some(({ _state, mode }) => _state !== 'finished' && mode !== 'readonly')) return null
        for (const name of ['uploads', 'bytes'] as const)
          for (const { key, value } of database.rawObjectStores.get(name)?.records.values() ?? []) stored[name].set(key, value as never)
      }
      return stored
    },
    lose() {
      for (const [name, { connections, transactions }] of [...factory._databases]) {
        factory._databases.delete(name)
        for (const transaction of transactions) {
          if (transaction._state !== 'finished' && transaction.mode !== 'versionchange') transaction._abort('AbortError')
        }
        for (const connection of connections)
          if (realms.has(connection)) timeline.later(realms.get(connection) ?? null, 0, () => forceClose(connection))
      }
    },
  }
  return disk
}
