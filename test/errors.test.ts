import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { abortError, isUploadError, UploadError, type UploadErrorCode } from '../src/errors.js'

const retryable: Record<UploadErrorCode, boolean> = {
  network: true,
  timeout: true,
  http: true,
  'in-progress': true,
  unproven: true,
  'digest-mismatch': true,
  redirected: false,
  unauthorized: false,
  rejected: false,
  'key-reused': false,
  'key-expired': false,
  'not-a-file': false,
  'file-unreadable': false,
  'file-too-large': false,
  'bytes-lost': false,
  'quota-exceeded': false,
  'storage-unavailable': false,
  'storage-blocked': false,
  'storage-failed': false,
  'insecure-context': false,
  'invalid-request': false,
}

test.each(Object.entries(retryable) as [UploadErrorCode, boolean][])('%s is retryable: %s, unless said otherwise', (code, expected) => {
  expect(new UploadError(code, 'm').retryable).toBe(expected)
  expect(new UploadError(code, 'm', { retryable: !expected }).retryable).toBe(!expected)
})

test('it is an Error with a name, a message, a stack and its cause', () => {
  const cause = new TypeError('why')
  const error = new UploadError('network', 'No answer.', { cause })
  expect(error).toBeInstanceOf(Error)
  expect(error).toMatchObject({ name: 'UploadError', message: 'No answer.', code: 'network' })
  expect(error.cause).toBe(cause)
  expect(error.stack).toContain('errors.test')
  expect(String(error)).toBe('UploadError: No answer.')
  expect('cause' in new UploadError('network', 'm')).toBe(false)
})

test('with() adds facts and keeps the others, the cause too', () => {
  const problem = { title: 'Busy', error: 'busy' }
  const cause = new Error('why')
  const first = new UploadError('http', 'Busy.', { status: 503, problem, retryable: false, cause })
  const second = first.with({ uploadId: 'u1', attempt: 2 })
  expect(second).not.toBe(first)
  expect(second.toJSON()).toEqual({ code: 'http', message: 'Busy.', retryable: false, status: 503, problem, uploadId: 'u1', attempt: 2 })
  expect(second.cause).toBe(cause)
  expect(first.uploadId).toBeUndefined()
})

test('with() invents no cause', () => {
  expect('cause' in new UploadError('http', 'm').with({ attempt: 1 })).toBe(false)
})

test('its facts survive JSON and structuredClone, and make the same error again', () => {
  const facts = new UploadError('rejected', 'Refused.', { status: 413, problem: { title: 'Too large' }, attempt: 3 }).toJSON()
  const { code, message } = facts
  expect(new UploadError(code, message, structuredClone(facts)).toJSON()).toEqual(facts)
  expect(new UploadError(code, message, JSON.parse(JSON.stringify(facts))).toJSON()).toEqual(facts)
  expect(JSON.parse(JSON.stringify(new UploadError('rejected', 'Refused.', { status: 413 })))).toEqual({
    code: 'rejected',
    message: 'Refused.',
    retryable: false,
    status: 413,
  })
})

test('isUploadError knows one that another copy of the package made in another realm', () => {
  const foreign = runInNewContext(`Object.defineProperty(new Error('m'), Symbol.for('uponce.UploadError'), { value: true })`)
  expect(foreign instanceof Error).toBe(false)
  expect(isUploadError(foreign)).toBe(true)
  expect(isUploadError(new UploadError('network', 'm'))).toBe(true)
})

test.each([
  ['an Error', new Error('m')],
  ['an object that looks like one', { name: 'UploadError', code: 'network', message: 'm', retryable: true }],
  ['null', null],
  ['undefined', undefined],
  ['a string', 'UploadError'],
  ['an abort', abortError()],
])('isUploadError says no to %s', (_name, value) => {
  expect(isUploadError(value)).toBe(false)
})

test('the mark of the class is seen by no loop over its members', () => {
  expect(Object.keys(new UploadError('network', 'm'))).not.toContain('uponce.UploadError')
  expect(Object.getOwnPropertyDescriptor(new UploadError('network', 'm'), Symbol.for('uponce.UploadError'))?.enumerable).toBe(false)
})

test('an abort is a DOMException named AbortError', () => {
  expect(abortError()).toBeInstanceOf(DOMException)
  expect(abortError()).toMatchObject({ name: 'AbortError', message: 'The upload was cancelled.' })
  expect(abortError('Closed.').message).toBe('Closed.')
})
