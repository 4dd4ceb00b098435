import type { Upload, UploadStatus } from 'uponce'
import { createCopyButton, h, setText, showInOrder } from './dom.js'
import { capitalize, count, formatBytes, formatClock, formatDuration, reasonInWords } from './format.js'
import type { Line } from './story.js'

export interface UploadActions {
  pause(id: string): void
  resume(id: string): void
  /** A failed upload gets a new budget, a waiting one is tried at once. */
  retry(id: string): void
  cancel(id: string): void
}

export interface UploadsViewOptions {
  list: HTMLElement
  actions: UploadActions
  linesOf(upload: Upload): readonly Line[]
  sentenceOf(upload: Upload): readonly string[]
  say(text: string): void
  /** Whether the server is known to be out of reach. */
  isOutOfReach(): boolean
}

export interface UploadsView {
  /** Shows these uploads. Rows whose upload is the very same object are left alone. */
  show(uploads: readonly Upload[]): void
  /** Opens the story of an upload, once it is shown. */
  open(id: string): void
  /** The story of this upload went on; without an id: something changed on the server, which every story may tell. */
  refreshStory(id?: string): void
  /** The server went out of reach, or came back. */
  refreshStates(): void
}

interface Row {
  element: HTMLElement
  upload: Upload
  update(upload: Upload): void
  tick(now: number): void
  isWaiting(): boolean
  open(): void
  refreshStory(): void
}

const isPausable = (status: UploadStatus): boolean => status === 'preparing' || status === 'pending' || status === 'uploading'

/** Its state in words, to the tenth of a second where it waits for one. */
function stateInWords(upload: Upload, now: number, isOutOfReach: boolean): string {
  const { status, requests, notBefore, reason, error, progress, createdAt, endedAt } = upload
  const why = reason === null ? '' : reasonInWords(reason, error?.status)
  switch (status) {
    case 'preparing':
      return 'Its digest is being computed'
    case 'pending':
      if (notBefore !== null && notBefore > now) {
        const next = reason === 'in-progress' ? 'Asks again' : 'Next attempt'
        return `${next} in ${formatDuration(notBefore - now)}: ${why}`
      }
      if (reason === 'network' && notBefore === null) return `Waits until the server can be reached: ${why}`
      return `${isOutOfReach ? 'Waits until the server can be reached' : 'Waits for its turn'}${why && `; before that: ${why}`}`
    case 'uploading':
      if (!progress) return reason === 'in-progress' ? 'The server is asked what became of it' : `Attempt ${requests} is under way`
      if (progress.loaded >= progress.total) return `All bytes have left, the answer is awaited`
      return `${formatBytes(progress.loaded)} of ${formatBytes(progress.total)} have left`
    case 'paused':
      return why ? `Paused; before that: ${why}` : 'Paused until somebody resumes it'
    case 'blocked':
      return error?.message ?? 'Waits for a sign-in'
    case 'succeeded': {
      const taken = endedAt === null ? '' : `, ${formatDuration(endedAt - createdAt)} after it was picked`
      return upload.replayed ? `Stored once; the stored answer was replayed${taken}` : `Stored${taken}`
    }
    case 'failed':
      return error ? `${error.message} (${error.code})` : 'It failed'
    default:
      return status satisfies never
  }
}

/** While one is under way nobody knows yet whether it will count; one that asks the server what became of an earlier one does not. */
const attemptsInWords = ({ attempts, requests, status, reason }: Upload): string => {
  if (status === 'uploading' && reason !== 'in-progress') return `attempt ${requests}`
  return attempts === requests ? count(requests, 'attempt') : `${count(attempts, 'attempt')} counted, ${requests} in all`
}

const attemptsTitle = 'Counted attempts use up the limit of 10; waiting for a server that is away or asked to wait does not'

const toneOf = ({ status, reason }: Upload): Line['tone'] => {
  if (status === 'succeeded') return 'good'
  if (status === 'failed') return 'bad'
  if (status === 'uploading' || status === 'preparing') return 'sent'
  return status === 'blocked' || (status === 'pending' && reason !== null) ? 'waits' : 'plain'
}

