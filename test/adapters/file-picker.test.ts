import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { type AttachOptions, attach, pickFiles } from '../../src/adapters/file-picker.js'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../../src/index.js'
import { flush, until } from '../helpers/fake-clock.js'

let queue: UploadQueue
const open = (options: Partial<UploadQueueOptions> = {}): void => {
  queue = createUploadQueue({ endpoint: 'http://localhost:3000/uploads', autoStart: false, ...options })
}
const ends: (() => void)[] = []
const refused: [string, string][] = []
const errors: [string, unknown][] = []
const reporting: AttachOptions = {
  onRefused: ({ name }, reason) => refused.push([name, reason]),
  onError: (error, { name }) => errors.push([name, (error as { code?: string }).code ?? error]),
}
const attached = <E extends HTMLElement>(element: E, options: AttachOptions = {}): E => {
  document.body.append(element)
  ends.push(attach(queue, element, { ...reporting, ...options }))
  return element
}

beforeEach(() => open())
afterEach(async () => {
  for (const end of ends.splice(0)) end()
  refused.length = errors.length = 0
  document.body.replaceChildren()
  await queue.close()
})

const fileOf = (name: string, type = '', size = 1): File => new File(['x'.repeat(size)], name, { type })
const namesOf = (): string[] => queue.getSnapshot().map(({ name }) => name)
const untilSaved = (count: number): Promise<void> => until(() => queue.getSnapshot().length >= count)

