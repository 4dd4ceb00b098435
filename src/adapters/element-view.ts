import type { UploadErrorCode } from '../errors.js'
import { eventNames, type UploadQueueEventName } from '../events.js'
import type { UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'
import sheet from './element.css?inline'
import { englishTexts, reasonInWords, stateInWords, type UploadQueueTexts } from './element-texts.js'
import type { RefusalReason, Refused } from './file-picker.js'

/** A thing that is not taken, and why: it was refused as it was picked, or the queue could not save it (`error`). */
export interface Refusal {
  file: Refused
  reason: RefusalReason | UploadErrorCode | undefined
  error?: unknown
}

/** What an `<upload-queue>` shows in its shadow root. */
export interface View {
  /** The input behind the button that picks. */
  readonly input: HTMLInputElement
  /** Brings the style along, into the document where the element is now. */
  dress(): void
  /** Shows a queue, until it is to show another one or none. */
  follow(queue: UploadQueue<unknown> | null): void
  /** `maxFileSize`: what is said to be taken, bytes. */
  setTexts(texts: UploadQueueTexts, maxFileSize: number | undefined): void
  /** Tells the user and, by an event, the page that something is not taken. */
  refuse(refusal: Refusal): void
}

interface Row {
  readonly element: HTMLElement
  /** What it shows. */
  upload: Upload | undefined
  show(upload: Upload): void
}

/** A countdown shows whole seconds: it is looked at so often, ms. */
const tickLength = 250
/** Changes closer than this, ms, are read out as one. */
const gatherTime = 800
/** So many of them by name, and so many refusals. */
const namesShown = 3

const make = <Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, string>,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] => {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

type Button = HTMLButtonElement

const makePart = (part: string, ...children: Node[]): HTMLElement => make('div', { part }, ...children)

/** `action` is what a click does, and one of its parts. */
const makeButton = (value: string): Button => make('button', { type: 'button', part: `button ${value}`, value })

/** Writes only what differs, so that nothing is laid out again. */
const setText = (element: Element, text: string): void => {
  if (element.textContent !== text) element.textContent = text
}

/** Where the same is said again the region has to change, or it is not read out. */
const announce = (region: Element, ...content: (Node | string)[]): void => {
  const before = region.textContent
  region.replaceChildren(...content)
  if (before && region.textContent === before) region.append('\u00a0')
}

const setLabel = (element: Element, text: string): void => element.setAttribute('aria-label', text)

export function createView(root: ShadowRoot): View {
  let texts = englishTexts()
  let queue: UploadQueue<unknown> | null = null
  let endings: (() => void)[] = []
  let isOffline = false
  /** The one that the server told to wait, and with it all that go there. */
  let told: Upload | undefined
  let refusals: [name: string, why: unknown][] = []
  /** Of the refusals, since they were shown. */
  let isNews = false
  let news: string[] = []
  let added = 0
  let isSaying = false
  let isDue = false
  let ticking: ReturnType<typeof setTimeout> | undefined
  const rows = new Map<string, Row>()
  const { host } = root

  const input = make('input', { type: 'file', hidden: '' })
  const hint = makePart('hint')
  // There from the start, or what comes into it is not read out.
  const notice = make('span', { role: 'alert' })
  const totals = makePart('totals')
  const badge = makePart('badge')
  const overall = make('progress', { part: 'progress overall' })
  const buttons = ['pick', 'dismiss', 'pauseAll', 'resumeAll', 'tryAll', 'clear'].map(makeButton)
  const [pick, dismiss, pauseAll, resumeAll, tryAll, clear] = buttons as [Button, Button, Button, Button, Button, Button]
  const toolbar = makePart('toolbar', totals, badge, makePart('actions', pauseAll, resumeAll, tryAll, clear), overall)
  // Without the role a list that has no bullets is none to some screen readers.
  const list = make('ul', { part: 'list', role: 'list' })
  const live = make('p', { role: 'status' })
  root.append(makePart('zone', pick, hint, input), makePart('notice', notice, dismiss), toolbar, list, live)

  const isOut = ({ status, reason, notBefore }: Upload): boolean =>
    status === 'pending' && (isOffline || (reason === 'network' && notBefore === null))
  const stateOf = (upload: Upload): string => stateInWords(texts, upload, told, Date.now(), isOut(upload))

  function createRow({ id, name, size }: Upload): Row {
    const bytes = makePart('size')
    const state = makePart('state')
    const progress = make('progress', { part: 'progress' })
    const now = makeButton('retry')
    const toggle = makeButton('pause')
    const cancel = makeButton('cancel')
    // The focus that one of its buttons leaves behind goes to the row.
    const element = make(
      'li',
      { id, tabindex: '-1' },
      makePart('facts', make('bdi', { part: 'name', title: name }, name), bytes, state),
      makePart('actions', now, toggle, cancel),
      progress,
      make('slot', { name: id }),
    )
    const setButton = (button: HTMLButtonElement, text: string): void => {
      setText(button, text)
      setLabel(button, texts.of(text, name))
    }
    const row: Row = {
      element,
      upload: undefined,
      show(upload) {
        const before = row.upload
        const { status, notBefore, progress: moved } = upload
        // Time has passed, or the network has gone or come: that is said of what waits.
        if (before === upload && status !== 'pending') return
        row.upload = upload
        setText(state, stateOf(upload))
        if (moved && moved.loaded < moved.total) Object.assign(progress, { max: moved.total, value: moved.loaded })
        else progress.removeAttribute('value')
        // Bytes have moved, and nothing else.
        if (before?.revision === upload.revision) return
        element.dataset.status = status
        element.setAttribute('part', `row ${status}`)
        setLabel(progress, texts.of(texts.progress, name))
        setText(bytes, texts.bytes(size))
        toggle.value = status === 'failed' ? 'retry' : status === 'paused' || status === 'blocked' ? 'resume' : 'pause'
        setButton(toggle, texts[toggle.value as 'pause'])
        setButton(now, texts.tryNow)
        setButton(cancel, status === 'failed' ? texts.remove : texts.cancel)
        progress.hidden = status !== 'uploading' && status !== 'preparing'
        now.hidden = status !== 'pending' || notBefore === null
        toggle.hidden = cancel.hidden = status === 'succeeded'
      },
    }
    return row
  }

  function render(): void {
    isDue = false
    const uploads = queue?.getSnapshot() ?? []
    const focused = root.activeElement as HTMLElement | null
    const focusedRow = focused?.closest('li')
    const place = focusedRow ? [...list.children].indexOf(focusedRow) : 0

    for (const [id, { element }] of rows)
      if (!queue?.get(id)) {
        rows.delete(id)
        element.remove()
      }
    const sum = { uploads: uploads.length, succeeded: 0, failed: 0, loaded: 0, size: 0 }
    let [running, stopped, late, out] = [0, 0, 0, 0]
    // The newest first: what was just picked is what is looked for.
    let next: Element | null = null
    for (const upload of uploads) {
      const { id, status, size, progress, reason } = upload
      const row: Row = rows.get(id) ?? createRow(upload)
      rows.set(id, row)
      row.show(upload)
      if (!row.element.parentNode || row.element.nextElementSibling !== next) list.insertBefore(row.element, next)
      next = row.element

      sum.size += size
      sum.loaded += status === 'succeeded' ? size : status === 'uploading' ? Math.min(size, progress?.loaded ?? 0) : 0
      if (status === 'succeeded' || status === 'failed') sum[status]++
      else if (status === 'paused' || status === 'blocked') stopped++
      else running++
      if (status === 'pending' && reason !== null) late++
      if (isOut(upload)) out++
    }
    toolbar.hidden = !uploads.length
    setText(totals, texts.totals(sum))
    badge.hidden = !out
    setText(badge, texts.waiting(out))
    overall.hidden = !running || uploads.length < 2
    Object.assign(overall, { max: sum.size || 1, value: sum.loaded })
    pauseAll.hidden = !running
    resumeAll.hidden = !stopped
    tryAll.hidden = !(sum.failed + late + out)
    clear.hidden = !sum.succeeded

    if (isNews)
      announce(
        notice,
        ...named(refusals).flatMap((one, at) => [at > 0 ? ' ' : '', ...(typeof one === 'string' ? [one] : refusalOf(...one))]),
      )
    isNews = false
    dismiss.hidden = !refusals.length
    pick.disabled = !queue

    // What was just used has gone: the button or row in its place takes the focus, or its own row.
    if (focused && (!focused.isConnected || focused.hidden)) {
      const twin = focused === pauseAll ? resumeAll : focused === resumeAll ? pauseAll : undefined
      const inPlace = focusedRow?.isConnected ? focusedRow : (list.children[place] ?? list.lastElementChild)
      const near = twin && !twin.hidden ? twin : inPlace
      ;((near as HTMLElement | undefined) ?? pick).focus()
    }
    clearTimeout(ticking)
    if (late) ticking = setTimeout(schedule, tickLength)
  }

  const schedule = (): void => {
    if (!isDue) requestAnimationFrame(render)
    isDue = true
  }

  /** The last ones, and how many there are beside them. */
  const named = <One>(all: One[]): (One | string)[] =>
    all.length > namesShown ? [...all.slice(-namesShown), texts.more(all.length - namesShown)] : all.slice()

  /** What was refused, and why, its name kept apart from a text of the other direction. */
  const refusalOf = (name: string, why: unknown): (Node | string)[] => {
    const reason = reasonInWords(texts, why)
    if (!name) return [reason]
    return texts
      .told(name, reason)
      .split(name)
      .flatMap((text, at) => (at > 0 ? [make('bdi', {}, name), text] : [text]))
  }

  /** Says what has changed, gathered: two hundred files change two hundred times. */
  function say(...sentences: string[]): void {
    news.push(...sentences)
    if (isSaying) return
    isSaying = true
    setTimeout(() => {
      const sentences = named(news)
      if (added) sentences.unshift(texts.added(added))
      // Some have their full stop.
      announce(live, sentences.join('. ').replace(/([.!?。]\s*)\. /g, '$1 '))
      isSaying = false
      news = []
      added = 0
    }, gatherTime)
  }

  const setRefusals = (next: typeof refusals): void => {
    refusals = next
    isNews = true
    schedule()
  }
  /** All that was asked for, where `name` is empty. `why`: an error, or the code of a refusal. */
  const refuse = (name: string, why: unknown): void => setRefusals([...refusals, [name, why]])
  const forgetRefusals = (): void => setRefusals([])
  const dispatch = (name: string, detail: object): void => {
    host.dispatchEvent(new CustomEvent(name, { bubbles: true, composed: true, detail }))
  }

  /** Reads out what an event of the queue is news of, and passes it on. */
  function hear(name: UploadQueueEventName, payload: { upload?: Upload; reason?: string; counted?: boolean }): void {
    const { upload, reason, counted } = payload
    if (reason === 'http' && !counted) told = upload
    if (name === 'started') told = undefined
    else if (name === 'offline' || name === 'online') {
      isOffline = name === 'offline'
      say(isOffline ? texts.offline : texts.pending)
      schedule()
    } else if (name === 'added') {
      added++
      say()
    } else if (name === 'cancelled') {
      // A receipt that is cleared away takes nothing back.
      if (upload?.status !== 'succeeded') say(texts.told((upload as Upload).name, texts.cancelled))
      // What goes wrong again and again is news the first time.
    } else if (upload && name !== 'progress' && name !== 'warning' && (name !== 'retrying' || upload.requests === 1))
      say(texts.told(upload.name, stateOf(upload)))
    dispatch(name, payload)
  }

  input.addEventListener('change', forgetRefusals)
  for (const name of ['drop', 'paste']) host.addEventListener(name, forgetRefusals)
  // Where nobody takes what is dropped, the browser would leave the page and open it.
  for (const name of ['dragover', 'drop']) host.addEventListener(name, (event) => queue || event.preventDefault())

  /** What a click does that is not a call of the queue, for one upload, by the same name. */
  const actions: Record<string, (queue: UploadQueue<unknown>) => unknown> = {
    pick: () => input.click(),
    dismiss: forgetRefusals,
    pauseAll: (queue) => queue.pause(),
    resumeAll: (queue) => queue.resume(),
    // The first gives a whole new budget to what failed, the second looks for the network.
    tryAll: (queue) => Promise.all([queue.retry(), queue.flush()]),
    clear: (queue) => queue.clear({ status: 'succeeded' }),
  }
  root.addEventListener('click', async ({ target }) => {
    const button = (target as Element).closest('button')
    if (!button || !queue) return
    const { value } = button
    try {
      await (actions[value]?.(queue) ?? queue[value as 'cancel']?.((button.closest('li') as HTMLElement).id))
    } catch (error) {
      refuse('', error)
    }
  })

  return {
    input,
    dress() {
      const { ownerDocument } = root
      // A style sheet belongs to one document, and an element that moves to another leaves it behind.
      const { CSSStyleSheet } = (ownerDocument.defaultView ?? {}) as Partial<typeof globalThis>
      if (!CSSStyleSheet) return
      const style = new CSSStyleSheet()
      style.replaceSync(sheet)
      root.adoptedStyleSheets = [style]
    },
    follow(followed) {
      if (followed === queue) return
      for (const end of endings.splice(0)) end()
      queue = followed
      isOffline = false
      told = undefined
      if (followed)
        endings = [
          followed.subscribe(schedule),
          ...([...eventNames] as UploadQueueEventName[]).map((name) => followed.on(name, (payload) => hear(name, payload))),
        ]
      schedule()
    },
    setTexts(next, maxFileSize) {
      texts = next
      setLabel(list, texts.list)
      setLabel(overall, texts.overall)
      for (const button of buttons) setText(button, texts[button.value as 'pick'])
      setText(hint, texts.drop + (maxFileSize === undefined ? '' : `, ${texts.limit(texts.bytes(maxFileSize))}`))
      // Their rows say everything anew; they stay, for one of them may have the focus.
      for (const row of rows.values()) row.upload = undefined
      isNews = true
      schedule()
    },
    refuse(refusal) {
      refuse(refusal.file.name, refusal.error ?? refusal.reason)
      dispatch('refused', refusal)
    },
  }
}
