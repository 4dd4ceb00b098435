import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { mkdir, open, readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { AwsClient } from 'aws4fetch'
import type { S3Options } from '../../demo/server/objects-s3.js'
import { makeTempFolder } from './temp-folder.js'

const run = promisify(execFile)

export interface S3 extends S3Options {
  /** Keys that an upload in parts was begun for, and neither completed nor aborted. */
  uploads(): Promise<string[]>
  stop(): Promise<void>
}

const freePort = async (): Promise<number> => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  return port
}

/** One monitor, one object daemon in memory, one gateway, on loopback. Without cephx the gateway gets -13 from the monitor. */
const configuration = (folder: string, ports: { monitor: number; gateway: number }): string => `
[global]
fsid = ${randomUUID()}
mon host = v2:127.0.0.1:${ports.monitor}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = ${folder}/keyring
auth allow insecure global id reclaim = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 1
osd objectstore = memstore
memstore device bytes = 2147483648
run dir = ${folder}
admin socket = ${folder}/$name.asok
log file = ${folder}/$name.log
log to stderr = false
pid file =
heartbeat file =
[mon.a]
mon data = ${folder}/mon
[osd.0]
osd data = ${folder}/osd
osd journal = ${folder}/osd/journal
[client.rgw]
rgw data = ${folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:${ports.gateway}
rgw crypt require ssl = false
rgw dns name = localhost
`

/** Asks until the answer is yes. Rejects with the program's log when that takes longer than a minute. */
async function until(condition: () => Promise<boolean>, what: string, log: string): Promise<void> {
  for (const end = performance.now() + 60_000; !(await condition().catch(() => false)); ) {
    if (performance.now() > end) throw new Error(`${what}:\n${(await readFile(log, 'utf8')).slice(-2000)}`)
    await delay(100)
  }
}

/**
 * A real S3 server with an empty bucket: the Ceph RADOS Gateway, in a folder of its own, gone after `stop` or at the end of the process. Takes
 * about 15 s to start. See `programs.rados` for what must be installed.
 */
export async function startS3(): Promise<S3> {
  const { path: folder } = await makeTempFolder('s3')
  const ports = { monitor: await freePort(), gateway: await freePort() }
  const env = { ...process.env, CEPH_CONF: join(folder, 'ceph.conf') }
  const daemons: ChildProcess[] = []

  const stopNow = (): void => {
    // Everything is in memory: there is nothing to flush.
    for (const daemon of daemons) daemon.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  }
  process.on('exit', stopNow)
  const command = (program: string, ...args: string[]) => run(program, args, { env, cwd: folder, timeout: 60_000 })
  const logOf = (program: string): string => join(folder, `${program}.out`)
  const daemon = async (program: string, ...args: string[]): Promise<void> => {
    const log = await open(logOf(program), 'w')
    daemons.push(spawn(program, ['-f', ...args], { env, cwd: folder, stdio: ['ignore', log.fd, log.fd] }))
    await log.close()
  }

  const conf = configuration(folder, ports)
  await writeFile(env.CEPH_CONF, conf)
  for (const name of ['mon', 'osd', 'rgw']) await mkdir(join(folder, name))
  const keyring = join(folder, 'keyring')
  await command('ceph-authtool', '--create-keyring', keyring, '--gen-key', '-n', 'mon.', '--cap', 'mon', 'allow *')
  const capabilities = ['mon', 'osd', 'mgr'].flatMap((name) => ['--cap', name, 'allow *'])
  for (const name of ['client.admin', 'client.rgw', 'osd.0'])
    await command('ceph-authtool', keyring, '--gen-key', '-n', name, ...capabilities)
  const fsid = /fsid = (\S+)/.exec(conf)![1]!
  const map = join(folder, 'monmap')
  await command('monmaptool', '--create', '--fsid', fsid, '--addv', 'a', `[v2:127.0.0.1:${ports.monitor}]`, map)
  await command('ceph-mon', '--mkfs', '-i', 'a', '--monmap', map, '--keyring', keyring)
  await daemon('ceph-mon', '-i', 'a')

  const osd = randomUUID()
  await command('ceph', 'osd', 'new', osd)
  await command('ceph-osd', '-i', '0', '--mkfs', '--osd-uuid', osd)
  await command('ceph', 'osd', 'crush', 'add-bucket', 'h1', 'host', 'root=default')
  await command('ceph', 'osd', 'crush', 'add', 'osd.0', '1.0', 'host=h1')
  await daemon('ceph-osd', '-i', '0')
  const isUp = async (): Promise<boolean> => (await command('ceph', 'osd', 'stat')).stdout.includes('1 up')
  await until(isUp, 'the object daemon did not come up', logOf('ceph-osd'))

  await daemon('radosgw', '-n', 'client.rgw')
  const endpoint = `http://127.0.0.1:${ports.gateway}`
  await until(async () => (await fetch(endpoint)).ok, 'the gateway did not answer', logOf('radosgw'))
  const account = { accessKeyId: 'testkey', secretAccessKey: 'testsecret' }
  const keys = ['--access-key', account.accessKeyId, '--secret-key', account.secretAccessKey]
  await command('radosgw-admin', 'user', 'create', '--uid', 'uponce', '--display-name', 'uponce', ...keys)
  const aws = new AwsClient({ ...account, region: 'us-east-1', service: 's3' })
  const bucket = 'uponce'
  const ask = async (query: string, method: string): Promise<string> => {
    const answer = await aws.fetch(`${endpoint}/${bucket}${query}`, { method })
    if (!answer.ok) throw new Error(`${method} of the bucket: ${answer.status}`)
    return answer.text()
  }
  await ask('', 'PUT')
  return {
    endpoint,
    bucket,
    region: 'us-east-1',
    ...account,
    uploads: async () => [...(await ask('?uploads', 'GET')).matchAll(/<Key>([^<]*)</g)].map(([, key]) => key!),
    async stop() {
      process.off('exit', stopNow)
      stopNow()
    },
  }
}
