import { randomUUID } from 'node:crypto'
import type { FastifyInstance } from 'fastify'
import { Refusal } from './answer.js'
import type { Queryable } from './keys-sql.js'
import { ownerOf, STORABLE_TEXT } from './media.js'

interface Album {
  id: string
  title: string
  /** In the order in which they were given. */
  mediaIds: string[]
  createdAt: string
}

const ALBUM = {
  type: 'object',
  required: ['title', 'mediaIds'],
  properties: {
    title: { type: 'string', minLength: 1, maxLength: 200, pattern: STORABLE_TEXT },
    mediaIds: { type: 'array', maxItems: 1000, items: { type: 'string', format: 'uuid' } },
  },
}

const ALBUM_LIST_LIMIT = 1000

const INSERT_MEDIA = `
  INSERT INTO album_media (album_id, position, media_id)
  SELECT $1, given.position, media.id
  FROM jsonb_array_elements_text($2::jsonb) WITH ORDINALITY AS given (id, position)
  JOIN media ON media.id = given.id::uuid AND media.owner = $3
  RETURNING 1`

const LIST = `
  SELECT a.id, a.title, a.created_at,
    coalesce((SELECT jsonb_agg(am.media_id ORDER BY am.position) FROM album_media am WHERE am.album_id = a.id), '[]') AS media_ids
  FROM albums a WHERE a.owner = $1 ORDER BY a.created_at DESC LIMIT $2`

/** Throws `media_unknown` for a file that is not the owner's. */
async function insertAlbum(tx: Queryable, owner: string, title: string, mediaIds: string[]): Promise<Album> {
  const id = randomUUID()
  const [row] = await tx.query('INSERT INTO albums (id, owner, title) VALUES ($1, $2, $3) RETURNING created_at', [id, owner, title])
  const inserted = await tx.query(INSERT_MEDIA, [id, JSON.stringify(mediaIds), owner])
  if (inserted.length !== mediaIds.length) throw new Refusal('media_unknown')
  return { id, title, mediaIds, createdAt: (row!.created_at as Date).toISOString() }
}

/** `POST /albums` with `{ title, mediaIds }`: 201 and the album. For a scope with the idempotency plugin. */
export function addAlbumRoutes(app: FastifyInstance, database: Queryable): void {
  app.post<{ Body: { title: string; mediaIds: string[] } }>('/albums', { schema: { body: ALBUM } }, (request, reply) =>
    request.idempotency.transaction(reply, async (tx) => {
      const album = await insertAlbum(tx, ownerOf(request), request.body.title, request.body.mediaIds)
      reply.code(201)
      return album
    }),
  )
  app.get('/albums', async (request, reply) => {
    const rows = await database.query(LIST, [ownerOf(request), ALBUM_LIST_LIMIT])
    const albums: Album[] = rows.map((row) => ({
      id: row.id as string,
      title: row.title as string,
      mediaIds: row.media_ids as string[],
      createdAt: (row.created_at as Date).toISOString(),
    }))
    return reply.header('Cache-Control', 'no-store').send(albums)
  })
}
