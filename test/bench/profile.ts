import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { CDPSession } from 'puppeteer-core'

const at = (name: string): string => fileURLToPath(new URL(`../../.build/bench/${name}.cpuprofile`, import.meta.url))

/** Takes a profile of the page's main thread meanwhile, for the browser's own tools, and prints where the time went. */
export async function profiled<Result>(tools: CDPSession, name: string, work: () => Promise<Result>): Promise<Result> {
  await tools.send('Profiler.enable')
  await tools.send('Profiler.setSamplingInterval', { interval: 200 })
  await tools.send('Profiler.start')
  const result = await work()
  const { profile } = await tools.send('Profiler.stop')
  writeFileSync(at(name), JSON.stringify(profile))
  const own = new Map<number, number>()
  const { samples = [], timeDeltas = [] } = profile
  for (const [place, id] of samples.entries()) own.set(id, (own.get(id) ?? 0) + timeDeltas[place]! / 1_000)
  const times = new Map<string, number>()
  for (const { id, callFrame } of profile.nodes) {
    const { functionName, url, lineNumber } = callFrame
    const place = `${functionName || '(anonymous)'} ${url.slice(url.lastIndexOf('/') + 1)}${url ? `:${lineNumber + 1}:${callFrame.columnNumber}` : ''}`
    times.set(place, (times.get(place) ?? 0) + (own.get(id) ?? 0))
  }
  console.log(`profile: ${at(name)}`)
  for (const [place, time] of [...times].sort(([, a], [, b]) => b - a).slice(0, 30))
    console.log(`profile:   ${time.toFixed(0).padStart(6)} ms  ${place}`)
  return result
}
