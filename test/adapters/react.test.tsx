// biome-ignore-all lint/correctness/noComponentHookFactories: a component of a test belongs to that test, and is made once in it.
import { act, Component, type JSX, memo, type ReactNode, StrictMode, startTransition, useState } from 'react'
import { createRoot, hydrateRoot, type Root } from 'react-dom/client'
import { renderToString } from 'react-dom/server'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { useUpload, useUploadQueue, useUploads } from '../../src/adapters/react.js'
import { createUploadQueue, type Upload, type UploadQueue, type UploadQueueOptions } from '../../src/index.js'
import { advance, fakeClock, flush, until } from '../helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from '../helpers/transport.js'

const endpoint = 'http://localhost:3000/uploads'
const fileOf = (name: string): File => new File([name], name)

let transport: TransportDouble
let root: Root | undefined
let container: HTMLElement
const queues: UploadQueue[] = []

const openQueue = (options: Partial<UploadQueueOptions> = {}): UploadQueue => {
  const queue = createUploadQueue({ endpoint, transport, persist: 'memory', ...options })
  queues.push(queue)
  return queue
}
const render = (node: ReactNode): Promise<void> =>
  act(async () => {
    root ??= createRoot(container)
    root.render(<StrictMode>{node}</StrictMode>)
  })
const unmount = async (): Promise<void> => {
  await act(async () => root?.unmount())
  root = undefined
  await flush()
}

beforeEach(() => {
  vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true)
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(new Response())),
  )
  transport = createTransportDouble({ reportsBytes: true })
  container = document.createElement('div')
})
afterEach(async () => {
  await unmount()
  await Promise.all(queues.splice(0).map((queue) => queue.close()))
  vi.unstubAllGlobals()
})

describe('useUploadQueue', () => {
  /** Every queue that a component was given, in the order in which they came. */
  const seen: (UploadQueue | null)[] = []
  const distinct = (): UploadQueue[] => [...new Set(seen)].filter((queue) => queue !== null)
  const User = ({ options }: { options?: Partial<UploadQueueOptions> }): JSX.Element => {
    const queue = useUploadQueue({ endpoint, transport, ...options })
    const uploads = useUploads(queue)
    seen.push(queue)
    return <p>{queue ? uploads.map(({ name, status }) => `${name} ${status}`).join() : 'no queue'}</p>
  }
  beforeEach(() => {
    seen.length = 0
  })
  const isClosed = (queue: UploadQueue): Promise<boolean> =>
    queue.ready().then(
      () => false,
      ({ name }) => name === 'AbortError',
    )

  test('makes one queue, under StrictMode too, for all components that ask for its name, and closes it after the last', async () => {
    await render([<User key="1" />, <User key="2" />])
    expect(seen[0]).toBeNull()
    const [queue, ...others] = distinct() as [UploadQueue]
    expect(others).toEqual([])
    expect(await isClosed(queue)).toBe(false)
    await render([<User key="2" />])
    await flush()
    expect(await isClosed(queue)).toBe(false)
    await unmount()
    expect(await isClosed(queue)).toBe(true)
    expect(distinct()).toEqual([queue])
  })

  test('has another queue for another name, and takes up again what an earlier one left', async () => {
    await render(<User options={{ autoStart: false }} />)
    const [first] = distinct() as [UploadQueue]
    await act(async () => {
      await first.enqueue(fileOf('a.txt'))
      await until(() => container.textContent === 'a.txt pending')
    })
    await render(<User options={{ name: 'other' }} />)
    await flush()
    expect(await isClosed(first)).toBe(true)
    expect(container.textContent).toBe('')
    await render(<User />)
    await act(() => until(() => container.textContent !== ''))
    expect(container.textContent).toMatch(/^a.txt (pending|uploading)$/)
    expect(distinct()).toHaveLength(3)
  })

  test('stays the same where one page takes the place of another in one go', async () => {
    await render(<User key="one" />)
    await render(<User key="two" />)
    await flush()
    expect(distinct()).toHaveLength(1)
    expect(await isClosed(distinct()[0] as UploadQueue)).toBe(false)
  })

  test('calls functions as they were rendered last', async () => {
    const User = ({ token }: { token: string }): null => {
      seen.push(useUploadQueue({ endpoint: () => `${endpoint}/${token}`, transport, headers: () => ({ Authorization: token }) }))
      return null
    }
    await render(<User token="old" />)
    await render(<User token="new" />)
    const [queue, ...others] = distinct() as [UploadQueue]
    expect(others).toEqual([])
    await queue.enqueue(fileOf('a.txt'))
    const { url, headers, store } = await transport.nextRequest()
    expect([url, headers.get('Authorization')]).toEqual([`${endpoint}/new`, 'new'])
    store()
  })

  test('gives wrong options to the error boundary', async () => {
    class Boundary extends Component<{ children: ReactNode }> {
      override state: { error?: Error } = {}
      static getDerivedStateFromError = (error: Error) => ({ error })
      override render(): ReactNode {
        return this.state.error?.message ?? this.props.children
      }
    }
    vi.spyOn(console, 'error').mockImplementation(() => {})
    await render(
      <Boundary>
        <User options={{ concurrency: 0 }} />
      </Boundary>,
    )
    expect(container.textContent).toBe('concurrency: 0 is not valid; expected a whole number of at least 1.')
  })

  test('makes no queue on the server, nor while hydrating', async () => {
    const errors = vi.spyOn(console, 'error')
    expect(renderToString(<User />)).toBe('<p>no queue</p>')
    expect(distinct()).toEqual([])
    container.innerHTML = renderToString(<User />)
    await act(async () => {
      root = hydrateRoot(container, <User />)
    })
    expect(distinct()).toHaveLength(1)
    expect(container.textContent).toBe('')
    expect(errors).not.toHaveBeenCalled()
  })

  test('makes no queue for a render that is thrown away', async () => {
    const never = new Promise<never>(() => {})
    const User = (): null => {
      seen.push(useUploadQueue({ endpoint, transport, name: 'thrown away' }))
      throw never
    }
    await render(null)
    act(() => startTransition(() => root?.render(<User />)))
    await flush()
    expect(seen.length).toBeGreaterThan(0)
    expect(distinct()).toEqual([])
    expect((await indexedDB.databases()).map(({ name }) => name)).not.toContain('uponce:thrown away')
  })
})

