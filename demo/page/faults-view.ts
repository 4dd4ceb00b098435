import type { Upload } from 'uponce'
import { h, onPress, setEnabled, setText } from './dom.js'
import { formatClock } from './format.js'
import { type FaultName, faultNames, type Look } from './server-state.js'

export interface FaultsView {
  show(look: Look, uploads: readonly Upload[]): void
  /** An attempt got no answer. */
  noteSilence(): void
}

export interface FaultsViewOptions {
  list: HTMLElement
  disarm: HTMLButtonElement
  onOrder(fault: FaultName): void
  onDisarm(): void
}

const texts: Record<FaultName, [title: string, effect: string]> = {
  'lose-answer': ['Lose the answer', 'Stores, then hangs up'],
  'cut-body': ['Cut the body', 'Hangs up half-way'],
  unavailable: ['503 Unavailable', 'Retry-After: 5'],
  'too-many': ['429 Too many', 'Retry-After: 5'],
  'server-error': ['500 Error', 'No Retry-After'],
  slow: ['Slow line', 'Reads 64 KiB a second'],
  away: ['Server away', 'Gone for 20 s. This page too: do not reload meanwhile'],
}

/** The panel that makes things go wrong, and says what came of it. */
export function createFaultsView({ list, disarm, onOrder, onDisarm }: FaultsViewOptions): FaultsView {
  let isAway = false
  let wasAway = false
  let unanswered = 0

  const goAway = (): void => {
    if (!isAway) unanswered = 0
    isAway = true
    wasAway = true
  }
  /** What is under way dies before the server can tell that it is away. */
  const order = (fault: FaultName): void => {
    if (fault === 'away') goAway()
    onOrder(fault)
  }

  const cards = new Map(
    faultNames.map((fault) => {
      const [title, effect] = texts[fault]
      const state = h('span', { class: 'fault-state' })
      const last = h('bdi', { class: 'fault-last' })
      const button = h('button', { type: 'button', class: 'fault', 'data-fault': fault, onclick: () => order(fault) })
      button.append(h('span', { class: 'fault-title' }, title), h('span', { class: 'fault-effect' }, effect), state, last)
      list.append(h('li', {}, button))
      return [fault, { button, state, last }]
    }),
  )
  onPress(disarm, onDisarm)

  const armedInWords = (fault: FaultName, { times = 1, seconds }: { times?: number; seconds: number }): string => {
    if (fault === 'away') return `Away, ${seconds} s left`
    return `Armed: next ${times === 1 ? 'one' : times}`
  }

  /** How often it struck, and whom last. */
  function effectInWords(fault: FaultName, { state }: Look, uploads: readonly Upload[]): [text: string, name: string] {
    if (fault === 'away') return wasAway ? [`${unanswered} × no answer`, ''] : ['', '']
    const struck = state.keys
      .flatMap(({ key, requests }) => requests.filter((request) => request.fault === fault && !request.copy).map(({ at }) => ({ key, at })))
      .sort((a, b) => (a.at < b.at ? -1 : 1))
    const last = struck.at(-1)
    if (!last) return ['', '']
    const name =
      uploads.find(({ idempotencyKey }) => idempotencyKey === last.key)?.name ??
      state.media.find(({ key }) => key === last.key)?.fileName ??
      `key ${last.key.slice(0, 8)}…`
    return [`Struck ${struck.length} ×, ${formatClock(Date.parse(last.at))}`, name]
  }

  return {
    show(look, uploads) {
      const { faults } = look.state
      if (faults.away) goAway()
      else isAway = false
      for (const [fault, { button, state, last }] of cards) {
        const armed = faults[fault]
        const [effect, name] = effectInWords(fault, look, uploads)
        button.dataset.armed = String(armed !== undefined)
        setText(state, armed ? armedInWords(fault, armed) : effect)
        setText(last, name)
      }
      setEnabled(disarm, Object.keys(faults).length > 0)
    },
    noteSilence() {
      if (isAway) unanswered++
    },
  }
}
