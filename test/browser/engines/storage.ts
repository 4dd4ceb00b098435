import { createHash } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { run } from '../../helpers/engine.js'
import { bytesOf } from '../../helpers/page-tools.js'
import { eventually, type Stage } from '../../helpers/stage.js'
import { enqueueAll, expectedOf, storedAt, untilSucceeded } from './delivery.js'
import type { EngineFacts } from './suite.js'

const digestOf = (size: number, seed: number): string => createHash('sha256').update(bytesOf(size, seed)).digest('hex')

/** Far in the future, ms. */
const later = 4_102_444_800_000
const error = { code: 'network', message: 'No readable answer.', retryable: true }

/** A row as version 1 of the schema has it. Frozen: whoever changes the schema adds a fixture. */
const rowOfVersion1 = (id: string, order: number, facts: Record<string, unknown>) => ({
  v: 1,
  id,
  revision: 3,
  idempotencyKey: `00000000-0000-4000-8000-00000000000${order}`,
  sha256: digestOf(500, order),
  owner: '',
  name: `${id}.bin`,
  type: 'application/x-any',
  size: 500,
  lastModified: 1_700_000_000_000,
  metadata: { album: 'summer' },
  priority: 0,
  order,
  status: id,
  attempts: 1,
  requests: 1,
  notBefore: null,
  reason: null,
  error: null,
  result: null,
  replayed: false,
  createdAt: 1_700_000_000_000,
  expiresAt: later,
  endedAt: null,
  ...facts,
})

const rowsOfVersion1 = [
  rowOfVersion1('preparing', 1, { sha256: null, attempts: 0, requests: 0 }),
  rowOfVersion1('pending', 2, { notBefore: 1_700_000_000_001, reason: 'network', error }),
  rowOfVersion1('uploading', 3, {}),
  rowOfVersion1('paused', 4, {}),
  rowOfVersion1('blocked', 5, { reason: 'unauthorized', error: { ...error, code: 'unauthorized', retryable: false } }),
  rowOfVersion1('succeeded', 6, { result: { uploadId: 'u', storageKey: 's' }, replayed: true, endedAt: later }),
  rowOfVersion1('failed', 7, { reason: 'rejected', error: { ...error, code: 'rejected', retryable: false, status: 415 }, endedAt: later }),
  rowOfVersion1('failed retryable', 8, { status: 'failed', attempts: 10, reason: 'network', error, endedAt: later }),
  rowOfVersion1('old', 9, { status: 'pending', expiresAt: 1_700_000_000_002 }),
]

