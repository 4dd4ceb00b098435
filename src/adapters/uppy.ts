import { BasePlugin, type Body, type Meta, type PluginOpts, type Uppy, type UppyEventMap, type UppyFile } from '@uppy/core'
import type { UploadError } from '../errors.js'
import type { UploadQueueEvents } from '../events.js'
import type { UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'

/** What `uppy.use(Uponce, …)` takes. */
// biome-ignore lint/suspicious/noExplicitAny: `uppy.use` infers no result, and an app knows what its server answers.
export interface UponceOptions<Result = any> extends PluginOpts {
  /** The queue that sends. It outlives the Uppy instance; close it yourself. */
  queue: UploadQueue<Result>
  /** Which of the file's meta fields travel as metadata: all (`true`, default), none, or those named. `name` and `type` travel by themselves. */
  allowedMetaFields?: boolean | string[]
  /** Whether uploads that an earlier page left unfinished are shown, or which. Default `true`. */
  restore?: boolean | ((upload: Upload<Result>) => boolean)
  /** `uploadURL` of a file that is stored; default none. */
  uploadUrl?: (result: Result, upload: Upload<Result>) => string
}

/**
 * An uploader for Uppy: `uppy.use(Uponce, { queue })`. Uppy picks and shows; the queue stores, sends, and goes on after a reload. Retry, pause and
 * removal in Uppy are those of the upload, in every tab; `uppy.destroy()` leaves uploads alone.
 */
export class Uponce<M extends Meta, B extends Body> extends BasePlugin<UponceOptions, M, B> {
  /** The upload of each of Uppy's files, and the other way round. */
  readonly #uploads = new Map<string, string>()
  readonly #files = new Map<string, string>()
  /** What waits for a file to end. */
  readonly #waiting = new Map<string, () => void>()
  #endings: (() => void)[] = []
  /** Whose uploads were seen last; `null`: they went. */
  #owner: string | null | undefined
  readonly #madeAt = Date.now()

  /** Called by `uppy.use`. Throws `TypeError` without a queue. */
  constructor(uppy: Uppy<M, B>, options?: UponceOptions) {
    super(uppy, options)
    if (!options?.queue) throw new TypeError(`queue: ${options?.queue} is not valid; expected an UploadQueue.`)
    this.id = options.id ?? 'Uponce'
    this.type = 'uploader'
  }

  /** Called by Uppy. */
  override install(): void {
    const { uppy } = this
    const { queue } = this.opts
    const { capabilities } = uppy.getState()
    uppy.setState({ capabilities: { ...capabilities, resumableUploads: true, individualCancellation: true } })
    uppy.addUploader(this.#send)

    const onUppy = <Name extends 'file-removed' | 'upload-pause' | 'pause-all' | 'resume-all'>(
      name: Name,
      react: UppyEventMap<M, B>[Name],
    ): (() => void) => {
      uppy.on(name, react)
      return () => uppy.off(name, react)
    }
    const on = <Name extends 'progress' | 'retrying' | 'succeeded' | 'failed' | 'blocked' | 'paused' | 'resumed' | 'cancelled'>(
      name: Name,
      react: (file: UppyFile<M, B>, payload: UploadQueueEvents<unknown>[Name]) => void,
    ): (() => void) =>
      queue.on(name, (payload) => {
        const fileId = this.#files.get(payload.upload.id)
        const file = fileId && uppy.getFile(fileId)
        if (file) react(file, payload)
      })
    const onError = (file: UppyFile<M, B>, { error }: { error: UploadError }): void => {
      const { status, problem } = error
      uppy.emit('upload-error', file, error, status ? { status, body: problem as unknown as B } : undefined)
      this.#end(file.id)
    }
    this.#endings = [
      onUppy('file-removed', ({ id }) => this.#remove(id)),
      onUppy('upload-pause', (file, isPaused) => this.#setPaused(isPaused, file?.id)),
      onUppy('pause-all', () => this.#setPaused(true)),
      onUppy('resume-all', () => this.#setPaused(false)),
      on('progress', (file, { loaded, total }) => {
        const uploadStarted = file.progress.uploadStarted ?? Date.now()
        uppy.emit('upload-progress', file, { ...file.progress, uploadStarted, bytesUploaded: loaded, bytesTotal: total })
      }),
      on('retrying', ({ id, progress }) =>
        // A file whose bytes have all left counts as done, and would take no further progress.
        uppy.setFileState(id, { progress: { ...progress, percentage: 0, bytesUploaded: 0 } as typeof progress }),
      ),
      on('succeeded', (file, { upload, result }) => {
        const uploadURL = this.opts.uploadUrl?.(result, upload)
        uppy.emit('upload-success', file, { status: 200, body: result as B, ...(uploadURL && { uploadURL }) })
        this.#end(file.id)
      }),
      on('failed', onError),
      on('blocked', onError),
      on('paused', ({ id }) => uppy.setFileState(id, { isPaused: true })),
      on('resumed', ({ id }) => {
        uppy.setFileState(id, { isPaused: false, error: null })
        if (!uppy.getFiles().some(({ error }) => error)) uppy.setState({ error: null })
      }),
      on('cancelled', ({ id }) => this.#drop(id)),
      queue.subscribe(this.#look),
    ]
    queue.ready().then(this.#restore, this.#report)
  }

  /** Called by Uppy; uploads go on, and are shown by the next one that is used. */
  override uninstall(): void {
    this.uppy.removeUploader(this.#send)
    for (const end of this.#endings.splice(0)) end()
    for (const id of this.#uploads.keys()) if (!this.uppy.getFile(id).progress.uploadComplete) this.#drop(id)
  }

  /** Another account's files go, and stay in the queue; what a new one has left is shown. */
  readonly #look = (): void => {
    const { queue } = this.opts
    for (const [fileId, id] of this.#uploads)
      if (!queue.get(id)) {
        this.#drop(fileId)
        this.#owner = null
      }
    const [first] = queue.getSnapshot()
    const isSaving = [...this.#waiting.keys()].some((fileId) => !this.#uploads.has(fileId))
    if (!first || first.owner === this.#owner || isSaving) return
    // Where nobody's were seen yet, it may be what another tab has just picked.
    if (this.#owner !== undefined || first.createdAt < this.#madeAt) this.#restore()
    this.#owner = first.owner
  }

  #drop(fileId: string): void {
    this.#forget(fileId)
    this.uppy.removeFile(fileId)
  }

  /** Uppy's turn: resolves when all have ended, whichever way. */
  readonly #send = async (fileIds: string[]): Promise<void> => {
    const { uppy } = this
    const files = uppy.getFilesByIds(fileIds).filter((file) => file && !file.progress.uploadComplete)
    uppy.emit(
      'upload-start',
      files.filter(({ id }) => !this.#uploads.has(id)),
    )
    await Promise.all(
      files.map(async (file) => {
        const ended = this.#ended(file.id)
        await this.#start(file).catch((error: Error) => {
          uppy.emit('upload-error', uppy.getFile(file.id), error)
          this.#end(file.id)
        })
        await ended
      }),
    )
  }

  async #start(file: UppyFile<M, B>): Promise<void> {
    const { queue } = this.opts
    const known = queue.get(this.#uploads.get(file.id) ?? '')
    // With the same key: what the server has of it counts.
    if (known) return queue[known.status === 'failed' ? 'retry' : 'resume'](known.id)
    if (file.isRemote || !file.data) throw new Error('uponce sends files of this device only.')
    const { id } = await queue.enqueue(file.data, {
      name: file.meta.name,
      contentType: file.type,
      metadata: this.#metadataOf(file),
    })
    // Its user may have removed it meanwhile.
    if (this.uppy.getFile(file.id)) this.#pair(file.id, id)
    else if (this.#endings.length) await queue.cancel(id)
  }

  #metadataOf({ meta }: UppyFile<M, B>): Record<string, string> {
    const { allowedMetaFields = true } = this.opts
    const isAllowed = (field: string): boolean =>
      Array.isArray(allowedMetaFields) ? allowedMetaFields.includes(field) : allowedMetaFields && field !== 'name' && field !== 'type'
    const fields = Object.entries(meta).filter(([field, value]) => isAllowed(field) && value != null)
    return Object.fromEntries(fields.map(([field, value]) => [field, typeof value === 'object' ? JSON.stringify(value) : String(value)]))
  }

  readonly #restore = async (): Promise<void> => {
    const { uppy } = this
    const { queue, restore = true } = this.opts
    const isWanted = typeof restore === 'function' ? restore : () => restore
    const uploads = queue.getSnapshot().filter((upload) => upload.status !== 'succeeded' && !this.#files.has(upload.id) && isWanted(upload))
    if (!uploads.length || !this.#endings.length) return
    const files = uploads.map((upload) => fileOf<M, B>(upload))
    uppy.setState({ files: { ...Object.fromEntries(files.map((file) => [file.id, file])), ...uppy.getState().files } })
    const ends = files.map(({ id, error }, place) => {
      this.#pair(id, (uploads[place] as Upload).id)
      return error ? undefined : this.#ended(id)
    })
    uppy.emit('restored', {})
    await Promise.all(ends)
    const ended = files.map(({ id }) => uppy.getFile(id)).filter(Boolean)
    if (ended.length) uppy.emit('complete', { successful: ended.filter(({ error }) => !error), failed: ended.filter(({ error }) => error) })
  }

  #remove(fileId: string): void {
    const id = this.#uploads.get(fileId)
    this.#forget(fileId)
    // `uppy.destroy()` removes all files, and then this plugin: a page that is left, not a user who changed their mind.
    if (id) queueMicrotask(() => this.#endings.length && this.opts.queue.cancel(id).catch(this.#report))
  }

  #setPaused(isPaused: boolean, fileId?: string): void {
    const { queue } = this.opts
    const ids = fileId ? [this.#uploads.get(fileId)] : [...this.#files.keys()]
    for (const id of ids) if (id) queue[isPaused ? 'pause' : 'resume'](id).catch(this.#report)
  }

  readonly #report = (error: Error): void => this.uppy.log(error, 'error')

  #pair(fileId: string, id: string): void {
    this.#uploads.set(fileId, id)
    this.#files.set(id, fileId)
    this.#owner = this.opts.queue.get(id)?.owner
  }

  #forget(fileId: string): void {
    this.#files.delete(this.#uploads.get(fileId) ?? '')
    this.#uploads.delete(fileId)
    this.#end(fileId)
  }

  #ended(fileId: string): Promise<void> {
    // Two tries of one file end together.
    const before = this.#waiting.get(fileId)
    return new Promise((resolve) => this.#waiting.set(fileId, () => resolve(before?.())))
  }

  #end(fileId: string): void {
    this.#waiting.get(fileId)?.()
    this.#waiting.delete(fileId)
  }
}

/** A file of Uppy for an upload of an earlier page. Its bytes lie in the queue. */
function fileOf<M extends Meta, B extends Body>({ id, name, type, size, metadata, createdAt, status, error }: Upload): UppyFile<M, B> {
  return {
    id: `uponce-${id}`,
    name,
    extension: /\.([^.]+)$/.exec(name)?.[1] ?? '',
    type,
    size,
    meta: { ...metadata, name, type } as UppyFile<M, B>['meta'],
    data: undefined,
    isRemote: false,
    isGhost: false,
    isRestored: true,
    isPaused: status === 'paused',
    source: 'uponce',
    error: status === 'failed' || status === 'blocked' ? (error?.message ?? status) : null,
    progress: { uploadStarted: createdAt, uploadComplete: false, percentage: 0, bytesUploaded: 0, bytesTotal: size },
  }
}
