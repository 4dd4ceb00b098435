import { describe, expect, it } from 'vitest'
import { readEnvironment } from '../../demo/server/environment.js'

const s3 = {
  S3_ENDPOINT: 'https://s3.example:9000/',
  S3_BUCKET: 'files',
  S3_REGION: 'eu-central-1',
  AWS_ACCESS_KEY_ID: 'id',
  AWS_SECRET_ACCESS_KEY: 'top secret',
}
const allOfS3 = 'objects in S3 take all of S3_ENDPOINT, S3_BUCKET, S3_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY'

describe('the environment', () => {
  it('may be empty', () => {
    const defaults = { port: 3000, host: '127.0.0.1', dataDir: '.data', allowedOrigins: [], limits: {}, faults: true }
    expect(readEnvironment({})).toEqual(defaults)
    expect(readEnvironment({ PORT: '', DATABASE_URL: '', MAX_BYTES: '', AWS_ACCESS_KEY_ID: 'x' })).toEqual(defaults)
  })

  it('sets everything', () => {
    expect(
      readEnvironment({
        PORT: '0',
        HOST: '0.0.0.0',
        DATA_DIR: '/data',
        DATABASE_URL: 'postgres://u:p@db/x',
        ALLOWED_ORIGINS: 'https://app.example, http://localhost:5173',
        MAX_BYTES: '1000',
        LEASE_MS: '2000',
        RETENTION_MS: '3000',
        WAIT_MS: '0',
        ...s3,
      }),
    ).toEqual({
      port: 0,
      host: '0.0.0.0',
      dataDir: '/data',
      databaseUrl: 'postgres://u:p@db/x',
      s3: {
        endpoint: 'https://s3.example:9000',
        bucket: 'files',
        region: 'eu-central-1',
        accessKeyId: 'id',
        secretAccessKey: 'top secret',
      },
      allowedOrigins: ['https://app.example', 'http://localhost:5173'],
      limits: { maxBytes: 1000, leaseMs: 2000, retentionMs: 3000, waitMs: 0 },
      faults: false,
    })
  })

  it.each([
    [{ HOST: '127.1.2.3' }, true],
    [{ HOST: '::1' }, true],
    [{ HOST: 'localhost' }, true],
    [{ HOST: '192.168.1.5' }, false],
    [{ HOST: '192.168.1.5', DEMO_FAULTS: '1' }, true],
    [{ DEMO_FAULTS: '0' }, false],
  ])('%j: faults %s', (env, faults) => {
    expect(readEnvironment(env).faults).toBe(faults)
  })

  it.each([
    [{ PORT: 'abc' }, 'PORT is "abc", expected an integer from 0 to 65535'],
    [{ PORT: '65536' }, 'PORT is "65536", expected an integer from 0 to 65535'],
    [{ PORT: '-1' }, 'PORT is "-1", expected an integer from 0 to 65535'],
    [{ HOST: 'a b' }, 'HOST is "a b", expected a host name or an IP address'],
    [{ MAX_BYTES: '0' }, 'MAX_BYTES is "0", expected an integer, 1 or more'],
    [{ MAX_BYTES: '1e6' }, 'MAX_BYTES is "1e6", expected an integer, 1 or more'],
    [{ LEASE_MS: '0' }, 'LEASE_MS is "0", expected an integer from 1 to 86400000'],
    [{ RETENTION_MS: '60000' }, 'RETENTION_MS is "60000", expected more than LEASE_MS, which is 60000'],
    [{ WAIT_MS: '1.5' }, 'WAIT_MS is "1.5", expected an integer from 0 to 600000'],
    [{ DEMO_FAULTS: 'yes' }, 'DEMO_FAULTS is "yes", expected 1 (on) or 0 (off)'],
    [{ ALLOWED_ORIGINS: '*' }, 'ALLOWED_ORIGINS is "*", expected origins such as https://app.example, separated by commas'],
    [
      { ALLOWED_ORIGINS: 'https://a.example,https://b.example/' },
      'ALLOWED_ORIGINS is "https://b.example/", expected origins such as https://app.example, separated by commas',
    ],
    [{ DATABASE_URL: 'mysql://u:secret@x' }, 'DATABASE_URL cannot be read, expected postgres://user:password@host:port/database'],
    [{ S3_BUCKET: 'files' }, `S3_ENDPOINT is missing: S3_BUCKET is set, and ${allOfS3}`],
    [{ ...s3, S3_REGION: '' }, `S3_REGION is missing: S3_ENDPOINT is set, and ${allOfS3}`],
    [{ ...s3, AWS_SECRET_ACCESS_KEY: '' }, `AWS_SECRET_ACCESS_KEY is missing: S3_ENDPOINT is set, and ${allOfS3}`],
    [{ ...s3, S3_ENDPOINT: 's3.example' }, 'S3_ENDPOINT cannot be read, expected an origin such as https://s3.example:9000'],
    [{ ...s3, S3_ENDPOINT: 'https://u:secret@x' }, 'S3_ENDPOINT cannot be read, expected an origin such as https://s3.example:9000'],
    [{ ...s3, S3_ENDPOINT: 'https://x/files' }, 'S3_ENDPOINT cannot be read, expected an origin such as https://s3.example:9000'],
    [{ ...s3, S3_BUCKET: '../x' }, 'S3_BUCKET is "../x", expected 3 to 63 of a-z, 0-9, dot and hyphen'],
    [{ ...s3, S3_REGION: 'a b' }, 'S3_REGION is "a b", expected a name such as eu-central-1'],
  ])('%j is refused in one line', (env, line) => {
    expect(() => readEnvironment(env)).toThrow(expect.objectContaining({ name: 'EnvironmentError', message: line }))
  })
})