describe('with 500 uploads, six of them telling their progress ten times a second, under StrictMode', () => {
  /** Each render counts twice under StrictMode. */
  const twice = 2
  const renders = new Map<string, number>()
  const count = (name: string): void => void renders.set(name, (renders.get(name) ?? 0) + 1)
  let queue: UploadQueue

  const text = ({ name, status, progress }: Upload): string => `${name} ${status} ${progress?.loaded ?? 0}`
  const Row = memo(({ upload }: { upload: Upload }) => {
    count(upload.name)
    return <li>{text(upload)}</li>
  })
  Row.displayName = 'Row'
  const List = (): JSX.Element => {
    count('list')
    return (
      <ul>
        {useUploads(queue).map((upload) => (
          <Row key={upload.id} upload={upload} />
        ))}
      </ul>
    )
  }
  const Waiting = memo(() => {
    count('waiting')
    return <p>{useUploads(queue, ({ status }) => status === 'pending').length}</p>
  })
  Waiting.displayName = 'Waiting'
  const One = memo(({ id }: { id: string }) => {
    const upload = useUpload(queue, id)
    count(`one ${upload?.name}`)
    return <b>{upload && text(upload)}</b>
  })
  One.displayName = 'One'

  const open = async (): Promise<void> => {
    fakeClock()
    queue = openQueue({ concurrency: 6 })
    await queue.enqueueAll(Array.from({ length: 500 }, (_, at) => fileOf(`${at}`)))
    await until(() => transport.requests.length === 6)
  }
  const shown = (): string[] => [...container.querySelectorAll('li')].map(({ textContent }) => textContent ?? '')
  const expected = (): string[] => queue.getSnapshot().map(text)

  test('a second of it renders the six rows that changed and no other, and lists of other uploads not at all', async () => {
    await open()
    const ids = queue.getSnapshot().map(({ id }) => id)
    await render([
      <List key="list" />,
      <Waiting key="waiting" />,
      <One key="0" id={ids[0] as string} />,
      <One key="400" id={ids[400] as string} />,
    ])
    expect(shown()).toEqual(expected())
    renders.clear()
    let told = 0
    queue.on('progress', () => {
      told += 1
    })
    for (let step = 1; step <= 10; step++) {
      for (const { onProgress } of transport.requests) onProgress(step, 100)
      await act(() => advance(100))
      expect(shown()).toEqual(expected())
    }
    expect(told).toBe(60)
    const rows = [0, 1, 2, 3, 4, 5].map(String)
    expect([...renders.keys()].sort()).toEqual([...rows, 'list', 'one 0'].sort())
    for (const name of rows) expect(renders.get(name), name).toBe(10 * twice)
    expect(renders.get('one 0')).toBe(10 * twice)
    expect(renders.get('list')).toBeLessThanOrEqual(60 * twice)
    console.log(`500 uploads, 60 progress events: ${[...renders].map(([name, times]) => `${name}: ${times / twice}`).join(', ')}`)
  }, 30_000)

  test('a render in the background never shows an upload in two ways at once', async () => {
    await open()
    const [{ id }] = queue.getSnapshot() as [Upload]
    let isThere: (value: boolean) => void = () => {}
    const Slow = (): JSX.Element => {
      const upload = useUpload(queue, id)
      const end = performance.now() + 2
      while (performance.now() < end);
      return <i>{upload?.progress?.loaded}</i>
    }
    const many = queue
      .getSnapshot()
      .slice(0, 12)
      .map((upload) => <Slow key={upload.id} />)
    const App = (): ReactNode => {
      const [there, set] = useState(false)
      isThere = set
      return there && many
    }
    await render(<App />)
    const seen: string[][] = []
    const observer = new MutationObserver(() => {
      seen.push([...new Set([...container.querySelectorAll('i')].map(({ textContent }) => textContent ?? ''))])
    })
    observer.observe(container, { childList: true, subtree: true, characterData: true })
    // React renders in the background, in pieces of 5 ms, only outside of act().
    vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', false)
    startTransition(() => isThere(true))
    for (let step = 1; step <= 8; step++) {
      transport.requests[0]?.onProgress(step, 100)
      await advance(100)
    }
    await until(() => container.querySelectorAll('i').length === 12)
    await flush()
    observer.disconnect()
    vi.stubGlobal('IS_REACT_ACT_ENVIRONMENT', true)
    expect(seen.length).toBeGreaterThan(0)
    expect(seen.filter((texts) => texts.length !== 1)).toEqual([])
    expect(seen.at(-1)).toEqual(['8'])
  }, 30_000)
})

