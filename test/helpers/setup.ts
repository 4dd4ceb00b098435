import 'fake-indexeddb/auto'
import { IDBFactory } from 'fake-indexeddb'
import { afterEach, beforeEach, vi } from 'vitest'
import { FakeLocks } from './locks.js'

/** Every unit test starts with no database, no lock held and the network up. */
beforeEach(() => {
  globalThis.indexedDB = new IDBFactory()
  Object.defineProperty(navigator, 'locks', { value: new FakeLocks(), configurable: true })
  Object.defineProperty(navigator, 'onLine', { value: true, configurable: true, writable: true })
})

afterEach(() => {
  vi.useRealTimers()
  vi.restoreAllMocks()
})
