import type { Upload } from 'uponce'
import { createCopyButton, h, setText } from './dom.js'
import { capitalize, count, formatClock, formatDuration } from './format.js'
import type { Line } from './story.js'

export interface TimelineViewOptions {
  /** The element in whose rows the time lines stand: each row has a slot with the id of its upload. */
  host: HTMLElement
  linesOf(upload: Upload): readonly Line[]
  sentenceOf(upload: Upload): readonly string[]
  say(text: string): void
}

export interface TimelineView {
  /** One time line for each of these uploads; those whose upload is the very same object are left alone. */
  show(uploads: readonly Upload[]): void
  /** Opens the time line of an upload, once it is shown. */
  open(id: string): void
  /** Something more is known of this upload; without an id: of any, from the server. */
  refresh(id?: string): void
}

interface Timeline {
  readonly element: HTMLElement
  readonly upload: Upload
  update(upload: Upload): void
  refresh(): void
  /** Time has passed. */
  tick(): void
  open(): void
}

/** While one is under way nobody knows yet whether it will count; one that asks the server what became of an earlier one does not. */
const attemptsInWords = ({ attempts, requests, status, reason }: Upload): string => {
  if (status === 'uploading' && reason !== 'in-progress') return `attempt ${requests}`
  return attempts === requests ? count(requests, 'attempt') : `${count(attempts, 'attempt')} counted, ${requests} in all`
}

const attemptsTitle = 'Counted attempts use up the limit of 10; waiting for a server that is away or asked to wait does not'

const hasEnded = ({ status }: Upload): boolean => status === 'succeeded' || status === 'failed'

/** How wide a stretch of time is: a wait of minutes must not hide an attempt of milliseconds. */
const widthOf = (ms: number): string => String(Math.round(10 + Math.sqrt(Math.max(0, ms))))

function createTimeline(first: Upload, { linesOf, sentenceOf, say }: TimelineViewOptions): Timeline {
  const { id, name } = first
  const detailsId = `timeline-${id}`
  let upload = first
  let isOpen = false

  const strip = h('div', { class: 'strip', 'aria-hidden': 'true' })
  const attempts = h('span', { title: attemptsTitle })
  const key = createCopyButton('key', say)
  const digest = createCopyButton('digest', say)
  const button = h('button', {
    type: 'button',
    class: 'disclosure quiet',
    'aria-expanded': 'false',
    'aria-controls': detailsId,
    'aria-label': `Time line of ${name}`,
    onclick: () => setOpen(!isOpen),
  })
  button.append('Time line')
  const sentence = h('p', { class: 'sentence' })
  const lines = h('ol', { class: 'lines' })
  const details = h('div', { class: 'story', id: detailsId, hidden: true }, sentence, lines)
  const element = h(
    'div',
    { class: 'timeline', slot: id, 'data-name': name },
    strip,
    h('div', { class: 'timeline-foot' }, h('div', { class: 'facts' }, attempts, key.element, digest.element), button),
    details,
  )

  const showStrip = (told: readonly Line[]): void => {
    for (const [place, { at, tone, text }] of told.entries()) {
      const next = told[place + 1]
      let stretch = strip.children[place] as HTMLElement | undefined
      if (!stretch) {
        stretch = h('i', { 'data-tone': tone })
        strip.append(stretch)
      }
      const length = next ? next.at - at : hasEnded(upload) ? 0 : Date.now() - at
      stretch.style.flexGrow = widthOf(length)
      stretch.title = `${text} (${formatDuration(length)})`
    }
    strip.hidden = told.length < 2
  }

  const refresh = (): void => {
    const told = linesOf(upload)
    showStrip(told)
    if (!isOpen) return
    // The last line may go on; those before it do not.
    const last = lines.lastElementChild?.lastElementChild
    const line = told[lines.childElementCount - 1]
    if (last && line) setText(last, line.text)
    for (const { at, tone, text } of told.slice(lines.childElementCount)) {
      const since = h('time', { datetime: new Date(at).toISOString(), title: formatClock(at) }, `+${formatDuration(at - upload.createdAt)}`)
      lines.append(h('li', { 'data-tone': tone }, since, h('span', {}, text)))
    }
    setText(sentence, capitalize(sentenceOf(upload).join(' → ')))
    sentence.hidden = sentence.textContent === ''
  }

  const setOpen = (value: boolean): void => {
    isOpen = value
    details.hidden = !isOpen
    button.setAttribute('aria-expanded', String(isOpen))
    refresh()
  }

  const update = (next: Upload): void => {
    const before = upload
    upload = next
    // Bytes have moved, and nothing else.
    if (before.revision === next.revision && before !== next) return
    setText(attempts, attemptsInWords(next))
    key.show(next.idempotencyKey, name)
    digest.show(next.sha256, name)
    refresh()
  }

  update(first)
  return {
    element,
    get upload() {
      return upload
    },
    update,
    refresh,
    tick() {
      if (!hasEnded(upload)) showStrip(linesOf(upload))
    },
    open: () => setOpen(true),
  }
}

/** So often a time line grows, ms. */
const tickLength = 500

export function createTimelineView(options: TimelineViewOptions): TimelineView {
  const timelines = new Map<string, Timeline>()
  const toOpen = new Set<string>()
  setInterval(() => {
    if (!document.hidden) for (const timeline of timelines.values()) timeline.tick()
  }, tickLength)

  return {
    show(uploads) {
      const ids = new Set(uploads.map(({ id }) => id))
      for (const [id, { element }] of timelines) {
        if (ids.has(id)) continue
        timelines.delete(id)
        element.remove()
      }
      for (const upload of uploads) {
        const known = timelines.get(upload.id)
        if (known && known.upload !== upload) known.update(upload)
        if (known) continue
        const made = createTimeline(upload, options)
        timelines.set(upload.id, made)
        options.host.append(made.element)
      }
      for (const id of toOpen) {
        if (!timelines.has(id)) continue
        timelines.get(id)?.open()
        toOpen.delete(id)
      }
    },
    open(id) {
      if (timelines.has(id)) timelines.get(id)?.open()
      else toOpen.add(id)
    },
    refresh(id) {
      if (id !== undefined) timelines.get(id)?.refresh()
      else for (const timeline of timelines.values()) timeline.refresh()
    },
  }
}
