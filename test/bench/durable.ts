import type { Name } from './contestants.js'
import { writeFiles } from './files.js'
import { openHall } from './hall.js'
import { chosen, type Options } from './options.js'
import { median, ratioOf, runRounds } from './rounds.js'
import { report } from './table.js'

const sizes = [
  { title: '10 KB, ms', bytes: 10_000, count: 21, limit: 1 },
  { title: '10 MB, ms', bytes: 10_000_000, count: 5, limit: 1.2 },
  { title: '100 MB, ms', bytes: 100_000_000, count: 4, limit: 1.2 },
]
const put = 'bare put'
const ours = 'uponce, fetch'
const names = [put, 'L+', 'Lpo', ours] as const satisfies readonly Name[]

/** From `enqueue` to the bytes on disk, one file after another. */
export async function benchDurable(options: Options): Promise<void> {
  const hall = await openHall()
  try {
    const works = sizes.map(({ title, bytes, count }) => ({ title, files: writeFiles(hall.folder, count, bytes) }))
    let version = ''
    const rounds = await runRounds('durable', chosen(names, options), options.rounds, async (name) => {
      const figures: Record<string, number | null> = {}
      for (const { title, files } of works)
        await hall.visit(name, files, async (browser) => {
          version = browser.version
          const [_first, ...times] = await browser.page.evaluate(() => stage.save())
          figures[title] = median(times)
        })
      return figures
    })
    const limits = sizes.map(({ title, limit }) => ({
      what: `${title}: durable, against a bare put`,
      value: ratioOf(rounds, title, ours, put),
      limit,
    }))
    report({ scenario: 'durable', title: 'enqueue to durable, the first file of each page left out', rounds, limits, version })
  } finally {
    await hall.close()
  }
}
