/** What happened when, for the picture. */
export interface Timeline {
  /** `lane` names its row. */
  mark(lane: string): void
  /** Two running counts: files saved in the browser, and files stored by the server. */
  grow(saved: number, stored: number): void
  /** As an SVG. */
  draw(title: string): string
}

const width = 1_200
const left = 190
const laneHeight = 18
const curveHeight = 160

const escaped = (text: string): string => text.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`)

export function createTimeline(now: () => number): Timeline {
  const start = now()
  const lanes = new Map<string, number[]>()
  const growth: { at: number; saved: number; stored: number }[] = []
  return {
    mark(lane) {
      const times = lanes.get(lane) ?? []
      lanes.set(lane, times)
      times.push(now() - start)
    },
    grow(saved, stored) {
      growth.push({ at: now() - start, saved, stored })
    },
    draw(title) {
      const end = now() - start
      const x = (at: number): string => (left + (at / end) * (width - left - 20)).toFixed(1)
      const most = Math.max(1, ...growth.map(({ saved }) => saved))
      const top = 40
      const y = (count: number): string => (top + curveHeight - (count / most) * curveHeight).toFixed(1)
      const curve = (member: 'saved' | 'stored', color: string): string =>
        `<polyline fill="none" stroke="${color}" stroke-width="1.5" points="${growth.map((at) => `${x(at.at)},${y(at[member])}`).join(' ')}"/>`
      const rows = [...lanes].map(([lane, times], row) => {
        const at = top + curveHeight + 30 + row * laneHeight
        const ticks = times.map((time) => `M${x(time)} ${at - 9}v9`).join('')
        return `<text x="10" y="${at}">${escaped(lane)} (${times.length})</text><path d="${ticks}" stroke="#b3382c"/>`
      })
      const height = top + curveHeight + 50 + lanes.size * laneHeight
      const seconds = (end / 1000).toFixed(0)
      return [
        `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" font-size="12">`,
        `<rect width="100%" height="100%" fill="#fff"/><text x="10" y="22" font-size="15">${escaped(title)}</text>`,
        `<text x="10" y="${top + 14}" fill="#8a8f98">saved: ${most}</text><text x="10" y="${top + 30}" fill="#1c7c54">stored</text>`,
        `<text x="${width - 20}" y="${height - 8}" text-anchor="end">${seconds} s</text>`,
        curve('saved', '#8a8f98'),
        curve('stored', '#1c7c54'),
        ...rows,
        '</svg>',
      ].join('\n')
    },
  }
}
