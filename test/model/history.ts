import type { KeyStore } from '../../demo/server/keys.js'
import type { Code } from './code.js'
import { type Command, carryOut } from './command.js'
import type { Timeline } from './timeline.js'
import { Violation } from './witness.js'
import { World } from './world.js'

export interface History {
  seed: number
  commands: readonly Command[]
}

/** What happened, one line for each command. */
export type Story = string[]

/** What a history does to a world, whose server keeps its keys as `keysFor` says, else in memory. Rejects with a `Violation` that tells its story, where a promise was not kept. */
export async function play(
  code: Code,
  { seed, commands }: History,
  keysFor?: (timeline: Timeline) => KeyStore,
): Promise<{ story: Story; steps: number }> {
  const world = new World(code, seed, keysFor)
  const { witness, timeline } = world
  const start = timeline.now
  const uninstall = timeline.install()
  const story: Story = []
  const tell = (what: string): void => {
    const seen = witness.seen.splice(0)
    story.push(`${((timeline.now - start) / 1000).toFixed(3).padStart(12)} s  ${what}${seen.length > 0 ? `: ${seen.join('; ')}` : ''}`)
  }
  try {
    let last = 'all begins'
    try {
      await timeline.settle(20)
      tell(last)
      for (const command of commands) {
        last = command.what
        const done = await carryOut(world, command)
        last = done ?? last
        await world.check()
        if (done !== undefined && (done !== 'nothing' || witness.seen.length > 0)) tell(done)
      }
      last = 'all is well again'
      await world.conclude()
      tell(last)
    } catch (error) {
      tell(last)
      if (error instanceof Violation) throw new Violation([error.message, ...story].join('\n'))
      throw new Error(story.join('\n'), { cause: error })
    }
    return { story, steps: timeline.steps }
  } finally {
    world.end()
    uninstall()
  }
}
