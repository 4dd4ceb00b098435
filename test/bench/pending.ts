import type { Name } from './contestants.js'
import { openHall } from './hall.js'
import { chosen, type Options } from './options.js'
import { profiled } from './profile.js'
import { figureOf, ratioOf, runRounds } from './rounds.js'
import { report } from './table.js'

const left = 10_000
const names = ['L+', 'Lpo', 'uponce, fetch'] as const satisfies readonly Name[]
const ours = 'uponce, fetch'

/** A page that opens on many pending uploads. */
export async function benchPending(options: Options): Promise<void> {
  const hall = await openHall()
  try {
    let version = ''
    const rounds = await runRounds('pending', chosen(names, options), options.rounds, (name) =>
      hall.visit(name, null, async (browser, reopen) => {
        const { page, tools } = browser
        version = browser.version
        await page.evaluate((count) => stage.leave(count), left)
        const resume = async () => {
          await reopen()
          return page.evaluate(() => stage.resume())
        }
        const { count, listed, sent, task, gap } = await (options.profile ? profiled(tools, `pending ${name}`, resume) : resume())
        if (count !== left) throw new Error(`${name} found ${count} of ${left}`)
        return { 'listed ms': listed, 'first request ms': sent, 'longest task ms': task, 'timer gap ms': gap }
      }),
    )
    report({
      scenario: 'pending',
      title: `a page opens on ${left} pending uploads of 1 KB, ms from navigation`,
      rounds,
      limits: [
        { what: 'listed, against L+', value: ratioOf(rounds, 'listed ms', ours, 'L+'), limit: 1 },
        { what: 'first request, against L+', value: ratioOf(rounds, 'first request ms', ours, 'L+'), limit: 1 },
        { what: 'longest task of those over 50 ms', value: figureOf(rounds, ours, 'longest task ms'), limit: 0, unit: ' ms' },
        { what: 'largest timer gap', value: figureOf(rounds, ours, 'timer gap ms'), limit: 50, unit: ' ms' },
      ],
      version,
    })
  } finally {
    await hall.close()
  }
}
