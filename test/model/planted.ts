import type { Swap } from './code.js'

/** A fault in the product, and where to put it. */
export interface Planted {
  name: string
  swaps: Swap[]
}

const inPage = (file: string, from: string, to: string): Swap => ({ file: `src/${file}`, from, to })
const inServer = (file: string, from: string, to: string): Swap => ({ file: `demo/server/${file}`, from, to })

export const plantedFaults: Planted[] = [
  {
    name: 'a key for each attempt',
    swaps: [inPage('wire.ts', `'Idempotency-Key': record.idempotencyKey`, `'Idempotency-Key': crypto.randomUUID()`)],
  },
  {
    name: 'a record deleted before it is sent',
    swaps: [
      inPage('store.ts', `rows.put('uploads', id, after)`, `rows.put('uploads', id, after.status === 'uploading' ? undefined : after)`),
    ],
  },
  {
    name: 'attempts that are not stored',
    swaps: [inPage('store.ts', `rows.put('uploads', id, after)`, `rows.put('uploads', id, { ...after, attempts: before.attempts })`)],
  },
  {
    name: 'a lock that is not waited for',
    swaps: [inPage('tabs.ts', 'else if (locks?.request) byLock(locks)', 'else if (locks?.request) setRunner(true)')],
  },
  {
    name: 'a claim without its fence',
    swaps: [inServer('keys.ts', `row?.state === 'in_flight' && row.fence === fence`, `row?.state === 'in_flight' && fence !== ''`)],
  },
  {
    name: 'no look at the digest',
    swaps: [inServer('handler.ts', `if (hash.digest('hex') !== upload.sha256) throw`, `if (hash.digest('hex') === '') throw`)],
  },
  {
    // PostgreSQL's jsonb puts shorter names first.
    name: 'a replay of what jsonb made of the answer',
    swaps: [
      inServer(
        'keys.ts',
        'row.answer = structuredClone(answer)',
        `const text = Buffer.from(answer.body).toString()
    const entries = text.startsWith('{') ? Object.entries(JSON.parse(text)) : []
    const sorted = entries.sort(([a], [b]) => a.length - b.length || (a < b ? -1 : 1))
    row.answer = { ...answer, body: entries.length > 0 ? Buffer.from(JSON.stringify(Object.fromEntries(sorted))) : answer.body }`,
      ),
    ],
  },
  {
    name: 'a Retry-After that is not obeyed',
    swaps: [
      inPage('verdict.ts', 'const told = outcome.retryAfter == null ? null :', 'const told = outcome.retryAfter !== undefined ? null :'),
    ],
  },
  {
    name: 'no look at the owner',
    swaps: [
      inPage('schedule.ts', 'record?.owner === owner', 'record !== undefined'),
      inPage('queue.ts', '(await findOwner()) === record.owner', '(await findOwner()) !== record.id'),
      inPage('runner.ts', 'if (deps.upload(id)?.owner !== deps.owner()) stop(id)', 'if (!deps.upload(id)) stop(id)'),
    ],
  },
  {
    name: 'a cancellation that is not stored',
    swaps: [inPage('store.ts', `rows.delete('uploads', id)\n            rows.delete('bytes', id)`, '')],
  },
]
