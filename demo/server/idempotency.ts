import { randomUUID } from 'node:crypto'
import { type Answer, Refusal } from './answer.js'
import type { ClaimId, CommitResult, KeyRow, KeyStore, Media, StoredMedia } from './keys.js'
import type { ObjectStore } from './objects.js'

/** One intention of one caller: what must not be carried out twice. */
export interface Operation {
  owner: string
  key: string
  /** Hexadecimal; see `fingerprintOf` for uploads. */
  fingerprint: string
  sha256: string | null
}

export type IdempotencyEvent = {
  type:
    | 'claimed'
    | 'taken-over'
    | 'replayed'
    | 'conflict'
    | 'mismatch'
    | 'too-many'
    | 'fenced'
    | 'committed'
    | 'stored'
    | 'released'
    | 'swept'
  owner: string
  key: string
}

export interface IdempotencyOptions {
  keys: KeyStore
  /** A new UUID. */
  random?: () => string
  /** How long a claim outlives its last sign of life, in ms. Default 60 s; renewed after a third of it. */
  leaseMs?: number
  /** How long an answer is kept, in ms. Default 72 h; must be longer than the lease and than clients go on retrying. */
  retentionMs?: number
  /** How long a request waits for another one with its key, in ms. Default 0: it is answered 409 at once. */
  waitMs?: number
  /** No claim is held longer, in ms. Default 6 h. */
  maxRunMs?: number
  /** Live claims of one owner. Default 8. */
  maxInFlightPerOwner?: number
  onEvent?: (event: IdempotencyEvent) => void
  /** Told of failures nobody else hears of. */
  onError?: (error: unknown) => void
}

/** A store call failed; it may or may not have been carried out. */
export class StoreError extends Error {
  override name = 'StoreError'
}

/** Another worker took the claim over. */
export class Fenced extends Error {
  override name = 'Fenced'
}

/** The claim was held for as long as it may be. */
export class RanTooLong extends Error {
  override name = 'RanTooLong'
}

/** A claim in the hand of this worker. Every method rejects with `StoreError` when the store cannot be asked. */
export interface Claim extends ClaimId {
  /** What an earlier, forgotten request with this key has stored. */
  readonly media: StoredMedia | null
  /** Aborted with `Fenced` or `RanTooLong`: stop working. */
  readonly signal: AbortSignal
  /** Bytes moved: a sign of life, so the lease will be renewed. */
  progress(bytes: number): void
  /** From here on the work needs no more bytes: the lease is renewed in any case. */
  finalise(): void
  intend(storageKey: string): Promise<void>
  commit(answer: Answer, media: Media): Promise<CommitResult>
  /** False: fenced. `within`: the same store in a transaction of the caller's, which must roll back on false. */
  store(answer: Answer, within?: Pick<KeyStore, 'reject'>): Promise<boolean>
  /** False: fenced, or completed. */
  release(): Promise<boolean>
  /** Stops renewing. Call it in any case at the end. */
  end(): void
}

/** Why a request may not run. */
export type Declined =
  | { kind: 'replay'; answer: Answer }
  | { kind: 'in-flight'; retryAfterSeconds: number }
  | { kind: 'mismatch' }
  | { kind: 'too-many' }
  /** The row changed under every attempt to claim it, or has vanished. */
  | { kind: 'contended' }

export type Admission = { kind: 'claimed'; claim: Claim } | Declined

/** The answer to replay, where there is one. Throws the refusal where there is none. */
export function storedAnswerOf(declined: Declined): Answer {
  switch (declined.kind) {
    case 'replay':
      return declined.answer
    case 'in-flight':
      throw new Refusal('idempotency_in_progress', [['Retry-After', String(declined.retryAfterSeconds)]])
    case 'mismatch':
      throw new Refusal('idempotency_key_reuse')
    case 'too-many':
      throw new Refusal('too_many_in_flight', [['Retry-After', '1']])
    case 'contended':
      throw new Refusal('store_unavailable', [['Retry-After', '1']])
  }
}

