import { readEnvironment } from '../../demo/server/environment.js'
import { startServer } from '../../demo/server/server.js'

/** The server's program with an app that never answers: an upload stays between its file, which is on disk, and the commit. */
const park = (): Promise<never> => {
  console.log('parked')
  return new Promise(() => {})
}

const server = await startServer({ ...readEnvironment(process.env), onStored: park })
console.log(`uponce demo on ${server.url}`)