function createRow(first: Upload, { actions, linesOf, sentenceOf, say, isOutOfReach }: UploadsViewOptions): Row {
  const { id, name, size } = first
  const storyId = `story-${id}`
  let upload = first
  let isOpen = false

  const badge = h('span', { class: 'badge' })
  const memoryOnly = h('span', { class: 'badge', 'data-tone': 'waits', hidden: true }, 'This page only')
  const state = h('p', { class: 'state' })
  const bar = h('progress', { 'aria-label': `Progress of ${name}` })
  const attempts = h('span', { title: attemptsTitle })
  const key = createCopyButton('key', say)
  const digest = createCopyButton('digest', say)
  const toggle = h('button', { type: 'button', onclick: () => (isPausable(upload.status) ? actions.pause(id) : actions.resume(id)) })
  const retry = h('button', { type: 'button', onclick: () => actions.retry(id) })
  const cancel = h('button', { type: 'button', class: 'quiet', onclick: () => actions.cancel(id) })
  const storyButton = h('button', {
    type: 'button',
    class: 'disclosure',
    'aria-expanded': 'false',
    'aria-controls': storyId,
    onclick: () => setOpen(!isOpen),
  })
  storyButton.append('Story')
  storyButton.setAttribute('aria-label', `Story of ${name}`)
  const sentence = h('p', { class: 'sentence' })
  const lines = h('ol', { class: 'lines' })
  const story = h('div', { class: 'story', id: storyId, hidden: true }, sentence, lines)
  const element = h(
    'li',
    { class: 'item', 'data-id': id },
    h(
      'div',
      { class: 'item-head' },
      badge,
      memoryOnly,
      h('bdi', { class: 'name', title: name }, name),
      h('span', { class: 'size' }, formatBytes(size)),
    ),
    state,
    bar,
    h(
      'div',
      { class: 'item-foot' },
      h('div', { class: 'facts' }, attempts, key.element, digest.element),
      h('div', { class: 'buttons' }, storyButton, toggle, retry, cancel),
    ),
    story,
  )

  const setButton = (button: HTMLButtonElement, label: string | null): void => {
    if (label === null) {
      // The focus must not fall back to the top of the page.
      if (button === document.activeElement) storyButton.focus()
      button.hidden = true
      return
    }
    button.hidden = false
    setText(button, label)
    button.setAttribute('aria-label', `${label} ${name}`)
  }

  const refreshStory = (): void => {
    if (!isOpen) return
    const told = linesOf(upload)
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
    story.hidden = !isOpen
    storyButton.setAttribute('aria-expanded', String(isOpen))
    refreshStory()
  }

  const showProgress = ({ status, progress }: Upload): void => {
    bar.hidden = status !== 'uploading' && status !== 'preparing'
    if (progress && progress.total > 0 && progress.loaded < progress.total) {
      bar.max = progress.total
      bar.value = progress.loaded
    } else bar.removeAttribute('value')
  }

  const tick = (now: number): void => setText(state, stateInWords(upload, now, isOutOfReach()))

  const update = (next: Upload): void => {
    const before = upload
    upload = next
    const { status, notBefore } = next
    tick(Date.now())
    showProgress(next)
    if (before.revision === next.revision && before !== next) return
    element.dataset.status = status
    element.dataset.tone = toneOf(next)
    setText(badge, capitalize(status))
    memoryOnly.hidden = next.durable
    setText(attempts, attemptsInWords(next))
    key.show(next.idempotencyKey, name)
    digest.show(next.sha256, name)
    setButton(toggle, isPausable(status) ? 'Pause' : status === 'paused' || status === 'blocked' ? 'Resume' : null)
    setButton(retry, status === 'failed' ? 'Retry' : status === 'pending' && notBefore !== null ? 'Try now' : null)
    setButton(cancel, status === 'succeeded' ? null : status === 'failed' ? 'Remove' : 'Cancel')
    refreshStory()
  }

  update(first)
  return {
    element,
    get upload() {
      return upload
    },
    update,
    tick,
    isWaiting: () => upload.status === 'pending' && upload.notBefore !== null,
    open: () => setOpen(true),
    refreshStory,
  }
}

/** How often a countdown moves, ms. */
const tickLength = 100

export function createUploadsView(options: UploadsViewOptions): UploadsView {
  const { list } = options
  const rows = new Map<string, Row>()
  const toOpen = new Set<string>()
  let ticking: ReturnType<typeof setInterval> | undefined

  const tick = (): void => {
    const waiting = [...rows.values()].filter((row) => row.isWaiting())
    for (const row of waiting) row.tick(Date.now())
    if (waiting.length > 0) ticking ??= setInterval(tick, tickLength)
    else {
      clearInterval(ticking)
      ticking = undefined
    }
  }

  /** Where the focus goes when the row that has it leaves: to the row that takes its place. */
  const neighbourOf = (row: Row): HTMLElement => {
    const near = row.element.nextElementSibling ?? row.element.previousElementSibling
    return near?.querySelector<HTMLElement>('.disclosure') ?? list
  }

  return {
    show(uploads) {
      const ids = new Set(uploads.map(({ id }) => id))
      for (const [id, row] of rows) {
        if (ids.has(id)) continue
        if (row.element.contains(document.activeElement)) neighbourOf(row).focus()
        rows.delete(id)
      }
      for (const upload of uploads) {
        const row = rows.get(upload.id)
        if (!row) rows.set(upload.id, createRow(upload, options))
        else if (row.upload !== upload) row.update(upload)
      }
      // Newest first: what was just picked is what is looked for.
      showInOrder(
        list,
        uploads.toReversed().map(({ id }) => rows.get(id)!.element),
      )
      for (const id of toOpen) {
        if (!rows.has(id)) continue
        rows.get(id)?.open()
        toOpen.delete(id)
      }
      tick()
    },
    open(id) {
      if (rows.has(id)) rows.get(id)?.open()
      else toOpen.add(id)
    },
    refreshStory(id) {
      if (id !== undefined) rows.get(id)?.refreshStory()
      else for (const row of rows.values()) row.refreshStory()
    },
    refreshStates() {
      for (const row of rows.values()) row.tick(Date.now())
    },
  }
}
