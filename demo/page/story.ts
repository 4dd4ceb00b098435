import type { Upload, UploadQueue } from 'uponce'
import { capitalize, formatDuration, reasonInWords } from './format.js'
import type { SeenRequest } from './server-state.js'

/** One line of an upload's story. */
export interface Line {
  /** ms since 1970. */
  at: number
  tone: 'plain' | 'sent' | 'waits' | 'good' | 'bad'
  text: string
  /** The server was busy with an earlier request, and asked so many times in a row what became of it: they make one line. */
  asked?: number
}

interface Story {
  lines: Line[]
  /** Requests that the lines know of. */
  requests: number
  /** Those of them that asked the server what became of an earlier one, and sent nothing. */
  asked: number
  /** Whether the one under way asks first, and nothing tells that it has sent the file after all. */
  asking: boolean
  ended: boolean
}

export interface Stories {
  /** What is known of how an upload went, oldest line first. The last line may change. */
  of(upload: Upload): readonly Line[]
  /** How often the server was asked what became of an earlier request. */
  asked(upload: Upload): number
}

const storageKey = 'uponce-demo-stories-2'
const linesKept = 200

/** The tab's own memory of stories, which a reload keeps. The queue itself remembers state, not history. */
function readKept(): Map<string, Story> {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(storageKey) ?? '[]') as [string, Story][])
  } catch {
    return new Map()
  }
}

const endOf = (upload: Upload): Line | undefined => {
  const at = upload.endedAt ?? Date.now()
  if (upload.status === 'succeeded') {
    const text = upload.replayed
      ? 'Succeeded: the server knew the key and replayed its stored answer'
      : 'Succeeded: the server stored it and proved it'
    return { at, tone: 'good', text }
  }
  if (upload.status === 'failed') return { at, tone: 'bad', text: `Failed: ${upload.error?.message ?? ''} (${upload.error?.code})` }
  return undefined
}

/** What the page can tell of a look-up: the server answered it, and not the file, with a 200. */
const isLookUp = ({ error }: Upload): boolean => error?.code === 'in-progress' && error.status === 200

const isSilence = ({ error }: Upload): boolean => error?.code === 'network' || error?.code === 'timeout'

const timesAsked = (asked: number): string => `the server was asked ${asked === 1 ? '' : `${asked} times `}what became of it`

const busyText = (asked: number): string =>
  asked === 0
    ? 'The server is still busy with the earlier request: it will be asked what became of it, and that does not count'
    : `${capitalize(timesAsked(asked))}: still busy with the earlier request`

function retryText({ error, notBefore }: Upload, delay: number, reason: string, counted: boolean): string {
  const why = capitalize(reasonInWords(reason, error?.status))
  const cost = counted ? '' : ', and it does not count'
  if (delay > 0) return `${why}: next attempt in ${formatDuration(delay)}${cost}`
  if (reason === 'network' && !counted && notBefore === null) return `${why}, the server is out of reach: waiting for it${cost}`
  return `${why}: next attempt at once${cost}`
}

