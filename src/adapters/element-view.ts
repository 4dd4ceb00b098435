import type { UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'
import sheet from './element.css?inline'
import { englishTexts, stateInWords, type UploadQueueTexts } from './element-texts.js'

/** What an `<upload-queue>` shows in its shadow root. */
export interface View {
  /** The input behind the button that picks. */
  readonly input: HTMLInputElement
  /** Brings the style along, into the document where the element is now. */
  dress(): void
  /** Shows a queue until the function it returns is called. */
  follow(queue: UploadQueue<unknown>): () => void
  /** `maxFileSize`: what is said to be taken, bytes. */
  setTexts(texts: UploadQueueTexts, maxFileSize: number | undefined): void
  /** Says that a file, or all that was asked for (`name` is empty), was not taken. `why`: an error, or the code of a refusal. */
  refuse(name: string, why: unknown): void
}

interface Row {
  readonly element: HTMLElement
  /** What it shows. */
  upload: Upload | undefined
  show(upload: Upload): void
  /** Time has passed, or the network has gone or come. */
  refresh(): void
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
  ...children: Node[]
): HTMLElementTagNameMap[Tag] => {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

const makePart = (part: string, ...children: Node[]): HTMLElement => make('div', { part }, ...children)

/** `action` is what a click does, and one of its parts. */
const makeButton = (value: string): HTMLButtonElement => make('button', { type: 'button', part: `button ${value}`, value })

/** Writes only what differs, so that nothing is laid out again. */
const setText = (element: Element, text: string): void => {
  if (element.textContent !== text) element.textContent = text
}

/** Where the same is said again the region has to change, or it is not read out. */
const announce = (region: Element, content: Node | string): void => {
  const before = region.textContent
  region.replaceChildren(content)
  if (before && region.textContent === before) region.append('\u00a0')
}

const setLabel = (element: Element, text: string): void => element.setAttribute('aria-label', text)

export function createView(root: ShadowRoot): View {
  let texts = englishTexts()
  let queue: UploadQueue<unknown> | undefined
  let isOffline = false
  let refusals: [name: string, why: unknown][] = []
  /** Of the refusals, since they were shown. */
  let isNews = false
  let news: string[] = []
  let added = 0
  let isSaying = false
  let isDue = false
  let dressedFor: Document | undefined
  let ticking: ReturnType<typeof setInterval> | undefined
  const rows = new Map<string, Row>()

  const input = make('input', { type: 'file', hidden: '' })
  const hint = makePart('hint')
  // There from the start, or what comes into it is not read out.
  const notice = make('span', { role: 'alert' })
  const totals = makePart('totals')
  const badge = makePart('badge')
  const overall = make('progress', { part: 'progress overall' })
  const pick = makeButton('pick')
  const dismiss = makeButton('dismiss')
  const pauseAll = makeButton('pauseAll')
  const resumeAll = makeButton('resumeAll')
  const tryAll = makeButton('tryAll')
  const clear = makeButton('clear')
  const toolbar = makePart('toolbar', totals, badge, makePart('actions', pauseAll, resumeAll, tryAll, clear), overall)
  // Without the role a list that has no bullets is none to some screen readers.
  const list = make('ul', { part: 'list', role: 'list' })
  const live = make('p', { role: 'status' })
  root.append(makePart('zone', pick, hint, input), makePart('notice', notice, dismiss), toolbar, list, live)

  const isOut = ({ status, reason, notBefore }: Upload): boolean =>
    status === 'pending' && (isOffline || (reason === 'network' && notBefore === null))
  const stateOf = (upload: Upload): string => stateInWords(texts, upload, Date.now(), isOut(upload))

  function createRow({ id, name, size }: Upload): Row {
    const title = make('bdi', { part: 'name', title: name })
    title.textContent = name
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
      makePart('facts', title, bytes, state),
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
      refresh: () => setText(state, stateOf(row.upload as Upload)),
      show(upload) {
        const before = row.upload
        row.upload = upload
        row.refresh()
        const { status, notBefore, progress: moved } = upload
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

    const ids = new Set(uploads.map(({ id }) => id))
    for (const [id, { element }] of rows)
      if (!ids.has(id)) {
        rows.delete(id)
        element.remove()
      }
    const sum = { uploads: uploads.length, succeeded: 0, failed: 0, loaded: 0, size: 0 }
    let [running, stopped, late, out] = [0, 0, 0, 0]
    let counts = false
    // The newest first: what was just picked is what is looked for.
    let next: Element | null = null
    for (const upload of uploads) {
      const { id, status, size, progress, notBefore, reason } = upload
      const row: Row = rows.get(id) ?? createRow(upload)
      rows.set(id, row)
      if (row.upload !== upload) row.show(upload)
      if (!row.element.parentNode || row.element.nextElementSibling !== next) list.insertBefore(row.element, next)
      next = row.element

      sum.size += size
      if (status === 'succeeded') {
        sum.succeeded++
        sum.loaded += size
      } else if (status === 'failed') sum.failed++
      else if (status === 'paused' || status === 'blocked') stopped++
      else {
        running++
        if (status === 'uploading' && progress) sum.loaded += Math.min(size, progress.loaded)
        if (status === 'pending' && reason !== null) late++
        if (status === 'pending' && notBefore !== null) counts = true
        if (isOut(upload)) out++
      }
    }
    toolbar.hidden = uploads.length === 0
    setText(totals, texts.totals(sum))
    badge.hidden = out === 0
    setText(badge, texts.waiting(out))
    overall.hidden = running === 0 || uploads.length < 2
    Object.assign(overall, { max: sum.size || 1, value: sum.loaded })
    pauseAll.hidden = running === 0
    resumeAll.hidden = stopped === 0
    tryAll.hidden = sum.failed + late + out === 0
    clear.hidden = sum.succeeded === 0

    const told = new DocumentFragment()
    told.append(...named(refusals).flatMap((one, at) => [at > 0 ? ' ' : '', ...(typeof one === 'string' ? [one] : refusalOf(...one))]))
    if (isNews || told.textContent !== notice.textContent?.trimEnd()) announce(notice, told)
    isNews = false
    dismiss.hidden = refusals.length === 0
    pick.disabled = !queue

    // What was just used has gone: the button or row in its place takes the focus, or its own row.
    if (focused && (!focused.isConnected || focused.hidden)) {
      const twin = focused === pauseAll ? resumeAll : focused === resumeAll ? pauseAll : undefined
      const inPlace = focusedRow?.isConnected ? focusedRow : list.children[Math.min(place, list.children.length - 1)]
      const near = twin && !twin.hidden ? twin : inPlace
      ;((near as HTMLElement | undefined) ?? pick).focus()
    }
    if (counts) ticking ??= setInterval(refresh, tickLength)
    else stopTicking()
  }

  const schedule = (): void => {
    if (!isDue) requestAnimationFrame(render)
    isDue = true
  }
  const refresh = (): void => {
    for (const { upload, refresh } of rows.values()) if (upload?.status === 'pending') refresh()
  }
  const stopTicking = (): void => {
    clearInterval(ticking)
    ticking = undefined
  }

  /** The last ones, and how many there are beside them. */
  const named = <One>(all: One[]): (One | string)[] =>
    all.length > namesShown ? [...all.slice(-namesShown), texts.more(all.length - namesShown)] : all
  const reasonOf = (why: unknown): string => {
    const { code, message, status } = why as { code?: string; message?: string; status?: number }
    return texts.reason(code ?? String(why), message, status)
  }

  /** What was refused, and why, its name kept apart from a text of the other direction. */
  const refusalOf = (name: string, why: unknown): (Node | string)[] => {
    const reason = reasonOf(why)
    if (!name) return [reason]
    const told = texts.told(name, reason)
    const [before] = told.split(name, 1) as [string]
    if (before === told) return [told]
    const isolated = make('bdi', {})
    isolated.textContent = name
    return [before, isolated, told.slice(before.length + name.length)]
  }

  /** Says what has changed, gathered: two hundred files change two hundred times. */
  function say(...sentences: string[]): void {
    news.push(...sentences)
    if (isSaying) return
    isSaying = true
    setTimeout(() => {
      const sentences = [...(added > 0 ? [texts.added(added)] : []), ...named(news)]
      // Some have their full stop.
      announce(
        live,
        sentences.reduce((said, next) => said + (/[.!?。]\s*$/.test(said) ? ' ' : '. ') + next),
      )
      isSaying = false
      news = []
      added = 0
    }, gatherTime)
  }

  const forgetRefusals = (): void => {
    refusals = []
    isNews = true
    schedule()
  }
  input.addEventListener('change', forgetRefusals)
  for (const name of ['drop', 'paste']) root.host.addEventListener(name, forgetRefusals)
  // Where nobody takes what is dropped, the browser would leave the page and open it.
  for (const name of ['dragover', 'drop']) root.host.addEventListener(name, (event) => queue || event.preventDefault())

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
      view.refuse('', error)
    }
  })

  const view: View = {
    input,
    dress() {
      const { ownerDocument } = root
      // A style sheet belongs to one document, and an element that moves to another leaves it behind.
      const { CSSStyleSheet } = (ownerDocument.defaultView ?? {}) as Partial<typeof globalThis>
      if (ownerDocument === dressedFor || !CSSStyleSheet) return
      dressedFor = ownerDocument
      const style = new CSSStyleSheet()
      style.replaceSync(sheet)
      root.adoptedStyleSheets = [style]
    },
    follow(followed) {
      queue = followed
      isOffline = false
      const setOffline = (value: boolean): void => {
        isOffline = value
        say(value ? texts.offline : texts.pending)
        refresh()
        schedule()
      }
      const tell = ({ upload }: { upload: Upload }): void => say(texts.told(upload.name, stateOf(upload)))
      const endings = [
        followed.subscribe(schedule),
        followed.on('added', () => {
          added++
          say()
        }),
        // What goes wrong again and again is news the first time.
        followed.on('retrying', (payload) => payload.upload.requests === 1 && tell(payload)),
        ...(['succeeded', 'failed', 'blocked', 'paused', 'resumed'] as const).map((name) => followed.on(name, tell)),
        // A receipt that is cleared away takes nothing back.
        followed.on('cancelled', ({ upload }) => upload.status !== 'succeeded' && say(texts.told(upload.name, texts.cancelled))),
        followed.on('offline', () => setOffline(true)),
        followed.on('online', () => setOffline(false)),
      ]
      schedule()
      return () => {
        for (const end of endings) end()
        queue = undefined
        stopTicking()
        schedule()
      }
    },
    setTexts(next, maxFileSize) {
      texts = next
      setLabel(list, texts.list)
      setLabel(overall, texts.overall)
      for (const button of [pick, dismiss, pauseAll, resumeAll, tryAll, clear]) setText(button, texts[button.value as 'pick'])
      setText(hint, texts.drop + (maxFileSize === undefined ? '' : `, ${texts.limit(texts.bytes(maxFileSize))}`))
      // Their rows say everything anew; they stay, for one of them may have the focus.
      for (const row of rows.values()) row.upload = undefined
      schedule()
    },
    refuse(name, why) {
      refusals.push([name, why])
      isNews = true
      schedule()
    },
  }
  return view
}
