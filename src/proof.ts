import type { Problem } from './errors.js'
import type { PendingUpload } from './record.js'

/** What the reference server answers to a stored file. Further members are kept. */
export interface UploadReceipt {
  /** The server's id of the file. */
  uploadId: string
  /** Where its bytes lie in the server's storage. */
  storageKey: string
  [member: string]: unknown
}

/** Any validator that speaks Standard Schema v1 (https://standardschema.dev): zod, valibot, arktype … */
export interface StandardSchema<Output> {
  /** What the standard asks for; `validate` is called with the JSON of a 2xx. */
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined
  }
}
type StandardResult<Output> = { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly unknown[] }

/** What proves success: a schema for the JSON body of a 2xx, or a function of the 2xx that returns the result, or throws where nothing is proven. */
export type ResponseProof<Result> = StandardSchema<Result> | ((response: Response, upload: PendingUpload) => Result | Promise<Result>)

/** The default proof: the JSON body names what was stored. An answer that echoes the `Idempotency-Key` is a proof as well. */
export const uploadReceipt: StandardSchema<UploadReceipt> = {
  '~standard': {
    version: 1,
    vendor: 'uponce',
    validate(value) {
      const { uploadId, storageKey } = (value ?? {}) as Partial<UploadReceipt>
      if (typeof uploadId === 'string' && typeof storageKey === 'string') return { value: value as UploadReceipt }
      return { issues: [{ message: 'Expected an object with the strings uploadId and storageKey.' }] }
    },
  },
}

interface Answer {
  status: number
  headers: Headers
  text: string
  broken: boolean
}

/** `warning`: what was odd about an answer that proves success all the same. */
export interface Proven<Result> {
  result: Result
  replayed: boolean
  warning?: string
}

const parseJson = (text: string): { value: unknown } | undefined => {
  try {
    return { value: JSON.parse(text) }
  } catch {
    return undefined
  }
}

/** The problem an answer describes (RFC 9457), also where a server labelled it plain JSON. */
export function parseProblem(answer: Answer): Problem | undefined {
  if (!/json/i.test(answer.headers.get('Content-Type') ?? '')) return undefined
  const value = parseJson(answer.text.slice(0, 16_384))?.value
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Problem) : undefined
}

/** Both wire forms of one value are one key. */
const bareKey = (key: string | null): string | undefined => key?.trim().replace(/^"(.*)"$/, '$1')

/** A validator that throws has found nothing proven. */
const validate = async <Result>(schema: StandardSchema<Result>, value: unknown): Promise<StandardResult<Result> | undefined> => {
  try {
    return await schema['~standard'].validate(value)
  } catch {
    return undefined
  }
}

const replayMarkers = ['Idempotent-Replayed', 'Idempotent-Replay', 'Idempotency-Replayed']

/** A 2xx must say that this very file was stored. Resolves `undefined` where it does not: a sign-in page of some network answers 200 too. */
export async function prove<Result>(
  answer: Answer,
  record: PendingUpload,
  proof: ResponseProof<Result>,
): Promise<Proven<Result> | undefined> {
  if (answer.status < 200 || answer.status > 299) return undefined
  const { headers, text } = answer
  const replayed = replayMarkers.some((marker) => headers.get(marker)?.trim().toLowerCase() === 'true')
  if (typeof proof === 'function') {
    const bodyless = answer.status === 204 || answer.status === 205
    try {
      return { result: await proof(new Response(bodyless ? null : text, { status: answer.status, headers }), record), replayed }
    } catch {
      return undefined
    }
  }
  const json = parseJson(text)
  const checked = json && (await validate(proof, json.value))
  const stored = (json?.value as { sha256?: unknown } | null | undefined)?.sha256
  // A receipt for other bytes proves that something else was stored.
  if (typeof stored === 'string' && /^[0-9a-f]{64}$/i.test(stored) && stored.toLowerCase() !== record.sha256) return undefined
  if (checked && !checked.issues) return { result: checked.value, replayed }
  if ((proof as unknown) !== uploadReceipt || bareKey(headers.get('Idempotency-Key')) !== bareKey(record.idempotencyKey)) return undefined
  return json
    ? { result: json.value as Result, replayed }
    : {
        result: text as Result,
        replayed,
        warning: 'The server proved success, but its answer is not the JSON it should be; it is kept as text.',
      }
}
