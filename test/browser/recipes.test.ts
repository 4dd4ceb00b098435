import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises'
import { createServer, type Server as HttpServer, request as httpRequest } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { AwsClient } from 'aws4fetch'
import { build, type PreviewServer, preview } from 'vite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { S3Options } from '../../demo/server/objects-s3.js'
import { type Account, createAccount } from '../helpers/account.js'
import { type Chromium, launchChromium } from '../helpers/chromium.js'
import { describeWith } from '../helpers/describe-with.js'
import { startFront } from '../helpers/front.js'
import { programs } from '../helpers/programs.js'
import { startS3 } from '../helpers/s3.js'
import { type Server, startServer } from '../helpers/server.js'
import { makeTempFolder, type TempFolder } from '../helpers/temp-folder.js'

const configFile = fileURLToPath(new URL('../../demo/recipes/vite.config.ts', import.meta.url))

/** Whether what has been stored is answered. */
let isAnswering = true
const answers: (() => void)[] = []
const answered = (): Promise<void> | number => (isAnswering ? 0 : new Promise<void>((resolve) => answers.push(resolve)))

/** Digests of what is stored, by something that tells one upload from another; what is stored twice is there twice. */
type Stored = () => Promise<string[]>

/** S3 as the presigned recipe has it: a real one where it is installed, else a server that stores what is sent to a URL that was signed. */
interface Bucket {
  options: S3Options
  stored: Stored
  stop(): Promise<void>
}

