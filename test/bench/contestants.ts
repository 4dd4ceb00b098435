import type { Setting } from './page/contestant.js'

export interface Entrant {
  /** Its page, in `page/`. */
  page: string
  transport: Setting['transport']
}

/** Who runs, by the names of the tables. */
export const entrants = {
  L: { page: 'loop', transport: 'fetch' },
  Lx: { page: 'loop', transport: 'xhr' },
  'L+': { page: 'whole', transport: 'fetch' },
  Lpo: { page: 'groups', transport: 'fetch' },
  Lpx: { page: 'groups', transport: 'xhr' },
  'uponce, fetch': { page: 'uponce', transport: 'fetch' },
  'uponce, XHR': { page: 'uponce', transport: 'xhr' },
  'Uppy, XHR, GoldenRetriever': { page: 'uppy', transport: 'xhr' },
  'tus-js-client': { page: 'tus', transport: 'xhr' },
  'Workbox queue': { page: 'workbox', transport: 'fetch' },
  'whole-file crypto.subtle': { page: 'hash-whole', transport: 'fetch' },
  'hash-wasm, one buffer': { page: 'hash-buffer', transport: 'fetch' },
  'uponce digest': { page: 'hash-uponce', transport: 'fetch' },
  'bare put': { page: 'put', transport: 'fetch' },
} satisfies Record<string, Entrant>

export type Name = keyof typeof entrants
