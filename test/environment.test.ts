import { expect, test, vi } from 'vitest'
import { advance, fakeClock, runUntil } from './helpers/fake-clock.js'

const stored = async (value: unknown): Promise<unknown> => {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const request = indexedDB.open('environment')
    request.onupgradeneeded = () => request.result.createObjectStore('values')
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
  const transaction = database.transaction('values', 'readwrite')
  const store = transaction.objectStore('values')
  if (value !== undefined) store.put(value, 'key')
  const got = store.get('key')
  await new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve()
    transaction.onabort = () => reject(transaction.error)
  })
  database.close()
  return got.result
}

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)

test('the environment keeps the bytes of a file through IndexedDB, a request body and FormData', async () => {
  const file = new File([everyByte], 'name.bin', { type: 'application/x-any' })
  const back = await stored(file)
  expect(back).toBeInstanceOf(Blob)
  expect(new Uint8Array(await (back as Blob).arrayBuffer())).toEqual(everyByte)
  const request = new Request('http://localhost/', { method: 'POST', body: file })
  expect(new Uint8Array(await request.arrayBuffer())).toEqual(everyByte)
  const form = new FormData()
  form.append('file', file)
  expect(new Uint8Array(await (form.get('file') as File).arrayBuffer())).toEqual(everyByte)
})

test('the environment is a page: window, document, locks, a secure context, and it is online', () => {
  expect(window).toBe(globalThis)
  expect(document.createElement('input').tagName).toBe('INPUT')
  expect(isSecureContext).toBe(true)
  expect(navigator.onLine).toBe(true)
  expect(typeof navigator.locks.request).toBe('function')
})

test('each test has an empty database (first)', async () => {
  expect(await stored(undefined)).toBeUndefined()
  await stored('left behind')
})

test('each test has an empty database (second)', async () => {
  expect(await stored(undefined)).toBeUndefined()
})

test('IndexedDB works while the clock is fake, and hours of backoff pass in no time', async () => {
  fakeClock(0)
  const backoff = async (): Promise<number> => {
    for (const hours of [1, 2, 4]) {
      await stored(hours)
      await new Promise((resolve) => setTimeout(resolve, hours * 3_600_000))
    }
    return Date.now()
  }
  expect(await runUntil(backoff())).toBe(7 * 3_600_000)
})

test('advance stops exactly where it was told to', async () => {
  fakeClock(0)
  const rang = vi.fn()
  setTimeout(rang, 1_000)
  await advance(999)
  expect(rang).not.toHaveBeenCalled()
  await advance(1)
  expect(rang).toHaveBeenCalledOnce()
  expect(Date.now()).toBe(1_000)
})

test('runUntil says so when nothing will ever settle the promise, or not in time', async () => {
  fakeClock()
  await expect(runUntil(new Promise(() => {}))).rejects.toThrow('no timer is left')
  const ticking = setInterval(() => {}, 1_000)
  await expect(runUntil(new Promise(() => {}), 60_000)).rejects.toThrow('after 60000 ms')
  clearInterval(ticking)
})