const digestOf = (bytes: string | Uint8Array): string => createHash('sha256').update(bytes).digest('hex')
const listen = async (server: HttpServer): Promise<string> => {
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
const corsRules = `<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>${[
  'idempotency-key',
  'x-file-sha256',
  'x-file-name',
  'upload-metadata',
  'content-type',
]
  .map((name) => `<AllowedHeader>${name}</AllowedHeader>`)
  .join('')}</CORSRule></CORSConfiguration>`

/** Its answers come by way of a server that withholds them. The host is signed: it stays as it was sent. */
const startRealBucket = async (): Promise<Bucket> => {
  const s3 = await startS3()
  const { endpoint, bucket, accessKeyId, secretAccessKey, region } = s3
  const aws = new AwsClient({ accessKeyId, secretAccessKey, region, service: 's3' })
  const ask = async (path: string, init?: RequestInit): Promise<Response> => {
    const answer = await aws.fetch(`${endpoint}/${bucket}${path}`, init)
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`)
    return answer
  }
  const md5 = createHash('md5').update(corsRules).digest('base64')
  await ask('?cors', { method: 'PUT', body: corsRules, headers: { 'Content-MD5': md5 } })
  const server = createServer((request, response) => {
    const { method, url, headers } = request
    const forward = httpRequest(endpoint + url, { method, headers }, async (answer) => {
      if (method === 'PUT') await answered()
      response.writeHead(answer.statusCode as number, answer.headers)
      answer.pipe(response)
    })
    forward.on('error', () => response.destroy())
    request.pipe(forward)
  })
  return {
    options: { ...s3, endpoint: await listen(server) },
    async stored() {
      const keys = [...(await (await ask('?list-type=2')).text()).matchAll(/<Key>([^<]*)</g)].map(([, key]) => key)
      return Promise.all(keys.map(async (key) => digestOf(new Uint8Array(await (await ask(`/${key}`)).arrayBuffer()))))
    },
    async stop() {
      server.closeAllConnections()
      server.close()
      await s3.stop()
    },
  }
}

const startBucket = async (): Promise<Bucket> => {
  if (programs.rados.path) return startRealBucket()
  const objects = new Map<string, string>()
  const server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://localhost')
    response.setHeader('Access-Control-Allow-Origin', '*')
    response.setHeader('Access-Control-Allow-Methods', 'PUT')
    response.setHeader('Access-Control-Allow-Headers', 'idempotency-key, x-file-sha256, x-file-name, content-type')
    if (request.method !== 'PUT') return response.end()
    const hash = createHash('sha256')
    for await (const chunk of request) hash.update(chunk)
    if (!searchParams.get('X-Amz-Signature')) return response.writeHead(403).end()
    objects.set(pathname, hash.digest('hex'))
    await answered()
    return response.end()
  })
  return {
    options: { endpoint: await listen(server), bucket: 'bucket', region: 'us-east-1', accessKeyId: 'id', secretAccessKey: 'secret' },
    stored: async () => [...objects.values()],
    async stop() {
      server.closeAllConnections()
      server.close()
    },
  }
}

describeWith(programs.chromium, 'the recipes', () => {
  let folder: TempFolder
  let server: Server
  let account: Account
  let chromium: Chromium
  let bucket: Bucket
  let pages: PreviewServer
  const before = { ...process.env }

  beforeAll(async () => {
    folder = await makeTempFolder('recipes')
    await mkdir(join(folder.path, 'multipart'))
    bucket = await startBucket()
    server = await startServer()
    account = createAccount(server, 'me')
    Object.assign(process.env, {
      UPONCE_SERVER: server.url,
      MULTIPART_DIR: join(folder.path, 'multipart'),
      S3_ENDPOINT: bucket.options.endpoint,
      S3_BUCKET: bucket.options.bucket,
      S3_REGION: bucket.options.region,
      AWS_ACCESS_KEY_ID: bucket.options.accessKeyId,
      AWS_SECRET_ACCESS_KEY: bucket.options.secretAccessKey,
    })
    const outDir = join(folder.path, 'site')
    await build({ configFile, logLevel: 'warn', build: { outDir } })
    pages = await preview({ configFile, logLevel: 'silent', build: { outDir }, preview: { port: 0, host: '127.0.0.1' } })
    chromium = await launchChromium()
  })
  afterAll(async () => {
    process.env = before
    await chromium?.close()
    await pages?.close()
    await server?.stop()
    await bucket?.stop()
    await folder?.remove()
  })

  const inServer: Stored = async () => (await account.state()).media.map(({ sha256 }) => sha256)
  const inFolder: Stored = async () => {
    const path = join(folder.path, 'multipart/files')
    const names = await readdir(path).catch(() => [])
    return Promise.all(
      names.map(async (name) =>
        createHash('sha256')
          .update(await readFile(join(path, name)))
          .digest('hex'),
      ),
    )
  }
  const inBucket: Stored = () => bucket.stored()

  const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 20_000, interval: 50 })

  test.each([
    ['plain', inServer],
    ['multipart', inFolder],
    ['presigned', inBucket],
    ['vue', inServer],
    ['svelte', inServer],
    ['react', inServer],
    ['service-worker', inServer],
  ] as [string, Stored][])('%s: two files, their answers lost, the page reloaded: one object each', async (name, stored) => {
    const files = ['one.txt', 'two.txt'].map((file) => ({ name: file, path: join(folder.path, file), bytes: randomBytes(50_000) }))
    for (const { path, bytes } of files) await writeFile(path, bytes)
    const digests = files.map(({ bytes }) => createHash('sha256').update(bytes).digest('hex'))
    const copies = async (): Promise<number[]> => {
      const all = await stored()
      return digests.map((digest) => all.filter((each) => each === digest).length)
    }

    isAnswering = false
    const { port } = pages.httpServer.address() as AddressInfo
    // An origin of its own for each, and so a database.
    const front = await startFront({ ...server, url: `http://127.0.0.1:${port}` }, new Map(), answered)
    const page = await chromium.newPage()
    await page.goto(`${front.url}/${name}/`)
    const states = (): Promise<string[]> => page.locator('li').allTextContents()
    await page.setInputFiles(
      'input:not([disabled])',
      files.map(({ path }) => path),
    )
    if (await page.locator('button').count()) await page.click('button')
    await eventually(copies).toEqual([1, 1])
    await eventually(states).toEqual(['one.txt: uploading', 'two.txt: uploading'])
    isAnswering = true
    await page.reload()
    await eventually(states).toEqual(['one.txt: succeeded', 'two.txt: succeeded'])
    expect(await copies()).toEqual([1, 1])
    await page.close()
    for (const answer of answers.splice(0)) answer()
    await front.stop()
  })

  test('service-worker: what a closed page has left is sent without it, and the page opens with no network', async () => {
    const bytes = randomBytes(50_000)
    const digest = createHash('sha256').update(bytes).digest('hex')
    const { port } = pages.httpServer.address() as AddressInfo
    const front = await startFront({ ...server, url: `http://127.0.0.1:${port}` }, new Map(), answered)
    const page = await chromium.newPage()
    await page.goto(`${front.url}/service-worker/`)
    await page.evaluate(() => navigator.serviceWorker.ready)
    // What it loads from here on goes through the worker, and is kept.
    await page.reload()
    await page.waitForLoadState('networkidle')
    isAnswering = false
    await page.setInputFiles('input', { name: 'left.txt', mimeType: 'text/plain', buffer: bytes })
    const copies = async (): Promise<number> => (await inServer()).filter((each) => each === digest).length
    await eventually(copies).toBe(1)
    isAnswering = true
    await page.close()
    const isReplayed = async (): Promise<boolean> => {
      const { keys } = await account.state()
      return keys.some(({ key, requests }) => key === front.passages[0]?.key && requests.some(({ replayed }) => replayed))
    }
    await eventually(isReplayed).toBe(true)
    await eventually(() => front.passages.every(({ isOver }) => isOver)).toBe(true)
    expect(await copies()).toBe(1)
    for (const answer of answers.splice(0)) answer()
    await front.stop()
    const later = await chromium.newPage()
    await later.goto(`${front.url}/service-worker/`)
    await eventually(() => later.locator('li').allTextContents()).toEqual(['left.txt: succeeded'])
    await later.close()
  })
})
