import type { Upload } from 'uponce'
import type { Account } from './account.js'
import { createCopyButton, h, setText, showInOrder } from './dom.js'
import { count, formatBytes, formatClock } from './format.js'
import { type Look, type Media, rowsByKey, type SeenRequest, totalsOf } from './server-state.js'

export interface ServerView {
  show(look: Look, uploads: readonly Upload[]): void
  /** What follows from the uploads too. */
  showTotals(look: Look, uploads: readonly Upload[]): void
  /** The server does not answer: what is shown is what was last known. */
  showSilence(): void
}

export interface ServerViewOptions {
  list: HTMLElement
  summary: HTMLElement
  totals: HTMLElement
  say(text: string): void
  account: Account
}

/** Rows shown; a page of a thousand serves nobody. */
const rowsShown = 200

/** What happened to one request, in few words, and how it is to be seen. */
function requestInWords(request: SeenRequest, isStored: boolean): { text: string; tone: string } {
  const { status, fault, replayed, bytes } = request
  if (status === null) {
    if (fault === 'lose-answer') return { text: `${isStored ? 'stored, ' : ''}answer dropped`, tone: 'bad' }
    if (fault === 'cut-body') return { text: `cut after ${formatBytes(bytes)}`, tone: 'bad' }
    return { text: `${formatBytes(bytes)} received, no answer sent`, tone: 'waits' }
  }
  if (replayed) return { text: `${status} replayed`, tone: 'good' }
  const slow = fault === 'slow' ? ' over a slow line' : ''
  return { text: `${status}${slow}`, tone: status < 300 ? 'good' : status < 500 && status !== 429 ? 'bad' : 'waits' }
}

/** One chip for each request, and one for all that a browser repeated by itself after it. */
function chipsOf({ requests, media }: Entry): HTMLElement[] {
  const chips: HTMLElement[] = []
  let copies = 0
  for (const request of requests) {
    copies = request.copy ? copies + 1 : 0
    const { text, tone } = requestInWords(request, media !== undefined)
    const title = `Begun ${formatClock(Date.parse(request.at))}`
    if (copies === 0) chips.push(h('li', { 'data-tone': tone, title }, text))
    else {
      if (copies > 1) chips.pop()
      chips.push(
        h(
          'li',
          { class: 'copies', 'data-tone': tone, title },
          `sent again ${copies} × by the browser itself: ${text.replace('stored, ', '')}`,
        ),
      )
    }
  }
  return chips
}

interface Entry {
  key: string
  media: Media | undefined
  requests: readonly SeenRequest[]
  upload: Upload | undefined
}

/** One for each stored row, and one for each key that the server has seen and stored nothing for. Newest first. */
function entriesOf({ state }: Look, uploads: readonly Upload[]): Entry[] {
  const byKey = new Map(uploads.map((upload) => [upload.idempotencyKey, upload]))
  const seen = new Map(state.keys.map(({ key, requests }) => [key, requests]))
  const rows = rowsByKey(state.media)
  const bare = state.keys.filter(({ key }) => !rows.has(key)).toReversed()
  return [
    ...bare.map(({ key, requests }) => ({ key, media: undefined, requests, upload: byKey.get(key) })),
    ...state.media.map((media) => ({ key: media.key, media, requests: seen.get(media.key) ?? [], upload: byKey.get(media.key) })),
  ]
}

function comparison(media: Media, upload: Upload | undefined): { text: string; tone: string } {
  if (!upload?.sha256) return { text: 'not in the list here', tone: 'plain' }
  return upload.sha256 === media.sha256
    ? { text: 'same digest as in this browser', tone: 'good' }
    : { text: 'not the digest in this browser', tone: 'bad' }
}

/** A link does for the cookie; who is known by a header asks with it. */
async function download(event: Event, { headers }: Account, name: string): Promise<void> {
  if (Object.keys(headers).length === 0) return
  event.preventDefault()
  const response = await fetch((event.currentTarget as HTMLAnchorElement).href, { headers })
  const url = URL.createObjectURL(await response.blob())
  h('a', { href: url, download: name }).click()
  URL.revokeObjectURL(url)
}

