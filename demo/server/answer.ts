/** An answer as it is stored: the first caller and every later one get these very bytes. */
export interface Answer {
  status: number
  /** In order. Only what belongs to the answer itself: CORS, Date and the like are made anew for each exchange. */
  headers: [name: string, value: string][]
  body: Uint8Array
}

/** A longer answer is not kept for replays. */
export const MAX_STORED_BYTES = 65_536

const STORED_HEADERS = ['content-type', 'content-encoding', 'content-language', 'content-disposition', 'location', 'etag']

/** What belongs to one exchange or one caller's credentials, and to no other: hop-by-hop fields, framing, CORS, challenges, rate limits, markers. */
const NEVER_STORED =
  /^(connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|content-length|date|www-authenticate|access-control-.*|(x-)?rate-?limit.*|retry-after|idempoten.*)$/

/** Names the answer's object even where the answer itself is not kept. */
const NAMING_HEADERS = ['location', 'etag']

const BODYLESS = [204, 205, 304]

interface Problem {
  status: number
  title: string
  message: string
  /** Defaults to the README's list of codes. */
  type?: string
}

const digestProblem = 'https://iana.org/assignments/http-problem-types'
const README_CODES = 'https://www.npmjs.com/package/uponce#problem-codes'

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
  request_invalid: { status: 400, title: 'Request invalid', message: 'The request is not as this address expects it.' },
  payload_too_large: { status: 413, title: 'Payload too large', message: 'The body is larger than this server accepts.' },
  unsupported_media_type: {
    status: 415,
    title: 'Unsupported media type',
    message: 'This type of body is not accepted here: a file is sent as its bytes, without Content-Encoding and not as a form.',
  },
  origin_not_allowed: { status: 403, title: 'Origin not allowed', message: 'This origin may not send requests here.' },
  unauthorized: { status: 401, title: 'Unauthorized', message: 'Valid credentials are required.' },
  media_unknown: { status: 404, title: 'File unknown', message: 'There is no such file of this account.' },
  not_found: { status: 404, title: 'Not found', message: 'There is nothing at this address.' },
  method_not_allowed: { status: 405, title: 'Method not allowed', message: 'This method is not supported here.' },
  too_many_in_flight: { status: 429, title: 'Too many uploads', message: 'Too many uploads of this account are in flight.' },
  quota_exceeded: { status: 429, title: 'Quota exceeded', message: 'The quota of this account is used up for now.' },
  upload_timeout: { status: 408, title: 'Upload timed out', message: 'The body did not arrive in time.' },
  storage_unavailable: { status: 503, title: 'Storage unavailable', message: 'The file cannot be stored at the moment.' },
  store_unavailable: { status: 503, title: 'Store unavailable', message: 'The request cannot be recorded at the moment.' },
  run_timeout: {
    status: 503,
    title: 'Not done in time',
    message: 'The request was not done in time, and may still be. A repeat with the same Idempotency-Key finds out.',
  },
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

/** The problem document of a code, under its own status or another, saying more of this case where it can. */
export function problemAnswer(code: ProblemCode, status: number = problems[code].status, detail: string = problems[code].message): Answer {
  const problem: Problem = problems[code]
  const { title, message } = problem
  const type = problem.type ?? README_CODES
  const body = { type, title, status, detail, error: code, message }
  return { status, headers: [['Content-Type', 'application/problem+json']], body: utf8.encode(JSON.stringify(body)) }
}

/** An answer that cannot be given a second time, as it stands: a status outside 200 to 599, a body where none can be, a body already read. */
export class UnreplayableAnswer extends Error {
  override name = 'UnreplayableAnswer'
}

/**
 * Which headers of an answer are stored: the few that belong to any answer, and `names`, such as `Set-Cookie`, whose lines stay separate.
 * Throws `TypeError` for a name that must never be repeated.
 */
export function headersToKeep(names: readonly string[] = []): (name: string) => boolean {
  const kept = new Set([...STORED_HEADERS, ...names.map((name) => name.toLowerCase())])
  for (const name of kept) if (NEVER_STORED.test(name)) throw new TypeError(`${name} belongs to one exchange: a replay must not repeat it`)
  return (name) => kept.has(name.toLowerCase())
}

