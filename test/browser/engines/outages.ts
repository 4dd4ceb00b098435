import { describe, expect, test } from 'vitest'
import { run } from '../../helpers/engine.js'
import { eventually, type Stage, type StagePage } from '../../helpers/stage.js'
import { enqueueAll, expectedOf, storedAt, untilSucceeded } from './delivery.js'

const codesOf = (page: StagePage): Promise<(string | undefined)[]> =>
  run(page, () => tools.noted.filter(({ event }) => event === 'warning').map(({ code }) => code))

/** Begins a call in the page; what it came to is read later, since some engines keep all pages waiting for one. */
const begin = (page: StagePage, name: 'ready' | 'enqueue'): Promise<void> =>
  run(
    page,
    (name) => {
      const call = name === 'ready' ? queue.ready() : tools.enqueue({ size: 500 })
      tools.settled(call).then((outcome) => Object.assign(globalThis, { outcome }))
    },
    name,
  )
const outcomeOf = async (page: StagePage): Promise<{ end: string; ms: number }> => {
  await eventually(() => page.evaluate<boolean>(`'outcome' in globalThis`)).toBe(true)
  return page.evaluate('globalThis.outcome')
}

export function testOutages(stage: () => Stage): void {
  describe('a database that', () => {
    test('is deleted under the page, a request under way, is told and made anew: the next upload is kept and sent', async () => {
      const account = stage().newAccount()
      const page = await stage().open(account)
      stage().hold()
      const lost = await enqueueAll(page, [{ size: 500 }, { size: 150_000, seed: 1 }])
      await eventually(() => account.state().then(({ media }) => media.length)).toBe(2)
      const { end, ms } = await run(page, (name) => tools.settled(tools.deleteRaw(name)), account.name)
      expect(end).toBe('fine')
      expect(ms).toBeLessThan(5_000)
      await eventually(() => page.list()).toEqual([])
      stage().release()
      expect(await run(page, () => tools.noted.filter(({ event }) => event === 'cancelled').map(({ id }) => id))).toEqual(
        expect.arrayContaining(lost.map(({ id }) => id)),
      )
      expect(await codesOf(page)).toHaveLength(1)
      const next = await enqueueAll(page, [{ size: 500, seed: 2 }])
      await page.restart()
      await untilSucceeded(page, 1)
      expect(await storedAt(account)).toEqual(expectedOf([...lost, ...next]))
    })

    test('does not open: every call settles within 10 s, in memory or with its code, and works when it does', async () => {
      const accounts = Array.from({ length: 4 }, () => stage().newAccount())
      const [demanding, lenient, silentDemanding, silentLenient] = await Promise.all([
        stage().newPage(accounts[0]!),
        stage().newPage(accounts[1]!),
        stage().newPage(accounts[2]!, 'silent'),
        stage().newPage(accounts[3]!, 'silent'),
      ] as const)
      // A connection that ignores versionchange keeps a deletion waiting, and with it everybody.
      for (const [place, page] of [demanding, lenient].entries())
        await run(
          page,
          async (name) => {
            const database = await tools.openRaw(name)
            tools.deleteRaw(name)
            Object.assign(globalThis, { letGo: () => database.close() })
          },
          accounts[place]!.name,
        )
      for (const page of [demanding, silentDemanding]) {
        await page.start({ persist: 'required' })
        await begin(page, 'ready')
      }
      for (const page of [lenient, silentLenient]) {
        await page.start()
        await begin(page, 'enqueue')
      }
      for (const page of [demanding, silentDemanding]) {
        const { end, ms } = await outcomeOf(page)
        expect(end).toBe('storage-unavailable')
        expect(ms).toBeLessThan(10_000)
      }
      for (const page of [lenient, silentLenient]) {
        const { end, ms } = await outcomeOf(page)
        expect(end).toBe('fine')
        expect(ms).toBeLessThan(10_000)
        expect(await codesOf(page)).toEqual(['storage-unavailable'])
        await untilSucceeded(page, 1)
        expect((await page.list()).map(({ durable }) => durable)).toEqual([false])
      }
      await demanding.evaluate('letGo()')
      const uploads = await enqueueAll(demanding, [{ size: 500 }])
      await untilSucceeded(demanding, 1)
      expect((await demanding.list()).map(({ durable }) => durable)).toEqual([true])
      for (const account of accounts.filter((_account, place) => place !== 2)) expect((await account.state()).media).toHaveLength(1)
      expect(await storedAt(accounts[0]!)).toEqual(expectedOf(uploads))
    })

    test.each(['undefined', 'throws', 'fails'] as const)(
      'is not to be had (%s): uploads of this page are sent from memory, with a warning, or refused where a disk is demanded',
      async (how) => {
        const account = stage().newAccount()
        const page = await stage().newPage(account, how)
        await page.start({ persist: 'required' })
        expect(await run(page, () => tools.settled(queue.ready()))).toMatchObject({ end: 'storage-unavailable' })
        expect(await run(page, () => tools.settled(tools.enqueue({ size: 10 })))).toMatchObject({ end: 'storage-unavailable' })
        await run(page, () => queue.close())
        await run(page, () => {
          tools.noted.length = 0
        })
        await page.start({ persist: 'preferred' })
        const uploads = await enqueueAll(page, [{ size: 500 }, { size: 1_500_000, seed: 1 }])
        await untilSucceeded(page, 2)
        expect((await page.list()).map(({ durable }) => durable)).toEqual([false, false])
        expect(await codesOf(page)).toEqual(['storage-unavailable'])
        expect(await storedAt(account)).toEqual(expectedOf(uploads))
      },
    )
  })
}
