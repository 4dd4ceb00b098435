import type { UploadErrorFacts } from './errors.js'

/** Every status there is. */
export const statuses = ['preparing', 'pending', 'uploading', 'paused', 'blocked', 'succeeded', 'failed'] as const
/** Where an upload stands; the README's table says what leads from one to the next. */
export type UploadStatus = (typeof statuses)[number]

/** One upload as it is stored. The bytes lie beside it, in a store of their own, so that reading or changing a record touches none. */
export interface PendingUpload {
  /** Version of this shape. */
  v: 1
  /** Id of the upload in the queue. */
  id: string
  /** Grows with each change, so that of two copies the newer is known. */
  revision: number
  /** The exact value of the `Idempotency-Key` header. Set once. */
  idempotencyKey: string
  /** SHA-256 of the bytes, 64 lower-case hex digits; `null` only until they were hashed. Set once. */
  sha256: string | null
  /** The account that enqueued it; nobody else's session sends it. */
  owner: string
  /** The file's name, without control characters and lone surrogates. */
  name: string
  /** Media type, `''` where the file has none. */
  type: string
  /** Bytes. */
  size: number
  /** As the file said, ms since 1970; 0 where it said nothing. */
  lastModified: number
  /** What the app gave `enqueue`, `{}` where it gave nothing. */
  metadata: Record<string, string>
  /** Higher runs first. */
  priority: number
  /** Among equal priorities lower runs first. Grows with time, and within one millisecond. */
  order: number
  /** Where it stands. */
  status: UploadStatus
  /** Attempts that said something about this upload; `retry.limit` bounds them. */
  attempts: number
  /** Requests begun, counted or not. */
  requests: number
  /** Not to be tried before, ms since 1970. */
  notBefore: number | null
  /** When that was said, ms since 1970: should the clock be set back, what is left of the wait is known. */
  waitingSince?: number
  /** Code of what it waits for or ended with. */
  reason: string | null
  /** The last error, `null` once it has succeeded or is tried anew. */
  error: UploadErrorFacts | null
  /** What the server answered, once succeeded. */
  result: unknown
  /** Whether that answer was a replay of an earlier one. */
  replayed: boolean
  /** When it was enqueued, ms since 1970. */
  createdAt: number
  /** After it no attempt is made by itself, ms since 1970. */
  expiresAt: number
  /** When it succeeded or failed, ms since 1970. */
  endedAt: number | null
}

type Check = (value: unknown) => boolean
const isText: Check = (value) => typeof value === 'string'
const isNumber: Check = Number.isFinite
const isFlag: Check = (value) => typeof value === 'boolean'
const isObject = (value: unknown): value is Record<string, unknown> => Object.prototype.toString.call(value) === '[object Object]'
const orNull =
  (check: Check): Check =>
  (value) =>
    value === null || check(value)

/** What a stored row must be; members that are not named here, written by a newer version of the same shape, are kept. */
const checks: Record<Exclude<keyof PendingUpload, 'v' | 'waitingSince' | 'result'>, Check> = {
  id: isText,
  revision: isNumber,
  idempotencyKey: isText,
  sha256: orNull((value) => isText(value) && /^[0-9a-f]{64}$/.test(value as string)),
  owner: isText,
  name: isText,
  type: isText,
  size: isNumber,
  lastModified: isNumber,
  metadata: (value) => isObject(value) && Object.values(value).every(isText),
  priority: isNumber,
  order: isNumber,
  status: (value) => statuses.includes(value as UploadStatus),
  attempts: isNumber,
  requests: isNumber,
  notBefore: orNull(isNumber),
  reason: orNull(isText),
  error: orNull((value) => isObject(value) && isText(value.code) && isText(value.message) && isFlag(value.retryable)),
  replayed: isFlag,
  createdAt: isNumber,
  expiresAt: isNumber,
  endedAt: orNull(isNumber),
}

const checkList = Object.entries(checks)

/** Step n turns a row of version n+1 into one of version n+2. Shipped steps never change. */
const ladder: ReadonlyArray<(row: Record<string, unknown>) => Record<string, unknown>> = []
const currentVersion = ladder.length + 1

/** A row out of the database: a record, or why it is none. A newer tab's row is nobody's fault and left alone. */
export type ParsedRow = { record: PendingUpload } | { damage: 'newer' | 'damaged' }

export function parseRow(row: unknown): ParsedRow {
  const version = (row as { v?: unknown } | null)?.v
  if (typeof version === 'number' && version > currentVersion) return { damage: 'newer' }
  let value = row as Record<string, unknown>
  if (typeof version === 'number') for (const step of ladder.slice(version - 1)) value = step(value)
  const isRecord = isObject(value) && value.v === currentVersion && checkList.every(([name, check]) => check(value[name]))
  return isRecord ? { record: value as unknown as PendingUpload } : { damage: 'damaged' }
}

export type NewRecord = Pick<
  PendingUpload,
  | 'id'
  | 'idempotencyKey'
  | 'sha256'
  | 'owner'
  | 'name'
  | 'type'
  | 'size'
  | 'lastModified'
  | 'metadata'
  | 'priority'
  | 'order'
  | 'createdAt'
  | 'expiresAt'
