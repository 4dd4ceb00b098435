import type { UploadError } from './errors.js'

/** When and how often an attempt is made again. */
export interface RetryPolicy {
  /** Counted attempts, the first included, before a record fails; `Infinity`: no limit. Default 10. */
  limit: number
  /** Backoff of the first repeat at most, ms; it doubles with each counted attempt. Default 1,000. */
  baseDelay: number
  /** Backoff of any repeat at most, ms. Default 30,000. */
  maxDelay: number
  /** Longest `Retry-After` that is obeyed, ms. Default 86,400,000, a day. */
  maxRetryAfter: number
  /** Statuses worth another attempt. Default 408, 409, 425, 429, 500, 502, 503, 504. */
  statusCodes: readonly number[]
}

/** No delay is shorter, ms: whatever a header says, nobody's server is stormed. */
export const delayFloor = 250

/** What an attempt came to. */
export interface Outcome {
  error: UploadError
  /** An answer's `Retry-After`, ms from now; `null` where it had none that can be understood. */
  retryAfter?: number | null
  /** Where no answer came: whether the origin answers a probe. */
  reachable?: boolean
  /** The app's `shouldRetry`: overrules the table. */
  overruled?: boolean | undefined
}

/** What this upload went through since its run began. */
export interface History {
  /** Counted attempts before this one. */
  attempts: number
  /** Whether this attempt already used refreshed headers. */
  refreshed: boolean
  /** Answers in a row that an earlier attempt is still being worked on. */
  waits: number
  /** Earlier answers that the digest does not match the bytes. */
  mismatches: number
}

export type Verdict =
  /** Try again after `delay` ms. `gate`: nothing else starts on this origin before, or before it is reachable. */
  | { type: 'wait'; delay: number; counted: boolean; gate: 'none' | 'told' | 'unreachable' }
  /** Ask for new headers and try again at once. */
  | { type: 'refresh' }
  /** Compare the stored bytes with the digest; if they are right, try again. */
  | { type: 'verify' }
  | { type: 'block' }
  | { type: 'fail'; counted: boolean }

/** The one table that decides what an unsuccessful attempt means. Pure. An error it does not know is not retried. */
export function judge(outcome: Outcome, history: History, policy: RetryPolicy, random: () => number): Verdict {
  const { error, overruled } = outcome
  const told = outcome.retryAfter == null ? null : obey(outcome.retryAfter, policy.maxRetryAfter, random)
  const backOff = (): Verdict =>
    history.attempts + 1 >= policy.limit
      ? { type: 'fail', counted: true }
      : { type: 'wait', delay: Math.max(told ?? 0, fullJitter(history.attempts, policy, random)), counted: true, gate: 'none' }

  if (overruled === false) return { type: 'fail', counted: true }
  if (error.code === 'in-progress')
    return { type: 'wait', delay: told ?? fullJitter(history.waits, policy, random), counted: false, gate: 'none' }
  if (told !== null && (error.status === 429 || error.status === 503) && error.retryable)
    return { type: 'wait', delay: told, counted: false, gate: 'told' }
  if (outcome.reachable === false) return { type: 'wait', delay: 0, counted: false, gate: 'unreachable' }
  if (error.code === 'unauthorized' && !history.refreshed) return { type: 'refresh' }
  if (error.code === 'digest-mismatch' && history.mismatches < 2) return { type: 'verify' }
  if (overruled === true) return backOff()
  if (error.code === 'unauthorized') return { type: 'block' }
  if (error.retryable && error.code !== 'digest-mismatch') return backOff()
  return { type: 'fail', counted: true }
}

/**
 * Full jitter: uniform between the floor and `min(maxDelay, baseDelay · 2^attempts)`. Capped first and then drawn, so that long delays do
 * not bunch at the cap (the AWS Architecture Blog's "Exponential Backoff And Jitter" measured this form).
 */
export function fullJitter(attempts: number, { baseDelay, maxDelay }: RetryPolicy, random: () => number): number {
  const cap = Math.max(delayFloor, Math.min(maxDelay, baseDelay * 2 ** Math.min(attempts, 60)))
  return Math.round(delayFloor + random() * (cap - delayFloor))
}

/** Never shorter than what the server said, up to the longest that is obeyed; a tenth (at most 1 s) of jitter on top, so that clients spread. */
const obey = (retryAfter: number, max: number, random: () => number): number => {
  const delay = Math.max(Math.min(retryAfter, max), delayFloor)
  return Math.round(delay + random() * Math.min(1000, delay / 10))
}

const month = '(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)'
const clock = '\\d\\d:\\d\\d:\\d\\d'
/** The three date forms of RFC 9110, section 5.6.7. Anything else is left to no engine's guess. */
const httpDate = new RegExp(
  `^(?:[A-Z][a-z]{2}, \\d\\d ${month} \\d{4} ${clock} GMT|[A-Z][a-z]{5,8}, \\d\\d-${month}-\\d\\d ${clock} GMT|[A-Z][a-z]{2} ${month} [ \\d]\\d ${clock} \\d{4})$`,
)

const parseHttpDate = (value: string): number | null => {
  if (!httpDate.test(value)) return null
  const time = Date.parse(value.endsWith('GMT') ? value : `${value} GMT`)
  return Number.isFinite(time) ? time : null
}

/**
 * `Retry-After` (RFC 9110, section 10.2.3) in ms from now: delay-seconds, or a date measured against the answer's own `Date` where that is
 * readable, since the two clocks may differ. `null` for what is absent, unparsable, negative or given twice; 0 for what is past.
 */
export function parseRetryAfter(value: string | null, date: string | null, now: number): number | null {
  const trimmed = value?.trim() ?? ''
  if (/^\d+$/.test(trimmed)) return Number(trimmed) * 1000
  const until = parseHttpDate(trimmed)
  if (until === null) return null
  return Math.max(0, until - (parseHttpDate(date?.trim() ?? '') ?? now))
}
