import { EnvironmentError, readEnvironment } from './environment.js'
import { FolderUnusable, missingFolders } from './folder.js'
import { FolderInUse } from './lock.js'
import { ObjectStoreError } from './objects.js'
import { type ServerConfig, startServer } from './server.js'

/** One line for whoever started the server. */
function explain(error: unknown, { port, host, dataDir, databaseUrl }: ServerConfig): string {
  const { code, message } = error as NodeJS.ErrnoException
  if (error instanceof FolderInUse) return `DATA_DIR ${message}; stop it, or give this one another folder`
  if (error instanceof FolderUnusable) return `DATA_DIR: ${message}`
  if (code === 'EADDRINUSE') return `PORT ${port} on ${host} is in use by another program`
  if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND') return `HOST ${host} is not an address of this machine (${message})`
  if (error instanceof ObjectStoreError) return `the bucket of S3_BUCKET cannot be used: ${message}`
  if (databaseUrl !== undefined && (error as { syscall?: string }).syscall !== 'listen') {
    return `the database of DATABASE_URL cannot be used: ${message || code}`
  }
  return `cannot start with DATA_DIR ${dataDir}: ${message}`
}

const say = (line: string): void => console.error(`uponce demo: ${line.replace(/\s*\n\s*/g, ' ')}`)

/** What can be said before anything is opened. */
async function check({ databaseUrl, s3, dataDir }: ServerConfig): Promise<void> {
  if (databaseUrl === undefined || s3 === undefined) await missingFolders(dataDir)
}

/** With `--check` it only looks at the environment: `npm start` does so before it builds. */
async function main(): Promise<void> {
  let config: ServerConfig
  try {
    config = readEnvironment(process.env)
  } catch (error) {
    if (!(error instanceof EnvironmentError)) throw error
    say(error.message)
    process.exit(1)
  }
  try {
    await check(config)
    if (process.argv.includes('--check')) return
    const server = await startServer({ ...config, log: (line) => process.stderr.write(`${line}\n`) })
    const stop = async (): Promise<void> => {
      await server.close()
      process.exit(0)
    }
    process.on('SIGTERM', stop)
    process.on('SIGINT', stop)
    console.log(`uponce demo on ${server.url}`)
  } catch (error) {
    say(explain(error, config))
    process.exit(1)
  }
}

await main()
