import type { EnqueueOptions } from './intake.js'
import { type ResponseProof, type UploadReceipt, uploadReceipt } from './proof.js'
import { statuses } from './record.js'
import { fetchTransport } from './transport.js'
import type { SendOptions } from './upload.js'
import type { RetryPolicy } from './verdict.js'
import { reservedHeaders } from './wire.js'

type Sending<Result> = SendOptions<Result>

/** What `createUploadQueue` takes. Functions among the options are called in the tab that sends. */
export interface UploadQueueOptions<Result = UploadReceipt> {
  /**
   * Where uploads go; resolved at each attempt. A relative URL is relative to the page or worker. Required. A function that throws ends its
   * upload as `invalid-request`: what asks the network belongs into `headers` or the transport, where a network that is gone is waited for.
   */
  endpoint: Sending<Result>['endpoint']
  /** Queues of one name, in any tab or worker of the origin, are one queue; its database is `uponce:<name>`. Default `'uploads'`. */
  name?: string
  /** Account whose uploads run and are seen; a function is asked before every request. `null`: signed out, nothing runs. Default `''`, for apps with one user. */
  owner?: string | null | (() => string | null | Promise<string | null>)
  /** Default `'POST'`. */
  method?: Sending<Result>['method']
  /** Called for every attempt, with `refresh: true` after a 401; what it gives is never stored. */
  headers?: Sending<Result>['headers']
  /** Default `'same-origin'`. */
  credentials?: RequestCredentials
  /** `'raw'` (default): the file is the body. `{ field }`: multipart/form-data with the file under that field, metadata as fields before it. */
  body?: Sending<Result>['body']
  /** `'X-File-Sha256'` (default, hex) or `'Repr-Digest'` (RFC 9530), or both. */
  digestHeader?: Sending<Result>['digestHeader']
  /** Header for the file's name, percent-encoded UTF-8. Default `'X-File-Name'`. */
  nameHeader?: string | false
  /** Look-up of an upload's outcome; default learned from `Idempotency-Outcome` on an answer; `false`: never asked. */
  outcome?: string | URL | false
  /** `'quoted'`: as a structured-field String, as in the IETF draft on the header. Default `'bare'`. */
  keyFormat?: 'bare' | 'quoted'
  /** Uploads under way at once, across all tabs of the queue. Default 3. */
  concurrency?: number
  /** When and how often an attempt is made again; members that are left out keep their defaults. */
  retry?: Partial<RetryPolicy> & {
    /**
     * Asked after each attempt that did not succeed. `false`: the upload has failed. `true`: another attempt after a backoff, counted, where
     * the README's table of outcomes would end or block it. `undefined`: as the table says. May be async; where it throws it has no opinion.
     */
    shouldRetry?: Sending<Result>['retry']['shouldRetry']
  }
  /** ms after enqueueing in which attempts are made by themselves. Must be below the server's key retention (72 h in the reference server). Default 48 h. */
  maxAge?: number
  /** ms for one whole attempt. Default 120,000 and a second for every 16 KiB. */
  timeout?: number | Sending<Result>['timeout']
  /** ms without a byte moving that end an attempt, where the transport reports bytes. Default 30,000. */
  stallTimeout?: number
  /** Bytes; larger files are refused at enqueue. Default none. */
  maxFileSize?: number
  /** What proves success. Default `uploadReceipt`. */
  response?: ResponseProof<Result>
  /** Default `fetchTransport()`. */
  transport?: Sending<Result>['transport']
  /** Without usable IndexedDB: `'required'` rejects, `'preferred'` (default) runs in memory, with a warning. `'memory'` never uses it. */
  persist?: 'required' | 'preferred' | 'memory'
  /** Run on creation, and take up what earlier pages left. Default `true`. */
  autoStart?: boolean
}

/** The same, whole. */
export interface ResolvedOptions<Result> extends Sending<Result> {
  name: string
  owner: () => string | null | Promise<string | null>
  keyFormat: 'bare' | 'quoted'
  outcome: string | URL | false | undefined
  concurrency: number
  maxAge: number
  maxFileSize: number | undefined
  persist: 'required' | 'preferred' | 'memory'
  autoStart: boolean
}

