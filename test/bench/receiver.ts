/**
 * What contestants send to, in a process of its own: the reference server's upload handler with its keys in memory and the bytes hashed and
 * dropped, and a tus server, so that what is measured is the client. It serves their pages, too. `LATENCY`, ms, is added to every upload's answer.
 */
import { createReadStream, mkdtempSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { basename, extname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { FileStore } from '@tus/file-store'
import { EVENTS, Server as TusServer } from '@tus/server'
import { createUploadHandler } from '../../demo/server/handler.js'
import { createMemoryKeys } from '../../demo/server/keys.js'
import { sendResponse, toRequest } from '../../demo/server/node-http.js'
import type { ObjectStore } from '../../demo/server/objects.js'

const { SITE = '.', FOLDER = '.', LATENCY = '0' } = process.env
const nothing = async (): Promise<void> => {}

const dropping: ObjectStore = {
  create: async () => ({ write: nothing, finish: nothing, abort: nothing }),
  open: async () => null,
  delete: nothing,
  stat: async () => null,
  list: async () => [],
  check: nothing,
}

const handle = createUploadHandler({ keys: createMemoryKeys(), objects: dropping, authenticate: () => ({ owner: 'bench' }) })

const datastore = new FileStore({ directory: mkdtempSync(join(FOLDER, 'tus-')) })
const tus = new TusServer({ path: '/tus', datastore })
tus.on(EVENTS.POST_FINISH, (_request, _response, { id }) => void datastore.remove(id))

async function receive(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const answer = await handle(toRequest(incoming, outgoing))
  if (Number(LATENCY) > 0) await new Promise((resolve) => setTimeout(resolve, Number(LATENCY)))
  await sendResponse(answer, incoming, outgoing)
}

/** `/page/NAME` is the page that runs `NAME.js`. */
async function show(path: string, outgoing: ServerResponse): Promise<void> {
  const name = basename(path)
  if (extname(name) === '') {
    outgoing.writeHead(200, { 'Content-Type': 'text/html' })
    outgoing.end(`<!doctype html><meta charset="utf-8"><input type="file" multiple><script type="module" src="${name}.js"></script>`)
    return
  }
  outgoing.setHeader('Content-Type', 'text/javascript')
  await pipeline(createReadStream(join(SITE, name)), outgoing)
}

const server = createServer((incoming, outgoing) => {
  const { url: path = '/' } = incoming
  const serve = (): Promise<void> => {
    if (path.startsWith('/tus')) return tus.handle(incoming, outgoing)
    return path.startsWith('/page/') ? show(new URL(path, 'http://localhost').pathname, outgoing) : receive(incoming, outgoing)
  }
  serve().catch(() => outgoing.destroy())
})
server.listen(0, '127.0.0.1', () => console.log(`receiver on http://localhost:${(server.address() as AddressInfo).port}`))