> & { paused: boolean }

export function newRecord({ paused, ...facts }: NewRecord): PendingUpload {
  return {
    v: 1,
    revision: 1,
    ...facts,
    status: paused ? 'paused' : readyStatus(facts.sha256),
    attempts: 0,
    requests: 0,
    notBefore: null,
    reason: null,
    error: null,
    result: null,
    replayed: false,
    endedAt: null,
  }
}

const readyStatus = (sha256: string | null): 'preparing' | 'pending' => (sha256 === null ? 'preparing' : 'pending')

/** Whether it gets further without anybody doing anything. */
export const runsByItself = ({ status }: { status: UploadStatus }): boolean =>
  status === 'preparing' || status === 'pending' || status === 'uploading'

/** Everything that can happen to a record. */
export type Action =
  /** Its bytes were hashed. */
  | { type: 'hashed'; sha256: string }
  /** A request goes out. */
  | { type: 'started' }
  /** The attempt is to be made again, at `notBefore`. */
  | { type: 'deferred'; notBefore: number | null; counted: boolean; error: UploadErrorFacts; at: number }
  /** The clock was set back: the wait begins anew. */
  | { type: 'set-back'; at: number }
  /** The attempt ended without a verdict: its page went, or it was stopped. */
  | { type: 'interrupted' }
  | { type: 'succeeded'; result: unknown; replayed: boolean; at: number }
  | { type: 'failed'; error: UploadErrorFacts; counted: boolean; at: number }
  | { type: 'blocked'; error: UploadErrorFacts }
  | { type: 'paused' }
  /** Undoes `paused` and `blocked`. */
  | { type: 'resumed' }
  /** The app wants a failed upload tried again: a whole new budget. */
  | { type: 'retried'; expiresAt: number }
  /** A new start gives what failed on something retryable one more try: `attempts` is what then counts as used. */
  | { type: 'revived'; attempts: number }
  /** The app does not want to wait. */
  | { type: 'hurried' }

/**
 * The state machine. Pure; returns the very same record where an action means nothing in its state, so a late or foreign action is harmless:
 * an answer that proves success wins over a pause, a pause wins over a retry, and nothing changes what has succeeded.
 */
export function transition(record: PendingUpload, action: Action): PendingUpload {
  const next = follow(record, action)
  return next === record ? record : { ...next, revision: record.revision + 1 }
}

function follow(record: PendingUpload, action: Action): PendingUpload {
  const { status } = record
  if (status === 'succeeded') return record
  switch (action.type) {
    case 'hashed':
      if (record.sha256 !== null) return record
      return { ...record, sha256: action.sha256, status: status === 'preparing' ? 'pending' : status }
    case 'started':
      return status === 'pending' ? { ...record, status: 'uploading', requests: record.requests + 1 } : record
    case 'deferred':
      if (status === 'failed') return record
      return {
        ...record,
        status: status === 'uploading' ? 'pending' : status,
        attempts: record.attempts + (action.counted ? 1 : 0),
        notBefore: action.notBefore,
        waitingSince: action.at,
        reason: action.error.code,
        error: action.error,
      }
    case 'set-back': {
      const { notBefore, waitingSince } = record
      if (notBefore === null || !((waitingSince ?? 0) > action.at)) return record
      return { ...record, notBefore: action.at + notBefore - (waitingSince as number), waitingSince: action.at }
    }
    case 'interrupted':
      return status === 'uploading' ? { ...record, status: 'pending', reason: null, error: null } : record
    case 'succeeded':
      return {
        ...record,
        status: 'succeeded',
        attempts: record.attempts + 1,
        notBefore: null,
        reason: null,
        error: null,
        result: action.result,
        replayed: action.replayed,
        endedAt: action.at,
      }
    case 'failed':
      if (status === 'failed') return record
      return {
        ...record,
        status: 'failed',
        attempts: record.attempts + (action.counted ? 1 : 0),
        notBefore: null,
        reason: action.error.code,
        error: action.error,
        endedAt: action.at,
      }
    case 'blocked':
      if (status === 'failed' || status === 'paused') return record
      return { ...record, status: 'blocked', notBefore: null, reason: action.error.code, error: action.error }
    case 'paused':
      return status === 'failed' || status === 'paused' ? record : { ...record, status: 'paused' }
    case 'resumed':
      return status === 'paused' || status === 'blocked' ? { ...record, status: readyStatus(record.sha256) } : record
    case 'retried':
      if (status !== 'failed') return record
      return {
        ...record,
        status: readyStatus(record.sha256),
        attempts: 0,
        notBefore: null,
        reason: null,
        error: null,
        expiresAt: action.expiresAt,
        endedAt: null,
      }
    case 'revived':
      if (status !== 'failed' || !record.error?.retryable) return record
      return {
        ...record,
        status: readyStatus(record.sha256),
        // Without a limit none are used up, and a row holds no infinite number.
        attempts: Number.isFinite(action.attempts) ? action.attempts : record.attempts,
        notBefore: null,
        endedAt: null,
      }
    case 'hurried':
      return record.notBefore === null ? record : { ...record, notBefore: null }
    default:
      return action satisfies never
  }
}
