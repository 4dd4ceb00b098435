import { fileURLToPath } from 'node:url'
import { buildPage, type Site } from '../../helpers/page.js'

const html = `<!doctype html><html lang="en"><meta charset="utf-8"><title>uponce with</title><link rel="stylesheet" href="page.css">
  <body><script type="module" src="page.js"></script></body></html>`

/** The page of an adapter with its framework, and the built package. */
export async function buildAdapterPage(name: string): Promise<Site> {
  const site = await buildPage(html, {
    entryPoints: [{ in: fileURLToPath(new URL(name, import.meta.url)), out: 'page' }],
  })
  // Not every framework brings one.
  return new Map([['page.css', new Uint8Array()], ...site])
}
