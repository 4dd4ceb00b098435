import { readFile, stat } from 'node:fs/promises'
import { extname, join, resolve, sep } from 'node:path'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { Refusal } from './answer.js'
import { newVisitor } from './caller.js'
import { headersOf } from './node-http.js'

const TYPES: Record<string, string> = {
  '.css': 'text/css; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.ico': 'image/x-icon',
  '.jpg': 'image/jpeg',
  '.js': 'text/javascript; charset=utf-8',
  '.json': 'application/json',
  '.map': 'application/json',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
  '.webmanifest': 'application/manifest+json',
  '.webp': 'image/webp',
  '.woff2': 'font/woff2',
}

const NOT_BUILT = `The demo page has not been built. Run

    npm run build && npm run build:page

and load this address again. The upload endpoint works without it.
`

/** Previews of picked files are blob: addresses. */
const PAGE_POLICY = "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

const isFile = async (path: string): Promise<boolean> => {
  try {
    return (await stat(path)).isFile()
  } catch {
    return false
  }
}

/** Where the page's files are. Vite puts all but a few into assets/, and has no folders below. */
export const PAGE_ROUTES = ['/', '/:name', '/assets/:name'] as const

/** The built page under `/`, from `folder`. The first load gives a visitor the cookie. */
export function addPageRoutes(app: FastifyInstance, folder: string): void {
  const root = resolve(folder)

  const answer = async (reply: FastifyReply, request: FastifyRequest, name: string): Promise<FastifyReply> => {
    const path = resolve(join(root, name))
    if (name.includes('\0') || !path.startsWith(root + sep)) throw new Refusal('not_found')
    reply.header('Content-Security-Policy', PAGE_POLICY)
    if (name === 'index.html') {
      const cookie = newVisitor(headersOf(request.raw))
      if (cookie) reply.header('Set-Cookie', cookie)
    }
    if (!(await isFile(path))) {
      if (name === 'index.html')
        return reply.code(503).type('text/plain; charset=utf-8').header('Cache-Control', 'no-store').send(NOT_BUILT)
      throw new Refusal('not_found')
    }
    // Vite puts a digest into the names below assets/, so these never change.
    const cache = name.startsWith('assets/') ? 'public, max-age=31536000, immutable' : 'no-cache'
    return reply
      .type(TYPES[extname(name)] ?? 'application/octet-stream')
      .header('Cache-Control', cache)
      .send(await readFile(path))
  }

  for (const route of PAGE_ROUTES) {
    const prefix = route.slice(1).replace(':name', '')
    app.get<{ Params: { name?: string } }>(route, (request, reply) =>
      answer(reply, request, `${prefix}${request.params.name ?? 'index.html'}`),
    )
  }
}
