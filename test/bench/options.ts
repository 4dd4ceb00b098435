import { parseArgs } from 'node:util'
import { entrants, type Name } from './contestants.js'

/** What the command line says of how to measure. */
export interface Options {
  rounds: number
  /** Takes profiles, too; times are then not comparable. */
  profile: boolean
  /** Of those that a scenario has, only these; empty: all. */
  only: readonly Name[]
}

export function readOptions(args: string[]): { names: string[]; options: Options } {
  const { positionals, values } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      rounds: { type: 'string', default: '5' },
      profile: { type: 'boolean', default: false },
      only: { type: 'string', multiple: true, default: [] },
    },
  })
  const unknown = values.only.filter((name) => !(name in entrants))
  if (unknown.length > 0) throw new Error(`No such contestant: ${unknown.join(', ')}. There are: ${Object.keys(entrants).join(', ')}`)
  return { names: positionals, options: { rounds: Number(values.rounds), profile: values.profile, only: values.only as Name[] } }
}

export const chosen = <Some extends Name>(names: readonly Some[], { only }: Options): Some[] =>
  names.filter((name) => only.length === 0 || only.includes(name))
