import type { Timeline } from './timeline.js'

/** The kinds of bytes that pages know, as cheap as they can be: to read one is a task of its time, and a copy of one is the same one. */
export interface Blobs {
  Blob: typeof Blob
  File: typeof File
}

type Part = ArrayBuffer | Uint8Array<ArrayBuffer> | Bytes

/** What all of them are, whichever time they belong to. */
export class Bytes {
  readonly [Symbol.toStringTag]: string = 'Blob'
  readonly bytes: Uint8Array<ArrayBuffer>
  readonly type: string

  constructor(parts: readonly Part[] = [], { type = '' }: BlobPropertyBag = {}) {
    const [first] = parts
    if (!first || parts.length > 1) throw new TypeError('Blobs are made of one part here.')
    this.bytes = first instanceof Bytes ? first.bytes : new Uint8Array(first).slice()
    this.type = type
  }

  get size(): number {
    return this.bytes.length
  }
}

export function createBlobs(timeline: Timeline): Blobs {
  class OwnBlob extends Bytes {
    slice(start?: number, end?: number): OwnBlob {
      return new OwnBlob([this.bytes.slice(start, end)])
    }
    arrayBuffer(): Promise<ArrayBuffer> {
      return new Promise((resolve) => timeline.later(null, 0, () => resolve(this.bytes.slice().buffer)))
    }
  }
  class OwnFile extends OwnBlob {
    override readonly [Symbol.toStringTag] = 'File'
    readonly lastModified = 0
    readonly name: string
    constructor(parts: readonly Part[], name: string, options?: FilePropertyBag) {
      super(parts, options)
      this.name = name
    }
  }
  return { Blob: OwnBlob, File: OwnFile } as unknown as Blobs
}
