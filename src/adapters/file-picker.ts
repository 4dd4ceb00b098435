import type { EnqueueOptions } from '../intake.js'
import type { UploadQueue } from '../queue.js'

/** Why something that was picked is not enqueued. */
export type RefusalReason = 'not-a-file' | 'file-unreadable' | 'type-not-accepted' | 'file-too-large' | 'too-many-files'

/** A file, or what is none: a link, a text, a folder that cannot be read. */
export type Refused = File | { readonly name: string; readonly type: string }

/** What is taken of what a user picks. */
export interface PickOptions {
  /** As the attribute of `<input>`: `'image/*, application/pdf, .csv'`. Default what the input says, else everything. */
  accept?: string
  /** Whether more than one file is taken from one pick. Default what the input says, else `true`. */
  multiple?: boolean
  /** Bytes; default none. */
  maxFileSize?: number | undefined
  /** Called once for each thing that is not taken. */
  onRefused?: (file: Refused, reason: RefusalReason) => void
}

/** What `attach` takes beside that. */
export interface AttachOptions extends PickOptions {
  /** Options of `queue.enqueue` for all files, or a function of each and its path in the folder that was picked, `''` outside of one. */
  enqueue?: Omit<EnqueueOptions, 'id'> | ((file: File, path: string) => EnqueueOptions)
  /** Called for each file that could not be saved, with what `queue.enqueue` rejected with. Default: it is thrown as an uncaught error. */
  onError?: (error: unknown, file: File) => void
}

interface Picked {
  file: Refused
  path: string
  reason?: RefusalReason
}

/** So many are saved side by side. */
const batchSize = 64
/** Drops and pastes that a target inside another has taken. */
const taken = new WeakSet<Event>()

/**
 * Enqueues what is picked by an `<input type="file">`, or dropped on and pasted into any other element, in the order of the picks. Folders are
 * walked. An input is emptied after each pick, so that the same file can be picked again; an element has the attribute `data-dragging` while
 * something is dragged over it.
 *
 * Returns the function that ends it; what was picked before is saved all the same. Throws `TypeError` for a `maxFileSize` that is none.
 */
export function attach<Result>(queue: UploadQueue<Result>, element: HTMLElement | Document, options: AttachOptions = {}): () => void {
  checkSize(options)
  let last: Promise<void> = Promise.resolve()
  const take = (found: (Picked | FileSystemEntry)[], limits: PickOptions): void => {
    last = last.then(async () => {
      const picked: Picked[] = []
      for (const one of found) {
        if ('file' in one && !('fullPath' in one)) picked.push(one)
        else for await (const file of walk(one as FileSystemEntry)) picked.push(file)
      }
      await save(queue, sift(picked, limits), options)
    })
  }

  const onDrag = (event: DragEvent): void => {
    if (!hasFiles(event.dataTransfer) && isEditable(event)) return
    // Or there will be no drop, and the browser opens the file instead of the page.
    event.preventDefault()
    mark(element, true)
  }
  const onLeave = ({ relatedTarget }: DragEvent): void => {
    if (!element.contains(relatedTarget as Node | null)) mark(element, false)
  }
  const onDrop = (event: DragEvent): void => {
    mark(element, false)
    const data = event.dataTransfer
    if (!data || taken.has(event) || (!hasFiles(data) && isEditable(event))) return
    taken.add(event)
    event.preventDefault()
    take(contentsOf(data), options)
  }
  const onPaste = (event: ClipboardEvent): void => {
    const data = event.clipboardData
    // Office programs copy a text as a picture, too.
    const isText = isEditable(event) && data?.types.includes('text/plain')
    if (!data || taken.has(event) || !hasFiles(data) || isText) return
    taken.add(event)
    event.preventDefault()
    take(contentsOf(data), options)
  }
  const onChange = (): void => {
    const input = element as HTMLInputElement
    const picked = Array.from(input.files ?? [], (file) => ({ file, path: file.webkitRelativePath }))
    input.value = ''
    take(picked, { accept: input.accept, multiple: input.multiple || input.webkitdirectory === true, ...options })
  }

  const isInput = (element as Partial<HTMLInputElement>).type === 'file'
  const listeners = isInput
    ? { change: onChange }
    : { dragenter: onDrag, dragover: onDrag, dragleave: onLeave, drop: onDrop, paste: onPaste }
  for (const [name, listener] of Object.entries(listeners)) element.addEventListener(name, listener as EventListener)
  return () => {
    for (const [name, listener] of Object.entries(listeners)) element.removeEventListener(name, listener as EventListener)
    mark(element, false)
  }
}

