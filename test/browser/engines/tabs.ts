import { describe, expect, test } from 'vitest'
import { run } from '../../helpers/engine.js'
import { eventually, type Stage, type StagePage } from '../../helpers/stage.js'
import { enqueueAll, expectedOf, storedAt, untilSucceeded } from './delivery.js'

const sentBy = (page: StagePage): Promise<string[]> => run(page, () => tools.sent)
const eventsOf = (page: StagePage, id: string): Promise<string[]> =>
  run(page, (id) => tools.noted.filter((note) => note.id === id).map(({ event }) => event as string), id)
const heldBy = (page: StagePage, account: { name: string }) => run(page, (name) => tools.held(name), account.name)
const small = (count: number, first = 0) => Array.from({ length: count }, (_, seed) => ({ size: 400, seed: first + seed }))

export function testTabs(stage: () => Stage): void {
  describe('of two tabs', () => {
    test('one sends what either enqueues, and both show it; when that one goes in mid-request, the other sends the same key', async () => {
      const account = stage().newAccount()
      const first = await stage().open(account)
      const ours = await enqueueAll(first, small(3))
      await untilSucceeded(first, 3)
      const second = await stage().open(account)
      const theirs = await enqueueAll(second, [{ size: 150_000, seed: 3 }, ...small(1, 4)])
      await Promise.all([untilSucceeded(first, 5), untilSucceeded(second, 5)])
      expect((await sentBy(first)).sort()).toEqual([...ours, ...theirs].map(({ key }) => key).sort())
      expect(await sentBy(second)).toEqual([])
      for (const { id } of theirs) expect(await eventsOf(first, id)).toEqual(['added', 'started', 'succeeded'])
      for (const { id } of theirs) expect(await eventsOf(second, id)).toEqual(['added', 'started', 'succeeded'])

      stage().hold()
      const last = await enqueueAll(second, [{ size: 150_000, seed: 5 }])
      const [{ id, key }] = last as [(typeof last)[0]]
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(6)
      for (const page of [first, second]) expect((await page.statuses()).at(-1)).toBe('uploading')
      await first.close()
      await eventually(() => sentBy(second)).toEqual([key])
      stage().release()
      await untilSucceeded(second, 6)
      expect(await eventsOf(second, id)).toEqual(['added', 'started', 'started', 'succeeded'])
      expect(await storedAt(account)).toEqual(expectedOf([...ours, ...theirs, ...last]))
    })

    test('the one that does not send cancels and clears, with the answers on their way: all agree, also after a reload', async () => {
      const account = stage().newAccount()
      const sender = await stage().open(account, { concurrency: 4 })
      const other = await stage().newPage(account)
      stage().hold()
      const cancelled = await enqueueAll(sender, small(2))
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(2)
      await other.start()
      await eventually(() => other.statuses()).toEqual(['uploading', 'uploading'])
      await run(
        other,
        (ids) => Promise.all(ids.map((id) => queue.cancel(id))),
        cancelled.map(({ id }) => id),
      )
      expect(await other.list()).toEqual([])
      const cleared = await enqueueAll(sender, [...small(2, 2), { size: 150_000, seed: 4 }])
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(5)
      await run(other, () => queue.clear())
      await eventually(() => sender.list()).toEqual([])
      stage().release()
      const last = await enqueueAll(sender, small(1, 5))
      await Promise.all([untilSucceeded(sender, 1), untilSucceeded(other, 1)])
      for (const { id } of [...cancelled, ...cleared]) {
        expect(await eventsOf(sender, id)).toEqual(['added', 'started', 'cancelled'])
        expect((await eventsOf(other, id)).filter((event) => event !== 'added' && event !== 'started')).toEqual(['cancelled'])
      }
      const { rows, bytes } = await heldBy(other, account)
      expect([Object.keys(rows), bytes]).toEqual([last.map(({ id }) => id), {}])
      for (const page of [sender, other]) {
        await page.restart()
        await untilSucceeded(page, 1)
        expect(await sentBy(page)).toEqual([])
      }
    })

    test('one cancels as the answers come to the other: each upload is either cancelled or succeeded, the same everywhere', async () => {
      const account = stage().newAccount()
      const sender = await stage().open(account, { concurrency: 5 })
      const other = await stage().open(account)
      stage().hold()
      const uploads = await enqueueAll(sender, small(5))
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(5)
      await eventually(() => other.statuses()).toEqual(Array(5).fill('uploading'))
      // One every few ms, so that the answers come in between.
      const cancelling = run(
        other,
        async (ids) => {
          for (const id of ids) {
            queue.cancel(id)
            await new Promise((resolve) => setTimeout(resolve, 10))
          }
        },
        uploads.map(({ id }) => id),
      )
      await new Promise((resolve) => setTimeout(resolve, 30))
      stage().release()
      await cancelling
      const ended = (events: string[]): boolean => events.includes('succeeded') || events.includes('cancelled')
      for (const page of [sender, other])
        for (const { id } of uploads) await eventually(async () => ended(await eventsOf(page, id))).toBe(true)
      const { rows, bytes } = await heldBy(other, account)
      for (const { id } of uploads) {
        const end = id in rows ? 'succeeded' : 'cancelled'
        for (const page of [sender, other]) {
          const events = await eventsOf(page, id)
          expect(events.filter((event) => event === 'succeeded' || event === 'cancelled')).toEqual([end])
        }
      }
      expect(bytes).toEqual({})
      for (const page of [sender, other])
        expect((await page.list()).map(({ id, status }) => [id, status]).sort()).toEqual(
          Object.keys(rows)
            .map((id) => [id, 'succeeded'])
            .sort(),
        )
      await sender.restart()
      await eventually(async () => (await sender.list()).map(({ id }) => id).sort()).toEqual(Object.keys(rows).sort())
      expect((await account.state()).keys.map(({ requests }) => requests.length)).toEqual(Array(5).fill(1))
    })

    test('both enqueue the same id at once: one record, one key, one file', async () => {
      const account = stage().newAccount()
      const pages = [await stage().open(account), await stage().open(account)] as const
      await Promise.all(pages.map((page) => run(page, () => queue.ready())))
      stage().hold() // else it may have succeeded in one before the other asks, which then is for a new one
      const at = Date.now() + 400
      const ids = ['a', 'b', 'c', 'd']
      for (const [seed, page] of pages.entries())
        await run(
          page,
          ({ at, ids, seed }) => {
            setTimeout(async () => {
              const made = await Promise.all(ids.map((id) => tools.enqueue({ size: 500, seed, name: `${seed}` }, { id })))
              Object.assign(globalThis, { keys: made.map(({ key }) => key) })
            }, at - Date.now())
          },
          { at, ids, seed },
        )
      for (const page of pages) await eventually(() => page.evaluate<boolean>(`'keys' in globalThis`)).toBe(true)
      stage().release()
      for (const page of pages) await untilSucceeded(page, 4)
      const keys = await Promise.all(pages.map((page) => page.evaluate<string[]>('globalThis.keys')))
      expect(keys[0]).toEqual(keys[1])
      const state = await account.state()
      expect(state.media.map(({ key }) => key).sort()).toEqual([...keys[0]!].sort())
      expect(state.keys.map(({ requests }) => requests.length)).toEqual([1, 1, 1, 1])
      expect(Object.keys((await heldBy(pages[0], account)).rows).sort()).toEqual(ids)
    })
  })
}
