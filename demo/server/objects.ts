/** One object being written. Nothing is visible under its key before `finish` resolves. */
export interface ObjectWriter {
  /** One call at a time. Rejects after `finish` and `abort`. The chunk may be reused when it resolves. */
  write(chunk: Uint8Array): Promise<void>
  /** Publishes the object; when it resolves, the bytes are durable. Rejects after `abort`. */
  finish(): Promise<void>
  /** Leaves nothing behind, also after `finish` has rejected. Does nothing after it has resolved. */
  abort(): Promise<void>
  /**
   * Whether a call of this writer has no known outcome and may still be carried out: then the object can come back after it was deleted. Absent:
   * never.
   */
  isUnsettled?(): boolean
}

export interface ObjectStoreErrorOptions extends ErrorOptions {
  status?: number | null
  code?: string | null
}

/** The place where objects live cannot be reached, or refuses. Its message names no key, credential or file. */
export class ObjectStoreError extends Error {
  override name = 'ObjectStoreError'
  /** Of its answer; null when there was none. */
  readonly status: number | null
  /** Its own word for the failure, such as `SlowDown`. */
  readonly code: string | null

  constructor(message: string, { status = null, code = null, ...options }: ObjectStoreErrorOptions = {}) {
    super(message, options)
    this.status = status
    this.code = code
  }
}

/**
 * Where bytes live. A key is 1 to 200 characters of A-Z a-z 0-9 - and is written once; should it be written again, the later object replaces the
 * earlier one as a whole when it is finished.
 */
export interface ObjectStore {
  create(key: string): Promise<ObjectWriter>
  /** The bytes, or null when there is no such object. */
  open(key: string): Promise<ReadableStream<Uint8Array> | null>
  /** Also removes what an interrupted writer left. Harmless when there is nothing. */
  delete(key: string): Promise<void>
  stat(key: string): Promise<{ bytes: number } | null>
  /** Keys of finished objects that start with `prefix`, in no order. */
  list(prefix: string): Promise<string[]>
  /** Rejects when objects cannot be read and written at the moment. Changes nothing, costs little, tries once. */
  check(): Promise<void>
}

/** Throws `TypeError` for a key that could be a path. */
export function checkObjectKey(key: string): string {
  if (!/^[A-Za-z0-9-]{1,200}$/.test(key))
    throw new TypeError(`object key ${JSON.stringify(key)}: expected 1 to 200 letters, digits and hyphens`)
  return key
}

/** Objects in memory: for tests and for trying things out. */
export function createMemoryObjects(): ObjectStore {
  const objects = new Map<string, Uint8Array<ArrayBuffer>>()
  return {
    async create(key) {
      checkObjectKey(key)
      let chunks: Uint8Array[] = []
      let isClosed = false
      const checkOpen = (): void => {
        if (isClosed) throw new TypeError('the object is finished or aborted')
      }
      return {
        async write(chunk) {
          checkOpen()
          chunks.push(chunk.slice())
        },
        async finish() {
          checkOpen()
          isClosed = true
          const bytes = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0))
          let at = 0
          for (const chunk of chunks) {
            bytes.set(chunk, at)
            at += chunk.byteLength
          }
          objects.set(key, bytes)
        },
        async abort() {
          isClosed = true
          chunks = []
        },
      }
    },
    async open(key) {
      const bytes = objects.get(checkObjectKey(key))
      return bytes ? new Blob([bytes]).stream() : null
    },
    async delete(key) {
      objects.delete(checkObjectKey(key))
    },
    async stat(key) {
      const bytes = objects.get(checkObjectKey(key))
      return bytes ? { bytes: bytes.byteLength } : null
    },
    async list(prefix) {
      return [...objects.keys()].filter((key) => key.startsWith(prefix))
    },
    async check() {},
  }
}
