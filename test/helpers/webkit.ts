import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import type { Engine, EnginePage } from './engine.js'
import { makeTempFolder } from './temp-folder.js'

/** WebKitGTK over WebDriver (https://w3c.github.io/webdriver/), on a virtual screen. `ephemeral`: as a private window, which keeps nothing. */
export const launchWebKit = async ({ ephemeral = false } = {}): Promise<Engine> => {
  const folder = await makeTempFolder('webkit')
  const data = folder.path
  const port = await freePort()
  const places = { HOME: data, TMPDIR: data, XDG_DATA_HOME: data, XDG_CACHE_HOME: data }
  const driver = spawn('xvfb-run', ['--auto-servernum', 'WebKitWebDriver', '--host=127.0.0.1', `--port=${port}`], {
    stdio: 'ignore',
    detached: true,
    env: { ...process.env, ...places, WEBKIT_DATA: ephemeral ? '' : data },
  })
  const exited = once(driver, 'exit')
  const kill = (): void => void process.kill(-driver.pid!, 'SIGTERM')
  process.once('exit', kill)
  const stop = async (): Promise<void> => {
    process.off('exit', kill)
    kill()
    await exited
    await folder.remove()
  }
  try {
    const call = createCall(`http://127.0.0.1:${port}`)
    await untilReady(call)
    return await openSession(call, stop)
  } catch (error) {
    await stop()
    throw error
  }
}

const openSession = async (call: Call, stop: () => Promise<void>): Promise<Engine> => {
  const binary = fileURLToPath(new URL('webkit-host.py', import.meta.url))
  const capabilities = { alwaysMatch: { browserName: 'webkit-host', 'webkitgtk:browserOptions': { binary, args: [] } } }
  const { sessionId } = await call<{ sessionId: string }>('POST', '/session', { capabilities })
  const session = `/session/${sessionId}`
  await call('POST', `${session}/timeouts`, { script: 60_000, pageLoad: 30_000 })

  // A session speaks to one window at a time.
  let last: Promise<unknown> = Promise.resolve()
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const next = last.then(work)
    last = next.catch(() => {})
    return next
  }

  const pageOf = (handle: string): EnginePage => {
    const inWindow = <T>(method: string, path: string, body?: unknown): Promise<T> =>
      inTurn(async () => {
        await call('POST', `${session}/window`, { handle })
        return call<T>(method, session + path, body)
      })
    return {
      async goto(url) {
        await inWindow('POST', '/url', { url })
      },
      async reload() {
        await inWindow('POST', '/refresh', {})
      },
      async evaluate<T>(expression: string) {
        const script = `
          const done = arguments[arguments.length - 1]
          Promise.resolve().then(() => (${expression})).then((value) => done({ value }), (error) => done({ error: error.name + ': ' + error.message }))
        `
        const { value, error } = await inWindow<{ value: T; error?: string }>('POST', '/execute/async', { script, args: [] })
        if (error) throw new Error(error)
        return value
      },
      async close() {
        await inWindow('DELETE', '/window')
      },
    }
  }

  const first = await call<string>('GET', `${session}/window`)
  return {
    ...pageOf(first),
    async newPage() {
      const { handle } = await inTurn(async () => {
        // The window that was spoken to last may have been closed.
        await call('POST', `${session}/window`, { handle: first })
        return call<{ handle: string }>('POST', `${session}/window/new`, { type: 'window' })
      })
      return pageOf(handle)
    },
    async close() {
      await call('DELETE', session).catch(() => {})
      await stop()
    },
  }
}

const freePort = async (): Promise<number> => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('No free port.')
  return address.port
}

type Call = <T>(method: string, path: string, body?: unknown) => Promise<T>

const createCall =
  (base: string): Call =>
  async (method, path, body) => {
    const content = body === undefined ? {} : { body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } }
    // the driver waits for ever for a browser that does not start
    const response = await fetch(base + path, { method, ...content, signal: AbortSignal.timeout(90_000) })
    const { value } = await response.json()
    if (!response.ok) throw new Error(`WebDriver ${method} ${path}: ${value.error}: ${value.message}`)
    return value
  }

const untilReady = async (call: Call): Promise<void> => {
  const end = Date.now() + 10_000
  for (;;) {
    try {
      await call('GET', '/status')
      return
    } catch (error) {
      if (Date.now() > end) throw new Error('WebKitWebDriver did not start.', { cause: error })
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}
