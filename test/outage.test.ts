import { expect, test } from 'vitest'
import { simulateOutage } from './bench/outage.js'

// The whole, with 1,000 clients and a limit of 5 %, is `npm run bench -- outage`. Of fewer clients chance brings a larger part together.

test.each(['refused', 'silent'] as const)(
  '100 clients whose server is away for ten minutes, requests %s: nobody storms it, and all is stored',
  async (manner) => {
    const figures = await simulateOutage({ clients: 100, uploads: 10, length: 600_000, arrivals: 1, manner })
    expect(figures).toMatchObject({ succeeded: 1_000, stored: 1_000, mostProbes: 1 })
    // A probe, and at times the one upload that finds out as well.
    expect(figures.mostInFlight).toBeLessThanOrEqual(2)
    expect(figures.peakBack).toBeLessThanOrEqual(100)
    // Up to three uploads before anybody knows; then 17 probes each, and half as many uploads.
    expect(figures.away).toBeLessThanOrEqual(100 * 40)
    expect(figures.untilDone).toBeLessThanOrEqual(180)
  },
  30_000,
)