describe('the lists', () => {
  test('and rows that mount between two frames show what those show that are there', async () => {
    const whole = openQueue({ autoStart: false })
    const { id } = await whole.enqueue(fileOf('a'))
    // What the queue tells once a frame it tells when it is asked to.
    const listeners = new Set<() => void>()
    const subscribe = (listener: () => void): (() => void) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    }
    const queue: UploadQueue = { ...whole, subscribe }
    const Row = (): JSX.Element => <i>{useUpload(queue, id)?.status}</i>
    const List = (): JSX.Element => <i>{useUploads(queue).find((upload) => upload.id === id)?.status}</i>
    const New = ({ of }: { of: string }): JSX.Element => <b>{useUpload(queue, of)?.name}</b>
    const shown = (): string => [...container.querySelectorAll('i')].map(({ textContent }) => textContent).join()
    await render([<Row key="old" />])
    await queue.pause(id)
    const { id: of } = await queue.enqueue(fileOf('c'))
    await render([<Row key="old" />, <Row key="new" />, <List key="list" />, <New key="c" of={of} />])
    expect(shown()).toBe('pending,pending,pending')
    expect(container.querySelector('b')?.textContent).toBe('c')
    await act(async () => listeners.forEach((listener) => void listener()))
    expect(shown()).toBe('paused,paused,paused')
  })

  test('are the same array until one of theirs changes, though the filter is written in place', async () => {
    const queue = openQueue({ autoStart: false })
    await queue.enqueueAll([fileOf('a.txt'), fileOf('b.txt')])
    const lists: (readonly Upload[])[] = []
    let rerender: (value: number) => void = () => {}
    const List = ({ prefix }: { prefix: string }): null => {
      rerender = useState(0)[1]
      lists.push(useUploads(queue, ({ name }) => name.startsWith(prefix)))
      return null
    }
    await render(<List prefix="a" />)
    await act(async () => rerender(1))
    const heard = new Promise<void>((resolve) => queue.subscribe(resolve))
    await act(async () => {
      await queue.enqueue(fileOf('c.txt'))
      await heard
    })
    expect(new Set(lists).size).toBe(1)
    expect(lists[0]?.map(({ name }) => name)).toEqual(['a.txt'])
    await render(<List prefix="b" />)
    expect(lists.at(-1)?.map(({ name }) => name)).toEqual(['b.txt'])
  })

  test('are empty without a queue, and an upload that has gone is undefined', async () => {
    const queue = openQueue({ autoStart: false })
    const { id } = await queue.enqueue(fileOf('a.txt'))
    const Nothing = (): JSX.Element => <i>{useUploads(null).length + String(useUpload(undefined, id))}</i>
    const One = (): JSX.Element => <b>{useUpload(queue, id)?.name ?? 'gone'}</b>
    await render([<Nothing key="nothing" />, <One key="one" />])
    expect(container.innerHTML).toBe('<i>0undefined</i><b>a.txt</b>')
    await act(async () => {
      await queue.cancel(id)
      await until(() => container.textContent === '0undefinedgone')
    })
    expect(container.innerHTML).toBe('<i>0undefined</i><b>gone</b>')
  })
})
