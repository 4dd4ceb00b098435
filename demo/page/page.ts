import { createUploadQueue, isUploadError, type Upload } from 'uponce'
import { byId, onPress, setEnabled, setText } from './dom.js'
import { createFaultsView } from './faults-view.js'
import { count, formatBytes } from './format.js'
import { createNotices, createSpeaker } from './notices.js'
import { followPicks } from './pick.js'
import { type FaultName, rowsByKey, watchServer } from './server-state.js'
import { createServerView } from './server-view.js'
import { followStories, inOneSentence } from './story.js'
import { chooseTransport } from './transport-choice.js'
import { createUploadsView } from './uploads-view.js'

/** Refused above this, bytes, so that the refusal can be seen; the server takes more. */
const maxFileSize = 500_000_000

const queue = createUploadQueue({
  endpoint: '/uploads',
  maxFileSize,
  transport: chooseTransport(document.querySelectorAll<HTMLInputElement>('input[name="transport"]')),
  // Three times the default: a countdown that is over before it is read shows nothing.
  retry: { baseDelay: 3_000 },
})

const say = createSpeaker(byId('live'))
const notify = createNotices(byId('notices'))

// What the server holds, and how it fails.

const server = watchServer({
  isBusy: () => queue.getSnapshot().some(isUnderWay),
  onLook: () => {
    isSilent = false
    showServer()
  },
  onSilence() {
    isSilent = true
    serverView.showSilence()
    showBanner()
  },
})
let isSilent = false

const serverView = createServerView({ list: byId('stored'), summary: byId('stored-summary'), totals: byId('totals'), say })
const faultsView = createFaultsView({
  list: byId('faults'),
  disarm: byId<HTMLButtonElement>('disarm'),
  onOrder: (fault) => order(fault).catch(tellNotOrdered),
  onDisarm: () => server.disarm().catch(tellNotOrdered),
})

const order = async (fault: FaultName): Promise<void> => {
  await server.order(fault)
  say(fault === 'away' ? 'The server is away.' : 'Armed.')
}

const tellNotOrdered = (error: unknown): void =>
  notify({ about: 'faults', tone: 'bad', title: 'The server could not be told', lines: [{ text: (error as Error).message }] })

function showServer(): void {
  const look = server.last
  if (!look) return
  const uploads = queue.getSnapshot()
  serverView.show(look, uploads)
  faultsView.show(look, uploads)
  byId('break').hidden = !look.hasFaults
  byId('try').hidden = !look.hasFaults
  uploadsView.refreshStory()
  showBanner()
}

// The uploads.

const stories = followStories(queue, (id) => uploadsView.refreshStory(id))

function sentenceOf(upload: Upload): string[] {
  const look = server.last
  const seen = look?.state.keys.find(({ key }) => key === upload.idempotencyKey)?.requests ?? []
  const isTold = look !== undefined && (upload.endedAt ?? Number.POSITIVE_INFINITY) < look.askedAt
  return inOneSentence(
    upload,
    stories.asked(upload),
    seen,
    isTold ? rowsByKey(look.state.media).get(upload.idempotencyKey)?.length : undefined,
  )
}

/** What a click asks of the queue; when the queue cannot, the page says so. */
const run = (work: Promise<unknown>): void => {
  work.catch((error: unknown) => notify({ about: 'queue', tone: 'bad', title: 'That did not work', lines: [refusalOf(error)] }))
}
const codeOf = (error: unknown): { code?: string } => (isUploadError(error) ? { code: error.code } : {})

const uploadsView = createUploadsView({
  list: byId('uploads'),
  actions: {
    pause: (id) => run(queue.pause(id)),
    resume: (id) => run(queue.resume(id)),
    retry: (id) => run(queue.retry(id)),
    cancel: (id) => run(queue.cancel(id)),
  },
  linesOf: stories.of,
  sentenceOf,
  say,
  isOutOfReach: () => isOutOfReach,
})

const isUnderWay = ({ status }: Upload): boolean => status === 'preparing' || status === 'pending' || status === 'uploading'
const pauseAll = byId<HTMLButtonElement>('pause-all')
const resumeAll = byId<HTMLButtonElement>('resume-all')
const flush = byId<HTMLButtonElement>('flush')
const clear = byId<HTMLButtonElement>('clear')

onPress(pauseAll, () => run(queue.pause()))
onPress(resumeAll, () => run(queue.resume()))
onPress(clear, () => run(queue.clear({ status: 'succeeded' })))
onPress(flush, () => {
  const flushed = queue.flush().then(({ succeeded, failed, left }) => say(`Tried: ${succeeded} succeeded, ${failed} failed, ${left} left.`))
  run(flushed)
})

const summary = byId('uploads-summary')
const overall = byId<HTMLProgressElement>('overall')

function showUploads(): void {
  const uploads = queue.getSnapshot()
  uploadsView.show(uploads)
  if (server.last) serverView.showTotals(server.last, uploads)
  const amount = (status: Upload['status']): number => uploads.filter((upload) => upload.status === status).length
  const succeeded = amount('succeeded')
  const parts = [
    [amount('uploading'), 'uploading'],
    [amount('preparing') + amount('pending'), 'waiting'],
    [amount('paused'), 'paused'],
    [amount('blocked'), 'blocked'],
    [amount('failed'), 'failed'],
    [succeeded, 'succeeded'],
  ] as const
  const present = parts.filter(([number]) => number > 0).map(([number, word]) => `${number} ${word}`)
  setText(summary, uploads.length === 0 ? '' : present.join(', '))
  overall.hidden = uploads.length < 2 || succeeded === uploads.length
  overall.max = Math.max(1, uploads.length)
  overall.value = succeeded
  byId('uploads-empty').hidden = uploads.length > 0
  setEnabled(pauseAll, uploads.some(isUnderWay))
  setEnabled(resumeAll, amount('paused') + amount('blocked') > 0)
  setEnabled(flush, amount('preparing') + amount('pending') > 0)
  setEnabled(clear, succeeded > 0)
  showBanner()
}