/** What is stored of an answer. `body` null: it is too long, and a repeat is told so, with the headers that name what was made. Throws `UnreplayableAnswer`. */
export function answerToStore(
  status: number,
  headers: Iterable<[string, string]>,
  body: Uint8Array | null,
  isKept: (name: string) => boolean,
): Answer {
  if (!(status >= 200 && status <= 599)) throw new UnreplayableAnswer(`an answer with status ${status}, expected 200 to 599`)
  const isBodyless = BODYLESS.includes(status)
  if (isBodyless && body?.byteLength !== 0) throw new UnreplayableAnswer(`an answer with status ${status} and a body`)
  const kept = [...headers].filter(([name]) => isKept(name) && !(isBodyless && /^content-/i.test(name)))
  if (body !== null && body.byteLength <= MAX_STORED_BYTES) return { status, headers: kept, body }
  const message = `The answer was longer than ${MAX_STORED_BYTES} bytes and is not kept.`
  return jsonAnswer(
    status,
    { error: 'answer_not_kept', message },
    kept.filter(([name]) => NAMING_HEADERS.includes(name.toLowerCase())),
  )
}

export interface TakenAnswer {
  /** What a repeat gets. */
  answer: Answer
  /** What the first caller gets: every header, and the same bytes; past the 64 KiB that are kept, the rest as it comes. */
  response: Response
}

/** Reads an answer as far as it can be kept. Throws `UnreplayableAnswer`, and whatever its body fails with. */
export async function takeAnswer(response: Response, isKept: (name: string) => boolean): Promise<TakenAnswer> {
  if (Object.prototype.toString.call(response) !== '[object Response]') throw new UnreplayableAnswer('the handler returned no Response')
  if (response.bodyUsed || response.body?.locked) throw new UnreplayableAnswer('an answer whose body has been read')
  const reader = response.body?.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  let isWhole = reader === undefined
  while (reader && !isWhole && size <= MAX_STORED_BYTES) {
    const { done, value } = await reader.read()
    isWhole = done
    if (value) size += chunks.push(value) && value.byteLength
  }
  const { status, statusText } = response
  const bytes = Buffer.concat(chunks)
  const answer = answerToStore(status, response.headers, isWhole ? bytes : null, isKept)
  const headers = new Headers(response.headers)
  if (isWhole) {
    headers.delete('content-length')
    return { answer, response: toResponse({ status, headers: [...headers], body: bytes }, statusText) }
  }
  const rest = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(bytes),
    async pull(controller) {
      const { done, value } = await reader!.read()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    cancel: (reason) => reader!.cancel(reason),
  })
  return { answer, response: new Response(rest, { status, statusText, headers }) }
}

/** An answer for sending. */
export function toResponse({ status, headers, body }: Answer, statusText = ''): Response {
  if (BODYLESS.includes(status)) return new Response(null, { status, statusText, headers })
  const sent = new Headers(headers)
  sent.set('Content-Length', String(body.byteLength))
  return new Response(body as Uint8Array<ArrayBuffer>, { status, statusText, headers: sent })
}

/** Headers of a replay, and of nothing else. */
export const REPLAY_MARKERS: [string, string][] = [
  ['Idempotent-Replayed', 'true'],
  ['Idempotent-Replay', 'true'],
]

const forRefusals = headersToKeep()

/** An app's own refusal of a file as it will be stored. Throws `TypeError` for a status that refuses nothing. */
export async function storableAnswer(response: Response): Promise<Answer> {
  if (response.status < 400) throw new TypeError(`the app refused a file with status ${response.status}, expected 400 to 599`)
  const taken = await takeAnswer(response, forRefusals)
  void taken.response.body?.cancel()
  return taken.answer
}

/** A refusal on its way to the one place that answers. `headers` belong to this exchange only and are never stored. */
export class Refusal extends Error {
  readonly code: ProblemCode
  readonly headers: [string, string][]
  readonly detail: string

  constructor(
    code: ProblemCode,
    headers: [string, string][] = [],
    { detail = problems[code].message, ...options }: ErrorOptions & { detail?: string } = {},
  ) {
    super(problems[code].message, options)
    this.name = 'Refusal'
    this.code = code
    this.headers = headers
    this.detail = detail
  }

  get status(): number {
    return problems[this.code].status
  }

  get answer(): Answer {
    return problemAnswer(this.code, this.status, this.detail)
  }
}