const shown = (value: unknown): string => {
  if (typeof value === 'string') return JSON.stringify(value)
  if (typeof value === 'function') return 'a function'
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'an array' : 'an object'
  return String(value)
}

type Check = (value: unknown) => boolean
const isFunction: Check = (value) => typeof value === 'function'
const isNumber = (value: unknown, min: number): value is number => typeof value === 'number' && value >= min
const isToken: Check = (value) => typeof value === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(value)
/** A relative one counts: what it is relative to is known where it is used. */
const isUrl: Check = (value) => {
  try {
    return (value instanceof URL || typeof value === 'string') && value !== '' && new URL(value, 'http://localhost') !== undefined
  } catch {
    return false
  }
}
const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null
const oneOf = (...values: unknown[]): [Check, string] => [(value) => values.includes(value), values.map(shown).join(' or ')]
/** Finite: what is computed from it is stored, and a row holds no infinite number. */
const delay: [Check, string] = [(value) => Number.isFinite(value) && isNumber(value, 0), 'a number of ms of at least 0']

const isHeadersInit: Check = (value) => {
  try {
    return isObject(value) && [...new Headers(value as HeadersInit).keys()].every((name) => !reservedHeaders.includes(name))
  } catch {
    return false
  }
}

const rules: Record<keyof UploadQueueOptions, [Check, string]> = {
  endpoint: [(value) => isUrl(value) || isFunction(value), 'a URL, or a function that gives one'],
  name: [(value) => typeof value === 'string' && value !== '', 'a string that is not empty'],
  owner: [
    (value) => value === null || typeof value === 'string' || isFunction(value),
    'a string, null, or a function that gives one of them',
  ],
  method: oneOf('POST', 'PUT', 'PATCH'),
  headers: [
    (value) => isFunction(value) || isHeadersInit(value),
    'headers as fetch takes them, none of those that the queue sets, or a function that gives them',
  ],
  credentials: oneOf('same-origin', 'include', 'omit'),
  body: [
    (value) => value === 'raw' || (isObject(value) && typeof value.field === 'string' && value.field !== ''),
    '"raw" or { field: string }',
  ],
  digestHeader: oneOf('X-File-Sha256', 'Repr-Digest', 'both'),
  nameHeader: [
    (value) =>
      value === false || (isToken(value) && ![...reservedHeaders, 'content-type', 'upload-metadata'].includes(String(value).toLowerCase())),
    'a header name that has no other use, or false',
  ],
  outcome: [(value) => value === false || isUrl(value), 'a URL or false'],
  keyFormat: oneOf('bare', 'quoted'),
  concurrency: [(value) => Number.isInteger(value) && isNumber(value, 1), 'a whole number of at least 1'],
  retry: [isObject, 'an object'],
  maxAge: [(value) => Number.isFinite(value) && isNumber(value, 1), 'a finite number of ms above 0'],
  timeout: [(value) => isFunction(value) || isNumber(value, 1), 'a number of ms above 0, or a function that gives one'],
  stallTimeout: [(value) => isNumber(value, 1), 'a number of ms above 0'],
  maxFileSize: [(value) => isNumber(value, 0), 'a number of at least 0'],
  response: [(value) => isFunction(value) || (isObject(value) && '~standard' in value), 'a Standard Schema or a function'],
  transport: [(value) => isObject(value) && isFunction(value.send), 'a Transport'],
  persist: oneOf('required', 'preferred', 'memory'),
  autoStart: oneOf(true, false),
}

const retryRules: Record<keyof NonNullable<UploadQueueOptions['retry']>, [Check, string]> = {
  limit: [(value) => value === Number.POSITIVE_INFINITY || (Number.isInteger(value) && isNumber(value, 1)), 'a whole number of at least 1'],
  baseDelay: delay,
  maxDelay: delay,
  maxRetryAfter: delay,
  statusCodes: [
    (value) => Array.isArray(value) && value.every((code) => Number.isInteger(code) && code >= 100 && code <= 599),
    'an array of HTTP statuses',
  ],
  shouldRetry: [isFunction, 'a function'],
}

