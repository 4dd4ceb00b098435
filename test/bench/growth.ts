import type { CDPSession } from 'puppeteer-core'
import { openHall } from './hall.js'
import type { Options } from './options.js'
import { figureOf, ratioOf, runRounds } from './rounds.js'
import { type Limit, report } from './table.js'

const counts = ['100', '1000', '10000', '50000']
const forgotten = 10_000
const MiB = 2 ** 20

const heapOf = async (tools: CDPSession): Promise<number> => {
  await tools.send('HeapProfiler.collectGarbage')
  return (await tools.send('Runtime.getHeapUsage')).usedSize / MiB
}

/** How much more is in the page's heap than before it sent them, MiB. */
const leftOver = `heap after ${forgotten} forgotten, MiB`

export async function benchGrowth({ rounds: count }: Options): Promise<void> {
  const hall = await openHall()
  try {
    let version = ''
    const rounds = await runRounds('growth', [...counts, leftOver], count, (name) =>
      hall.show('growth', async (browser) => {
        const { page, tools } = browser
        version = browser.version
        if (name === leftOver) {
          const before = await heapOf(tools)
          await page.evaluate((count) => growth.forget(count), forgotten)
          const left = (await heapOf(tools)) - before
          return { [leftOver]: left }
        }
        await page.evaluate((count) => growth.fill(count), Number(name))
        const { change, enqueue } = await page.evaluate(() => growth.costs())
        return { 'change ms': change, 'one more ms': enqueue, 'heap MiB': await heapOf(tools) }
      }),
    )
    const ratios = ['10000', '50000'].flatMap((many): Limit[] => [
      { what: `a state change among ${many}, against one among 100`, value: ratioOf(rounds, 'change ms', many, '100'), limit: 1.25 },
      { what: `one more upload among ${many}, against one among 100`, value: ratioOf(rounds, 'one more ms', many, '100'), limit: 1.25 },
    ])
    const heap = { what: leftOver, value: figureOf(rounds, leftOver, leftOver), limit: 10 }
    report({ scenario: 'growth', title: 'uploads that wait in the queue', rounds, limits: [...ratios, heap], version })
  } finally {
    await hall.close()
  }
}
