import { createHash, randomUUID } from 'node:crypto'
import type { Caller } from './handler.js'

const COOKIE = 'uponce'

const cookieOf = (headers: Headers): string | null => {
  for (const pair of (headers.get('cookie') ?? '').split(';')) {
    const [name, value = ''] = pair.trim().split('=')
    if (name === COOKIE && /^[0-9a-f-]{36}$/.test(value)) return value
  }
  return null
}

/**
 * Who sends a request, in the demo: `Authorization: Bearer NAME` is NAME (a demo, not a password); else the visitor of the cookie, under a name
 * that does not give the cookie away and that no bearer can have. Null: nobody, or credentials that make no sense.
 */
export function callerOf(headers: Headers): Caller | null {
  const authorization = headers.get('authorization')
  if (authorization !== null) {
    const name = /^Bearer +([A-Za-z0-9._~+/-]{1,128}=*)$/i.exec(authorization.trim())?.[1]
    return name === undefined ? null : { owner: name }
  }
  const cookie = cookieOf(headers)
  if (cookie === null) return null
  return { owner: `visitor:${createHash('sha256').update(cookie).digest('hex').slice(0, 32)}`, ambient: true }
}

/** The `Set-Cookie` for a visitor who has none yet; null for one who has. A year, as long as browsers keep any. */
export const newVisitor = (headers: Headers): string | null =>
  cookieOf(headers) === null ? `${COOKIE}=${randomUUID()}; Path=/; HttpOnly; SameSite=Lax; Max-Age=31536000` : null
