import { Window } from 'happy-dom'
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { defineUploadQueue, type UploadQueueElement } from '../../src/adapters/element.js'
import { englishTexts } from '../../src/adapters/element-texts.js'
import { eventNames } from '../../src/events.js'
import { createUploadQueue, type UploadQueue, type UploadQueueOptions } from '../../src/index.js'
import { advance, fakeClock, flush, runUntil, until } from '../helpers/fake-clock.js'
import { createTransportDouble, type TransportDouble } from '../helpers/transport.js'

const endpoint = 'http://localhost:3000/uploads'
let transport: TransportDouble
let queue: UploadQueue
let element: UploadQueueElement

const open = (options: Partial<UploadQueueOptions> = {}): UploadQueue =>
  createUploadQueue({ endpoint, transport, ...options }, { random: () => 0.5 })

/** An element on the page, with attributes and properties. */
const show = (attributes: Record<string, string> = {}, properties: Partial<UploadQueueElement> = { queue }): UploadQueueElement => {
  element = Object.assign(document.createElement('upload-queue'), properties)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  document.body.append(element)
  return element
}

beforeAll(() => defineUploadQueue())
beforeEach(() => {
  transport = createTransportDouble({ reportsBytes: true })
  queue = open()
})
afterEach(async () => {
  document.body.replaceChildren()
  await flush()
  await queue.close()
})

const file = (name: string, size = 4, type = 'text/plain'): File => new File(['x'.repeat(size)], name, { type })
const part = <E extends HTMLElement = HTMLElement>(name: string, scope: ParentNode = element.shadowRoot as ShadowRoot): E =>
  scope.querySelector<E>(`[part~="${name}"]`) as E
const rows = (): HTMLElement[] => [...(element.shadowRoot as ShadowRoot).querySelectorAll('li')]
const row = (name: string): HTMLElement => rows().find((row) => part('name', row).textContent === name) as HTMLElement
const states = (): string[] => rows().map((row) => `${part('name', row).textContent}: ${part('state', row).textContent}`)
const visibleButtons = (scope: HTMLElement): string[] =>
  [...scope.querySelectorAll('button')].filter(({ hidden }) => !hidden).map((button) => button.getAttribute('aria-label') ?? '')
const press = (scope: ParentNode, label: string): void => {
  const buttons = [...scope.querySelectorAll('button')].filter(({ hidden }) => !hidden)
  const button = buttons.find((each) => each.textContent === label) as HTMLButtonElement
  button.focus()
  button.click()
}

const inputOf = (): HTMLInputElement => (element.shadowRoot as ShadowRoot).querySelector('input') as HTMLInputElement
const refusals = (): string => part('notice').querySelector('[role=alert]')?.textContent ?? ''

/** As a user does. */
const pick = (...files: File[]): void => {
  const input = inputOf()
  Object.defineProperty(input, 'files', { value: files, configurable: true })
  input.dispatchEvent(new Event('change', { bubbles: true }))
}

/** As a user does, with files, folders or a text. */
const drop = (types: string[], ...items: object[]): Event => {
  const event = Object.assign(new Event('drop', { bubbles: true, composed: true, cancelable: true }), { dataTransfer: { types, items } })
  part('zone').dispatchEvent(event)
  return event
}