/** What becomes of a key when its request has been answered: the answer is kept, the key is free at once, or as soon as the lease runs out. */
export type Fate = 'store' | 'release' | 'hold'

/** `thrown`: the handler has failed, and may have done half of its work. */
export type RespondPolicy = (answer: { status: number; thrown: boolean }) => Fate

/** Keeps every answer but 429, whatever it says: its handler may have done something. A failed handler's key waits for the lease to run out. */
export const storeAllButTooMany: RespondPolicy = ({ status, thrown }) => {
  if (thrown && status >= 500) return 'hold'
  return status === 429 ? 'release' : 'store'
}

/** What is known of a key. `source: 'media'`: its answer has expired, but the file is there. */
export type Outcome =
  | { state: 'unknown' }
  | { state: 'mismatch' }
  | { state: 'in_flight'; retryAfterSeconds: number; bytesReceived: number | null }
  | { state: 'completed'; answer: Answer; expiresAt: Date; source: 'key' }
  | { state: 'completed'; media: StoredMedia; source: 'media' }

export interface SweepOptions {
  objects: ObjectStore
  /** Age at which a pending object is nobody's any more, in ms. Must exceed `maxRunMs` + `leaseMs`, unless no other process can be at work. */
  graceMs: number
  /** After it a condemned object is deleted once more, for a writer that woke up in between, in ms. */
  finalGraceMs: number
}

export interface Idempotency {
  /** Decides what becomes of a request: it is run, answered from the store, or turned away. Nothing is changed unless it is to run. */
  admit(operation: Operation, signal: AbortSignal): Promise<Admission>
  /** What to tell the client of a worker that was fenced. */
  afterFence(operation: Operation): Promise<Declined>
  /**
   * Ends a claim whose request has an answer. Null: that answer is the one to send, even when the store cannot be reached any more (`onError`
   * hears of it). Else the claim was taken over, and what the other one has left is to be sent.
   */
  settle(claim: Claim, operation: Operation, answer: Answer, fate: Fate): Promise<Declined | null>
  /** Reads only. A claim whose lease has lapsed counts as unknown: the next request may have it. */
  outcome(owner: string, key: string, sha256: string | null): Promise<Outcome>
  /** The row as it is, for whoever must find out how an interrupted commit ended. */
  read(owner: string, key: string): Promise<KeyRow | null>
  /** The object is deleted. */
  forget(storageKey: string): Promise<void>
  mediaByKey(owner: string, key: string): Promise<StoredMedia | null>
  /** Removes expired answers, lapsed claims and orphaned objects. Safe at any time, in several processes at once. */
  sweep(options: SweepOptions): Promise<{ reaped: number; deleted: number }>
}

const POLL_MS = 100
const BATCH = 500
const MAX_CLAIM_ATTEMPTS = 5

/** 2 s, but no longer than the lease can still last. */
const retryAfter = (leaseLeftMs: number): number => Math.max(1, Math.min(2, Math.ceil(leaseLeftMs / 1000)))

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
    if (signal.aborted) done()
  })

const positive = (name: string, value: number): void => {
  if (!(value > 0)) throw new TypeError(`${name} is ${value}, expected a number above 0`)
}

/**
 * The engine: at most one execution of an operation at a time, its answer kept for every repeat, and a claim that neither outlives a dead
 * worker for long nor can be used by one that was taken for dead. Throws `TypeError` for impossible durations.
 */
