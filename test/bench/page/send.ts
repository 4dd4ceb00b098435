import type { Setting } from './contestant.js'

/** One request, as bare as can be. Rejects unless it is answered with a 2xx. */
export type Send = (body: Blob | ArrayBuffer, name: string, sha256: string) => Promise<void>

const headersOf = (name: string, sha256: string): [string, string][] => [
  ['Content-Type', 'application/octet-stream'],
  ['Idempotency-Key', crypto.randomUUID()],
  ['X-File-Sha256', sha256],
  ['X-File-Name', name],
]

export function createSend({ endpoint, transport }: Setting): Send {
  if (transport === 'fetch')
    return async (body, name, sha256) => {
      const response = await fetch(endpoint, { method: 'POST', body, headers: headersOf(name, sha256) })
      if (!response.ok) throw new Error(`answered ${response.status}`)
      await response.text()
    }
  return (body, name, sha256) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest()
      request.open('POST', endpoint)
      for (const [header, value] of headersOf(name, sha256)) request.setRequestHeader(header, value)
      request.onload = () => (request.status < 300 ? resolve() : reject(new Error(`answered ${request.status}`)))
      request.onerror = () => reject(new Error('no answer'))
      request.send(body)
    })
}

/** A few at a time, in order. */
export async function eachOf<Item>(items: Iterable<Item>, atOnce: number, work: (item: Item) => Promise<void>): Promise<void> {
  const rest = items[Symbol.iterator]()
  const lane = async (): Promise<void> => {
    for (let next = rest.next(); !next.done; next = rest.next()) await work(next.value)
  }
  await Promise.all(Array.from({ length: atOnce }, lane))
}