/** Writes down what the queue's events tell. `onLine` is called with the id of the upload whose story went on. */
export function followStories(queue: UploadQueue, onLine: (id: string) => void): Stories {
  const stories = readKept()

  /** The story up to now. What happened while no page of this tab listened is told by the record alone. `known`: requests about to be told. */
  function storyOf(upload: Upload, known = upload.requests): Story {
    let story = stories.get(upload.id)
    if (!story) {
      story = { lines: [{ at: upload.createdAt, tone: 'plain', text: savedText }], requests: 0, asked: 0, asking: false, ended: false }
      stories.set(upload.id, story)
    }
    const missed = Math.min(known, upload.requests) - story.requests
    if (missed > 0) {
      const from = story.requests + 1
      const what = missed === 1 ? `Attempt ${from} was made` : `Attempts ${from} to ${from + missed - 1} were made`
      story.lines.push({ at: upload.endedAt ?? Date.now(), tone: 'sent', text: `${what} while this page was not looking` })
      story.requests += missed
    }
    return story
  }

  const tell = (upload: Upload, tone: Line['tone'], text: string): void => {
    const { lines } = storyOf(upload)
    if (lines.length < linesKept) lines.push({ at: Date.now(), tone, text })
    onLine(upload.id)
  }

  /** What asked has sent the file after all: the server knew nothing of an earlier request, or had given it up. */
  const tellSentAgain = (upload: Upload): void => {
    const story = storyOf(upload)
    if (!story.asking) return
    story.asking = false
    tell(upload, 'sent', 'The file is sent again, with the same key')
  }

  const tellEnd = (upload: Upload): void => {
    if (upload.status === 'succeeded' ? !upload.replayed : !isSilence(upload)) tellSentAgain(upload)
    const story = storyOf(upload)
    const end = endOf(upload)
    if (story.ended || !end) return
    story.ended = true
    story.lines.push(end)
    onLine(upload.id)
  }

  const tellBusy = (upload: Upload): void => {
    const story = storyOf(upload)
    const asked = isLookUp(upload) ? 1 : 0
    story.asked += asked
    const last = story.lines.at(-1)
    if (last?.asked !== undefined) {
      last.asked += asked
      last.text = busyText(last.asked)
    } else if (story.lines.length < linesKept) story.lines.push({ at: Date.now(), tone: 'waits', text: busyText(asked), asked })
    onLine(upload.id)
  }

  queue.on('added', ({ upload }) => {
    storyOf(upload)
    onLine(upload.id)
  })
  queue.on('started', ({ upload }) => {
    const story = storyOf(upload, upload.requests - 1)
    story.requests = upload.requests
    story.ended = false
    // Then the queue asks what became of the earlier request, and sends the file only where the server does not know.
    story.asking = upload.reason === 'in-progress'
    if (!story.asking)
      tell(upload, 'sent', upload.requests === 1 ? 'Attempt 1 begins' : `Attempt ${upload.requests} begins, with the same key`)
  })
  queue.on('progress', ({ upload }) => tellSentAgain(upload))
  queue.on('retrying', ({ upload, delay, reason, counted }) => {
    if (!isSilence(upload) && !isLookUp(upload)) tellSentAgain(upload)
    if (reason === 'in-progress') tellBusy(upload)
    else tell(upload, 'waits', retryText(upload, delay, reason, counted))
  })
  queue.on('succeeded', ({ upload }) => tellEnd(upload))
  queue.on('failed', ({ upload }) => tellEnd(upload))
  queue.on('blocked', ({ upload, error }) => tell(upload, 'bad', `Blocked: ${error.message} (${error.code})`))
  queue.on('paused', ({ upload }) => tell(upload, 'plain', 'Paused'))
  queue.on('resumed', ({ upload }) => {
    storyOf(upload).ended = false
    tell(upload, 'plain', 'Resumed')
  })
  queue.on('cancelled', ({ upload }) => stories.delete(upload.id))

  addEventListener('pagehide', () => {
    const kept = queue.getSnapshot().flatMap(({ id }) => (stories.has(id) ? [[id, stories.get(id)]] : []))
    try {
      sessionStorage.setItem(storageKey, JSON.stringify(kept))
    } catch {
      // No room: after a reload the records tell what they know.
    }
  })

  return {
    of(upload) {
      const story = storyOf(upload)
      if (!story.ended) tellEndQuietly(upload, story)
      return story.lines
    },
    asked: (upload) => storyOf(upload).asked,
  }
}

const savedText = 'Saved in this browser, with the key that every request will carry'

function tellEndQuietly(upload: Upload, story: Story): void {
  const end = endOf(upload)
  if (!end) return
  story.ended = true
  story.lines.push(end)
}

/**
 * The story in one sentence, as far as it can be told from the record and from what the server saw. `asked`: so often the server was asked
 * what became of an earlier request. `rows`: as many have its key on the server;
 * undefined where the server was not asked since.
 */
export function inOneSentence(upload: Upload, asked: number, seen: readonly SeenRequest[], rows: number | undefined): string[] {
  const { requests, status, replayed, error } = upload
  const sent = seen.filter(({ copy }) => !copy).length
  // An attempt that the server has not seen as an upload was a look-up.
  const isLookedUp = replayed && !seen.some((request) => request.replayed) && (asked > 0 || (sent > 0 && sent < requests))
  const parts: string[] = []
  if (asked > 0 || isLookedUp) {
    parts.push(...troubles(seen), timesAsked(Math.max(1, asked)))
    if (status === 'succeeded' && !isLookedUp) parts.push('the file was sent again, with the same key')
  } else if (requests > 1) parts.push(...troubles(seen), `the same key was sent again${requests === 2 ? '' : `, ${requests - 1} times`}`)
  else if (requests === 1 && seen.length > 1) parts.push('the answer was lost', 'the browser itself sent the same request again')
  else if (requests === 1) parts.push('the file was sent once')
  if (status === 'failed') parts.push(`it failed (${error?.code})`)
  if (status === 'succeeded') parts.push(replayed ? 'the server replayed its stored answer' : 'the server stored it')
  const isEnded = status === 'failed' || status === 'succeeded'
  if (isEnded && rows !== undefined) parts.push(rows === 1 ? 'one object exists' : `${rows === 0 ? 'no' : rows} objects exist`)
  return parts
}

function troubles(seen: readonly SeenRequest[]): string[] {
  const refusals = new Set(seen.flatMap(({ status }) => (status !== null && status >= 400 ? [status] : [])))
  const cuts = new Set(seen.flatMap(({ status, fault }) => (status === null && fault !== null ? [fault] : [])))
  const found = [
    ...(cuts.has('lose-answer') ? ['the answer was lost'] : []),
    ...(cuts.has('cut-body') ? ['the connection was cut half-way'] : []),
    ...(refusals.size > 0 ? [`the server answered ${[...refusals].join(', ')}`] : []),
  ]
  return found.length > 0 ? found : ['no answer came']
}