describe('rows', () => {
  test('show what is picked, the newest first, how it goes on, and its end', async () => {
    show({ multiple: '' })
    pick(file('one.txt'), file('two.txt', 2_500))
    const [one, two] = [await transport.nextRequest(), await transport.nextRequest()]
    await until(() => states().join() === 'two.txt: Uploading,one.txt: Uploading')
    expect(part('size', row('two.txt')).textContent).toBe('2.5 kB')
    two.onProgress?.(1_000, 2_500)
    await until(() => part('state', row('two.txt')).textContent === '1 kB of 2.5 kB')
    expect(part<HTMLProgressElement>('progress', row('two.txt')).value).toBe(1_000)
    expect(part('progress', row('two.txt')).getAttribute('aria-label')).toBe('Progress two.txt')
    one.store()
    two.respondWith({ status: 413 })
    await until(() => states().join() === 'two.txt: Failed. The server refused the upload (HTTP 413).,one.txt: Done')
    expect(row('two.txt').getAttribute('part')).toBe('row failed')
    expect(visibleButtons(row('two.txt'))).toEqual(['Retry two.txt', 'Remove two.txt'])
    expect(visibleButtons(row('one.txt'))).toEqual([])
    expect(part('totals').textContent).toBe('1 of 2 files done, 1 failed · 4 bytes of 2.5 kB')
  })

  test('are only touched where their upload has changed', async () => {
    show({ multiple: '' })
    await queue.pause()
    pick(...Array.from({ length: 50 }, (_, at) => file(`${at}.txt`)))
    await until(() => rows().length === 50)
    const touched = new Set<Element | null>()
    const observer = new MutationObserver((records) => {
      for (const { target } of records) touched.add((target instanceof Element ? target : target.parentElement)?.closest('li') ?? null)
    })
    observer.observe(part('list'), { subtree: true, childList: true, attributes: true, characterData: true })
    await queue.resume(row('7.txt').id)
    const request = await transport.nextRequest()
    request.onProgress?.(2, 4)
    request.store()
    await until(() => part('state', row('7.txt')).textContent === 'Done')
    await flush()
    observer.disconnect()
    expect([...touched]).toEqual([row('7.txt')])
  })

  test('show a name as it is, whatever it says', async () => {
    show()
    pick(file('<img src=x onerror=alert(1)>.txt'))
    await until(() => rows().length === 1)
    expect(part('name', rows()[0]).textContent).toBe('<img src=x onerror=alert(1)>.txt')
    expect((element.shadowRoot as ShadowRoot).querySelector('img')).toBeNull()
  })

  test('say when an upload does not survive the page', async () => {
    await queue.close()
    queue = open({ persist: 'memory' })
    show()
    pick(file('one.txt'))
    await until(() => states().join() === 'one.txt: Uploading (kept by this page only)')
    transport.requests[0]?.store()
    await until(() => states().join() === 'one.txt: Done')
  })

  test('have a place for what the page has to add', async () => {
    show()
    pick(file('one.txt'))
    await until(() => rows().length === 1)
    expect(rows()[0]?.querySelector('slot')?.name).toBe(queue.getSnapshot()[0]?.id)
  })

  test('count down to the next attempt, which can be made at once', async () => {
    fakeClock()
    await queue.close()
    queue = open()
    show()
    pick(file('one.txt'))
    const first = await runUntil(transport.nextRequest())
    first.respondWith({ status: 503, headers: { 'Retry-After': '10' } })
    await advance(100, 20)
    expect(states()).toEqual(['one.txt: Next attempt in 11 sec. The server cannot take the upload now (HTTP 503).'])
    await advance(3_000, 100)
    expect(states()).toEqual(['one.txt: Next attempt in 8 sec. The server cannot take the upload now (HTTP 503).'])
    press(row('one.txt'), 'Try now')
    const second = await runUntil(transport.nextRequest())
    second.store()
    await advance(100, 20)
    expect(states()).toEqual(['one.txt: Done'])
  })
})

test('where the server has told one upload to wait, those that wait with it count down too, until one of them starts', async () => {
  fakeClock()
  await queue.close()
  queue = open({ concurrency: 1 })
  show({ multiple: '' })
  pick(file('one.txt'), file('two.txt'))
  const first = await runUntil(transport.nextRequest())
  await advance(100, 20)
  expect(states()).toEqual(['two.txt: Waiting', 'one.txt: Uploading'])
  first.respondWith({ status: 429, headers: { 'Retry-After': '10' } })
  await advance(100, 20)
  const told = 'Next attempt in 11 sec. The server cannot take the upload now (HTTP 429).'
  expect(states()).toEqual([`two.txt: ${told}`, `one.txt: ${told}`])
  const second = await runUntil(transport.nextRequest())
  await advance(100, 20)
  expect(
    states()
      .map((state) => state.replace(/.*: /, ''))
      .sort(),
  ).toEqual(['Uploading', 'Waiting'])
  second.respondWith({ status: 503 })
  await advance(100, 20)
  // A backoff of its own keeps nobody else from being sent.
  expect(states().filter((state) => state.includes('Next attempt'))).toHaveLength(1)
})

