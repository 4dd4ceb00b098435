import { createHash } from 'node:crypto'
import type { Server } from './server.js'

/** One request as the server saw it. */
interface SeenRequest {
  /** Null while it runs, and when no answer was sent. */
  status: number | null
  bytes: number
  replayed: boolean
  fault: string | null
  /** Sent again by the browser itself, within one and the same `fetch()`. */
  copy: boolean
}

interface ServerState {
  media: { id: string; key: string; fileName: string; contentType: string; bytes: number; sha256: string }[]
  /** Since the server started. */
  keys: { key: string; requests: SeenRequest[] }[]
  objects: number
}

interface Fault {
  fault: 'lose-answer' | 'cut-body' | 'unavailable' | 'too-many' | 'server-error' | 'slow' | 'away'
  times?: number
  seconds?: number
}

/** One user of the server, seen from the server's side. */
export interface Account {
  name: string
  headers: { Authorization: string }
  state(): Promise<ServerState>
  /** Orders that the next requests of this account go wrong. */
  order(fault: Fault): Promise<void>
  /** Nothing goes wrong any more. */
  endFaults(): Promise<void>
  /** SHA-256 of a file as the server hands it out. */
  digestOfMedia(id: string): Promise<string>
}

export const createAccount = (server: Server, name: string): Account => {
  const headers = { Authorization: `Bearer ${name}` }
  const request = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const response = await fetch(server.url + path, { ...init, headers: { ...headers, ...init.headers } })
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
    return response
  }
  return {
    name,
    headers,
    state: async () => (await request('/demo/state')).json(),
    async order(fault) {
      await request('/demo/faults', { method: 'POST', body: JSON.stringify(fault), headers: { 'Content-Type': 'application/json' } })
    },
    async endFaults() {
      await request('/demo/faults', { method: 'DELETE' })
    },
    async digestOfMedia(id) {
      const hash = createHash('sha256')
      for await (const chunk of (await request(`/media/${id}`)).body!) hash.update(chunk)
      return hash.digest('hex')
    },
  }
}
