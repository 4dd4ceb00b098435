import { createHash } from 'node:crypto'
import { AwsClient } from 'aws4fetch'
import pRetry from 'p-retry'
import { checkObjectKey, type ObjectStore, ObjectStoreError, type ObjectWriter } from './objects.js'

export interface S3Options {
  /** Origin of the service, such as `https://s3.eu-central-1.amazonaws.com`. The bucket is named in the path. */
  endpoint: string
  /** Exists already. */
  bucket: string
  region: string
  accessKeyId: string
  secretAccessKey: string
  /**
   * Size of a part, in bytes: what one upload holds in memory, and what is sent again after a failure. A larger object is sent in parts, of which
   * there can be 10,000. Default 8 MiB; S3 takes no less than 5 MiB.
   */
  partBytes?: number
  /** How long one attempt may take, in ms. Default 15 s: 8 MiB at 4.5 Mbit/s. */
  attemptMs?: number
  /** After this time there are no further attempts, in ms. Default 30 s; with the last attempt it must stay below the lease. */
  retryMs?: number
}

const MiB = 1_048_576
const ATTEMPTS = 5
/** Joining many parts takes S3 minutes. The lease is renewed meanwhile. */
const COMPLETE_MS = 180_000
/** A request that has failed already does not wait long for what the sweeper will do as well, in ms. */
const CLEAN_UP = { attemptMs: 5_000, retryMs: 5_000 }
const FIRST_BUFFER = 65_536

interface Call {
  method: 'GET' | 'HEAD' | 'PUT' | 'POST' | 'DELETE'
  /** Empty: the bucket itself. */
  key?: string
  query?: Record<string, string>
  body?: Uint8Array
  attemptMs?: number
  retryMs?: number
  /** Told of an attempt that S3 may still carry out, since it has not said what became of it. */
  onUnsettled?: () => void
}

const isTransient = (error: unknown): boolean =>
  error instanceof ObjectStoreError && (error.status === null || error.status === 429 || error.status >= 500)

const isMissing = (error: unknown): boolean => error instanceof ObjectStoreError && error.status === 404 && error.code !== 'NoSuchBucket'

const elements = (xml: string, name: string): string[] =>
  [...xml.matchAll(new RegExp(`<${name}>([^<]*)</${name}>`, 'g'))].map(([, text]) => decodeXml(text!))

const NAMED: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }

