/** Figures of each round, by name of the contestant and of the figure. `null`: there is none. */
export type Rounds = Map<string, Record<string, number | null>[]>

/**
 * Runs all, round after round, each time beginning with another one: whatever drifts then hits them alike. One that fails has no figures for
 * that round, and so no median.
 */
export async function runRounds<Name extends string>(
  scenario: string,
  names: readonly Name[],
  count: number,
  run: (name: Name) => Promise<Record<string, number | null>>,
): Promise<Rounds> {
  const rounds: Rounds = new Map(names.map((name) => [name, []]))
  for (let round = 0; round < count; round++)
    for (let place = 0; place < names.length; place++) {
      const name = names[(place + round) % names.length]!
      const figures = await run(name).catch((error) => {
        console.error(`${scenario}: round ${round + 1}, ${name} failed: ${error.message}`)
        return {}
      })
      rounds.get(name)!.push(figures)
      for (const [title, value] of Object.entries(figures).slice(0, 1))
        console.error(`${scenario}: round ${round + 1}, ${name}: ${title} ${value?.toFixed(1)}`)
    }
  return rounds
}

/** `null` where any is. */
export function median(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b)
  return known.length < values.length || known.length === 0 ? null : known[known.length >> 1]!
}

export const figureOf = (rounds: Rounds, name: string, figure: string): number | null =>
  median((rounds.get(name) ?? []).map((figures) => figures[figure] ?? null))

/** The median of the ratios within each round. */
export const ratioOf = (rounds: Rounds, figure: string, name: string, against: string, itsFigure = figure): number | null =>
  median(
    (rounds.get(name) ?? []).map((figures, round) => {
      const [one, other] = [figures[figure] ?? null, rounds.get(against)?.[round]?.[itsFigure] ?? null]
      return one === null || other === null ? null : one / other
    }),
  )