describe('buttons', () => {
  test('pause, resume, cancel and retry one upload, and the focus stays near', async () => {
    show({ multiple: '' })
    pick(file('one.txt'), file('two.txt'))
    await until(() => rows().length === 2 && transport.open === 2)
    press(row('one.txt'), 'Pause')
    await until(() => part('state', row('one.txt')).textContent === 'Paused')
    expect(element.shadowRoot?.activeElement?.getAttribute('aria-label')).toBe('Resume one.txt')
    press(row('one.txt'), 'Resume')
    await until(() => part('state', row('one.txt')).textContent === 'Uploading')
    press(row('two.txt'), 'Cancel')
    await until(() => rows().length === 1)
    expect(element.shadowRoot?.activeElement).toBe(row('one.txt'))
    row('one.txt').querySelector<HTMLElement>('button:not([hidden])')?.focus()
    transport.requests.at(-1)?.store()
    await until(() => part('state', row('one.txt')).textContent === 'Done')
    expect(element.shadowRoot?.activeElement).toBe(row('one.txt'))
    press(element.shadowRoot as ShadowRoot, 'Clear done')
    await until(() => rows().length === 0)
    expect(element.shadowRoot?.activeElement).toBe(part('pick'))
  })

  test('of the whole queue are there when they do something', async () => {
    show({ multiple: '' })
    const shown = (): string[] =>
      [...part('toolbar').querySelectorAll('button')].filter(({ hidden }) => !hidden).map(({ textContent }) => textContent ?? '')
    await until(() => part('toolbar').hidden === true)
    pick(file('one.txt'), file('two.txt'))
    await until(() => transport.open === 2 && shown().join() === 'Pause all')
    press(part('toolbar'), 'Pause all')
    await until(() => shown().join() === 'Resume all')
    expect(element.shadowRoot?.activeElement).toBe(part('resumeAll'))
    press(part('toolbar'), 'Resume all')
    await until(() => transport.open === 2 && shown().join() === 'Pause all')
    expect(element.shadowRoot?.activeElement).toBe(part('pauseAll'))
    for (const request of transport.requests.slice(-2)) request.respondWith({ status: 400 })
    await until(() => shown().join() === 'Try all now')
    press(part('toolbar'), 'Try all now')
    await until(() => transport.open === 2)
    for (const request of transport.requests.slice(-2)) request.store()
    await until(() => shown().join() === 'Clear done')
    press(part('toolbar'), 'Clear done')
    await until(() => part('toolbar').hidden === true)
  })
})

test('what waits for the network is counted by the badge, and said by the rows', async () => {
  vi.spyOn(globalThis, 'fetch').mockRejectedValue(new TypeError('Failed to fetch'))
  show({ multiple: '' })
  pick(file('one.txt'), file('two.txt'), file('three.txt'), file('four.txt'))
  for (let count = 0; count < 3; count++) (await transport.nextRequest()).lose()
  await until(() => part('badge').textContent === '4 waiting for the network')
  expect(part('badge').hidden).toBe(false)
  expect(new Set(states().map((state) => state.replace(/.*: /, '')))).toEqual(new Set(['Waiting for the network']))
})

test('what is not taken is named until the next pick, or until it is dismissed, and told by an event', async () => {
  show({ accept: 'image/*', 'max-file-size': '1000' })
  const refused: unknown[] = []
  element.addEventListener('refused', ({ detail: { file, reason } }) => refused.push(`${file.name} ${reason}`))
  expect(part('hint').textContent).toBe('or drop them here, up to 1 kB each')
  pick(file('a.txt'), file('b.png', 1_001, 'image/png'), file('c.png', 1, 'image/png'), file('d.png', 1, 'image/png'), file('e.txt'))
  await until(() => refusals() !== '')
  expect(refusals()).toBe('b.png: It is too large. d.png: Only one file is taken. e.txt: Files of its type are not taken. and 1 more')
  expect(refused).toEqual(['a.txt type-not-accepted', 'b.png file-too-large', 'd.png too-many-files', 'e.txt type-not-accepted'])
  pick(file('f.png', 1, 'image/png'))
  await until(() => refusals() === '')
  pick(file('a.txt'))
  await until(() => refusals() !== '')
  press(part('notice'), 'Dismiss')
  await until(() => refusals() === '')
  expect(queue.getSnapshot().map(({ name }) => name)).toEqual(['c.png', 'f.png'])
})