const decodeXml = (text: string): string =>
  text.replace(/&(?:(amp|lt|gt|quot|apos)|#(\d+)|#x([\da-f]+));/gi, (_entity, name?: string, decimal?: string, hex?: string) =>
    name ? NAMED[name.toLowerCase()]! : String.fromCodePoint(decimal ? Number(decimal) : Number.parseInt(hex!, 16)),
  )

const encodeXml = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

/** Bytes up to a limit. Grows as they come, since most files are small. */
function createBuffer(limit: number) {
  let bytes = Buffer.allocUnsafe(Math.min(FIRST_BUFFER, limit))
  let length = 0
  return {
    get isFull() {
      return length === limit
    },
    get bytes(): Uint8Array {
      return bytes.subarray(0, length)
    },
    /** Takes what fits, and returns the rest. */
    add(chunk: Uint8Array): Uint8Array {
      const taken = chunk.subarray(0, limit - length)
      if (length + taken.byteLength > bytes.byteLength) {
        const size = Math.min(limit, Math.max(2 * bytes.byteLength, length + taken.byteLength))
        const larger = Buffer.allocUnsafe(size)
        larger.set(bytes.subarray(0, length))
        bytes = larger
      }
      bytes.set(taken, length)
      length += taken.byteLength
      return chunk.subarray(taken.byteLength)
    },
    clear() {
      length = 0
    },
  }
}

/**
 * Objects in a bucket of S3, or of anything that speaks its protocol with Signature Version 4. Every call is repeated after network failures,
 * 429 and 5xx, and rejects with `ObjectStoreError` in bounded time. Each part is signed with its digest, so bytes damaged on the way are refused.
 */
export function createS3Objects(options: S3Options): ObjectStore {
  const { endpoint, bucket, region, accessKeyId, secretAccessKey, partBytes = 8 * MiB, attemptMs = 15_000, retryMs = 30_000 } = options
  const aws = new AwsClient({ accessKeyId, secretAccessKey, region, service: 's3' })

  async function attempt<Result>(call: Call, read: (response: Response) => Promise<Result>): Promise<Result> {
    const { method, key = '', query = {}, body } = call
    const url = new URL(`/${bucket}/${key}`, endpoint)
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value)
    const what = `${method} of ${key === '' ? 'the bucket' : 'an object'}`
    const limit = new AbortController()
    const ms = call.attemptMs ?? attemptMs
    const timer = setTimeout(() => limit.abort(new Error(`no answer within ${ms} ms`)), ms)
    try {
      const headers = { 'X-Amz-Content-Sha256': sha256(body ?? new Uint8Array()) }
      const signed = await aws.sign(url.href, { method, headers, ...(body ? { body: body as Uint8Array<ArrayBuffer> } : {}) })
      const response = await fetch(signed, { signal: limit.signal, redirect: 'manual' })
      if (response.ok) return await read(response)
      throw refusal(what, response.status, await response.text())
    } catch (error) {
      if (error instanceof ObjectStoreError) throw error
      throw new ObjectStoreError(`S3 cannot be reached: ${reasonOf(error)} (${what})`, { cause: error })
    } finally {
      clearTimeout(timer)
    }
  }

  const call = <Result>(wanted: Call, read: (response: Response) => Promise<Result>): Promise<Result> =>
    pRetry(() => attempt(wanted, read), {
      retries: ATTEMPTS - 1,
      minTimeout: 100,
      randomize: true,
      maxRetryTime: Math.min(wanted.retryMs ?? retryMs, retryMs),
      shouldRetry: ({ error }) => isTransient(error),
      onFailedAttempt: ({ error }) => {
        if (isTransient(error)) wanted.onUnsettled?.()
      },
    })

  const textOf = (wanted: Call): Promise<string> => call(wanted, (response) => response.text())

  /** Undefined instead of the error for what is not there. */
  const ifThere = async <Result>(work: Promise<Result>): Promise<Result | undefined> => {
    try {
      return await work
    } catch (error) {
      if (isMissing(error)) return undefined
      throw error
    }
  }

  const stat = async (key: string): Promise<{ bytes: number } | null> => {
    const read = async (response: Response): Promise<number> => Number(response.headers.get('content-length'))
    const bytes = await ifThere(call({ method: 'HEAD', key: checkObjectKey(key) }, read))
    return bytes === undefined ? null : { bytes }
  }

  /** All pages of a listing, by the names of the parameters that ask for the next one and of the elements that answer them. */
  async function pages(query: Record<string, string>, next: Record<string, string>, how: Partial<Call> = {}): Promise<string[]> {
    const found: string[] = []
    for (let position: Record<string, string> | null = {}; position; ) {
      const page: string = await textOf({ ...how, method: 'GET', query: { ...query, ...position } })
      found.push(page)
      const isLast = elements(page, 'IsTruncated')[0] !== 'true'
      position = isLast ? null : Object.fromEntries(Object.entries(next).map(([name, element]) => [name, elements(page, element)[0] ?? '']))
    }
    return found
  }

  /** The object, and every upload in parts that was begun for it. */
  async function remove(key: string): Promise<void> {
    const next = { 'key-marker': 'NextKeyMarker', 'upload-id-marker': 'NextUploadIdMarker' }
    for (const page of await pages({ uploads: '', prefix: key }, next, CLEAN_UP)) {
      for (const upload of page.split('<Upload>').slice(1)) {
        const [[name], [uploadId]] = [elements(upload, 'Key'), elements(upload, 'UploadId')]
        if (name === key && uploadId) await ifThere(textOf({ ...CLEAN_UP, method: 'DELETE', key, query: { uploadId } }))
      }
    }
    await ifThere(textOf({ ...CLEAN_UP, method: 'DELETE', key }))
  }

  function createWriter(key: string): ObjectWriter {
    const buffer = createBuffer(partBytes)
    const etags: string[] = []
    let uploadId: string | undefined
    let total = 0
    let isClosed = false
    let isFinished = false
    /** Whether S3 may know of the object. */
    let isSent = false
    let isUnsettled = false
    const onUnsettled = (): void => {
      isUnsettled = true
    }

    async function sendPart(): Promise<void> {
      isSent = true
      if (uploadId === undefined) {
        const answer = await textOf({ method: 'POST', key, query: { uploads: '' }, onUnsettled })
        uploadId = elements(answer, 'UploadId')[0]
        if (!uploadId) throw new ObjectStoreError('S3 began an upload in parts without saying its id')
      }
      const query = { partNumber: String(etags.length + 1), uploadId }
      const etag = await call({ method: 'PUT', key, query, body: buffer.bytes, onUnsettled }, async (response) => {
        await response.arrayBuffer()
        return response.headers.get('etag')
      })
      if (!etag) throw new ObjectStoreError('S3 took a part without giving its ETag')
      etags.push(etag)
      buffer.clear()
    }

    async function complete(): Promise<void> {
      const parts = etags.map((etag, at) => `<Part><PartNumber>${at + 1}</PartNumber><ETag>${encodeXml(etag)}</ETag></Part>`)
      const body = Buffer.from(`<CompleteMultipartUpload>${parts.join('')}</CompleteMultipartUpload>`)
      const what = 'POST of an object'
      try {
        const wanted: Call = { method: 'POST', key, query: { uploadId: uploadId! }, body, attemptMs: COMPLETE_MS, onUnsettled }
        await call(wanted, async (response) => {
          const answer = await response.text()
          // S3 sends the status before it knows the outcome.
          if (!answer.includes('CompleteMultipartUploadResult')) throw refusal(what, answer.includes('<Error>') ? 500 : null, answer)
        })
      } catch (error) {
        // An earlier attempt whose answer was lost may have done it.
        const isDone = (error as ObjectStoreError).code === 'NoSuchUpload' && (await stat(key))?.bytes === total
        if (!isDone) throw error
      }
    }

    return {
      async write(chunk) {
        if (isClosed) throw new TypeError('the object is finished or aborted')
        total += chunk.byteLength
        for (let rest = chunk; rest.byteLength > 0; ) {
          if (buffer.isFull) await sendPart()
          rest = buffer.add(rest)
        }
      },
      async finish() {
        if (isClosed) throw new TypeError('the object is finished or aborted')
        isClosed = true
        isSent = true
        if (uploadId === undefined) await textOf({ method: 'PUT', key, body: buffer.bytes, onUnsettled })
        else {
          await sendPart()
          await complete()
        }
        isFinished = true
      },
      async abort() {
        isClosed = true
        if (!isSent || isFinished) return
        await remove(key)
        isSent = false
      },
      isUnsettled: () => isUnsettled,
    }
  }

  return {
    async create(key) {
      return createWriter(checkObjectKey(key))
    },
    async open(key) {
      const body = await ifThere(call({ method: 'GET', key: checkObjectKey(key) }, async (response) => response.body))
      return body === undefined ? null : (body ?? new Blob().stream())
    },
    async delete(key) {
      await remove(checkObjectKey(key))
    },
    stat,
    async list(prefix) {
      const next = { 'continuation-token': 'NextContinuationToken' }
      return (await pages({ 'list-type': '2', prefix }, next)).flatMap((page) => elements(page, 'Key'))
    },
    async check() {
      await attempt({ method: 'GET', query: { 'list-type': '2', 'max-keys': '1' } }, (response) => response.text())
    },
  }
}

/** What undici says is `fetch failed`; the reason is in the cause. */
const reasonOf = (error: unknown): string => {
  const { message, cause } = error as Error
  const inner = cause as NodeJS.ErrnoException | undefined
  return inner?.code ?? inner?.message ?? message
}

function refusal(what: string, status: number | null, answer: string): ObjectStoreError {
  const code = elements(answer, 'Code')[0] ?? null
  return new ObjectStoreError(`S3 answered ${[status, code].filter((part) => part !== null).join(' ') || 'nothing'} to ${what}`, {
    status,
    code,
  })
}
