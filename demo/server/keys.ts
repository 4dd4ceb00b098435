import type { Answer } from './answer.js'

/** A stored file. The row is the only pointer to its object; there is at most one for an owner and key. */
export interface Media {
  id: string
  owner: string
  key: string
  storageKey: string
  /** 64 lower-case hexadecimal digits. */
  sha256: string
  bytes: number
  contentType: string
  fileName: string | null
  metadata: Record<string, string>
}

export interface StoredMedia extends Media {
  createdAt: Date
  /** Given later, if at all. */
  caption: string | null
}

/** Names one claim: a take-over of the same key has another fence, and every write of the former holder then changes nothing. */
export interface ClaimId {
  owner: string
  key: string
  /** A UUID, new for each claim. */
  fence: string
}

export interface ClaimRequest extends ClaimId {
  /** Hexadecimal. Another fingerprint under the same key is another request. */
  fingerprint: string
  /** Of the declared body; null where the operation has none. */
  sha256: string | null
  leaseMs: number
  retentionMs: number
}

export interface Claimed {
  /** Whether a lapsed claim or an expired answer was there before. */
  replaced: boolean
  /** Live claims of the owner besides this one. */
  otherLeases: number
  /** The file an earlier request with this key has stored, if its answer has expired since. */
  media: StoredMedia | null
}

export interface KeyRow {
  state: 'in_flight' | 'completed'
  fence: string
  fingerprint: string
  sha256: string | null
  /** What is left of the lease; negative when it has lapsed; 0 for a completed row. */
  leaseLeftMs: number
  expiresAt: Date
  /** The stored answer of a completed row. */
  answer: Answer | null
}

/**
 * What happened to a commit. `fenced`: the claim is somebody else's by now. `condemned`: the sweeper has taken the object.
 * `duplicate`: a media row for this owner and key exists. In all three nothing was changed.
 */
export type CommitResult = 'committed' | 'fenced' | 'condemned' | 'duplicate'

/**
 * Where claims, answers and media rows live. Time is the store's own clock. Each method is atomic. A method that rejects may or may not have
 * been carried out; `release` and `read` tell afterwards.
 */
export interface KeyStore {
  /** One atomic decision. Null: a row with a live lease, an unexpired answer or another fingerprint is in the way; `read` shows it. */
  claim(request: ClaimRequest): Promise<Claimed | null>
  /** The row; null when there is none or its answer has expired. */
  read(owner: string, key: string): Promise<KeyRow | null>
  /** Extends the lease. False: the claim is lost. */
  renew(claim: ClaimId, leaseMs: number): Promise<boolean>
  /** Write-ahead: the object about to be written, so that the sweeper finds it whatever happens. */
  intend(claim: ClaimId, storageKey: string): Promise<void>
  /** Answer stored, object no longer pending, media row inserted: all or nothing. */
  commit(claim: ClaimId, answer: Answer, retentionMs: number, media: Media): Promise<CommitResult>
  /** Stores an answer without a media row. False: the claim is lost. */
  reject(claim: ClaimId, answer: Answer, retentionMs: number): Promise<boolean>
  /** Removes the claim. False: it is lost or completed, and nothing was changed. */
  release(claim: ClaimId): Promise<boolean>
  /** Removes expired rows, never one with a live lease. Resolves to how many, `limit` at most. */
  reap(limit: number): Promise<number>
  /** Marks pending objects older than `olderThanMs` as dead, so that no commit can publish them any more. Resolves to their storage keys. */
  condemn(olderThanMs: number, limit: number): Promise<string[]>
  /** Storage keys that were condemned more than `agoMs` ago. */
  condemned(agoMs: number, limit: number): Promise<string[]>
  /** The object is deleted: takes it off the list of pending ones. */
  forget(storageKey: string): Promise<void>
  /** The file stored under a key, whether or not the answer is still kept. */
  mediaByKey(owner: string, key: string): Promise<StoredMedia | null>
  /** One file of the owner by id. */
  mediaById(owner: string, id: string): Promise<StoredMedia | null>
  /** Files of the owner, newest first. */
  listMedia(owner: string, limit: number): Promise<StoredMedia[]>
}

interface MemoryKeyRow extends ClaimId {
  state: 'in_flight' | 'completed'
  fingerprint: string
  sha256: string | null
  leasedUntil: number
  expiresAt: number
  answer: Answer | null
}

interface PendingObject {
  createdAt: number
  deadAt: number | null
}

export interface MemoryKeys extends KeyStore {
  /** Numbers of rows, for tests. */
  count(): { keys: number; media: number; pending: number }
}

/**
 * A KeyStore that lives and dies with the process: for tests and for trying things out. Nothing awaits between reading and writing, so each
 * method is one critical section. `clock` gives milliseconds since the epoch; default `Date.now`.
 */
