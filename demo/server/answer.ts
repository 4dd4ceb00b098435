/** An answer as it is stored: the first caller and every later one get these very bytes. */
export interface Answer {
  status: number
  /** In order. Only what belongs to the answer itself: CORS, Date and the like are made anew for each exchange. */
  headers: [name: string, value: string][]
  body: Uint8Array
}

/** A longer answer is not kept for replays. */
export const MAX_STORED_BYTES = 65_536

const STORED_HEADERS = ['content-type', 'location', 'content-language', 'content-disposition']

interface Problem {
  status: number
  title: string
  message: string
  /** Defaults to the code's paragraph in the README. */
  type?: string
}

const digestProblem = 'https://iana.org/assignments/http-problem-types'

/** Every refusal the server makes, by its code: the member `error` of the problem document (RFC 9457). */
const problems = {
  idempotency_key_required: {
    status: 400,
    title: 'Idempotency-Key required',
    message: 'Idempotency-Key header must be 16-255 characters.',
  },
  idempotency_key_invalid: {
    status: 400,
    title: 'Idempotency-Key invalid',
    message: 'Idempotency-Key must be one header line of visible ASCII characters without quotes, backslash, comma or semicolon.',
  },
  idempotency_key_reuse: {
    status: 422,
    title: 'Idempotency-Key reused',
    message: 'This Idempotency-Key was already used with a different request body.',
  },
  idempotency_in_progress: {
    status: 409,
    title: 'Request in progress',
    message: 'A request with this Idempotency-Key is still being processed.',
  },
  idempotency_key_unknown: { status: 404, title: 'Idempotency-Key unknown', message: 'No request with this Idempotency-Key is known.' },
  digest_required: {
    status: 400,
    title: 'Digest required',
    message: 'X-File-Sha256, Repr-Digest or Content-Digest must give the SHA-256 of the body.',
  },
  digest_invalid: {
    status: 400,
    title: 'Digest invalid',
    message: 'The digest is not a SHA-256: 64 hexadecimal digits in X-File-Sha256, sha-256=:base64: in Repr-Digest or Content-Digest.',
    type: `${digestProblem}#digest-invalid-values`,
  },
  digest_conflict: { status: 400, title: 'Digests differ', message: 'The digest headers name different values.' },
  digest_unsupported: {
    status: 400,
    title: 'Digest algorithm unsupported',
    message: 'Only sha-256 is supported.',
    type: `${digestProblem}#digest-unsupported-algorithms`,
  },
  digest_mismatch: {
    status: 400,
    title: 'Digest mismatch',
    message: 'The body that arrived does not have the declared digest.',
    type: `${digestProblem}#digest-mismatched-values`,
  },
  metadata_invalid: {
    status: 400,
    title: 'Upload-Metadata invalid',
    message: 'Upload-Metadata must be a comma-separated list of distinct keys, each followed by its base64 UTF-8 value.',
  },
  payload_too_large: { status: 413, title: 'Payload too large', message: 'The body is larger than this server accepts.' },
  unsupported_media_type: {
    status: 415,
    title: 'Unsupported media type',
    message: 'The body must be the bytes of the file, without Content-Encoding and not as a form.',
  },
  origin_not_allowed: { status: 403, title: 'Origin not allowed', message: 'This origin may not send requests here.' },
  unauthorized: { status: 401, title: 'Unauthorized', message: 'Valid credentials are required.' },
  not_found: { status: 404, title: 'Not found', message: 'There is nothing at this address.' },
  method_not_allowed: { status: 405, title: 'Method not allowed', message: 'This method is not supported here.' },
  too_many_in_flight: { status: 429, title: 'Too many uploads', message: 'Too many uploads of this account are in flight.' },
  quota_exceeded: { status: 429, title: 'Quota exceeded', message: 'The quota of this account is used up for now.' },
  upload_timeout: { status: 408, title: 'Upload timed out', message: 'The body did not arrive in time.' },
  storage_unavailable: { status: 503, title: 'Storage unavailable', message: 'The file cannot be stored at the moment.' },
  store_unavailable: { status: 503, title: 'Store unavailable', message: 'The request cannot be recorded at the moment.' },
  internal_error: { status: 500, title: 'Internal error', message: 'The server failed to process the request.' },
} as const satisfies Record<string, Problem>

export type ProblemCode = keyof typeof problems

const utf8 = new TextEncoder()

/** `value` as a JSON answer. */
export const jsonAnswer = (status: number, value: unknown, headers: [string, string][] = []): Answer => ({
  status,
  headers: [['Content-Type', 'application/json'], ...headers],
  body: utf8.encode(JSON.stringify(value)),
})

/** The problem document of a code, under its own status or another. */
export function problemAnswer(code: ProblemCode, status: number = problems[code].status): Answer {
  const problem: Problem = problems[code]
  const { title, message } = problem
  const type = problem.type ?? `https://www.npmjs.com/package/uponce#${code}`
  const body = { type, title, status, detail: message, error: code, message }
  return { status, headers: [['Content-Type', 'application/problem+json']], body: utf8.encode(JSON.stringify(body)) }
}

/**
 * An app's own refusal as it will be stored: the headers a replay may repeat, and a substitute for a body too long to keep.
 * Throws `TypeError` for a status that refuses nothing.
 */
export async function storableAnswer(response: Response): Promise<Answer> {
  if (response.status < 400) throw new TypeError(`the app refused a file with status ${response.status}, expected 400 to 599`)
  const headers = [...response.headers].filter(([name]) => STORED_HEADERS.includes(name))
  const body = new Uint8Array(await response.arrayBuffer())
  if (body.byteLength <= MAX_STORED_BYTES) return { status: response.status, headers, body }
  return jsonAnswer(response.status, { message: `The answer was longer than ${MAX_STORED_BYTES} bytes and is not kept.` })
}

/** A refusal on its way to the one place that answers. `headers` belong to this exchange only and are never stored. */
export class Refusal extends Error {
  readonly code: ProblemCode
  readonly headers: [string, string][]

  constructor(code: ProblemCode, headers: [string, string][] = [], options?: ErrorOptions) {
    super(problems[code].message, options)
    this.name = 'Refusal'
    this.code = code
    this.headers = headers
  }

  get status(): number {
    return problems[this.code].status
  }

  get answer(): Answer {
    return problemAnswer(this.code)
  }
}
