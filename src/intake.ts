import { digest, wholeLimit } from './digest.js'
import { abortError, UploadError } from './errors.js'
import { createTurns } from './turns.js'
import { cleanName } from './wire.js'

/**
 * Up to this many bytes are read here and stored as a buffer: quicker than a Blob, whose bytes lie in a file of their own. Of a larger one the
 * engine makes that file without a detour through this page's memory.
 */
export const inlineLimit: number = 64 * 1024
/** More at a time begin in one task, a millisecond or two each, in which the page does not answer. */
const takeReadingTurn = createTurns(4)

/** What `enqueue` takes beside a file. Others, and values that cannot be, are a `TypeError`. */
export interface EnqueueOptions {
  /** Id of the upload; default a new UUID. Where an upload of that id has not succeeded yet, it is returned instead of a second one. */
  id?: string
  /** Travels as `Upload-Metadata`, or as form fields. Keys: printable ASCII without space and comma. */
  metadata?: Record<string, string>
  /** Default the file's own type. */
  contentType?: string
  /** Default the file's own name. */
  name?: string
  /** Higher is sent first; default 0. */
  priority?: number
  /** Aborts the call, and later the upload. */
  signal?: AbortSignal
}

/** What a picked file comes to: facts for its record, and bytes of our own. */
export interface Intake {
  name: string
  type: string
  size: number
  lastModified: number
  /** `null` for a large file: it is hashed once it is stored. */
  sha256: string | null
  bytes: Blob | ArrayBuffer
}

/** Also a File of another realm, an iframe's say. */
const isBlob = (value: unknown): value is Blob =>
  typeof value === 'object' &&
  value !== null &&
  /^\[object (Blob|File)\]$/.test(Object.prototype.toString.call(value)) &&
  'arrayBuffer' in value

const unreadable = (cause?: unknown): UploadError =>
  new UploadError('file-unreadable', 'The file cannot be read: it was moved, changed, or is a folder.', { cause })

/**
 * Takes a file in. It is read and hashed here, unless it is large. A small one's bytes are stored as they were read, others are left to the
 * browser, which copies them as it stores them.
 * Rejects with `not-a-file`, `file-too-large`, `file-unreadable`, or an `AbortError`.
 */
export async function takeIn(file: unknown, options: EnqueueOptions, maxFileSize: number | undefined): Promise<Intake> {
  if (!isBlob(file)) throw new UploadError('not-a-file', 'Expected a File or a Blob.')
  const { size } = file
  if (maxFileSize !== undefined && size > maxFileSize)
    throw new UploadError('file-too-large', `The file has ${size} bytes; ${maxFileSize} are allowed.`)
  const { name = 'upload', lastModified = 0 } = file as Partial<File>
  const facts = { name: cleanName(options.name ?? name), type: options.contentType ?? file.type, size, lastModified }
  throwIfAborted(options.signal)
  try {
    if (size > wholeLimit) {
      await takeReadingTurn(() => readEnd(file), options.signal)
      throwIfAborted(options.signal)
      return { ...facts, sha256: null, bytes: file }
    }
    const buffer = await takeReadingTurn(() => file.arrayBuffer(), options.signal)
    if (buffer.byteLength !== size) throw unreadable()
    const sha256 = await digest(buffer, options.signal).catch(notYet)
    return { ...facts, sha256, bytes: size > inlineLimit ? file : buffer }
  } catch (cause) {
    throwIfAborted(options.signal)
    throw cause instanceof UploadError ? cause : unreadable(cause)
  }
}

/** Code for hashing that cannot be loaded now is loaded later, like that for a large file. */
const notYet = (error: unknown): null => {
  if (error instanceof UploadError) return null
  throw error
}

/** A file that was moved, cut, or is a folder has none. */
const readEnd = (blob: Blob): Promise<unknown> => blob.slice(-1).arrayBuffer()

/** The error of bytes that could not be stored: theirs, if they can no longer be read, else the store's. */
export async function blame(bytes: Blob | ArrayBuffer, storeError: unknown): Promise<unknown> {
  if (!('size' in bytes)) return storeError
  return readEnd(bytes).then(() => storeError, unreadable)
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw signal.reason instanceof DOMException ? signal.reason : abortError()
}