export function createMemoryKeys({ clock = Date.now }: { clock?: () => number } = {}): MemoryKeys {
  const rows = new Map<string, MemoryKeyRow>()
  /** Those of them that are in flight: few, however many there are in all. */
  const claimed = new Set<MemoryKeyRow>()
  const media = new Map<string, StoredMedia>()
  const pending = new Map<string, PendingObject>()
  const id = (owner: string, key: string): string => JSON.stringify([owner, key])

  /** The row a claim still holds. */
  const held = ({ owner, key, fence }: ClaimId): MemoryKeyRow | undefined => {
    const row = rows.get(id(owner, key))
    return row?.state === 'in_flight' && row.fence === fence ? row : undefined
  }
  const complete = (row: MemoryKeyRow, answer: Answer, retentionMs: number): void => {
    claimed.delete(row)
    row.state = 'completed'
    row.answer = structuredClone(answer)
    row.expiresAt = clock() + retentionMs
  }
  const newestFirst = (a: StoredMedia, b: StoredMedia): number => b.createdAt.getTime() - a.createdAt.getTime()
  const isPast = (row: MemoryKeyRow, now: number): boolean => row.expiresAt <= now && (row.state === 'completed' || row.leasedUntil <= now)

  return {
    async claim({ leaseMs, retentionMs, ...request }) {
      const now = clock()
      const rowId = id(request.owner, request.key)
      const row = rows.get(rowId)
      const lapsed =
        row?.state === 'in_flight' && row.leasedUntil <= now && (row.fingerprint === request.fingerprint || row.expiresAt <= now)
      const expired = row?.state === 'completed' && row.expiresAt <= now
      if (row && !lapsed && !expired) return null
      const claim: MemoryKeyRow = { ...request, state: 'in_flight', leasedUntil: now + leaseMs, expiresAt: now + retentionMs, answer: null }
      const others = [...claimed].filter((other) => other !== row && other.owner === request.owner && other.leasedUntil > now)
      if (row) claimed.delete(row)
      claimed.add(claim)
      rows.set(rowId, claim)
      return { replaced: row !== undefined, otherLeases: others.length, media: structuredClone(media.get(rowId) ?? null) }
    },
    async read(owner, key) {
      const row = rows.get(id(owner, key))
      const now = clock()
      if (!row || (row.state === 'completed' && row.expiresAt <= now)) return null
      const { state, fence, fingerprint, sha256, answer } = row
      const leaseLeftMs = state === 'in_flight' ? row.leasedUntil - now : 0
      return { state, fence, fingerprint, sha256, leaseLeftMs, expiresAt: new Date(row.expiresAt), answer: structuredClone(answer) }
    },
    async renew(claim, leaseMs) {
      const row = held(claim)
      if (row) row.leasedUntil = clock() + leaseMs
      return row !== undefined
    },
    async intend(_claim, storageKey) {
      pending.set(storageKey, { createdAt: clock(), deadAt: null })
    },
    async commit(claim, answer, retentionMs, file) {
      const row = held(claim)
      if (!row) return 'fenced'
      if (pending.get(file.storageKey)?.deadAt !== null) return 'condemned'
      const rowId = id(claim.owner, claim.key)
      if (media.has(rowId)) return 'duplicate'
      complete(row, answer, retentionMs)
      pending.delete(file.storageKey)
      media.set(rowId, { ...structuredClone(file), createdAt: new Date(clock()), caption: null })
      return 'committed'
    },
    async reject(claim, answer, retentionMs) {
      const row = held(claim)
      if (row) complete(row, answer, retentionMs)
      return row !== undefined
    },
    async release(claim) {
      const row = held(claim)
      return row !== undefined && claimed.delete(row) && rows.delete(id(claim.owner, claim.key))
    },
    async reap(limit) {
      const now = clock()
      const due = [...rows].filter(([, row]) => isPast(row, now)).slice(0, limit)
      for (const [rowId, row] of due) {
        claimed.delete(row)
        rows.delete(rowId)
      }
      return due.length
    },
    async condemn(olderThanMs, limit) {
      const now = clock()
      const due = [...pending].filter(([, object]) => object.deadAt === null && object.createdAt < now - olderThanMs).slice(0, limit)
      for (const [, object] of due) object.deadAt = now
      return due.map(([storageKey]) => storageKey)
    },
    async condemned(agoMs, limit) {
      const now = clock()
      const due = [...pending].filter(([, object]) => object.deadAt !== null && object.deadAt < now - agoMs)
      return due.slice(0, limit).map(([storageKey]) => storageKey)
    },
    async forget(storageKey) {
      pending.delete(storageKey)
    },
    async mediaByKey(owner, key) {
      return structuredClone(media.get(id(owner, key)) ?? null)
    },
    async mediaById(owner, mediaId) {
      return structuredClone([...media.values()].find((row) => row.owner === owner && row.id === mediaId) ?? null)
    },
    async listMedia(owner, limit) {
      const own = [...media.values()].filter((row) => row.owner === owner).reverse()
      return structuredClone(own.sort(newestFirst).slice(0, limit))
    },
    count: () => ({ keys: rows.size, media: media.size, pending: pending.size }),
  }
}
