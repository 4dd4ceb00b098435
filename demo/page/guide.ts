import type { Upload, UploadQueue } from 'uponce'
import { h, setEnabled, setText } from './dom.js'
import { formatDuration } from './format.js'

export interface Guide {
  /** Tells what becomes of the upload that will have this id, step by step. */
  follow(id: string): void
  /** Nothing more is told of it; `text` says why, if it is followed at all. */
  stop(text: string): void
}

export interface GuideOptions {
  queue: UploadQueue
  list: HTMLElement
  end: HTMLElement
  button: HTMLButtonElement
  say(text: string): void
}

const steps = [
  ['The file is saved', 'In this browser, with a key of its own, before anything is sent.'],
  ['It is sent', 'The server stores it, and answers.'],
  ['The answer is lost', 'Nobody here can know whether the file has arrived.'],
  ['The same key is sent again', 'After a wait, so that a server in trouble is left alone.'],
  ['The server replays its answer', 'It knows the key, and stores nothing a second time.'],
] as const

/** A step is to be read before the next one is told, ms: five of them make ten seconds. */
const stepLength = 1_900

const keyOf = ({ idempotencyKey }: Upload): string => idempotencyKey.slice(0, 8)

/** The ten seconds in which an answer is lost, told as they pass. What happens faster than anybody reads is told later. */
export function createGuide({ queue, list, end, button, say }: GuideOptions): Guide {
  const items = steps.map(([title, text]) => {
    const detail = h('span', { class: 'step-detail' }, text)
    const item = h('li', { class: 'step', 'data-state': 'idle' }, h('strong', { class: 'step-title' }, title), detail)
    list.append(item)
    return { item, detail, title }
  })
  let followed: string | undefined
  /** What is still to be told. */
  let waiting: (() => void)[] = []
  let timer: ReturnType<typeof setTimeout> | undefined

  const tellNext = (): void => {
    const tell = waiting.shift()
    tell?.()
    timer = tell && setTimeout(tellNext, stepLength)
  }
  const tell = (work: () => void): void => {
    waiting.push(work)
    if (timer === undefined) tellNext()
  }
  const showStep = (place: number, text: string): void =>
    tell(() => {
      for (const [index, { item }] of items.entries()) item.dataset.state = index < place ? 'told' : index === place ? 'now' : 'idle'
      const { detail, title } = items[place] as (typeof items)[number]
      setText(detail, text)
      say(`${title}. ${text}`)
    })
  const showEnd = (text: string, isGood: boolean): void => {
    followed = undefined
    tell(() => {
      for (const { item } of items) if (item.dataset.state === 'now') item.dataset.state = 'told'
      end.hidden = false
      end.dataset.tone = isGood ? 'good' : 'bad'
      setText(end, text)
      setText(button, 'Show me again')
      setEnabled(button, true)
      say(text)
    })
  }

  queue.on('added', ({ upload }) => {
    if (upload.id === followed) showStep(0, `In this browser, with the key ${keyOf(upload)}, before anything is sent.`)
  })
  queue.on('started', ({ upload }) => {
    if (upload.id !== followed) return
    if (upload.requests === 1) showStep(1, `The key ${keyOf(upload)} goes with it. The server stores the file, and answers.`)
    else showStep(3, `Attempt ${upload.requests} carries the same key, ${keyOf(upload)}.`)
  })
  queue.on('retrying', ({ upload, delay }) => {
    if (upload.id !== followed || upload.requests > 1) return
    const when = delay > 0 ? `in ${formatDuration(delay)}` : 'at once'
    showStep(2, `Nobody here can know whether the file has arrived. The next attempt comes ${when}.`)
  })
  queue.on('succeeded', ({ upload, replayed }) => {
    if (upload.id !== followed) return
    if (replayed) showStep(4, 'It knows the key, and answers as it did before: one file, stored once.')
    showEnd(
      `Done: ${upload.requests} attempt${upload.requests === 1 ? '' : 's'}, one key, one object on the server. Its time line is below.`,
      true,
    )
  })
  queue.on('failed', ({ upload, error }) => {
    if (upload.id === followed) showEnd(`It failed: ${error.message}`, false)
  })
  queue.on('cancelled', ({ upload }) => {
    if (upload.id === followed) showEnd('It was cancelled.', false)
  })

  const begin = (): void => {
    waiting = []
    clearTimeout(timer)
    timer = undefined
    end.hidden = true
    setEnabled(button, false)
    for (const [place, { item, detail }] of items.entries()) {
      item.dataset.state = 'idle'
      setText(detail, (steps[place] as (typeof steps)[number])[1])
    }
  }

  return {
    follow(id) {
      begin()
      followed = id
    },
    stop(text) {
      if (followed === undefined) return
      waiting = []
      showEnd(text, false)
    },
  }
}
