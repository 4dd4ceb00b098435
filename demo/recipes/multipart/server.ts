import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { link, mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import express, { type Express } from 'express'
import multer from 'multer'

/**
 * Takes a form with one file. What makes a repeat harmless: the file is stored under its idempotency key, by `link`, which succeeds once; and the
 * answer says nothing that a repeat could not say as well. With accounts, the account belongs to that name, too.
 */
export function createMultipart(folder: string): Express {
  const app = express()
  // Half a file has a random name of multer's, and is seen by nobody.
  const parse = multer({ dest: join(folder, 'parts') }).single('file')

  app.post('/multipart', parse, async (request, response) => {
    const key = request.get('Idempotency-Key') ?? ''
    const { file } = request
    try {
      if (!file || !/^[\w-]{16,64}$/.test(key)) {
        response.status(400).json({ error: 'idempotency_key_required' })
        return
      }
      const sha256 = await digest(file.path)
      if (sha256 !== request.get('X-File-Sha256')) {
        response.status(400).json({ error: 'digest_mismatch' })
        return
      }
      const stored = join(folder, 'files', key)
      await mkdir(join(folder, 'files'), { recursive: true })
      await link(file.path, stored).catch((error) => {
        if (error.code !== 'EEXIST') throw error
      })
      // The same key with another file is a client's mistake.
      if ((await digest(stored)) === sha256) response.status(201).json({ id: key })
      else response.status(422).json({ error: 'idempotency_key_reuse' })
    } finally {
      if (file) await rm(file.path, { force: true })
    }
  })
  return app
}

async function digest(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path)) hash.update(chunk)
  return hash.digest('hex')
}
