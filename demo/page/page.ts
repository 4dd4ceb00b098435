import { createUploadQueue, isUploadError, type Upload } from 'uponce'
import { defineUploadQueue, type UploadQueueElement, type UploadQueueTexts } from 'uponce/element'
import { attach } from 'uponce/file-picker'
import { chooseAccount } from './account.js'
import { byId, onPress, setText } from './dom.js'
import { createFaultsView } from './faults-view.js'
import { formatDuration, isRetryReason, reasonInWords, refusalInWords } from './format.js'
import { createGuide } from './guide.js'
import { createNotices, createSpeaker, type Notice } from './notices.js'
import { type FaultName, rowsByKey, watchServer } from './server-state.js'
import { createServerView } from './server-view.js'
import { followStories, inOneSentence } from './story.js'
import { createTimelineView } from './timeline-view.js'
import { chooseTransport } from './transport-choice.js'

/** Refused above this, bytes, so that the refusal can be seen; the server takes more. */
const maxFileSize = 500_000_000

const account = chooseAccount(byId<HTMLSelectElement>('account'), () => {
  guide.stop('Another account was chosen. The upload goes on when its own is back.')
  run(queue.start())
  server.nudge()
})
const queue = createUploadQueue({
  endpoint: '/uploads',
  maxFileSize,
  transport: chooseTransport(document.querySelectorAll<HTMLInputElement>('input[name="transport"]')),
  // Three times the default: a countdown that is over before it is read shows nothing.
  retry: { baseDelay: 3_000 },
  owner: () => account.owner,
  headers: () => account.headers,
})

const say = createSpeaker(byId('live'))
const notify = createNotices(byId('notices'))

const codeOf = (error: unknown): { code?: string } => (isUploadError(error) ? { code: error.code } : {})
const lineOf = (error: unknown): Notice['lines'][number] => ({ ...codeOf(error), text: (error as Error).message })
/** What a click asks of the queue; when the queue cannot, the page says so. */
function run(work: Promise<unknown>): void {
  work.catch((error: unknown) => notify({ about: 'queue', tone: 'bad', title: 'That did not work', lines: [lineOf(error)] }))
}

// What the server holds, and how it fails.

const isUnderWay = ({ status }: Upload): boolean => status === 'preparing' || status === 'pending' || status === 'uploading'

const server = watchServer({
  account,
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

const serverView = createServerView({ list: byId('stored'), summary: byId('stored-summary'), totals: byId('totals'), say, account })
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
  byId('break').hidden = byId('guide').hidden = !look.hasFaults
  timelines.refresh()
  showBanner()
}

// The uploads: the element shows and picks, the page adds a time line to each row.

const texts: Partial<UploadQueueTexts> = {
  clear: 'Clear succeeded',
  drop: 'or drop them anywhere on this page',
  offline: 'Waits until the server can be reached',
  duration: formatDuration,
  reason: (code, message = refusalInWords(code), status) =>
    isRetryReason(code) ? reasonInWords(code, status) : message ? `${message.replace(/\.$/, '')} · ${code}` : code,
  nextAttempt: (duration, reason) => `Next attempt in ${duration}: ${reason}`,
  failure: (reason) => `Failed: ${reason}`,
}

defineUploadQueue()
const element = byId<UploadQueueElement>('uploads')
Object.assign(element, { queue, texts })
element.setAttribute('max-file-size', String(maxFileSize))

const stories = followStories(queue, (id) => timelines.refresh(id))

function sentenceOf(upload: Upload): string[] {
  const look = server.last
  const seen = look?.state.keys.find(({ key }) => key === upload.idempotencyKey)?.requests ?? []
  const isTold = look !== undefined && (upload.endedAt ?? Number.POSITIVE_INFINITY) < look.askedAt
  const rows = isTold ? rowsByKey(look.state.media).get(upload.idempotencyKey)?.length : undefined
  return inOneSentence(upload, stories.asked(upload), seen, rows)
}

const timelines = createTimelineView({ host: element, linesOf: stories.of, sentenceOf, say })

/** Between two showings lie so many ms at least: two hundred uploads change faster than anybody reads. */
const showPause = 60
let isDue = false
queue.subscribe(() => {
  if (isDue) return
  isDue = true
  setTimeout(() => requestAnimationFrame(showUploads), showPause)
})
/** A hidden tab has no frames, and nobody looks at it. */
function showUploads(): void {
  isDue = false
  const uploads = queue.getSnapshot()
  timelines.show(uploads)
  if (server.last) serverView.showTotals(server.last, uploads)
  showBanner()
}

// Files that are picked elsewhere on the page.

const refused: Notice['lines'] = []
const refuse = (name: string, line: Notice['lines'][number]): void => {
  if (refused.length === 0)
    queueMicrotask(() => {
      const one = 'One thing was not taken, and nothing of it is kept'
      const title = refused.length === 1 ? one : `${refused.length} things were not taken, and nothing of them is kept`
      notify({ about: 'refused', tone: 'bad', title, lines: refused.splice(0) })
    })
  refused.push({ ...(name && { name }), ...line })
}
const limits = {
  maxFileSize,
  onRefused: ({ name }: { name: string }, code: string) => refuse(name, { code, text: refusalInWords(code) }),
  onError: (error: unknown, { name }: File) => refuse(name, lineOf(error)),
}
attach(queue, document, limits)
attach(queue, byId<HTMLInputElement>('folder'), limits)

// What the queue tells.

let isUnreachable = false
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
  const banner = byId('banner')
  const isOut = isUnreachable || isSilent || waits
  const why = navigator.onLine ? 'The server cannot be reached.' : 'This browser is offline.'
  banner.hidden = !isOut && account.owner !== null
  if (isOut) setText(banner, `${why} What you pick is saved here, and sent as soon as the server answers.`)
  else setText(banner, banner.hidden ? '' : 'Nobody is signed in: nothing is taken, and nothing is sent.')
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
for (const name of ['added', 'started', 'retrying', 'succeeded', 'failed', 'blocked', 'cancelled'] as const) queue.on(name, server.nudge)

// What to try first.

const showMe = byId<HTMLButtonElement>('show-me')
const guide = createGuide({ queue, list: byId('steps'), end: byId('guide-end'), button: showMe, say })
let shows = 0

/** The next request is the one that goes wrong, so the file comes before all others. */
async function showLostAnswer(id: string): Promise<void> {
  await server.order('lose-answer')
  shows++
  const text = `Made on ${new Date().toString()} to show that a lost answer loses nothing.\n`
  const file = new File([text.repeat(40)], `lost answer ${shows}.txt`, { type: 'text/plain' })
  await queue.enqueue(file, { id, priority: 1 })
  timelines.open(id)
  if (queue.get(id)?.status === 'paused') await queue.resume(id)
}
onPress(showMe, () => {
  const id = crypto.randomUUID?.() ?? `lost-answer-${Date.now()}`
  // From now on, so that a second press begins no second one.
  guide.follow(id)
  if (account.owner === null) guide.stop('Nobody is signed in: choose an account first.')
  else showLostAnswer(id).catch((error: unknown) => guide.stop(`It could not begin: ${(error as Error).message}`))
})

run(queue.ready())
showUploads()