/** Between two showings lie so many ms at least: two hundred uploads change faster than anybody reads. */
const showPause = 60
let isDue = false
queue.subscribe(() => {
  if (isDue) return
  isDue = true
  setTimeout(() => requestAnimationFrame(showDue), showPause)
})
/** A hidden tab has no frames, and nobody looks at it. */
function showDue(): void {
  isDue = false
  showUploads()
}

// What the queue tells.

let isUnreachable = false
let isOutOfReach = false
queue.on('offline', () => {
  isUnreachable = true
  showBanner()
})
queue.on('online', () => {
  isUnreachable = false
  showBanner()
})
for (const name of ['online', 'offline']) addEventListener(name, server.nudge)

/** What counts is whether the server answers. The browser's own opinion of its network only helps to say why it does not. */
function showBanner(): void {
  const waits = queue
    .getSnapshot()
    .some(({ status, reason, notBefore }) => status === 'pending' && reason === 'network' && notBefore === null)
  const wasOutOfReach = isOutOfReach
  isOutOfReach = isUnreachable || isSilent || waits
  if (isOutOfReach !== wasOutOfReach) uploadsView.refreshStates()
  const banner = byId('banner')
  banner.hidden = !isOutOfReach
  const why = navigator.onLine ? 'The server cannot be reached.' : 'This browser is offline.'
  setText(banner, banner.hidden ? '' : `${why} What you pick is saved here, and sent as soon as the server answers.`)
}

queue.on('warning', ({ message, upload, error }) =>
  notify({
    about: `warning ${message}`,
    tone: 'waits',
    title: message,
    lines: upload || error ? [{ ...(upload && { name: upload.name }), ...codeOf(error), text: error?.message ?? '' }] : [],
  }),
)
queue.on('retrying', ({ reason }) => {
  if (reason === 'network' || reason === 'timeout') faultsView.noteSilence()
})
queue.on('retrying', ({ upload }) => say(`${upload.name} will be tried again.`))
queue.on('succeeded', ({ upload, replayed }) => say(`${upload.name} succeeded${replayed ? ', by a replay' : ''}.`))
queue.on('failed', ({ upload, error }) => say(`${upload.name} failed: ${error.message}`))
queue.on('blocked', ({ upload }) => say(`${upload.name} is blocked.`))
queue.on('paused', ({ upload }) => say(`${upload.name} is paused.`))
queue.on('resumed', ({ upload }) => say(`${upload.name} goes on.`))
queue.on('cancelled', ({ upload }) => say(`${upload.name} is gone.`))
for (const name of ['added', 'started', 'retrying', 'succeeded', 'failed', 'blocked', 'cancelled'] as const) queue.on(name, server.nudge)

// Picking files.

const saving = byId('saving')

/** Whether the queue is likely to refuse it. A folder that was dropped looks like a file, but cannot be read. */
const isDoubtful = async (file: File): Promise<boolean> => {
  if (file.size > maxFileSize) return true
  return file
    .slice(0, 1)
    .arrayBuffer()
    .then(
      () => false,
      () => true,
    )
}

interface Refusal {
  name?: string
  code?: string
  text: string
}

const refusalOf = (error: unknown): Refusal => ({ ...codeOf(error), text: (error as Error).message })

/** All that are good together, which is quicker; the others one by one, so that each refusal has a name. */
async function enqueueAll(files: readonly File[]): Promise<void> {
  setText(saving, `Saving ${count(files.length, 'file')} …`)
  const doubts = await Promise.all(files.map(isDoubtful))
  const refused: Refusal[] = []
  const good = files.filter((_, index) => !doubts[index])
  await queue.enqueueAll(good).catch((error: unknown) => {
    refused.push(...(error instanceof AggregateError ? error.errors : [error]).map(refusalOf))
  })
  for (const file of files.filter((_, index) => doubts[index])) {
    await queue.enqueue(file).catch((error: unknown) => refused.push({ name: file.name, ...refusalOf(error) }))
  }
  setText(saving, '')
  if (refused.length === 0) return
  const title =
    refused.length === 1
      ? 'One file was not taken, and nothing of it is kept'
      : `${refused.length} files were not taken, and nothing of them is kept`
  notify({ about: 'refused', tone: 'bad', title, lines: refused })
}

let saved = Promise.resolve()
followPicks({
  inputs: [byId<HTMLInputElement>('files'), byId<HTMLInputElement>('folder')],
  dropZone: byId('drop-zone'),
  onFiles(files) {
    say(`${count(files.length, 'file')} picked.`)
    saved = saved.then(() => enqueueAll(files))
  },
})
setText(byId('size-limit'), `Up to ${formatBytes(maxFileSize)} each.`)

// What to try first.

let shows = 0
byId('show-me').addEventListener('click', async () => {
  try {
    await server.order('lose-answer')
  } catch (error) {
    tellNotOrdered(error)
    return
  }
  shows++
  const text = `Made on ${new Date().toString()} to show that a lost answer loses nothing.\n`
  const file = new File([text.repeat(40)], `lost answer ${shows}.txt`, { type: 'text/plain' })
  // Before all others, since the next request is the one that goes wrong.
  run(
    queue.enqueue(file, { priority: 1 }).then(async ({ id, snapshot }) => {
      uploadsView.open(id)
      byId('proof').scrollIntoView()
      if (snapshot?.status === 'paused') await queue.resume(id)
    }),
  )
})

run(queue.ready())
showUploads()
