const units = ['bytes', 'kB', 'MB', 'GB', 'TB']

/** Bytes in powers of 1,000, as disks and networks count, in three digits, as the element writes them. */
export function formatBytes(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3))
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${units[power]}`
}

const twoDigits = (value: number): string => String(Math.floor(value)).padStart(2, '0')

export function formatDuration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`
  if (seconds < 59.5) return `${Math.round(seconds)} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${twoDigits(seconds % 60)} s`
  return `${Math.floor(seconds / 3600)} h ${twoDigits((seconds % 3600) / 60)} min`
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
export const formatClock = (time: number): string => clock.format(time)

/** `1 file`, `2 files`. */
export const count = (amount: number, noun: string): string => `${amount} ${noun}${amount === 1 ? '' : 's'}`

const reasons: Record<string, string> = {
  network: 'no answer came',
  timeout: 'the attempt took too long',
  'in-progress': 'the server is still busy with this key',
  unproven: 'the answer does not prove success',
  unauthorized: 'the server wants a sign-in',
  'digest-mismatch': 'the server received other bytes',
}

const refusals: Record<string, string> = {
  'file-too-large': 'It is too large.',
  'file-unreadable': 'It cannot be read.',
  'not-a-file': 'It is not a file.',
}

/** Why something that was picked is not taken. */
export const refusalInWords = (code: string): string => refusals[code] ?? ''

/** Whether a code says why an attempt is made again, and there are words for it. */
export const isRetryReason = (code: string): boolean => code === 'http' || code in reasons

/** Why an attempt is made again, in words: the error's code, and the status of the answer where there was one. */
export function reasonInWords(code: string, status: number | undefined): string {
  if (code === 'http' && status !== undefined) return `the server answered ${status}`
  return reasons[code] ?? code
}

export const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)
