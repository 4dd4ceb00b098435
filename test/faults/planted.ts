import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Code } from './worker.js'

const server = fileURLToPath(new URL('../../demo/server/', import.meta.url))
const build = fileURLToPath(new URL('../../.build/planted/', import.meta.url))

/** A fault in the server's code: `from` becomes `to`. Or in its schema. */
export interface Planted {
  name: string
  file?: string
  from?: string
  to?: string
  schema?: string
  /** The first seed tried, where only a rare order of events tells; default 1. */
  firstSeed?: number
}

const UNFENCED = 'owner = $1 AND key = $2 AND $3::uuid IS NOT NULL'

export const plantedFaults: Planted[] = [
  {
    name: 'a commit without the fence',
    file: 'keys-sql.ts',
    from: `  WHERE \${HELD} RETURNING 1\`\n\nconst PUBLISH`,
    to: `  WHERE ${UNFENCED} RETURNING 1\`\n\nconst PUBLISH`,
  },
  { name: 'media without UNIQUE', firstSeed: 176, schema: 'ALTER TABLE media DROP CONSTRAINT media_owner_idempotency_key_key' },
  {
    name: 'a reaper that looks at the time alone',
    file: 'keys-sql.ts',
    from: `expires_at < now() AND (state = 'completed' OR leased_until < now()) LIMIT`,
    to: 'expires_at < now() LIMIT',
  },
  {
    name: 'no look at the digest',
    file: 'handler.ts',
    from: `if (hash.digest('hex') !== upload.sha256) throw`,
    to: `if (hash.digest('hex') === '') throw`,
  },
  {
    name: 'a release without the fence',
    file: 'keys-sql.ts',
    from: `DELETE FROM idempotency_keys WHERE \${HELD}`,
    to: `DELETE FROM idempotency_keys WHERE ${UNFENCED}`,
  },
  {
    name: 'a renewal without the fence',
    file: 'keys-sql.ts',
    from: `interval '1 millisecond' WHERE \${HELD} RETURNING 1`,
    to: `interval '1 millisecond' WHERE ${UNFENCED} AND state = 'in_flight' RETURNING 1`,
  },
  {
    name: 'a commit of an object that the sweeper has taken',
    firstSeed: 68,
    file: 'keys-sql.ts',
    from: 'WHERE storage_key = $1 AND dead_at IS NULL RETURNING 1',
    to: 'WHERE storage_key = $1 AND true RETURNING 1',
  },
  {
    name: 'a lost answer to COMMIT taken for a failure',
    firstSeed: 176,
    file: 'handler.ts',
    from: 'if (error instanceof StoreError) return findOut(claim, operation, staged)',
    to: 'if (error instanceof StoreError) return giveUp(claim, operation, staged, error)',
  },
  {
    name: 'an object forgotten that may come back',
    file: 'handler.ts',
    from: 'if (!staged.writer?.isUnsettled?.()) await',
    to: 'await',
  },
  {
    name: 'an answer sent although its claim is lost',
    file: 'idempotency.ts',
    from: "if (fate === 'store' && !(await claim.store(answer))) return await afterFence(operation)",
    to: "if (fate === 'store' && !(await claim.store(answer))) return null",
  },
  {
    name: 'a key set free though its handler may have done half of its work',
    file: 'wrapper.ts',
    from: "if (respondPolicy({ status: 500, thrown: true }) === 'release') await",
    to: 'await',
  },
]

/** The server's code with the fault in it, loaded from a copy. */
export async function plant({ name, file, from, to }: Planted): Promise<Code> {
  const folder = `${build}${name.replaceAll(' ', '-')}/`
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true })
  await cp(server, folder, { recursive: true })
  if (file !== undefined) {
    const [before, after, ...more] = (await readFile(folder + file, 'utf8')).split(from!)
    if (after === undefined || more.length > 0) throw new Error(`${file} does not say exactly once: ${from}`)
    await writeFile(folder + file, before + to! + after)
  }
  const [handler, idempotency, keys, wrapper] = await Promise.all(
    ['handler.ts', 'idempotency.ts', 'keys-sql.ts', 'wrapper.ts'].map((module) => import(/* @vite-ignore */ folder + module)),
  )
  return {
    createUploadHandler: handler.createUploadHandler,
    createIdempotency: idempotency.createIdempotency,
    createSqlKeys: keys.createSqlKeys,
    createIdempotentHandler: wrapper.createIdempotentHandler,
  }
}
