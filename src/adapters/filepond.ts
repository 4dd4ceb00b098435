import type { EnqueueOptions } from '../intake.js'
import type { UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'

/** What `attachPond` and `createServer` take. */
export interface FilePondOptions<Result> {
  /** Options of `queue.enqueue` for all files, or a function of each and its FilePond metadata. */
  enqueue?: Omit<EnqueueOptions, 'id'> | ((file: File, metadata: Record<string, unknown>) => EnqueueOptions)
  /** The id that FilePond puts into the form. Default the `uploadId` of the server's answer, else the upload's own id. */
  serverId?: (result: Result, upload: Upload<Result>) => string
  /** Removes from the server what is stored there. Default nothing: it stays. */
  remove?: (serverId: string) => unknown
}

type Progress = (isComputable: boolean, loaded: number, total: number) => void

/** https://pqina.nl/filepond/docs/api/server/ */
export interface FilePondServer {
  /** Enqueues, and ends with the upload. Errors are the codes of `UploadError`; FilePond's retry sends with the same key. */
  process(
    fieldName: string,
    file: Blob,
    metadata: Record<string, unknown>,
    load: (serverId: string) => void,
    error: (code: string) => void,
    progress: Progress,
    abort: () => void,
    transfer: (id: string) => void,
    options: { chunkTransferId?: string | null },
  ): { abort: () => void }
  /** Cancels what is not stored yet; else `options.remove`. */
  revert(serverId: string, load: () => void, error: (code: string) => void): void
  /** Shows an upload of the queue, given by its id or its server's: loading until it is stored. */
  restore(
    id: string,
    load: (file: File & Blob) => void,
    error: (code: string) => void,
    progress: Progress,
    abort: () => void,
    headers: (headers: string) => void,
  ): { abort: () => void }
}

/** What is needed of a FilePond instance. */
export interface Pond {
  /** Sets what `attachPond` needs. */
  setOptions(options: { server: FilePondServer; maxParallelUploads: number }): void
  /** Shows an upload of the queue. */
  addFile(source: string, options: { type: 'limbo' }): Promise<unknown>
  /** Listens to `destroy` and `removefile`. */
  // biome-ignore lint/suspicious/noExplicitAny: FilePond's own type of a listener.
  on(event: string, listener: (...parameters: any[]) => void): void
  /** Ends that. */
  // biome-ignore lint/suspicious/noExplicitAny: the same.
  off(event: string, listener: (...parameters: any[]) => void): void
}

/**
 * Lets a FilePond upload through a queue, and shows in it what earlier pages left unfinished. Files that its user removes are cancelled.
 * Returns the function that ends that; uploads go on.
 */
export function attachPond<Result>(queue: UploadQueue<Result>, pond: Pond, options: FilePondOptions<Result> = {}): () => void {
  let isOver = false
  const onDestroy = (): void => {
    isOver = true
  }
  const onRemove = (_error: unknown, { serverId, transferId }: { serverId?: string | null; transferId?: string | null }): void => {
    // FilePond tells its server nothing of a failed file that is removed.
    queue.cancel(find(queue, serverId ?? transferId)?.id ?? '').catch(ignore)
  }
  pond.on('destroy', onDestroy)
  pond.on('removefile', onRemove)
  // It would let a file wait unsaved until others are sent. How many are under way at once is the queue's own concern.
  pond.setOptions({ server: createServer(queue, options, () => isOver), maxParallelUploads: 1_000_000 })
  const restore = (): void => {
    if (isOver) return
    // Each file shows its own error.
    for (const upload of queue.getSnapshot())
      if (upload.status !== 'succeeded') pond.addFile(sourceOf(upload), { type: 'limbo' }).catch(ignore)
  }
  queue.ready().then(restore, ignore)
  return () => {
    isOver = true
    pond.off('destroy', onDestroy)
    pond.off('removefile', onRemove)
  }
}

/**
 * `server` of a FilePond. Aborting there cancels, unless `isLeaving` says that it is not the user who aborts: `pond.destroy()` does so too.
 * `attachPond` takes care of that.
 */
export function createServer<Result>(
  queue: UploadQueue<Result>,
  options: FilePondOptions<Result> = {},
  isLeaving: () => boolean = () => false,
): FilePondServer {
  /** Restored uploads whose failure has been shown: asked for again, they are to be tried again. */
  const shown = new Set<string>()
  const serverIdOf = (upload: Upload<Result>): string => {
    const result = upload.result as (Result & { uploadId?: string }) | null
    return (result && (options.serverId?.(result, upload) ?? result.uploadId)) ?? upload.id
  }
  /** Follows an upload to its end, once it is known which. */
  const follow = (
    begin: () => Promise<string>,
    load: (upload: Upload<Result>) => void,
    error: (code: string) => void,
    progress: Progress,
    abort: () => void,
  ): { abort: () => void } => {
    let stop: (() => void) | undefined
    let end = (how: () => void): void => {
      end = ignore
      stop?.()
      how()
    }
    const begun = begin()
    begun.then(
      (id) => {
        const look = (): void => {
          const upload = queue.get(id)
          if (!upload) {
            end(abort)
            return
          }
          const { status, reason, progress: bytes } = upload
          if (status === 'succeeded') end(() => load(upload))
          if (status === 'failed' || status === 'blocked') end(() => error(reason as string))
          if (bytes) progress(true, bytes.loaded, bytes.total)
        }
        if (end === ignore) return
        stop = queue.subscribe(look)
        look()
      },
      (cause) => end(() => error(codeOf(cause))),
    )
    return {
      abort() {
        end(abort)
        // FilePond tells a task later that it is being destroyed.
        begun.then((id) => setTimeout(() => isLeaving() || queue.cancel(id).catch(ignore)), ignore)
      },
    }
  }

  /** With the same key: what the server has of it counts. */
  const revive = async ({ id, status }: Upload<Result>): Promise<string> => {
    await queue[status === 'failed' ? 'retry' : 'resume'](id)
    return id
  }

  return {
    process(_fieldName, file, metadata, load, error, progress, abort, transfer, { chunkTransferId }) {
      const begin = async (): Promise<string> => {
        const known = chunkTransferId ? queue.get(chunkTransferId) : undefined
        if (known) return revive(known)
        const { enqueue } = options
        const { id } = await queue.enqueue(file, typeof enqueue === 'function' ? enqueue(file as File, metadata) : enqueue)
        // FilePond gives it back should the user try again.
        transfer(id)
        return id
      }
      return follow(begin, (upload) => load(serverIdOf(upload)), error, progress, abort)
    },
    revert(serverId, load, error) {
      const revert = async (): Promise<unknown> => {
        const upload = find(queue, serverId, serverIdOf)
        return upload && upload.status !== 'succeeded' ? queue.cancel(upload.id) : options.remove?.(serverId)
      }
      revert().then(load, (cause) => error(codeOf(cause)))
    },
    restore(id, load, error, progress, abort, headers) {
      const begin = async (): Promise<string> => {
        const upload = find(queue, id, serverIdOf)
        if (!upload) throw { code: 'not-found' }
        headers(`Content-Length: ${upload.size}`)
        return shown.delete(id) ? revive(upload) : upload.id
      }
      const show = (upload: Upload<Result>): void => {
        headers(`X-Content-Transfer-Id: ${serverIdOf(upload)}`)
        const file = Object.defineProperty(new File([], upload.name, upload), 'size', { value: upload.size })
        // The bytes are the server's now. A Blob would be copied, and lose its name and size.
        load({ body: file } as unknown as File)
      }
      const fail = (code: string): void => {
        shown.add(id)
        error(code)
      }
      return follow(begin, show, fail, progress, abort)
    },
  }
}

/** FilePond shows what is after the last slash until the upload is stored. */
const sourceOf = ({ id, name }: Upload): string => `${id}/${name}`

function find<Result>(
  queue: UploadQueue<Result>,
  id: unknown,
  nameOf: (upload: Upload<Result>) => string = sourceOf,
): Upload<Result> | undefined {
  return queue.getSnapshot().find((upload) => [upload.id, sourceOf(upload), nameOf(upload)].includes(id as string))
}

const ignore = (): void => {}
const codeOf = ({ code, name }: { code?: string; name: string }): string => code ?? name
