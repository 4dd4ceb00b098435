/** Why an upload, or a call, did not succeed. The README's table says what each means and what to do. */
export type UploadErrorCode =
  | 'network'
  | 'timeout'
  | 'http'
  | 'in-progress'
  | 'unproven'
  | 'redirected'
  | 'unauthorized'
  | 'rejected'
  | 'key-reused'
  | 'key-expired'
  | 'digest-mismatch'
  | 'not-a-file'
  | 'file-unreadable'
  | 'file-too-large'
  | 'bytes-lost'
  | 'quota-exceeded'
  | 'storage-unavailable'
  | 'storage-blocked'
  | 'storage-failed'
  | 'insecure-context'
  | 'invalid-request'

/** A parsed `application/problem+json` body (RFC 9457), as far as it was an object. */
export interface Problem {
  /** URI of the kind of problem. */
  readonly type?: string
  /** The kind of problem in words. */
  readonly title?: string
  /** HTTP status, as the body says it. */
  readonly status?: number
  /** What was wrong this time, in words. */
  readonly detail?: string
  /** The server's own code, `idempotency_key_reuse` say. */
  readonly error?: string
  readonly [member: string]: unknown
}

/** The facts of an `UploadError`, without its class: what is stored, and what travels between tabs. */
export interface UploadErrorFacts {
  /** What went wrong. */
  readonly code: UploadErrorCode
  /** The same as an English sentence, for a log. */
  readonly message: string
  /** Whether the same request may succeed later without anybody changing anything. */
  readonly retryable: boolean
  /** HTTP status of the answer, where there was a readable one. */
  readonly status?: number | undefined
  /** What the answer says went wrong, where its body is a JSON object. */
  readonly problem?: Problem | undefined
  /** Id of the upload in the queue. */
  readonly uploadId?: string | undefined
  /** Which request of this upload failed; the first is 1. */
  readonly attempt?: number | undefined
}

const retryableCodes: ReadonlySet<UploadErrorCode> = new Set(['network', 'timeout', 'http', 'in-progress', 'unproven', 'digest-mismatch'])
const brand: unique symbol = Symbol.for('uponce.UploadError') as never

/** The only error class of this package. Message texts hold no file names, header values or tokens. */
export class UploadError extends Error implements UploadErrorFacts {
  /** Always `'UploadError'`. */
  override readonly name = 'UploadError'
  readonly code: UploadErrorCode
  readonly retryable: boolean
  readonly status?: number | undefined
  readonly problem?: Problem | undefined
  readonly uploadId?: string | undefined
  readonly attempt?: number | undefined

  /** Whether it is `retryable` follows from the code, unless `facts` say otherwise. */
  constructor(code: UploadErrorCode, message: string, facts: Partial<UploadErrorFacts> & { cause?: unknown } = {}) {
    super(message, 'cause' in facts ? { cause: facts.cause } : undefined)
    this.code = code
    this.retryable = facts.retryable ?? retryableCodes.has(code)
    this.status = facts.status
    this.problem = facts.problem
    this.uploadId = facts.uploadId
    this.attempt = facts.attempt
    Object.defineProperty(this, brand, { value: true })
  }

  /** The same error with more facts. */
  with(facts: Partial<UploadErrorFacts>): UploadError {
    return new UploadError(this.code, this.message, { ...this.toJSON(), ...('cause' in this && { cause: this.cause }), ...facts })
  }

  /** The facts alone, which can be stored and posted; without `cause`. */
  toJSON(): UploadErrorFacts {
    const { code, message, retryable, status, problem, uploadId, attempt } = this
    return { code, message, retryable, status, problem, uploadId, attempt }
  }
}

/** Whether a value is an `UploadError`, also one made by another copy of this package or in another realm. */
export const isUploadError = (value: unknown): value is UploadError => typeof value === 'object' && value !== null && brand in value

/** The error that every cancelled or aborted call rejects with. */
export const abortError = (message = 'The upload was cancelled.'): DOMException => new DOMException(message, 'AbortError')
