import { copyFileSync, mkdirSync, readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build as bundle } from 'esbuild'
import { build as buildPackage } from 'vite'

const at = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url))
const dist = at('.build/bench/dist/')
const pages = at('test/bench/page/')

/** Builds the package and the contestants' pages, each with everything it needs and nothing else. Returns the folder. */
export async function buildSite(): Promise<string> {
  const folder = at('.build/bench/site/')
  const configFile = at('vite.config.ts')
  for (const mode of ['production', 'worker'])
    await buildPackage({ configFile, root: at('.'), mode, logLevel: 'error', build: { outDir: dist, minify: false } })
  mkdirSync(folder, { recursive: true })
  for (const name of readdirSync(dist)) if (name.endsWith('.js')) copyFileSync(dist + name, folder + name)
  await bundle({
    entryPoints: readdirSync(pages).map((name) => pages + name),
    outdir: folder,
    alias: { uponce: `${dist}index.js` },
    define: { 'process.env.NODE_ENV': '"production"' },
    bundle: true,
    // Names stay, for profiles.
    minifyWhitespace: true,
    minifySyntax: true,
    format: 'esm',
    target: 'es2022',
    logLevel: 'error',
  })
  return folder
}
