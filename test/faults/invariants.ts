import { createHash } from 'node:crypto'
import type { Queryable } from '../../demo/server/keys-sql.js'
import type { ObjectStore } from '../../demo/server/objects.js'
import type { Statement } from './worker.js'

/** A row of idempotency_keys. */
interface KeyState {
  owner: string
  key: string
  fence: string
  fingerprint: string
  state: 'in_flight' | 'completed'
  /** Whether its lease lasts. */
  live: boolean
  expired: boolean
  leased: number | null
  status: number | null
  headers: [string, string][] | null
  body: string | null
}

interface MediaState {
  id: string
  owner: string
  key: string
  storageKey: string
  sha256: string
  bytes: number
}

interface PendingState {
  storageKey: string
  dead: boolean
}

export interface Snapshot {
  keys: Map<string, KeyState>
  media: MediaState[]
  pending: Map<string, PendingState>
  objects: Set<string>
}

export class Violation extends Error {
  override name = 'Violation'
}

export const nameOf = ({ owner, key }: { owner: string; key: string }): string => `${owner}/${key}`

export const must = (holds: boolean, what: string): void => {
  if (!holds) throw new Violation(what)
}

const SNAPSHOT = `SELECT
  (SELECT coalesce(json_agg(json_build_object('owner', owner, 'key', key, 'fence', fence, 'fingerprint', encode(fingerprint, 'hex'), 'state', state,
    'live', coalesce(leased_until > now(), false), 'expired', expires_at <= now(), 'leased', extract(epoch FROM leased_until),
    'status', response_status, 'headers', response_headers, 'body', convert_from(response_body, 'UTF8'))), '[]') FROM idempotency_keys) AS keys,
  (SELECT coalesce(json_agg(json_build_object('id', id, 'owner', owner, 'key', idempotency_key, 'storageKey', storage_key,
    'sha256', encode(sha256, 'hex'), 'bytes', bytes)), '[]') FROM media) AS media,
  (SELECT coalesce(json_agg(json_build_object('storageKey', storage_key, 'dead', dead_at IS NOT NULL)), '[]') FROM pending_objects) AS pending`

/** Everything that is stored, at one moment at which nothing is under way. */
export async function takeSnapshot(database: Queryable, objects: ObjectStore): Promise<Snapshot> {
  const [row] = await database.query(SNAPSHOT)
  const { keys, media, pending } = row as { keys: KeyState[]; media: MediaState[]; pending: PendingState[] }
  return {
    keys: new Map(keys.map((state) => [nameOf(state), state])),
    media,
    pending: new Map(pending.map((state) => [state.storageKey, state])),
    objects: new Set(await objects.list('')),
  }
}

export interface CheckerOptions {
  objects: ObjectStore
  /** Whether the process that wrote this object may still wake up and write it again, after the sweeper has taken it off its list. */
  outlived: (storageKey: string) => boolean
}

