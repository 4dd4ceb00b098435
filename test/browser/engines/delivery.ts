import { createHash } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import type { Account } from '../../helpers/account.js'
import { run } from '../../helpers/engine.js'
import { bytesOf, type FileFacts } from '../../helpers/page-tools.js'
import { eventually, type Stage, type StagePage } from '../../helpers/stage.js'

const digestOf = ({ size, seed }: FileFacts): string => createHash('sha256').update(bytesOf(size, seed)).digest('hex')

/** What the server has of an account: by key, the name and the digest of the bytes that it hands out. One object for each. */
export const storedAt = async (account: Account): Promise<Record<string, { name: string; sha256: string }>> => {
  const { media, objects } = await account.state()
  expect(objects).toBe(media.length)
  const entries = media.map(async ({ id, key, fileName }) => [key, { name: fileName, sha256: await account.digestOfMedia(id) }] as const)
  const stored = Object.fromEntries(await Promise.all(entries))
  expect(Object.keys(stored)).toHaveLength(media.length)
  return stored
}

/** Enqueues files in a page; resolves with what the server is to have of each. */
export const enqueueAll = async (page: StagePage, files: FileFacts[]) => {
  const uploads = await run(page, (files) => Promise.all(files.map((file) => tools.enqueue(file))), files)
  return uploads.map(({ id, key }, place) => {
    const file = files[place]!
    return { id, key, expected: { name: file.name ?? 'file.bin', sha256: digestOf(file) } }
  })
}

export const expectedOf = (uploads: { key: string; expected: { name: string; sha256: string } }[]) =>
  Object.fromEntries(uploads.map(({ key, expected }) => [key, expected]))

export const untilSucceeded = (page: StagePage, count: number): Promise<void> =>
  eventually(() => page.statuses()).toEqual(Array(count).fill('succeeded'))

export function testDelivery(stage: () => Stage): void {
  describe('files', () => {
    test('of every byte value, of 3 MB and of nothing are stored as they were, from another origin too', async () => {
      const account = stage().newAccount()
      const page = await stage().newPage(account)
      await page.goto(`${stage().elsewhere.url}/tools.html`)
      await page.start({ endpoint: `${stage().server.url}/uploads` })
      const uploads = await enqueueAll(page, [{ size: 200_000 }, { size: 3_000_000, seed: 1 }, { size: 0 }, { size: 256, seed: 2 }])
      await untilSucceeded(page, 4)
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
      expect((await page.list()).map(({ result }) => (result as { sha256: string }).sha256)).toEqual(
        uploads.map(({ expected }) => expected.sha256),
      )
    })

    test('are sent on a line that works, though the browser says that it is offline', async () => {
      const account = stage().newAccount()
      const page = await stage().newPage(account)
      await run(page, () => {
        Object.defineProperty(navigator, 'onLine', { get: () => false })
        dispatchEvent(new Event('offline'))
      })
      await page.start()
      const uploads = await enqueueAll(page, [{ size: 300 }])
      await untilSucceeded(page, 1)
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
    })

    test('of any name are stored under it', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      const names = [
        '写真 夏.jpg',
        'naïve café.txt',
        '👩‍🚀.png',
        `"quoted" 'n' 100%.csv`,
        '../../etc/passwd',
        'a\r\nX-Evil: 1',
        'lone \ud800.txt',
        'é'.repeat(100),
      ]
      const seen = [...names.slice(0, 4), 'passwd', 'a__X-Evil: 1', 'lone \ufffd.txt', 'é'.repeat(100)]
      const uploads = await enqueueAll(
        page,
        names.map((name, seed) => ({ size: 300, seed, name })),
      )
      await untilSucceeded(page, names.length)
      const stored = await storedAt(account)
      expect(uploads.map(({ key }) => stored[key]?.name)).toEqual(seen)
    })

    test('whose answers are held back as the page reloads are sent again, once and under their keys; what had succeeded is not', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      const done = await enqueueAll(page, [{ size: 50_000 }, { size: 150_000, seed: 1 }])
      await untilSucceeded(page, 2)
      const before = stage().front.passages.length
      stage().hold()
      const files = [
        { size: 50_000, seed: 2 },
        { size: 150_000, seed: 3 },
        { size: 0, name: 'nothing' },
      ]
      const uploads = await enqueueAll(page, files)
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(5)
      const { rows, bytes } = await run(page, (name) => tools.held(name), account.name)
      expect(
        Object.values(rows)
          .map(({ status }) => status)
          .sort(),
      ).toEqual([...Array(2).fill('succeeded'), ...Array(3).fill('uploading')])
      expect(bytes).toEqual(Object.fromEntries(uploads.map(({ id }, place) => [id, files[place]!.size])))
      const reloading = page.restart()
      await eventually(
        () =>
          stage()
            .front.passages.slice(before)
            .filter(({ isOver }) => isOver).length,
      ).toBe(3)
      stage().release()
      await reloading
      await untilSucceeded(page, 5)
      expect(
        stage()
          .front.passages.slice(before + 3)
          .map(({ key }) => key)
          .sort(),
      ).toEqual(uploads.map(({ key }) => key).sort())
      expect(await storedAt(account)).toEqual(expectedOf([...done, ...uploads]))
      expect((await page.list()).map(({ replayed }) => replayed)).toEqual([false, false, true, true, true])
      expect((await run(page, (name) => tools.held(name), account.name)).bytes).toEqual({})
      await page.restart()
      await untilSucceeded(page, 5)
      expect(stage().front.passages).toHaveLength(before + 6)
    })

    test('that are on their way as the page reloads are sent again under their key', async () => {
      const account = stage().newAccount()
      await account.order({ fault: 'slow' })
      const page = await stage().open(account)
      const uploads = await enqueueAll(page, [{ size: 150_000 }])
      await eventually(async () => (await account.state()).keys[0]?.requests[0]?.bytes ?? 0).toBeGreaterThan(0)
      await page.restart()
      await untilSucceeded(page, 1)
      const { keys } = await account.state()
      expect(keys.map(({ key }) => key)).toEqual(uploads.map(({ key }) => key))
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
    })

    test('whose answer is lost are asked for again under their key, and replayed', async () => {
      const account = stage().newAccount()
      // An engine may send a request again by itself; all are lost until the page has noticed.
      await account.order({ fault: 'lose-answer', times: 1_000 })
      const page = await stage().open(account)
      const uploads = await enqueueAll(page, [{ size: 150_000 }])
      await eventually(async () => (await page.list())[0]).toMatchObject({ status: 'pending', reason: 'network' })
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
      await account.endFaults()
      await untilSucceeded(page, 1)
      const [upload] = await page.list()
      expect(upload).toMatchObject({ idempotencyKey: uploads[0]!.key, replayed: true })
      expect(new Set(await run(page, () => tools.sent))).toEqual(new Set([uploads[0]!.key]))
      expect((await account.state()).keys.map(({ key }) => key)).toEqual([uploads[0]!.key])
      expect(await storedAt(account)).toEqual(expectedOf(uploads))
    })
  })
}