export function testStorage(stage: () => Stage, { keepsBlobs, persists }: EngineFacts): void {
  describe('storage', () => {
    test(`${keepsBlobs ? 'keeps' : 'refuses'} Blobs, and files of any size are kept and sent all the same`, async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      await run(page, () => queue.pause())
      const uploads = await enqueueAll(page, [{ size: 1_500_000 }, { size: 100 }, { size: 150_000, seed: 1 }])
      const many = await run(page, async () => {
        const made = await queue.enqueueAll([30_000, 150_000, 2_000_000].map((size) => new File([tools.bytesOf(size)], 'file.bin')))
        return made.map(({ id }) => ({ id, key: queue.get(id)!.idempotencyKey }))
      })
      const kinds = await run(
        page,
        async ({ name, id }) => {
          const database = await tools.openRaw(name)
          const value = await tools.promised(database.transaction('bytes').objectStore('bytes').get(id))
          database.close()
          return Object.prototype.toString.call(value)
        },
        { name: account.name, id: uploads[0]!.id },
      )
      expect(kinds).toBe(keepsBlobs ? '[object File]' : '[object ArrayBuffer]')
      await page.restart()
      await run(page, () => queue.resume())
      await untilSucceeded(page, 6)
      const expected = many.map(({ key }, place) => [key, { name: 'file.bin', sha256: digestOf([30_000, 150_000, 2_000_000][place]!, 0) }])
      expect(await storedAt(account)).toEqual({ ...expectedOf(uploads), ...Object.fromEntries(expected) })
    })

    test('that lost bytes, or has others, fails these uploads with bytes-lost; nothing wrong is stored, and the others go on', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      await run(page, () => queue.pause())
      const uploads = await enqueueAll(page, [
        { size: 500 },
        { size: 150_000 },
        { size: 500, seed: 1 },
        { size: 500, seed: 2 },
        { size: 0 },
      ])
      await run(
        page,
        async ({ name, ids: [gone = '', shorter = '', other = ''] }) => {
          await tools.dropRaw(name, 'bytes', gone)
          await tools.putRaw(name, 'bytes', shorter, tools.bytesOf(149_999).buffer)
          await tools.putRaw(name, 'bytes', other, tools.bytesOf(500, 9).buffer)
        },
        { name: account.name, ids: uploads.map(({ id }) => id) },
      )
      // The page that saved them still has them.
      await page.restart()
      await run(page, () => queue.resume())
      await eventually(() => page.statuses()).toEqual(['failed', 'failed', 'failed', 'succeeded', 'succeeded'])
      expect((await page.list()).map(({ error }) => error?.code)).toEqual([...Array(3).fill('bytes-lost'), undefined, undefined])
      expect(await storedAt(account)).toEqual(expectedOf(uploads.slice(3)))
      const sent = await run(page, () => tools.sent)
      expect(sent).not.toContain(uploads[0]!.key)
      expect(sent).not.toContain(uploads[1]!.key)
    })

    test('with rows that are damaged or of a newer version, and stray bytes: the others go on, and no newer row is touched', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      await run(page, () => queue.pause())
      const uploads = await enqueueAll(page, [{ size: 500 }])
      const newer = { v: 9, id: 'newer', owner: '', of: 'tomorrow' }
      await run(
        page,
        async ({ name, newer }) => {
          for (const id of ['newer', 'damaged', 'stray', 'text']) await tools.putRaw(name, 'bytes', id, tools.bytesOf(10).buffer)
          await tools.putRaw(name, 'uploads', 'newer', newer)
          await tools.putRaw(name, 'uploads', 'damaged', { v: 1, id: 'damaged', owner: '', status: 'pending' })
          await tools.putRaw(name, 'uploads', 'text', 'no row at all')
        },
        { name: account.name, newer },
      )
      await page.restart()
      await run(page, () => queue.resume())
      await untilSucceeded(page, 1)
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
      expect(await run(page, () => tools.noted.filter(({ event }) => event === 'warning'))).toHaveLength(1)
      const refused = await run(page, () => tools.settled(tools.enqueue({ size: 10 }, { id: 'newer' })))
      expect(refused.end).toBe('storage-failed')
      const held = await run(page, (name) => tools.held(name), account.name)
      expect(held.rows.newer).toEqual(newer)
      expect(held.bytes).toEqual({ damaged: 10, newer: 10, text: 10 })
      await run(page, () => queue.clear())
      expect(Object.keys((await run(page, (name) => tools.held(name), account.name)).bytes)).toContain('text')
    })

    test('of schema version 1, with a row of every status, opens, and each ends as it should', async () => {
      const account = stage().newAccount()
      const page = await stage().newPage(account)
      await run(
        page,
        async ({ name, rows }) => {
          const asked = indexedDB.open(`uponce:${name}`, 1)
          asked.onupgradeneeded = () => {
            for (const store of ['uploads', 'bytes', 'settings']) asked.result.createObjectStore(store)
          }
          const database = await tools.promised(asked)
          const transaction = database.transaction(['uploads', 'bytes', 'settings'], 'readwrite')
          for (const row of rows) {
            transaction.objectStore('uploads').put(row, row.id)
            if (row.status !== 'succeeded') transaction.objectStore('bytes').put(tools.bytesOf(500, row.order).buffer, row.id)
          }
          transaction.objectStore('settings').put(false, 'paused')
          transaction.objectStore('settings').put({ id: 'a tab of old', until: 1_700_000_000_000 }, 'runner')
          transaction.objectStore('settings').put(1_700_000_000_000, 'persistAsked')
          await new Promise((resolve) => {
            transaction.oncomplete = resolve
          })
          database.close()
        },
        { name: account.name, rows: rowsOfVersion1 },
      )
      await page.start()
      const ends = ['succeeded', 'succeeded', 'succeeded', 'paused', 'succeeded', 'succeeded', 'failed', 'succeeded', 'failed']
      await eventually(() => page.statuses()).toEqual(ends)
      const uploads = await page.list()
      expect(uploads.map(({ id, metadata, name }) => [id, metadata, name])).toEqual(
        rowsOfVersion1.map(({ id, metadata, name }) => [id, metadata, name]),
      )
      expect(uploads.at(-1)?.error?.code).toBe('key-expired')
      expect(uploads[5]).toMatchObject({ result: { uploadId: 'u', storageKey: 's' }, replayed: true })
      await run(page, () => queue.resume())
      await eventually(async () => (await page.statuses())[3]).toBe('succeeded')
      const sent = rowsOfVersion1.filter(({ id }) => !['succeeded', 'failed', 'old'].includes(id))
      expect(await storedAt(account)).toEqual(
        Object.fromEntries(sent.map(({ idempotencyKey, name, order }) => [idempotencyKey, { name, sha256: digestOf(500, order) }])),
      )
      expect((await run(page, (name) => tools.held(name), account.name)).bytes).toEqual({ failed: 500, old: 500 })
    })

    test('that a newer version upgrades while the page is open is gone on with, and so it is after a reload', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      await run(page, () => queue.pause())
      const uploads = await enqueueAll(page, [{ size: 500 }])
      const { end, ms } = await run(
        page,
        (name) =>
          tools.settled(
            (async () => {
              const asked = indexedDB.open(`uponce:${name}`, 2)
              asked.onupgradeneeded = () => asked.result.createObjectStore('of tomorrow')
              const database = await tools.promised(asked)
              database.onversionchange = () => database.close()
            })(),
          ),
        account.name,
      )
      expect(end).toBe('fine')
      expect(ms).toBeLessThan(5_000)
      uploads.push(...(await enqueueAll(page, [{ size: 500, seed: 1 }])))
      await run(page, () => queue.resume())
      await untilSucceeded(page, 2)
      await page.restart()
      uploads.push(...(await enqueueAll(page, [{ size: 500, seed: 2 }])))
      await untilSucceeded(page, 3)
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
    })

    test(`${persists ? 'is asked for once, and its answer is' : 'cannot be asked to keep everything, and no answer is'} visible`, async () => {
      const account = stage().newAccount()
      const page = await stage().newPage(account)
      const count = (): Promise<void> =>
        run(page, () => {
          const manager = globalThis.StorageManager?.prototype as { persist?: unknown } | undefined
          if (!manager?.persist) return
          const { persist } = StorageManager.prototype
          Object.assign(globalThis, { asked: 0 })
          manager.persist = function (this: StorageManager) {
            ;(globalThis as unknown as { asked: number }).asked++
            return persist.call(this)
          }
        })
      const asked = (): Promise<number | null> => page.evaluate('globalThis.asked ?? null')
      await count()
      await page.start()
      expect(await page.evaluate('[queue.persisted ?? null]')).toEqual([null])
      await enqueueAll(page, [{ size: 10 }, { size: 10 }])
      await enqueueAll(page, [{ size: 10 }])
      if (persists) await eventually(() => page.evaluate('typeof queue.persisted')).toBe('boolean')
      await untilSucceeded(page, 3)
      expect(await asked()).toBe(persists ? 1 : null)
      expect(await page.evaluate('queue.persisted === undefined')).toBe(!persists)
      const answer = await page.evaluate('queue.persisted ?? null')
      await page.restart()
      await count()
      await enqueueAll(page, [{ size: 10 }])
      await eventually(() => page.evaluate('queue.persisted ?? null')).toBe(answer)
      expect(await asked()).toBe(persists ? 0 : null)
    })
  })
}
