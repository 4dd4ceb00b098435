/** Numbers that look random and are the same for the same seed. */
export interface Random {
  /** From 0 to 1, without 1. */
  next(): number
  /** From `min` to `max`, both included. */
  integer(min: number, max: number): number
  chance(probability: number): boolean
  pick<Item>(items: readonly Item[]): Item
}

/** mulberry32. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = state
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const integer = (min: number, max: number): number => min + Math.floor(next() * (max - min + 1))
  return { next, integer, chance: (probability) => next() < probability, pick: (items) => items[integer(0, items.length - 1)]! }
}

/** A seed nobody has chosen, for tests that print it. */
export const freshSeed = (): number => Math.floor(Math.random() * 2 ** 31)