test('the same refusal is shown anew, so that it is read out again, its name apart from the text', async () => {
  show({ accept: 'image/*' })
  const seen: string[] = []
  for (let count = 0; count < 3; count++) {
    pick(file('a.txt'))
    await flush()
    seen.push(refusals())
  }
  expect(seen.map((text) => text.trimEnd())).toEqual(Array(3).fill('a.txt: Files of its type are not taken.'))
  expect(seen[1]).not.toBe(seen[0])
  expect(seen[2]).not.toBe(seen[1])
  expect(part('notice').querySelector('bdi')?.textContent).toBe('a.txt')
})

test('what is dropped and is no file has no name', async () => {
  show()
  drop(['text/plain'], { kind: 'string', type: 'text/plain' })
  await until(() => refusals() === 'It is not a file.')
})

test('a file that cannot be saved is named with the reason', async () => {
  await queue.close()
  queue = open({ maxFileSize: 3 })
  show()
  const told = vi.fn()
  document.body.addEventListener('refused', told)
  pick(file('one.txt'))
  await until(() => refusals() === 'one.txt: The file has 4 bytes; 3 are allowed.')
  expect(told.mock.calls[0]?.[0].detail).toMatchObject({ reason: 'file-too-large', error: { code: 'file-too-large' } })
})

test('the events of the queue, every one, are events of the element, and bubble', async () => {
  const { on } = queue
  const followed = new Set<string>()
  const spied: UploadQueue = {
    ...queue,
    on(name, listener) {
      followed.add(name)
      return on(name, listener)
    },
  }
  show({}, { queue: spied })
  expect(followed).toEqual(eventNames)
  const told: string[] = []
  for (const name of eventNames)
    document.body.addEventListener(name, (event) => {
      const { type, detail } = event as CustomEvent
      told.push(`${type} ${detail.upload?.name ?? ''}`)
    })
  pick(file('one.txt'))
  const request = await transport.nextRequest()
  request.onProgress?.(1, 4)
  request.store()
  await until(() => told.includes('idle '))
  expect(told).toEqual(['added one.txt', 'started one.txt', 'progress one.txt', 'succeeded one.txt', 'idle '])
})

test('changes are read out, gathered; bytes are not', async () => {
  fakeClock()
  show({ multiple: '' })
  const live = (element.shadowRoot as ShadowRoot).querySelector('[role=status]') as HTMLElement
  pick(...[1, 2, 3, 4, 5].map((at) => file(`${at}.txt`)))
  const first = await transport.nextRequest()
  await advance(1_000, 100)
  expect(live.textContent).toBe('5 files added')
  first.onProgress?.(2, 4)
  await advance(1_000, 100)
  expect(live.textContent).toBe('5 files added')
  first.store()
  for (let count = 1; count < 5; count++) (await transport.nextRequest()).store()
  await advance(1_000, 100)
  expect(live.textContent).toMatch(/^(\d\.txt: Done\. ){3}and 2 more$/)
})

test('the same is read out again, and no full stop follows another', async () => {
  fakeClock()
  show()
  const live = (element.shadowRoot as ShadowRoot).querySelector('[role=status]') as HTMLElement
  pick(file('one.txt'))
  const one = await transport.nextRequest()
  await advance(1_000, 100)
  expect(live.textContent).toBe('1 file added')
  pick(file('two.txt'))
  const two = await transport.nextRequest()
  await advance(1_000, 100)
  expect(live.textContent).toBe('1 file added\u00a0')
  for (const request of [one, two]) request.respondWith({ status: 413 })
  await advance(1_000, 100)
  const why = 'Failed. The server refused the upload (HTTP 413).'
  expect(live.textContent).toBe(`one.txt: ${why} two.txt: ${why}`)
})

