import type { PendingUpload } from './record.js'

/** Asking what became of a request is worth it from so many bytes on: below, sending them again is as quick. */
const worthAsking = 2 ** 20

/** Whether the last request may have arrived although no answer did, or is still being worked on. */
export const isOpen = ({ requests, reason }: PendingUpload): boolean =>
  requests > 0 && (reason === null || reason === 'network' || reason === 'timeout' || reason === 'in-progress')

/** Whether to ask before the attempt that is about to be made: `requests` counts it already. */
export const isAskedFirst = (record: PendingUpload): boolean =>
  record.requests > 1 && isOpen(record) && (record.reason === 'in-progress' || record.size > worthAsking)

/** For how long, ms, an answer says that its server remembers keys (`Idempotency-Retention`, in seconds). */
export const readRetention = (header: string | null): number | undefined =>
  header !== null && /^\d{1,12}$/.test(header.trim()) ? Number(header) * 1000 : undefined

/** Where an answer says that outcomes can be asked for; only on the endpoint's own origin, for the app's sign-in goes along. */
export function learnOutcomeUrl(header: string | null, answerUrl: string): string | undefined {
  if (header === null) return undefined
  try {
    const url = new URL(header, answerUrl)
    return url.origin === new URL(answerUrl).origin ? url.href : undefined
  } catch {
    return undefined
  }
}

/** What the look-up says: the answer that the server has stored, that it is still at work, or nothing that would help. */
export type KnownOutcome = { status: number; headers: Headers; text: string } | 'in-flight' | undefined

/** Reads the answer of a look-up. */
export function readOutcome(answer: { status: number; text: string }): KnownOutcome {
  if (answer.status !== 200) return undefined
  try {
    const { state, status, headers, body, bodyEncoding } = JSON.parse(answer.text) as Record<string, unknown>
    if (state === 'in_flight') return 'in-flight'
    if (state !== 'completed' || typeof status !== 'number' || typeof body !== 'string') return undefined
    const list = new Headers(headers as [string, string][])
    list.set('Idempotent-Replayed', 'true')
    return { status, headers: list, text: bodyEncoding === 'base64' ? decode(body) : body }
  } catch {
    return undefined
  }
}

/** As the same bytes would have been read from the answer itself. */
const decode = (base64: string): string => new TextDecoder().decode(Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)))