/** Holds every snapshot, and every change from one to the next, against the invariants of the server. */
export function createChecker({ objects, outlived }: CheckerOptions) {
  const verified = new Map<string, MediaState>()
  let last: Snapshot = { keys: new Map(), media: [], pending: new Map(), objects: new Set() }

  async function checkMedia(now: Snapshot): Promise<void> {
    const seen = new Set<string>()
    for (const media of now.media) {
      const name = nameOf(media)
      must(!seen.has(name), `I1: two media rows for ${name}`)
      seen.add(name)
      must(now.objects.has(media.storageKey), `I2: the media row of ${name} has no object`)
      if (verified.has(media.storageKey)) continue
      verified.set(media.storageKey, media)
      const bytes = Buffer.from(await new Response((await objects.open(media.storageKey))!).arrayBuffer())
      const digest = createHash('sha256').update(bytes).digest('hex')
      must(digest === media.sha256 && bytes.byteLength === media.bytes, `I2: the object of ${name} is not what its media row says`)
    }
    for (const media of last.media)
      must(
        now.media.some(({ id }) => id === media.id),
        `G1: the media row of ${nameOf(media)} has vanished`,
      )
  }

  function checkObjects(now: Snapshot): void {
    const known = new Set([...now.media.map(({ storageKey }) => storageKey), ...now.pending.keys()])
    for (const object of now.objects) must(known.has(object) || outlived(object), `I9: object ${object} is in no row`)
  }

  /** Of uploads: the keys of other requests have their scope before a space. */
  function checkCompleted(now: Snapshot): void {
    for (const row of now.keys.values()) {
      if (row.state !== 'completed' || row.key.includes(' ')) continue
      const status = row.status!
      if (status < 300) {
        const media = now.media.find((one) => nameOf(one) === nameOf(row))
        must(media !== undefined, `I5: ${nameOf(row)} is answered ${status}, and there is no media row`)
        must(row.body!.includes(media!.id), `I3: ${nameOf(row)} is answered with another id than its media row's`)
      }
      const isFault = status >= 500 || status === 408 || status === 429 || row.body!.includes('"digest_mismatch"')
      must(!isFault, `I10: ${nameOf(row)} keeps an answer that is no outcome: ${status} ${row.body}`)
    }
  }

  /** Why one key's row may have changed as it did. Several statements at a time on one row prove nothing. */
  function checkRow(name: string, before: KeyState | undefined, after: KeyState | undefined, statements: Statement[]): void {
    const own = statements.filter(
      ({ kind, params: [owner, key], rows }) => kind !== 'REAP' && kind !== 'READ' && rows > 0 && `${owner}/${key}` === name,
    )
    const reaps = statements.filter(({ kind, rows }) => kind === 'REAP' && rows > 0)
    const isSame = JSON.stringify(before) === JSON.stringify(after)
    if (isSame || own.filter(({ kind }) => kind !== 'INTEND').length + reaps.length > 1) return
    const by = (kind: string): Statement | undefined => own.find((statement) => statement.kind === kind)
    const describe = `${name} went from ${before?.state ?? 'nothing'} to ${after?.state ?? 'nothing'}`
    must(own.length + reaps.length > 0, `I11: ${describe}, and no statement was meant for it`)
    if (!after) {
      if (reaps.length > 0)
        must(!before!.live && before!.expired, `I8: the reaper removed a row that was ${before!.live ? 'live' : 'not expired'}`)
      else {
        const release = by('RELEASE')
        must(
          release !== undefined && release.params[2] === before!.fence && before!.state === 'in_flight',
          `I7: ${describe} by a release that did not hold it`,
        )
      }
      return
    }
    if (after.state === 'completed') {
      must(by('COMPLETE')?.params[2] === before?.fence && before?.state === 'in_flight', `I6: ${describe} by a worker that had lost it`)
      return
    }
    const claim = by('CLAIM')
    if (!claim) {
      must(by('RENEW')?.params[2] === before?.fence && after.fence === before?.fence, `I6: ${describe} by a worker that had lost it`)
      return
    }
    must(
      !before || (before.state === 'in_flight' ? !before.live : before.expired),
      `I13: ${describe} by a claim, though it was ${before?.state}`,
    )
    must(
      !before || before.state === 'completed' || before.expired || before.fingerprint === after.fingerprint,
      `I12: ${describe} by another request with its key`,
    )
  }

  /** A claim alone in its step gets a row that is free. */
  function checkClaim(before: Snapshot, statements: Statement[]): void {
    const [claim, ...others] = statements.filter(({ kind }) => kind === 'CLAIM')
    if (!claim || others.length > 0 || statements.length > 1 || claim.rows > 0) return
    const row = before.keys.get(`${claim.params[0]}/${claim.params[1]}`)
    must(row !== undefined, 'I13: a claim on no row was refused')
    const isFree = row!.state === 'completed' ? row!.expired : !row!.live && (row!.fingerprint === claim.params[3] || row!.expired)
    must(!isFree, `I13: a claim on a free row of ${nameOf(row!)} was refused`)
  }

  return {
    get last() {
      return last
    },
    /** What must hold at any moment. `statements`: all that had their effect since the last snapshot; null after a change by hand. */
    async observe(now: Snapshot, statements: Statement[] | null): Promise<void> {
      const before = last
      last = now
      if (statements) {
        for (const name of new Set([...before.keys.keys(), ...now.keys.keys()]))
          checkRow(name, before.keys.get(name), now.keys.get(name), statements)
        checkClaim(before, statements)
      }
      await checkMedia(now)
      checkCompleted(now)
      checkObjects(now)
    },
  }
}