test('in another document it has a style of that document', () => {
  show()
  const style = () => (element.shadowRoot as ShadowRoot).adoptedStyleSheets[0]
  const before = style()
  expect(before).toBeDefined()
  const other = new Window() as unknown as typeof globalThis
  other.document.body.append(other.document.adoptNode(element))
  // happy-dom calls no reactions across windows.
  ;(element as unknown as { connectedCallback(): void }).connectedCallback()
  expect(style()).not.toBe(before)
})

describe('texts', () => {
  test('that are set, and attributes, leave the focus where it is', async () => {
    const subscribe = vi.spyOn(queue, 'subscribe')
    show()
    pick(file('one.txt'))
    await until(() => states().join() === 'one.txt: Uploading')
    const button = part<HTMLButtonElement>('pause', rows()[0])
    button.focus()
    element.texts = { pause: 'Halt' }
    await until(() => button.textContent === 'Halt')
    expect(element.shadowRoot?.activeElement).toBe(button)
    element.queue = queue
    element.setAttribute('lang', 'de')
    element.setAttribute('accept', '.txt')
    await flush()
    expect(element.shadowRoot?.activeElement).toBe(button)
    expect(subscribe).toHaveBeenCalledTimes(1)
  })

  test('that are undefined or null are the English ones', async () => {
    show({}, { queue, texts: { pick: undefined, drop: null, succeeded: 'Fertig' } as never })
    expect(part('pick').textContent).toBe('Choose files')
    expect(part('hint').textContent).toBe('or drop them here')
    element.texts = null as never
    expect(element.texts).toEqual({})
  })

  test('are replaced, all or some, functions too', async () => {
    show(
      { lang: 'de', multiple: '' },
      {
        queue,
        texts: {
          pick: 'Dateien wählen',
          succeeded: 'Fertig',
          totals: ({ succeeded, uploads }) => `${succeeded} von ${uploads} ${new Intl.PluralRules('de').select(uploads)}`,
        },
      },
    )
    expect(part('pick').textContent).toBe('Dateien wählen')
    pick(file('one.txt', 1_500))
    ;(await transport.nextRequest()).store()
    await until(() => states().join() === 'one.txt: Fertig')
    expect(part('size', rows()[0]).textContent).toMatch(/^1,5\skB$/)
    expect(part('totals').textContent).toBe('1 von 1 one')
    element.texts = { succeeded: 'Da' }
    await until(() => states().join() === 'one.txt: Da')
    expect(part('pick').textContent).toBe('Choose files')
  })

  test.each([
    ['en', 0, '0 bytes'],
    ['en', 999, '999 bytes'],
    ['en', 12_340_000, '12.3 MB'],
    ['de', 1_500_000_000, '1,5 GB'],
    ['not a language', 20_000, '20 kB'],
    ['', 5e15, '5,000 TB'],
  ])('write bytes as %s does: %d is %s', (language, count, text) => {
    // Between number and unit some languages have a space that does not break.
    expect(englishTexts(language).bytes(count).replace(/\s/g, ' ')).toBe(text)
  })

  test.each([
    [-5, '1 sec'],
    [1_001, '2 sec'],
    [59_000, '59 sec'],
    [90_000, '2 min'],
    [7_200_000, '2 hr'],
  ])('write a wait of %d ms as %s', (ms, text) => {
    expect(englishTexts('en').duration(ms)).toBe(text)
  })
})