function checkAll(prefix: string, options: object, all: Record<string, [Check, string]>): void {
  for (const [name, value] of Object.entries(options)) {
    const rule = Object.hasOwn(all, name) ? all[name] : undefined
    if (!rule) throw new TypeError(`${prefix}${name}: there is no such option.`)
    const [isValid, expected] = rule
    if (value !== undefined && !isValid(value)) throw new TypeError(`${prefix}${name}: ${shown(value)} is not valid; expected ${expected}.`)
  }
}

const defaults = {
  name: 'uploads',
  owner: '',
  method: 'POST',
  credentials: 'same-origin',
  body: 'raw',
  digestHeader: 'X-File-Sha256',
  nameHeader: 'X-File-Name',
  keyFormat: 'bare',
  concurrency: 3,
  maxAge: 172_800_000,
  timeout: ({ size }: { size: number }) => 120_000 + size / 16.384,
  stallTimeout: 30_000,
  response: uploadReceipt,
  persist: 'preferred',
  autoStart: true,
}

const retryDefaults = {
  limit: 10,
  baseDelay: 1_000,
  maxDelay: 30_000,
  maxRetryAfter: 86_400_000,
  statusCodes: [408, 409, 425, 429, 500, 502, 503, 504],
}

/** What was left out, or given as `undefined`, is as it is by default. */
const withDefaults = <Options extends object>(defaults: object, options: Options): Options => ({
  ...defaults,
  ...(Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Options),
})

const functionOf = (value: unknown): unknown => (typeof value === 'function' ? value : () => value)

/** Checks the options and fills in the defaults, here and nowhere else. Throws `TypeError` with the option's name, its value and what was expected. */
export function resolveOptions<Result>(options: UploadQueueOptions<Result>): ResolvedOptions<Result> {
  if (!isObject(options)) throw new TypeError(`options: ${shown(options)} is not valid; expected an object.`)
  if (options.endpoint === undefined) throw new TypeError(`endpoint: undefined is not valid; expected ${rules.endpoint[1]}.`)
  checkAll('', options, rules)
  const { retry = {}, ...own } = options
  checkAll('retry.', retry, retryRules)
  const whole = withDefaults(defaults, own)
  return {
    ...whole,
    owner: functionOf(whole.owner),
    retry: withDefaults(retryDefaults, retry),
    timeout: functionOf(whole.timeout),
    transport: whole.transport ?? fetchTransport(),
  } as ResolvedOptions<Result>
}

const enqueueRules: Record<keyof EnqueueOptions, [Check, string]> = {
  id: [(value) => typeof value === 'string' && value !== '', 'a string that is not empty'],
  metadata: [
    (value) =>
      isObject(value) &&
      !(Symbol.iterator in value) &&
      Object.entries(value).every(([key, text]) => /^[\x21-\x2b\x2d-\x7e]+$/.test(key) && typeof text === 'string'),
    'an object of strings, its keys printable ASCII without space and comma',
  ],
  contentType: [(value) => typeof value === 'string' && /^[\x20-\x7e]*$/.test(value), 'a media type'],
  name: [(value) => typeof value === 'string', 'a string'],
  priority: [(value) => Number.isFinite(value), 'a number'],
  signal: [(value) => isObject(value) && 'aborted' in value, 'an AbortSignal'],
}

/** The same for the options of one `enqueue`. */
export const checkEnqueueOptions = (options: EnqueueOptions): void => checkAll('enqueue: ', options, enqueueRules)

const clearRules: Record<'status' | 'owner', [Check, string]> = {
  status: oneOf(...statuses),
  owner: [(value) => typeof value === 'string', 'a string'],
}

/** The same for what `clear` is to remove: a slip must not remove everything. */
export function checkClearOptions(which: object): void {
  for (const name of Object.keys(which))
    if (which[name as never] === undefined) throw new TypeError(`clear: ${name}: undefined is not valid; leave it out.`)
  checkAll('clear: ', which, clearRules)
}