export function createIdempotency(options: IdempotencyOptions): Idempotency {
  const { random = randomUUID, leaseMs = 60_000, retentionMs = 259_200_000, waitMs = 0, maxRunMs = 21_600_000 } = options
  const { maxInFlightPerOwner = 8, onEvent = () => {}, onError = () => {} } = options
  positive('leaseMs', leaseMs)
  positive('maxRunMs', maxRunMs)
  positive('maxInFlightPerOwner', maxInFlightPerOwner)
  if (!(waitMs >= 0)) throw new TypeError(`waitMs is ${waitMs}, expected 0 or more`)
  if (!(retentionMs > leaseMs)) throw new TypeError(`retentionMs is ${retentionMs}, expected more than leaseMs, which is ${leaseMs}`)

  /** Bytes received by claims of this process. */
  const received = new Map<string, number>()
  const nameOf = ({ owner, key }: { owner: string; key: string }): string => JSON.stringify([owner, key])

  const ask = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    try {
      return await call()
    } catch (cause) {
      onError(cause)
      throw new StoreError('the key store failed', { cause })
    }
  }
  const keys = options.keys

  function hold(id: ClaimId, media: StoredMedia | null): Claim {
    const { owner, key } = id
    const stop = new AbortController()
    let alive = false
    let finalising = false
    let isOver = false
    const renew = async (): Promise<void> => {
      if (!alive && !finalising) return
      alive = false
      try {
        if (!(await keys.renew(id, leaseMs)) && !isOver) {
          onEvent({ type: 'fenced', owner, key })
          stop.abort(new Fenced('the claim was taken over'))
        }
      } catch (error) {
        // The next beat tries again: the lease lasts three of them.
        onError(error)
        alive = true
      }
    }
    const beat = setInterval(renew, leaseMs / 3)
    const runOut = (): void => {
      clearInterval(beat)
      stop.abort(new RanTooLong('the request ran for too long'))
    }
    const limit = setTimeout(runOut, Math.min(maxRunMs, 2 ** 31 - 1))
    const end = (): void => {
      isOver = true
      clearInterval(beat)
      clearTimeout(limit)
      received.delete(nameOf(id))
    }
    received.set(nameOf(id), 0)
    return {
      ...id,
      media,
      signal: stop.signal,
      progress(bytes) {
        alive = true
        received.set(nameOf(id), (received.get(nameOf(id)) ?? 0) + bytes)
      },
      finalise() {
        finalising = true
      },
      intend: (storageKey) => ask(() => keys.intend(id, storageKey)),
      async commit(answer, file) {
        isOver = true
        const result = await ask(() => keys.commit(id, answer, retentionMs, file))
        if (result === 'committed' || result === 'fenced') onEvent({ type: result, owner, key })
        return result
      },
      async store(answer, within = keys) {
        isOver = true
        const stored = await ask(() => within.reject(id, answer, retentionMs))
        onEvent({ type: stored ? 'stored' : 'fenced', owner, key })
        return stored
      },
      async release() {
        isOver = true
        const released = await ask(() => keys.release(id))
        if (released) onEvent({ type: 'released', owner, key })
        return released
      },
      end,
    }
  }

  /** What the row says to a request that may not run; null: it may try to claim. */
  function judge({ owner, key, fingerprint }: Operation, row: KeyRow | null): Declined | null {
    if (!row) return null
    if (row.fingerprint !== fingerprint) {
      onEvent({ type: 'mismatch', owner, key })
      return { kind: 'mismatch' }
    }
    if (row.answer) {
      onEvent({ type: 'replayed', owner, key })
      return { kind: 'replay', answer: row.answer }
    }
    return row.leaseLeftMs > 0 ? { kind: 'in-flight', retryAfterSeconds: retryAfter(row.leaseLeftMs) } : null
  }

  async function tryClaim({ owner, key, fingerprint, sha256 }: Operation): Promise<Admission | null> {
    const id: ClaimId = { owner, key, fence: random() }
    try {
      const claimed = await ask(() => keys.claim({ ...id, fingerprint, sha256, leaseMs, retentionMs }))
      if (!claimed) return null
      if (claimed.otherLeases >= maxInFlightPerOwner) {
        await ask(() => keys.release(id))
        onEvent({ type: 'too-many', owner, key })
        return { kind: 'too-many' }
      }
      onEvent({ type: claimed.replaced ? 'taken-over' : 'claimed', owner, key })
      return { kind: 'claimed', claim: hold(id, claimed.media) }
    } catch (error) {
      // The claim may have been made before the store failed; without this it would be in the way until its lease runs out.
      await keys.release(id).catch(onError)
      throw error
    }
  }

  async function admitNow(operation: Operation): Promise<Admission> {
    for (let attempt = 0; attempt < MAX_CLAIM_ATTEMPTS; attempt++) {
      const claimed = await tryClaim(operation)
      if (claimed) return claimed
      const verdict = judge(operation, await ask(() => keys.read(operation.owner, operation.key)))
      if (verdict) return verdict
    }
    return { kind: 'contended' }
  }

  const afterFence = async (operation: Operation): Promise<Declined> =>
    judge(operation, await ask(() => keys.read(operation.owner, operation.key))) ?? { kind: 'contended' }

  return {
    async admit(operation, signal) {
      const until = performance.now() + waitMs
      for (;;) {
        let admission: Admission = await admitNow(operation)
        // Reading is enough while the other one works: only what it leaves behind is worth another claim.
        while (admission.kind === 'in-flight' && performance.now() < until && !signal.aborted) {
          await pause(Math.min(POLL_MS, waitMs), signal)
          const verdict = judge(operation, await ask(() => keys.read(operation.owner, operation.key)))
          if (!verdict) break
          admission = verdict
        }
        if (admission.kind !== 'in-flight' || performance.now() >= until || signal.aborted) {
          if (admission.kind === 'in-flight') onEvent({ type: 'conflict', owner: operation.owner, key: operation.key })
          return admission
        }
      }
    },
    afterFence,
    async settle(claim, operation, answer, fate) {
      try {
        if (fate === 'release') await claim.release()
        if (fate === 'store' && !(await claim.store(answer))) return await afterFence(operation)
      } catch (error) {
        // Reported already; the work is done, and its client may know.
        if (!(error instanceof StoreError)) throw error
      }
      return null
    },
    async outcome(owner, key, sha256) {
      const row = await ask(() => keys.read(owner, key))
      const differs = (known: string | null | undefined): boolean => sha256 !== null && typeof known === 'string' && known !== sha256
      if (differs(row?.sha256)) return { state: 'mismatch' }
      if (row?.answer) return { state: 'completed', answer: row.answer, expiresAt: row.expiresAt, source: 'key' }
      const media = await ask(() => keys.mediaByKey(owner, key))
      if (media) return differs(media.sha256) ? { state: 'mismatch' } : { state: 'completed', media, source: 'media' }
      if (!row || row.leaseLeftMs <= 0) return { state: 'unknown' }
      return {
        state: 'in_flight',
        retryAfterSeconds: retryAfter(row.leaseLeftMs),
        bytesReceived: received.get(nameOf({ owner, key })) ?? null,
      }
    },
    read: (owner, key) => ask(() => keys.read(owner, key)),
    forget: (storageKey) => ask(() => keys.forget(storageKey)),
    mediaByKey: (owner, key) => ask(() => keys.mediaByKey(owner, key)),
    async sweep({ objects, graceMs, finalGraceMs }) {
      let reaped = 0
      for (let batch = BATCH; batch === BATCH; reaped += batch) batch = await ask(() => keys.reap(BATCH))
      for (let batch = BATCH; batch === BATCH; ) {
        const condemned = await ask(() => keys.condemn(graceMs, BATCH))
        for (const storageKey of condemned) await objects.delete(storageKey).catch(onError)
        batch = condemned.length
      }
      let deleted = 0
      for (let batch = BATCH; batch === BATCH; ) {
        const dead = await ask(() => keys.condemned(finalGraceMs, BATCH))
        batch = 0
        for (const storageKey of dead) {
          try {
            await objects.delete(storageKey)
            await ask(() => keys.forget(storageKey))
            batch++
          } catch (error) {
            // Stays on the list: the next sweep tries again.
            onError(error)
          }
        }
        deleted += batch
      }
      return { reaped, deleted }
    },
  }
}
