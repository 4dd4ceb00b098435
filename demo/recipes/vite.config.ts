import { existsSync, readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { compile } from 'svelte/compiler'
import { type Connect, defineConfig, type Plugin, type UserConfig } from 'vite'
import { compileScript, parse } from 'vue/compiler-sfc'
import { createMultipart } from './multipart/server.js'
import { createPresign } from './presigned/server.js'

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url))
const recipes = readdirSync(here('.')).filter((name) => existsSync(here(`${name}/index.html`)))
const { env } = process

/** What `@vitejs/plugin-vue` and `@sveltejs/vite-plugin-svelte` do in an app, as far as one component needs it. */
const components = (): Plugin => ({
  name: 'components',
  transform(code, id) {
    if (id.endsWith('.svelte')) return { code: compile(code, { filename: id }).js.code, map: null }
    if (id.endsWith('.vue')) return { code: compileScript(parse(code, { filename: id }).descriptor, { id, inlineTemplate: true }).content }
    return undefined
  },
})

/** The two servers of an app's own that recipes bring along. */
const servers = (): Plugin => {
  const use = ({ middlewares }: { middlewares: Connect.Server }): void => {
    middlewares.use(createMultipart(env.MULTIPART_DIR ?? here('../../.data/multipart')))
    const { S3_ENDPOINT, S3_BUCKET, S3_REGION: region = 'us-east-1', AWS_ACCESS_KEY_ID = '', AWS_SECRET_ACCESS_KEY = '' } = env
    const keys = { accessKeyId: AWS_ACCESS_KEY_ID, secretAccessKey: AWS_SECRET_ACCESS_KEY }
    if (S3_ENDPOINT) middlewares.use('/presign', createPresign({ url: `${S3_ENDPOINT}/${S3_BUCKET}`, region, ...keys }))
  }
  return { name: 'servers', configureServer: use, configurePreviewServer: use }
}

/** Uploads go to the server of `npm start`, which takes this name for a sign-in. */
const proxy = { '/uploads': { target: env.UPONCE_SERVER ?? 'http://localhost:3000', headers: { Authorization: 'Bearer me' } } }

const config: UserConfig = defineConfig({
  root: here('.'),
  base: './',
  plugins: [components(), servers()],
  resolve: {
    alias: [
      { find: /^uponce\/service-worker$/, replacement: here('../../dist/service-worker.js') },
      { find: /^uponce\/(.+)$/, replacement: here('../../dist/adapters/$1.js') },
      { find: 'uponce', replacement: here('../../dist/index.js') },
    ],
  },
  server: { proxy },
  preview: { proxy },
  build: {
    target: 'es2022',
    outDir: here('../../.build/recipes'),
    emptyOutDir: true,
    modulePreload: false,
    rolldownOptions: {
      input: { ...Object.fromEntries(recipes.map((name) => [name, here(`${name}/index.html`)])), sw: here('service-worker/sw.js') },
      // A worker keeps its address, below which it is in charge.
      output: { entryFileNames: ({ name }) => (name === 'sw' ? 'service-worker/sw.js' : 'assets/[name]-[hash].js') },
    },
  },
})
export default config