function createRow({ key, media, upload }: Entry, { say, account }: ServerViewOptions) {
  const name = media?.fileName ?? upload?.name ?? `key ${key.slice(0, 8)}…`
  const title = h('bdi', { class: 'name', title: name })
  const onclick = (event: Event): void => void download(event, account, name).catch((error: Error) => say(error.message))
  const link = (id: string) =>
    h('a', { href: `/media/${encodeURIComponent(id)}`, download: name, title: `Download ${name}`, onclick }, name)
  title.append(media ? link(media.id) : name)
  const badge = h('span', { class: 'badge' }, media ? 'Stored' : 'Not stored')
  const size = h('span', { class: 'size' }, media ? formatBytes(media.bytes) : '')
  const keyButton = createCopyButton('key', say)
  keyButton.show(key, name)
  const facts = h('div', { class: 'facts' }, keyButton.element)
  const mark = h('span', { class: 'mark' })
  if (media) {
    const digest = createCopyButton('digest', say)
    digest.show(media.sha256, `${name} on the server`)
    facts.append(digest.element, mark)
  }
  const requests = h('ol', { class: 'requests', 'aria-label': `Requests for ${name}` })
  const element = h(
    'li',
    { class: 'item', 'data-key': key, 'data-tone': media ? 'good' : 'waits' },
    h('div', { class: 'item-head' }, badge, title, size),
    facts,
    requests,
  )

  let shownRequests = ''
  const update = (entry: Entry): void => {
    if (entry.media) {
      const { text, tone } = comparison(entry.media, entry.upload)
      setText(mark, text)
      mark.dataset.tone = tone
    }
    const print = JSON.stringify(entry.requests)
    if (print === shownRequests) return
    shownRequests = print
    requests.replaceChildren(...chipsOf(entry))
  }
  return { element, update }
}

const totalNames = ['picked', 'stored', 'requests', 'replays', 'storedTwice', 'lost'] as const

export function createServerView(options: ServerViewOptions): ServerView {
  const { list, summary, totals } = options
  const rows = new Map<string, ReturnType<typeof createRow>>()
  let answeredAt: number | undefined

  const showTotals = (look: Look, uploads: readonly Upload[]): void => {
    const values = totalsOf(uploads, look)
    for (const name of totalNames) {
      const output = totals.querySelector<HTMLElement>(`[data-total="${name}"]`)
      if (!output) continue
      const isCount = name !== 'requests' && name !== 'replays'
      const more = values.isPartial && !isCount ? '+' : ''
      setText(output, isCount || look.hasFaults ? `${values[name]}${more}` : '–')
      if (name === 'storedTwice' || name === 'lost') output.dataset.tone = values[name] === 0 ? 'good' : 'bad'
    }
  }

  return {
    show(look, uploads) {
      answeredAt = look.askedAt
      const entries = entriesOf(look, uploads)
      const { media, objects } = look.state
      const more = entries.length > rowsShown ? `, the newest ${rowsShown} below` : ''
      setText(summary, media.length === 0 ? 'Nothing yet' : `${count(media.length, 'row')}, ${count(objects, 'object')}${more}`)
      summary.dataset.tone = 'plain'
      const shown = new Map(entries.slice(0, rowsShown).map((entry) => [`${entry.media?.id ?? ''} ${entry.key}`, entry]))
      for (const id of [...rows.keys()]) if (!shown.has(id)) rows.delete(id)
      for (const [id, entry] of shown) {
        const row = rows.get(id) ?? createRow(entry, options)
        rows.set(id, row)
        row.update(entry)
      }
      showInOrder(
        list,
        [...shown.keys()].map((id) => rows.get(id)!.element),
      )
      showTotals(look, uploads)
    },
    showTotals,
    showSilence() {
      const since = answeredAt === undefined ? '' : ` As it was at ${formatClock(answeredAt)}.`
      setText(summary, `The server does not answer.${since}`)
      summary.dataset.tone = 'waits'
    },
  }
}
