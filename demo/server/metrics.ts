import type { FastifyInstance } from 'fastify'
import type { UploadEvent } from './handler.js'

/** Of this process, since it began. Names and units as https://prometheus.io/docs/practices/naming/ has them. */
const COUNTERS = {
  claims: ['uponce_claims_total', 'Requests carried out under a key that nobody held.'],
  takeovers: [
    'uponce_takeovers_total',
    'Requests carried out under a key whose holder had not been heard of, or whose answer had expired.',
  ],
  replays: ['uponce_replays_total', 'Requests answered with the stored answer of an earlier one.'],
  conflicts: ['uponce_conflicts_total', 'Requests answered 409, since another one with their key was being carried out.'],
  mismatches: ['uponce_mismatches_total', 'Requests answered 422, since their key belongs to another request.'],
  tooMany: ['uponce_too_many_total', 'Requests answered 429, since too many of their owner were being carried out.'],
  fenced: ['uponce_fenced_total', 'Requests whose key was taken over while they were carried out.'],
  released: ['uponce_released_total', 'Requests that ended without an answer to keep, so that their key was free again.'],
  answersStored: ['uponce_answers_stored_total', 'Answers stored that have no new file behind them.'],
  filesStored: ['uponce_files_stored_total', 'Files stored.'],
  rejected: ['uponce_rejected_total', 'Answers 400 to 499 of the upload endpoint.'],
  failed: ['uponce_failed_total', 'Answers 500 to 599 of the upload endpoint.'],
  uploadBytes: ['uponce_upload_bytes_total', 'Bytes of request bodies that the upload endpoint has read.'],
  reaped: ['uponce_reaped_total', 'Rows of expired answers and dead claims that were removed.'],
  swept: ['uponce_swept_objects_total', 'Objects without a file that were removed.'],
} as const

type Counter = keyof typeof COUNTERS

const OF_EVENT: Partial<Record<UploadEvent['type'], Counter>> = {
  claimed: 'claims',
  'taken-over': 'takeovers',
  replayed: 'replays',
  conflict: 'conflicts',
  mismatch: 'mismatches',
  'too-many': 'tooMany',
  fenced: 'fenced',
  committed: 'filesStored',
  stored: 'answersStored',
  released: 'released',
}

export interface Metrics {
  /** For `onEvent` of the handler, and of the other faces of the engine. */
  count(event: UploadEvent): void
  /** What a sweep has removed. */
  swept(removed: { reaped: number; deleted: number }): void
  /** In Prometheus' text format, version 0.0.4. */
  text(): string
}

/** @param uploadsInFlight how many are being carried out now */
export function createMetrics(uploadsInFlight: () => number): Metrics {
  const counts = Object.fromEntries(Object.keys(COUNTERS).map((counter) => [counter, 0])) as Record<Counter, number>
  const lines = (name: string, help: string, type: 'counter' | 'gauge', value: number): string =>
    `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${name} ${value}\n`

  return {
    count(event) {
      const counter = OF_EVENT[event.type]
      if (counter) counts[counter]++
      if (event.type !== 'answered') return
      counts.uploadBytes += event.receivedBytes
      if (event.status >= 500) counts.failed++
      else if (event.status >= 400) counts.rejected++
    },
    swept({ reaped, deleted }) {
      counts.reaped += reaped
      counts.swept += deleted
    },
    text: () =>
      Object.entries(COUNTERS)
        .map(([counter, [name, help]]) => lines(name, help, 'counter', counts[counter as Counter]))
        .concat(lines('uponce_uploads_in_flight', 'Requests to the upload endpoint that have no answer yet.', 'gauge', uploadsInFlight()))
        .join(''),
  }
}

/** `GET /metrics`, for Prometheus. It tells nothing about owners, keys or files. */
export function addMetricsRoute(app: FastifyInstance, metrics: Metrics): void {
  app.get('/metrics', async (_request, reply) =>
    reply.type('text/plain; version=0.0.4; charset=utf-8').header('Cache-Control', 'no-store').send(metrics.text()),
  )
}
