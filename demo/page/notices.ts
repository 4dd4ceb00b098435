import { h, setText } from './dom.js'
import { count } from './format.js'

export interface Notice {
  /** What it is about: a newer notice on the same replaces it. */
  about: string
  tone: 'waits' | 'bad'
  title: string
  /** One line each: what it happened to, its code, and why. */
  lines: { name?: string; code?: string; text: string }[]
}

/** Lines of one notice that are shown; the rest is counted. */
const linesShown = 8

/** Shows what went wrong until somebody has read it. */
export function createNotices(region: HTMLElement): (notice: Notice) => void {
  const shown = new Map<string, HTMLElement>()
  return ({ about, tone, title, lines }) => {
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': `Dismiss: ${title}` }, 'Dismiss')
    const items = lines.slice(0, linesShown).map(({ name, code, text }) => {
      const item = h('li')
      if (name !== undefined) item.append(h('bdi', { class: 'name', title: name }, name))
      if (code !== undefined) item.append(h('code', {}, code))
      item.append(h('span', {}, text))
      return item
    })
    if (lines.length > linesShown) items.push(h('li', {}, `and ${count(lines.length - linesShown, 'more file')}`))
    const notice = h('div', { class: 'notice', 'data-tone': tone, role: 'alert' }, h('strong', {}, title), h('ul', {}, ...items), close)
    close.addEventListener('click', () => {
      notice.remove()
      shown.delete(about)
    })
    shown.get(about)?.remove()
    shown.set(about, notice)
    region.append(notice)
  }
}

/** Sentences closer than this, ms, are read out as one. */
const gather = 700
/** As many in one go are worth hearing. */
const sentencesHeard = 3

/** Says what changed to those who do not see it: gathered, since two hundred files change two hundred times. */
export function createSpeaker(region: HTMLElement): (sentence: string) => void {
  let waiting: string[] = []
  return (sentence) => {
    waiting.push(sentence)
    if (waiting.length > 1) return
    setTimeout(() => {
      const rest = waiting.length - sentencesHeard
      setText(region, [...waiting.slice(-sentencesHeard), ...(rest > 0 ? [`${count(rest, 'more change')} before.`] : [])].join(' '))
      waiting = []
    }, gather)
  }
}