/**
 * Lets the user pick files, by the browser's own picker where there is one (`showOpenFilePicker`), else by an input; `directory`: a whole folder.
 * Resolves with what is accepted, `[]` when the user cancels. Rejects with a `SecurityError` where no click or key press has called for it, and
 * with `TypeError` for a `maxFileSize` that is none.
 */
export async function pickFiles(options: PickOptions & { directory?: boolean } = {}): Promise<File[]> {
  checkSize(options)
  // Without it an input stays silent for ever.
  if (navigator.userActivation?.isActive === false) throw new DOMException('Files are picked upon a click or a key press.', 'SecurityError')
  const { accept = '', multiple = true, directory = false } = options
  const picked =
    (directory ? undefined : await pickByDialog(tokensOf(accept), multiple)) ?? (await pickByInput(accept, multiple, directory))
  return sift(picked, options).map(({ file }) => file as File)
}

/** https://wicg.github.io/file-system-access/#api-showopenfilepicker */
type ShowOpenFilePicker = (options: { multiple: boolean; types?: object[] }) => Promise<FileSystemFileHandle[]>

async function pickByDialog(tokens: string[], multiple: boolean): Promise<Picked[] | undefined> {
  const { showOpenFilePicker } = globalThis as { showOpenFilePicker?: ShowOpenFilePicker }
  if (!showOpenFilePicker) return undefined
  const extensions = tokens.filter((token) => token.startsWith('.'))
  const types = tokens.filter((token) => !token.startsWith('.')).map((type): [string, string[]] => [type, []])
  if (extensions.length > 0) types.push(['*/*', extensions])
  try {
    const handles = await showOpenFilePicker({ multiple, ...(types.length > 0 && { types: [{ accept: Object.fromEntries(types) }] }) })
    return await Promise.all(
      handles.map((handle) =>
        handle.getFile().then(
          (file) => ({ file, path: '' }),
          () => unreadable(handle.name, ''),
        ),
      ),
    )
  } catch (error) {
    // What it does not take, or where it may not be shown, an input does.
    return (error as Error).name === 'AbortError' ? [] : undefined
  }
}

const pickByInput = (accept: string, multiple: boolean, directory: boolean): Promise<Picked[]> =>
  new Promise((resolve) => {
    const input = document.createElement('input')
    Object.assign(input, { type: 'file', accept, multiple, webkitdirectory: directory, hidden: true })
    const end = (): void => {
      input.remove()
      resolve(Array.from(input.files ?? [], (file) => ({ file, path: file.webkitRelativePath })))
    }
    input.addEventListener('change', end)
    input.addEventListener('cancel', end)
    // Some browsers forget an input that is nowhere.
    document.body.append(input)
    input.click()
  })

const checkSize = ({ maxFileSize = 0 }: PickOptions): void => {
  if (!(maxFileSize >= 0)) throw new TypeError(`maxFileSize: ${maxFileSize} is not valid; expected a number of bytes of at least 0.`)
}

const hasFiles = (data: DataTransfer | null): boolean => data?.types.includes('Files') ?? false

const isEditable = (event: Event): boolean => {
  const { isContentEditable, tagName } = event.composedPath()[0] as HTMLElement
  return isContentEditable || tagName === 'INPUT' || tagName === 'TEXTAREA'
}

const mark = (element: HTMLElement | Document, isOver: boolean): void => {
  const marked = 'documentElement' in element ? element.documentElement : element
  marked.toggleAttribute('data-dragging', isOver)
}

