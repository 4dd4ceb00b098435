import type { Mishap } from '../helpers/front.js'
import type { Random } from '../helpers/random.js'

/** What can go wrong with one request, and how often. */
const kinds: [kind: string, chance: number, make: (random: Random) => Mishap][] = [
  ['502 before the server', 0.04, () => ({ badGateway: 'before' })],
  ['502 after the server', 0.04, () => ({ badGateway: 'after' })],
  ['request cut', 0.06, (random) => ({ cutRequest: random.integer(0, 200_000) })],
  ['answer lost', 0.07, () => ({ cutAnswer: 'head' })],
  ['answer cut', 0.04, () => ({ cutAnswer: 'body' })],
  ['delayed', 0.15, (random) => ({ delay: random.integer(50, 2_000) })],
  ['throttled', 0.05, (random) => ({ throttle: random.integer(50_000, 500_000) })],
]

/** The network between the pages and the server. */
export interface Weather {
  /** What goes wrong with the next request. */
  next(): Mishap
  /** Nobody is reached until told otherwise. */
  away: boolean
  /** Nothing goes wrong any more. */
  end(): void
}

export function createWeather(random: Random, onMishap: (kind: string) => void): Weather {
  let isOver = false
  return {
    away: false,
    next() {
      if (isOver) return {}
      if (this.away) {
        onMishap('nobody there')
        return { away: true }
      }
      let draw = random.next()
      for (const [kind, chance, make] of kinds) {
        draw -= chance
        if (draw >= 0) continue
        onMishap(kind)
        return make(random)
      }
      return {}
    },
    end() {
      isOver = true
      this.away = false
    },
  }
}
