import type { UploadLimits } from './handler.js'
import type { S3Options } from './objects-s3.js'
import type { ServerConfig } from './server.js'

/** A variable has a value that cannot be used. */
export class EnvironmentError extends Error {
  override name = 'EnvironmentError'
}

type Environment = Record<string, string | undefined>

const isLoopback = (host: string): boolean => host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host)

const fail = (name: string, value: string, expected: string): never => {
  throw new EnvironmentError(`${name} is ${JSON.stringify(value)}, expected ${expected}`)
}

function integer(env: Environment, name: string, min: number, max = Number.MAX_SAFE_INTEGER): number | undefined {
  const value = env[name]
  if (!value) return undefined
  const number = /^\d+$/.test(value) ? Number(value) : Number.NaN
  if (number >= min && number <= max) return number
  const range = max === Number.MAX_SAFE_INTEGER ? `an integer, ${min} or more` : `an integer from ${min} to ${max}`
  return fail(name, value, range)
}

function databaseUrl(env: Environment): string | undefined {
  const value = env.DATABASE_URL
  if (!value) return undefined
  const isPostgres = URL.canParse(value) && /^postgres(ql)?:$/.test(new URL(value).protocol)
  // The value holds a password.
  if (!isPostgres) throw new EnvironmentError('DATABASE_URL cannot be read, expected postgres://user:password@host:port/database')
  return value
}

const S3_VARIABLES = ['S3_ENDPOINT', 'S3_BUCKET', 'S3_REGION', 'AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'] as const

/** All five or none. Credentials alone ask for nothing: many a machine has them for other purposes. */
function s3(env: Environment): S3Options | undefined {
  const asked = S3_VARIABLES.find((name) => name.startsWith('S3_') && env[name])
  if (asked === undefined) return undefined
  const missing = S3_VARIABLES.find((name) => !env[name])
  if (missing)
    throw new EnvironmentError(`${missing} is missing: ${asked} is set, and objects in S3 take all of ${S3_VARIABLES.join(', ')}`)
  const [endpoint, bucket, region, accessKeyId, secretAccessKey] = S3_VARIABLES.map((name) => env[name]!) as [
    string,
    string,
    string,
    string,
    string,
  ]
  const url = URL.canParse(endpoint) ? new URL(endpoint) : null
  const isOrigin = url !== null && /^https?:$/.test(url.protocol) && url.href === `${url.origin}/`
  // The value might hold a password.
  if (!isOrigin) throw new EnvironmentError('S3_ENDPOINT cannot be read, expected an origin such as https://s3.example:9000')
  // https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
  if (!/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(bucket)) fail('S3_BUCKET', bucket, '3 to 63 of a-z, 0-9, dot and hyphen')
  if (!/^[A-Za-z0-9-]+$/.test(region)) fail('S3_REGION', region, 'a name such as eu-central-1')
  return { endpoint: url.origin, bucket, region, accessKeyId, secretAccessKey }
}

function allowedOrigins(env: Environment): string[] {
  const origins = (env.ALLOWED_ORIGINS ?? '').split(',').map((origin) => origin.trim())
  for (const origin of origins) {
    const isOrigin = origin === '' || (/^https?:/.test(origin) && URL.canParse(origin) && new URL(origin).origin === origin)
    if (!isOrigin) fail('ALLOWED_ORIGINS', origin, 'origins such as https://app.example, separated by commas')
  }
  return origins.filter((origin) => origin !== '')
}

function limits(env: Environment): Partial<UploadLimits> {
  const maxBytes = integer(env, 'MAX_BYTES', 1)
  const leaseMs = integer(env, 'LEASE_MS', 1, 86_400_000)
  const retentionMs = integer(env, 'RETENTION_MS', 1)
  const waitMs = integer(env, 'WAIT_MS', 0, 600_000)
  const lease = leaseMs ?? 60_000
  if (retentionMs !== undefined && retentionMs <= lease) fail('RETENTION_MS', env.RETENTION_MS!, `more than LEASE_MS, which is ${lease}`)
  return {
    ...(maxBytes === undefined ? {} : { maxBytes }),
    ...(leaseMs === undefined ? {} : { leaseMs }),
    ...(retentionMs === undefined ? {} : { retentionMs }),
    ...(waitMs === undefined ? {} : { waitMs }),
  }
}

function faults(env: Environment, host: string): boolean {
  const value = env.DEMO_FAULTS
  if (!value) return isLoopback(host)
  if (value !== '0' && value !== '1') fail('DEMO_FAULTS', value, '1 (on) or 0 (off)')
  return value === '1'
}

/** The server's configuration. An empty variable counts as absent. Throws `EnvironmentError`, before anything is opened. */
export function readEnvironment(env: Environment): ServerConfig {
  const port = integer(env, 'PORT', 0, 65_535) ?? 3000
  const host = env.HOST || '127.0.0.1'
  if (!/^[A-Za-z0-9.:_-]+$/.test(host)) fail('HOST', host, 'a host name or an IP address')
  const url = databaseUrl(env)
  const bucket = s3(env)
  return {
    port,
    host,
    dataDir: env.DATA_DIR || '.data',
    ...(url === undefined ? {} : { databaseUrl: url }),
    ...(bucket === undefined ? {} : { s3: bucket }),
    allowedOrigins: allowedOrigins(env),
    limits: limits(env),
    faults: faults(env, host),
  }
}