const unreadable = (name: string, path: string): Picked => ({ file: { name, type: '' }, path, reason: 'file-unreadable' })

/** What a drop or paste holds; it can be asked only while its event is told. Texts beside files are other forms of these. */
function contentsOf(data: DataTransfer): (Picked | FileSystemEntry)[] {
  const items = [...data.items]
  const nothing = ({ type }: { type: string }): Picked => ({ file: { name: '', type }, path: '', reason: 'not-a-file' })
  if (!hasFiles(data)) return items.slice(0, 1).map(nothing)
  return items
    .filter(({ kind }) => kind === 'file')
    .map((item) => {
      const entry = item.webkitGetAsEntry?.()
      if (entry?.isDirectory) return entry
      const file = item.getAsFile()
      return file ? { file, path: '' } : nothing(item)
    })
}

async function* walk(entry: FileSystemEntry): AsyncGenerator<Picked> {
  const path = entry.fullPath.slice(1)
  try {
    if (entry.isFile) {
      yield { file: await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)), path }
      return
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader()
    const read = (): Promise<FileSystemEntry[]> => new Promise((resolve, reject) => reader.readEntries(resolve, reject))
    // It gives some at a time, a hundred in Chromium, and none when there are no more.
    for (let children = await read(); children.length > 0; children = await read()) for (const child of children) yield* walk(child)
  } catch {
    yield unreadable(entry.name, path)
  }
}

const tokensOf = (accept: string): string[] =>
  accept
    .toLowerCase()
    .split(',')
    .map((token) => token.trim())
    .filter(Boolean)

/** https://html.spec.whatwg.org/multipage/input.html#attr-input-accept */
const isAccepted = ({ name, type }: Refused, tokens: string[]): boolean => {
  const mediaType = type.toLowerCase().split(';')[0] as string
  return (
    tokens.length === 0 ||
    tokens.some((token) => {
      if (token.startsWith('.')) return name.toLowerCase().endsWith(token)
      return token.endsWith('/*') ? token === '*/*' || mediaType.startsWith(token.slice(0, -1)) : mediaType === token
    })
  )
}

/** Keeps what may be enqueued, and tells of the rest. */
function sift(
  picked: Picked[],
  { accept = '', multiple = true, maxFileSize = Number.POSITIVE_INFINITY, onRefused }: PickOptions,
): Picked[] {
  const tokens = tokensOf(accept)
  const kept: Picked[] = []
  for (const one of picked) {
    let { file, reason } = one
    if (!reason && !isAccepted(file, tokens)) reason = 'type-not-accepted'
    if (!reason && (file as File).size > maxFileSize) reason = 'file-too-large'
    if (!reason && !multiple && kept.length > 0) reason = 'too-many-files'
    if (!reason) kept.push(one)
    // In a task of its own: should it throw, no other file is held up.
    else if (onRefused) queueMicrotask(onRefused.bind(undefined, file, reason))
  }
  return kept
}

async function save<Result>(queue: UploadQueue<Result>, picked: Picked[], { enqueue, onError }: AttachOptions): Promise<void> {
  const fail = (error: unknown, file: Refused): void =>
    queueMicrotask(() => {
      if (!onError) throw error
      onError(error, file as File)
    })
  if (typeof enqueue !== 'function') {
    const files = picked.map(({ file }) => file as File)
    await queue.enqueueAll(files, enqueue).catch((error: { errors?: unknown[]; indexes?: number[] }) => {
      const indexes = error.indexes ?? files.keys()
      for (const index of indexes) fail(error.indexes ? error.errors?.[error.indexes.indexOf(index)] : error, files[index] as File)
    })
    return
  }
  for (let first = 0; first < picked.length; first += batchSize)
    await Promise.all(
      picked.slice(first, first + batchSize).map(async ({ file, path }) => {
        try {
          await queue.enqueue(file as File, enqueue(file as File, path))
        } catch (error) {
          fail(error, file)
        }
      }),
    )
}
