import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { Refusal } from './answer.js'
import { callerOf } from './caller.js'
import type { KeyStore, StoredMedia } from './keys.js'
import { setCaption } from './keys-sql.js'
import { headersOf } from './node-http.js'
import type { ObjectStore } from './objects.js'

/** What a page may know of a file. */
export const describeMedia = ({
  id,
  fileName,
  contentType,
  bytes,
  sha256,
  storageKey,
  key,
  metadata,
  createdAt,
  caption,
}: StoredMedia) => ({
  id,
  fileName,
  contentType,
  bytes,
  sha256,
  storageKey,
  key,
  metadata,
  createdAt: createdAt.toISOString(),
  caption,
})

export const MEDIA_LIST_LIMIT = 1000

/** The owner of a request. Throws `unauthorized`. */
export function ownerOf(request: FastifyRequest): string {
  const caller = callerOf(headersOf(request.raw))
  if (!caller) throw new Refusal('unauthorized', [['WWW-Authenticate', 'Bearer']])
  return caller.owner
}

/** RFC 6266, with the name in UTF-8 (RFC 8187). Always an attachment: a stored page must not run under this origin. */
const attachment = (fileName: string | null): string => {
  if (fileName === null) return 'attachment'
  const encoded = encodeURIComponent(fileName).replace(/['()*]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`)
  return `attachment; filename*=UTF-8''${encoded}`
}

/** `GET /media` and `GET /media/:id`: the caller's own files, and nobody else's. */
export function addMediaRoutes(app: FastifyInstance, { keys, objects }: { keys: KeyStore; objects: ObjectStore }): void {
  app.get('/media', async (request, reply) => {
    const own = await keys.listMedia(ownerOf(request), MEDIA_LIST_LIMIT)
    return reply.header('Cache-Control', 'no-store').send(own.map(describeMedia))
  })
  app.get<{ Params: { id: string } }>('/media/:id', async (request, reply) => {
    const media = await keys.mediaById(ownerOf(request), request.params.id)
    const bytes = media && (await objects.open(media.storageKey))
    if (!media || !bytes) throw new Refusal('not_found')
    return reply
      .headers({
        'Content-Type': media.contentType,
        'Content-Length': media.bytes,
        'Content-Disposition': attachment(media.fileName),
        'Content-Security-Policy': 'sandbox',
        'Cache-Control': 'private, no-cache',
      })
      .send(Readable.fromWeb(bytes as never))
  })
}

/** Text as PostgreSQL can keep it. */
export const STORABLE_TEXT = '^[^\\u0000]*$'

const CAPTION = {
  type: 'object',
  required: ['caption'],
  properties: { caption: { type: ['string', 'null'], maxLength: 2000, pattern: STORABLE_TEXT } },
}

/** `PATCH /media/:id` with `{ caption }`: 200 and the file. For a scope with the idempotency plugin. */
export function addCaptionRoute(app: FastifyInstance): void {
  app.patch<{ Params: { id: string }; Body: { caption: string | null } }>('/media/:id', { schema: { body: CAPTION } }, (request, reply) =>
    request.idempotency.transaction(reply, async (tx) => {
      const media = await setCaption(tx, ownerOf(request), request.params.id, request.body.caption)
      if (!media) throw new Refusal('media_unknown')
      return describeMedia(media)
    }),
  )
}
