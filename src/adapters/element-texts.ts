import type { UploadError } from '../errors.js'
import type { UploadStatus } from '../record.js'
import type { Upload } from '../snapshot.js'

/** What the line above the list counts. */
export interface UploadTotals {
  /** Uploads that are shown. */
  uploads: number
  /** Of them, those that are stored. */
  succeeded: number
  /** Of them, those that failed. */
  failed: number
  /** Bytes that are stored or have left. */
  loaded: number
  /** Bytes in all. */
  size: number
}

/** Every text that `<upload-queue>` shows or says; each status has one. */
export interface UploadQueueTexts extends Record<UploadStatus, string> {
  /** The button that picks files. */
  pick: string
  /** Beside it. */
  drop: string
  /** Name of the list. */
  list: string
  /** Name of the bar over the list. */
  overall: string
  /** Button of an upload: pauses it. */
  pause: string
  /** Button of a paused or blocked upload: it goes on. */
  resume: string
  /** Button of a failed upload: it is tried again. */
  retry: string
  /** Button of a waiting upload: it is tried now. */
  tryNow: string
  /** Button of an upload that has not ended: it is removed, its bytes too. */
  cancel: string
  /** The same for one that failed. */
  remove: string
  /** Button over the list: pauses the queue. */
  pauseAll: string
  /** Button over the list: the queue goes on. */
  resumeAll: string
  /** Button over the list: what failed or waits is tried now. */
  tryAll: string
  /** Button over the list: what has succeeded is no longer shown. */
  clear: string
  /** Button of the notice of refusals: it goes. */
  dismiss: string
  /** Name of an upload's bar. */
  progress: string
  /** State of an upload that waits until the server can be reached. */
  offline: string
  /** After the state of an upload that does not survive the page. */
  memory: string
  /** Name of a button or bar, which says of which upload it is. */
  of: (what: string, name: string) => string
  /** A number of bytes. */
  bytes: (count: number) => string
  /** A wait, ms. */
  duration: (ms: number) => string
  /** Beside the button that picks: the largest file that is taken. */
  limit: (bytes: string) => string
  /** State of an upload under way, of which so many bytes have left. */
  sent: (loaded: string, total: string) => string
  /**
   * Why something went wrong, as a sentence. `code` is that of an `UploadError`, with its English `message` and the `status` of the server's
   * answer, or the reason of a refusal, without them.
   */
  reason: (code: string, message: string | undefined, status: number | undefined) => string
  /** State of an upload that waits for its next attempt. */
  nextAttempt: (duration: string, reason: string) => string
  /** State of an upload that failed. */
  failure: (reason: string) => string
  /** The badge: so many wait for the network. */
  waiting: (count: number) => string
  /** The line over the list. */
  totals: (totals: UploadTotals) => string
  /** Refusals, or changes that are read out, beyond those that are named. */
  more: (count: number) => string
  /** Read out as uploads are added. */
  added: (count: number) => string
  /** What is refused, or has changed, and how it is now. */
  told: (name: string, state: string) => string
  /** Read out as an upload is cancelled. */
  cancelled: string
}

const sizes = ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte']
const times = ['second', 'minute', 'hour']
const refusals: Record<string, string> = {
  'type-not-accepted': 'Files of its type are not taken.',
  'file-too-large': 'It is too large.',
  'too-many-files': 'Only one file is taken.',
  'not-a-file': 'It is not a file.',
  'file-unreadable': 'It cannot be read.',
}

/** The English texts, with numbers as `locale` writes them (default the browser's; one that is none counts as none). */
export function englishTexts(locale?: string): UploadQueueTexts {
  const formats: Record<string, Intl.NumberFormat> = {}
  try {
    Intl.getCanonicalLocales(locale)
  } catch {
    locale = undefined
  }
  const number = (value: number, unit = ''): string => {
    // In short it knows no plural of a byte.
    const unitDisplay = unit === 'byte' ? 'long' : 'short'
    formats[unit] ??= new Intl.NumberFormat(locale, unit ? { style: 'unit', unit, unitDisplay, maximumSignificantDigits: 3 } : {})
    return formats[unit].format(value)
  }
  const files = (count: number): string => `${number(count)} file${count === 1 ? '' : 's'}`
  const bytes = (count: number): string => {
    const power = count < 1 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3))
    return number(count / 1000 ** power, sizes[power])
  }

  return {
    pick: 'Choose files',
    drop: 'or drop them here',
    list: 'Uploads',
    overall: 'All uploads',
    pause: 'Pause',
    resume: 'Resume',
    retry: 'Retry',
    tryNow: 'Try now',
    cancel: 'Cancel',
    remove: 'Remove',
    pauseAll: 'Pause all',
    resumeAll: 'Resume all',
    tryAll: 'Try all now',
    clear: 'Clear done',
    dismiss: 'Dismiss',
    progress: 'Progress',

    preparing: 'Preparing',
    pending: 'Waiting',
    uploading: 'Uploading',
    paused: 'Paused',
    blocked: 'Waiting for a sign-in',
    succeeded: 'Done',
    failed: 'Failed',
    cancelled: 'Cancelled',
    offline: 'Waiting for the network',
    memory: ' (kept by this page only)',

    of: (what, name) => `${what} ${name}`,
    bytes,
    duration(ms) {
      const seconds = Math.max(1, Math.ceil(ms / 1000))
      const power = seconds < 60 ? 0 : seconds < 3600 ? 1 : 2
      return number(Math.round(seconds / 60 ** power), times[power])
    },
    limit: (largest) => `up to ${largest} each`,
    sent: (loaded, total) => `${loaded} of ${total}`,
    reason: (code, message) => message ?? refusals[code] ?? code,
    nextAttempt: (duration, reason) => `Next attempt in ${duration}. ${reason}`,
    failure: (reason) => `Failed. ${reason}`,
    waiting: (count) => `${number(count)} waiting for the network`,
    totals: ({ uploads, succeeded, failed, loaded, size }) =>
      `${number(succeeded)} of ${files(uploads)} done${failed ? `, ${number(failed)} failed` : ''} · ${bytes(loaded)} of ${bytes(size)}`,
    more: (count) => `and ${number(count)} more`,
    added: (count) => `${files(count)} added`,
    told: (name, state) => `${name}: ${state}`,
  }
}

/** `why`: an error, or the code of a refusal. */
export function reasonInWords(texts: UploadQueueTexts, why: unknown): string {
  const { code, message, status } = why as Partial<UploadError>
  return texts.reason(code ?? String(why), message, status)
}

/**
 * The state of an upload, as its row shows it at `now`, ms since 1970. `told`: another one that the server told to wait, and this one with it;
 * `isOut`: it waits until the server can be reached.
 */
export function stateInWords(texts: UploadQueueTexts, upload: Upload, told: Upload | undefined, now: number, isOut: boolean): string {
  const { status, reason, progress, durable } = upload
  const { notBefore, error } = (status === 'pending' && reason === null && told) || upload
  const why = error && reasonInWords(texts, error)
  let state = texts[status]
  if (isOut) state = texts.offline
  else if (status === 'failed' && why) state = texts.failure(why)
  else if (status === 'pending' && notBefore !== null && notBefore > now)
    state = texts.nextAttempt(texts.duration(notBefore - now), why ?? '')
  else if (status === 'uploading' && progress) state = texts.sent(texts.bytes(progress.loaded), texts.bytes(progress.total))
  return durable || status === 'succeeded' ? state : state + texts.memory
}
