import { describe, expect, it } from 'vitest'
import { readEnvironment } from '../../demo/server/environment.js'

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
      }),
    ).toEqual({
      port: 0,
      host: '0.0.0.0',
      dataDir: '/data',
      databaseUrl: 'postgres://u:p@db/x',
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
    [{ S3_BUCKET: 'b' }, 'S3_BUCKET is set, but storing objects in S3 is not supported yet'],
  ])('%j is refused in one line', (env, line) => {
    expect(() => readEnvironment(env)).toThrow(expect.objectContaining({ name: 'EnvironmentError', message: line }))
  })
})