describe('the queue', () => {
  /** Every queue that an element makes talks to the server of `fetch`. */
  const answering = () =>
    vi.spyOn(globalThis, 'fetch').mockImplementation(async () => Response.json({ uploadId: 'u', storageKey: 's' }, { status: 201 }))

  test('is made of the attributes, and made anew when they change; the old one is closed', async () => {
    answering()
    show({ endpoint, name: 'one', concurrency: '1' }, {})
    const first = element.queue as UploadQueue
    expect(first.getSnapshot()).toEqual([])
    pick(file('one.txt'))
    await until(() => states().join() === 'one.txt: Done')
    element.setAttribute('name', 'two')
    element.setAttribute('concurrency', '2')
    await until(() => element.queue !== first)
    await until(() => rows().length === 0)
    await expect(first.enqueue(file('late.txt'))).rejects.toThrow()
    element.setAttribute('name', 'one')
    element.setAttribute('concurrency', '1')
    await until(() => states().join() === 'one.txt: Done')
    element.setAttribute('accept', '.png')
    const kept = element.queue
    await flush()
    expect(element.queue).toBe(kept)
    expect(inputOf().accept).toBe('.png')
  })

  test('of the attributes is closed when the element goes, kept when it moves, and opened when it is back', async () => {
    answering()
    show({ endpoint, name: 'moving' }, {})
    const first = element.queue as UploadQueue
    const main = document.createElement('main')
    document.body.append(main)
    main.append(element)
    await flush()
    expect(element.queue).toBe(first)
    await first.enqueue(file('one.txt'))
    element.remove()
    await flush()
    await expect(first.enqueue(file('late.txt'))).rejects.toThrow()
    expect(element.queue).toBeNull()
    document.body.append(element)
    expect(element.queue).not.toBe(first)
    await until(() => states().join() === 'one.txt: Done')
  })

  test('of the attributes saves what was picked, however soon it goes', async () => {
    vi.spyOn(globalThis, 'fetch').mockImplementation(() => new Promise(() => {}))
    show({ endpoint, name: 'leaving', multiple: '', 'max-file-size': '100' }, {})
    const refused: unknown[] = []
    element.addEventListener('refused', ({ detail: { file, reason } }) => refused.push(`${file.name} ${reason}`))
    const first = element.queue as UploadQueue
    const many = (name: string) => Array.from({ length: 10 }, (_, at) => file(`${name}-${at}.txt`))
    pick(...many('changed'))
    element.setAttribute('concurrency', '2')
    await until(() => rows().length === 10)
    expect(element.queue).not.toBe(first)
    await flush()
    await expect(first.enqueue(file('late.txt'))).rejects.toThrow()
    pick(...many('removed'))
    element.remove()
    await flush(2)
    document.body.append(element)
    await until(() => rows().length === 20)

    // A folder that is read only when the queue has been closed.
    let read = (_children: object[]): void => {}
    const children = [file('in-folder.txt'), file('large.txt', 101)].map((file) => ({
      isFile: true,
      fullPath: `/folder/${file.name}`,
      file: (resolve: (file: File) => void) => resolve(file),
    }))
    const readEntries = (resolve: (children: object[]) => void): void => {
      read = resolve
    }
    const folder = { isDirectory: true, fullPath: '/folder', createReader: () => ({ readEntries }) }
    drop(['Files'], { kind: 'file', type: '', webkitGetAsEntry: () => folder })
    await flush()
    const last = element.queue as UploadQueue
    element.remove()
    await flush()
    await expect(last.enqueue(file('late.txt'))).rejects.toThrow()
    read(children)
    await flush()
    read([])
    await flush()
    document.body.append(element)
    await until(() => rows().length === 21)
    expect(refused).toEqual(['large.txt file-too-large'])
  })

  test('of the attributes that has no storage is kept until its uploads have ended', async () => {
    vi.stubGlobal('indexedDB', undefined)
    try {
      const answers: (() => void)[] = []
      vi.spyOn(globalThis, 'fetch').mockImplementation(
        () => new Promise((resolve) => answers.push(() => resolve(Response.json({ uploadId: 'u', storageKey: 's' }, { status: 201 })))),
      )
      show({ endpoint, name: 'memory' }, {})
      const first = element.queue as UploadQueue
      pick(file('one.txt'))
      await until(() => answers.length === 1)
      element.remove()
      await flush()
      document.body.append(element)
      expect(element.queue).toBe(first)
      await until(() => states().join() === 'one.txt: Uploading (kept by this page only)')
      element.setAttribute('concurrency', '2')
      await until(() => element.queue !== first)
      await flush()
      answers[0]?.()
      await until(() => first.getSnapshot()[0]?.status === 'succeeded')
      // Who follows a queue is told once a frame.
      await new Promise((resolve) => setTimeout(resolve, 50))
      await expect(first.enqueue(file('late.txt'))).rejects.toThrow()
    } finally {
      vi.unstubAllGlobals()
    }
  })

  test.each([
    ['concurrency', '0', 'a whole number of at least 1'],
    ['concurrency', '-1', 'a whole number of at least 1'],
    ['concurrency', '', 'a whole number of at least 1'],
    ['concurrency', 'x', 'a whole number of at least 1'],
    ['name', '', 'a string that is not empty'],
    ['max-file-size', 'abc', 'a number of at least 0'],
    ['max-file-size', '10MB', 'a number of at least 0'],
    ['max-file-size', '-1', 'a number of at least 0'],
    ['max-file-size', '', 'a number of at least 0'],
    ['endpoint', 'http://', 'a URL'],
  ])('is there though %s="%s" is ignored, with one error', async (name, value, expected) => {
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    show({ endpoint, [name]: value }, {})
    await flush()
    expect(error.mock.calls).toEqual([[expect.stringContaining(`<upload-queue ${name}="${value}"> is ignored. `)]])
    expect(error.mock.calls[0]?.[0]).toContain(`expected ${expected}`)
    expect(part('pick').textContent).toBe('Choose files')
    expect(part('hint').textContent).toBe('or drop them here')
    expect(element.queue === null).toBe(name === 'endpoint')
  })

  test('stays when an attribute is set wrong', async () => {
    vi.spyOn(globalThis, 'fetch').mockImplementation(() => new Promise(() => {}))
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    show({ endpoint, concurrency: '2', name: 'kept' }, {})
    const first = element.queue as UploadQueue
    pick(file('one.txt'))
    await until(() => rows().length === 1)
    for (const [name, value] of [
      ['endpoint', 'http://'],
      ['name', ''],
      ['concurrency', '0'],
      ['max-file-size', 'x'],
    ] as const) {
      element.setAttribute(name, value)
      await flush()
      expect(element.queue).toBe(first)
      expect(rows()).toHaveLength(1)
    }
    expect(error).toHaveBeenCalledTimes(4)
  })

  test('that is given takes the place of the attributes, also before the element is defined, and is never closed', async () => {
    const early = document.createElement('upload-later') as UploadQueueElement
    early.queue = queue
    early.setAttribute('endpoint', endpoint)
    document.body.append(early)
    defineUploadQueue('upload-later')
    customElements.upgrade(early)
    element = early
    expect(element.queue).toBe(queue)
    element.remove()
    await flush()
    await queue.enqueue(file('one.txt'))
    document.body.append(element)
    await until(() => rows().length === 1)
    element.queue = null
    expect(element.queue).not.toBe(queue)
    await until(() => rows().length === 0)
  })

  test('without one there is nothing to see, and nothing breaks', async () => {
    show({}, {})
    expect(element.queue).toBeNull()
    press(element.shadowRoot as ShadowRoot, 'Choose files')
    await flush()
    expect(part('toolbar').hidden).toBe(true)
    expect(part<HTMLButtonElement>('pick').disabled).toBe(true)
    const over = new Event('dragover', { bubbles: true, composed: true, cancelable: true })
    part('zone').dispatchEvent(over)
    expect(over.defaultPrevented).toBe(true)
    expect(drop(['Files'], { kind: 'file', type: '' }).defaultPrevented).toBe(true)
    element.queue = queue
    await until(() => !part<HTMLButtonElement>('pick').disabled)
  })
})

test('where there are no custom elements, nothing is defined; twice is once', () => {
  defineUploadQueue()
  vi.stubGlobal('customElements', undefined)
  try {
    defineUploadQueue('upload-elsewhere')
  } finally {
    vi.unstubAllGlobals()
  }
  expect(customElements.get('upload-elsewhere')).toBeUndefined()
})
