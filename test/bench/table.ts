import { mkdirSync, writeFileSync } from 'node:fs'
import { cpus, loadavg, release, totalmem } from 'node:os'
import { fileURLToPath } from 'node:url'
import { figureOf, type Rounds } from './rounds.js'

/** What is to be reached. */
export interface Limit {
  what: string
  /** `null`: it was not measured. */
  value: number | null
  /** The most it may be; or, with `least`, the least. */
  limit: number
  least?: boolean
  unit?: string
}

export interface Report {
  scenario: string
  title: string
  rounds: Rounds
  limits: Limit[]
  /** Of the browser. */
  version: string
}

const folder = fileURLToPath(new URL('../../.build/bench/', import.meta.url))

const show = (value: number | null): string => (value === null ? '–' : value.toFixed(Math.abs(value) < 10 ? 2 : 0))
const holds = ({ value, limit, least }: Limit): boolean => value !== null && (least ? value >= limit : value <= limit)

/** Prints medians and limits, and writes all of it to `.build/bench/SCENARIO.json`. */
export function report({ scenario, title, rounds, limits, version }: Report): void {
  const names = [...rounds.keys()]
  const count = Math.max(...[...rounds.values()].map(({ length }) => length))
  const load = loadavg()[0]!
  console.log(`${scenario}: ${title}; medians of ${count} rounds, load ${load.toFixed(1)}, ${version}`)
  const figures = [...new Set([...rounds.values()].flatMap((all) => all.flatMap((one) => Object.keys(one))))]
  const rows = [['', ...figures], ...names.map((name) => [name, ...figures.map((figure) => show(figureOf(rounds, name, figure)))])]
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)))
  for (const row of rows)
    console.log(
      `${scenario}:   ${row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[column]!))).join('  ')}`,
    )
  for (const each of limits) {
    const { what, value, limit, least, unit = '' } = each
    const verdict = value === null ? 'not measured' : holds(each) ? 'reached' : 'MISSED'
    console.log(`${scenario}:   ${what}: ${show(value)}${unit} (limit: ${least ? '≥' : '≤'} ${limit}${unit}) ${verdict}`)
  }
  const [cpu] = cpus()
  const machine = { cpus: cpus().length, model: cpu?.model, memory: totalmem(), kernel: release(), browser: version, load }
  const json = {
    scenario,
    title,
    date: new Date().toISOString(),
    machine,
    rounds: Object.fromEntries(rounds),
    limits: limits.map((each) => ({ ...each, reached: holds(each) })),
  }
  mkdirSync(folder, { recursive: true })
  writeFileSync(`${folder}${scenario}.json`, `${JSON.stringify(json, null, 2)}\n`)
}