describe('an input', () => {
  /** Picks as a user does: files that are there already are picked without a word. */
  const pick = (input: HTMLInputElement, ...files: File[]): void => {
    let held: File[] = files
    Object.defineProperty(input, 'files', { get: () => held, configurable: true })
    Object.defineProperty(input, 'value', {
      get: () => held[0]?.name ?? '',
      set: () => {
        held = []
      },
      configurable: true,
    })
    input.dispatchEvent(new Event('change', { bubbles: true }))
  }
  const inputOf = (attributes: Partial<HTMLInputElement> = {}): HTMLInputElement =>
    Object.assign(document.createElement('input'), { type: 'file', ...attributes } as object) as HTMLInputElement

  test('enqueues what is picked, in order, and is emptied, so that the same file can be picked again', async () => {
    const input = attached(inputOf({ multiple: true }))
    pick(input, fileOf('b.txt'), fileOf('a.txt'))
    expect(input.value).toBe('')
    pick(input, fileOf('b.txt'))
    await untilSaved(3)
    expect(namesOf()).toEqual(['b.txt', 'a.txt', 'b.txt'])
  })

  test('limits what is taken by its own attributes, unless options say otherwise', async () => {
    const input = attached(inputOf({ accept: 'image/*' }))
    pick(input, fileOf('a.txt', 'text/plain'), fileOf('a.png', 'image/png'), fileOf('b.png', 'image/png'))
    await untilSaved(1)
    const other = attached(inputOf({ accept: 'image/*' }), { accept: '.txt', multiple: true })
    pick(other, fileOf('c.TXT', 'text/plain'), fileOf('d.txt'))
    await untilSaved(3)
    expect(namesOf()).toEqual(['a.png', 'c.TXT', 'd.txt'])
    expect(refused).toEqual([
      ['a.txt', 'type-not-accepted'],
      ['b.png', 'too-many-files'],
    ])
  })

  test('tells the path of each file of a folder, for its metadata', async () => {
    const input = attached(inputOf({ webkitdirectory: true }), { enqueue: (_file, path) => ({ metadata: { path } }) })
    const files = ['one/a.txt', 'one/two/b.txt'].map((path) =>
      Object.defineProperty(fileOf(path.replace(/.*\//, '')), 'webkitRelativePath', { value: path }),
    )
    pick(input, ...files)
    await untilSaved(2)
    expect(queue.getSnapshot().map(({ metadata }) => metadata)).toEqual([{ path: 'one/a.txt' }, { path: 'one/two/b.txt' }])
  })

  test('does nothing any more once detached, and when nothing was picked', async () => {
    const input = inputOf()
    const detach = attach(queue, input)
    pick(input)
    detach()
    pick(input, fileOf('a.txt'))
    await flush()
    expect(namesOf()).toEqual([])
  })
})

interface Thing {
  kind: 'file' | 'string'
  type: string
  getAsFile: () => File | null
  webkitGetAsEntry: () => FileSystemEntry | null
}
const textItem = (type = 'text/plain'): Thing => ({ kind: 'string', type, getAsFile: () => null, webkitGetAsEntry: () => null })
const fileItem = (file: File): Thing => ({
  kind: 'file',
  type: file.type,
  getAsFile: () => file,
  webkitGetAsEntry: () => ({ isFile: true, isDirectory: false, name: file.name, fullPath: `/${file.name}` }) as FileSystemEntry,
})

type Tree = { [name: string]: Tree | File | 'unreadable' }

const entryOf = (name: string, node: Tree[string], parent = ''): FileSystemEntry => {
  const fullPath = `${parent}/${name}`
  const unreadable = (fail?: (error: DOMException) => void): void => fail?.(new DOMException('', 'NotReadableError'))
  if (node instanceof File)
    return { isFile: true, isDirectory: false, name, fullPath, file: (give: (file: File) => void) => give(node) } as never
  return {
    ...{ isFile: false, isDirectory: true, name, fullPath },
    createReader() {
      const children = node === 'unreadable' ? [] : Object.entries(node).map(([name, child]) => entryOf(name, child, fullPath))
      return {
        readEntries: (give: (entries: FileSystemEntry[]) => void, fail?: (error: DOMException) => void) =>
          node === 'unreadable' ? unreadable(fail) : setImmediate(give, children.splice(0, 100)),
      }
    },
  } as never
}
const folderItem = (name: string, tree: Tree | 'unreadable'): Thing => ({
  ...{ kind: 'file', type: '' },
  getAsFile: () => fileOf(name),
  webkitGetAsEntry: () => entryOf(name, tree),
})

/** As in browsers, what is dragged can be looked at only while the event is told. */
const send = (target: EventTarget, type: string, things: Thing[]): Event => {
  const types = [...new Set(things.map((thing) => (thing.kind === 'file' ? 'Files' : thing.type)))]
  let isOver = false
  const items = things.map((thing) => ({
    ...thing,
    getAsFile: () => (isOver ? null : thing.getAsFile()),
    webkitGetAsEntry: () => (isOver ? null : thing.webkitGetAsEntry()),
  }))
  const event = new Event(type, { bubbles: true, cancelable: true, composed: true })
  Object.assign(event, { [type === 'paste' ? 'clipboardData' : 'dataTransfer']: { items, types } })
  target.dispatchEvent(event)
  isOver = true
  return event
}

describe('a drop target', () => {
  const zone = (options?: AttachOptions): HTMLElement => attached(document.createElement('div'), options)

  test('takes files and folders in the order in which they lie there, folders read to their end', async () => {
    const many = Object.fromEntries(Array.from({ length: 250 }, (_, at) => [`${at}.txt`, fileOf(`${at}.txt`)]))
    const paths: string[] = []
    const target = zone({
      enqueue: (_file, path) => {
        paths.push(path)
        return {}
      },
    })
    send(target, 'drop', [
      fileItem(fileOf('first.txt')),
      folderItem('folder', { 'a.txt': fileOf('a.txt'), inner: { 'b.txt': fileOf('b.txt'), empty: {} }, many, 'c.txt': fileOf('c.txt') }),
      fileItem(fileOf('last.txt')),
    ])
    await untilSaved(255)
    const numbers = Object.keys(many)
    expect(namesOf()).toEqual(['first.txt', 'a.txt', 'b.txt', ...numbers, 'c.txt', 'last.txt'])
    expect(paths.slice(0, 4)).toEqual(['', 'folder/a.txt', 'folder/inner/b.txt', 'folder/many/0.txt'])
    expect(refused).toEqual([])
  })

  test('keeps the order of two drops, though the first takes longer to walk', async () => {
    const target = zone()
    send(target, 'drop', [folderItem('folder', { one: { two: { three: { 'deep.txt': fileOf('deep.txt') } } } })])
    send(target, 'drop', [fileItem(fileOf('flat.txt'))])
    await untilSaved(2)
    expect(namesOf()).toEqual(['deep.txt', 'flat.txt'])
  })

  test('refuses what is no file, once each, and takes the rest', async () => {
    const target = zone({ maxFileSize: 10 })
    const gone: Thing = { ...fileItem(fileOf('')), getAsFile: () => null, webkitGetAsEntry: () => null }
    send(target, 'drop', [
      textItem('text/uri-list'),
      gone,
      folderItem('locked', 'unreadable'),
      folderItem('half', { 'a.txt': fileOf('a.txt'), closed: 'unreadable', 'b.txt': fileOf('b.txt') }),
      fileItem(fileOf('large.bin', '', 11)),
      fileItem(fileOf('fits.bin', '', 10)),
    ])
    await untilSaved(3)
    expect(namesOf()).toEqual(['a.txt', 'b.txt', 'fits.bin'])
    expect(refused).toEqual([
      ['', 'not-a-file'],
      ['locked', 'file-unreadable'],
      ['closed', 'file-unreadable'],
      ['large.bin', 'file-too-large'],
    ])
    expect(send(target, 'drop', [textItem('text/uri-list'), textItem()]).defaultPrevented).toBe(true)
    await flush()
    expect(refused.slice(4)).toEqual([['', 'not-a-file']])
  })

  test('says that it takes a drop, shows it, and leaves texts to a field inside', () => {
    const target = zone()
    const field = document.createElement('textarea')
    target.append(field)
    expect(send(target, 'dragover', [fileItem(fileOf('a.txt'))]).defaultPrevented).toBe(true)
    expect(target.hasAttribute('data-dragging')).toBe(true)
    send(target, 'dragleave', [])
    expect(target.hasAttribute('data-dragging')).toBe(false)
    for (const type of ['dragover', 'drop']) expect(send(field, type, [textItem()]).defaultPrevented).toBe(false)
    for (const type of ['dragover', 'drop']) expect(send(field, type, [fileItem(fileOf('a.txt'))]).defaultPrevented).toBe(true)
    expect(target.hasAttribute('data-dragging')).toBe(false)
  })

  test('inside another one takes a drop alone', async () => {
    const outer = zone()
    const inner = zone()
    outer.append(inner)
    send(inner, 'drop', [fileItem(fileOf('a.txt'))])
    await untilSaved(1)
    await flush()
    expect(namesOf()).toEqual(['a.txt'])
  })

  test('takes pasted files, and leaves pasted text alone', async () => {
    const target = zone()
    const field = document.createElement('textarea')
    target.append(field)
    expect(send(target, 'paste', [textItem()]).defaultPrevented).toBe(false)
    expect(send(field, 'paste', [textItem(), fileItem(fileOf('the text as a picture.png'))]).defaultPrevented).toBe(false)
    expect(send(field, 'paste', [fileItem(fileOf('image.png'))]).defaultPrevented).toBe(true)
    await untilSaved(1)
    expect(namesOf()).toEqual(['image.png'])
    expect(refused).toEqual([])
  })
})

describe('what cannot be saved', () => {
  const drop = (names: string[], options?: AttachOptions): void =>
    void send(
      attached(document.createElement('div'), options),
      'drop',
      names.map((name) => fileItem(fileOf(name, '', name.length))),
    )

  test('is told of, one file at a time; the others are saved', async () => {
    await queue.close()
    open({ maxFileSize: 3 })
    drop(['a', 'bbbb', 'cc', 'ddddd'])
    await until(() => errors.length === 2)
    expect(errors).toEqual([
      ['bbbb', 'file-too-large'],
      ['ddddd', 'file-too-large'],
    ])
    expect(namesOf()).toEqual(['a', 'cc'])
  })

  test('is told of for every file where none could be', async () => {
    await queue.close()
    open({ owner: null })
    drop(['a', 'b'])
    await until(() => errors.length === 2)
    expect(errors).toEqual([
      ['a', 'unauthorized'],
      ['b', 'unauthorized'],
    ])
  })

  test('for a fault in the own options concerns that file alone', async () => {
    const fault = new Error('no metadata')
    drop(['a', 'b', 'c'], {
      enqueue: ({ name }) => {
        if (name === 'b') throw fault
        return { metadata: { name } }
      },
    })
    await untilSaved(2)
    expect(errors).toEqual([['b', fault]])
    expect(namesOf()).toEqual(['a', 'c'])
  })

  test('is an uncaught error where nobody listens, and a listener that throws keeps no file out', async () => {
    const uncaught: unknown[] = []
    const listener = (error: unknown): void => void uncaught.push(error)
    const others = process.listeners('uncaughtException')
    process.removeAllListeners('uncaughtException').on('uncaughtException', listener)
    const fault = new Error('refused')
    document.body.append(document.createElement('div'))
    await queue.close()
    open({ maxFileSize: 3 })
    const target = document.createElement('div')
    ends.push(
      attach(queue, target, {
        accept: '.txt',
        onRefused: () => {
          throw fault
        },
      }),
    )
    send(target, 'drop', [fileItem(fileOf('a.bin')), fileItem(fileOf('long.txt', '', 9)), fileItem(fileOf('b.txt'))])
    await until(() => uncaught.length === 2)
    process.off('uncaughtException', listener)
    for (const other of others) process.on('uncaughtException', other)
    expect(uncaught).toEqual([fault, expect.objectContaining({ code: 'file-too-large' })])
    expect(namesOf()).toEqual(['b.txt'])
  })
})

test('a size that is none is refused at once', async () => {
  const message = 'maxFileSize: NaN is not valid; expected a number of bytes of at least 0.'
  expect(() => attach(queue, document.createElement('div'), { maxFileSize: Number.NaN })).toThrow(new TypeError(message))
  await expect(pickFiles({ maxFileSize: Number.NaN })).rejects.toThrow(new TypeError(message))
})

describe('accept', () => {
  test.each([
    ['', 'a.bin', '', true],
    ['image/*', 'a.png', 'image/png', true],
    ['image/*', 'a.png', '', false],
    ['IMAGE/PNG', 'a', 'image/png', true],
    ['text/plain', 'a.txt', 'text/plain;charset=utf-8', true],
    ['image/png', 'a.jpg', 'image/jpeg', false],
    ['.csv, .tar.gz', 'A.TAR.GZ', 'application/gzip', true],
    ['.csv', 'csv', '', false],
    ['*/*', 'a', '', true],
    [' , image/png ,', 'a.gif', 'image/gif', false],
    ['image/*,.heic', 'a.heic', '', true],
  ])('%j takes %s (%s): %s', async (accept, name, type, isTaken) => {
    const target = attached(document.createElement('div'), { accept })
    send(target, 'drop', [fileItem(fileOf(name, type))])
    await until(() => refused.length + queue.getSnapshot().length === 1)
    expect(refused).toEqual(isTaken ? [] : [[name, 'type-not-accepted']])
  })
})

describe('pickFiles', () => {
  const handleOf = (file: File): object => ({ name: file.name, getFile: async () => file })
  afterEach(() => vi.unstubAllGlobals())

  test('asks the browser for what is accepted, and checks what it gives', async () => {
    const gone = { name: 'gone', getFile: () => Promise.reject(new DOMException('', 'NotFoundError')) }
    const picker = vi.fn(async () => [handleOf(fileOf('a.png', 'image/png')), gone, handleOf(fileOf('b.exe')), handleOf(fileOf('c.csv'))])
    vi.stubGlobal('showOpenFilePicker', picker)
    const files = await pickFiles({ accept: 'image/*,.csv', ...reporting })
    expect(picker).toHaveBeenCalledWith({ multiple: true, types: [{ accept: { 'image/*': [], '*/*': ['.csv'] } }] })
    expect(files.map(({ name }) => name)).toEqual(['a.png', 'c.csv'])
    await flush()
    expect(refused).toEqual([
      ['gone', 'file-unreadable'],
      ['b.exe', 'type-not-accepted'],
    ])
  })

  test('resolves with nothing when the user cancels', async () => {
    vi.stubGlobal('showOpenFilePicker', () => Promise.reject(new DOMException('', 'AbortError')))
    expect(await pickFiles()).toEqual([])
    vi.unstubAllGlobals()
    const picking = pickFiles({ multiple: false })
    await until(() => document.querySelector('input') !== null)
    const input = document.querySelector('input') as HTMLInputElement
    expect([input.type, input.multiple, input.hidden]).toEqual(['file', false, true])
    input.dispatchEvent(new Event('cancel'))
    expect(await picking).toEqual([])
    expect(document.querySelector('input')).toBeNull()
  })

  test('uses an input for a folder, and where the browser takes no such request', async () => {
    vi.stubGlobal('showOpenFilePicker', () => Promise.reject(new TypeError('Invalid type')))
    for (const options of [{ directory: true }, { accept: 'odd/thing' }]) {
      const picking = pickFiles(options)
      await until(() => document.querySelector('input') !== null)
      const input = document.querySelector('input') as HTMLInputElement
      Object.defineProperty(input, 'files', { value: [fileOf('a', 'odd/thing')] })
      expect(input.webkitdirectory).toBe('directory' in options)
      input.dispatchEvent(new Event('change'))
      expect((await picking).map(({ name }) => name)).toEqual(['a'])
    }
  })

  test('rejects where no user has called for it', async () => {
    Object.defineProperty(navigator, 'userActivation', { value: { isActive: false }, configurable: true })
    await expect(pickFiles()).rejects.toMatchObject({ name: 'SecurityError' })
    Reflect.deleteProperty(navigator, 'userActivation')
  })
})
