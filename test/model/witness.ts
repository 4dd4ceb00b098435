import { createHash } from 'node:crypto'
import type { KeyStore, Media } from '../../demo/server/keys.js'
import type { ObjectStore } from '../../demo/server/objects.js'
import type { PendingUpload } from '../../src/record.js'
import type { Upload } from '../../src/snapshot.js'
import type { Device } from './device.js'
import type { Fate, Sending } from './network.js'
import { claimOf } from './server.js'
import { ENDPOINT, type Tab } from './tab.js'
import type { Timeline } from './timeline.js'

/** A promise that was not kept. */
export class Violation extends Error {
  override name = 'Violation'
}

/** A file that somebody picked, and all that is known of it. */
export interface Picked {
  name: string
  owner: string
  device: Device
  bytes: Uint8Array<ArrayBuffer>
  sha256: string
  /** Whether the app on the server will not have it. */
  isRefused: boolean
  id: string | null
  /** The id that its app has asked for. */
  given: string | null
  key: string | null
  /** Whether it must be on the disk, unless something below explains why it is not. */
  isDue: boolean
  isEvicted: boolean
  /** Whether its success was stored: its bytes may be gone, and some day its record. */
  isDone: boolean
  /** Once it was asked for the record may go; once it was done, it may not come back. */
  cancel: 'no' | 'asked' | 'done'
  cancelledAt: number
  /** What its page can abort it with. */
  controller: AbortController | null
  /** Whether a redirect led to an answer that is no server's of ours: it may fail with that. */
  isMisled: boolean
  /** Uploads begun with its bytes. */
  requests: number
  /** The latest of what queues told of it. */
  told: Upload<unknown> | null
}

/** What a record can fail with here; everything else is a false failure. */
const failures = ['network', 'timeout', 'http', 'unproven', 'key-expired', 'digest-mismatch', 'rejected']

/** Answers that mean the same whether or not a redirect led to them. */
const isWorthAnother = /^(401|408|409|425|429|500|502|503|504)$/

/** So late, ms, a page that did not sleep has heard of what happened in another, or has sent what it was about to. */
const rumour = 50

const digestOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')
async function readAll(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}
const placeOf = ({ owner, key }: { owner: string; key: string }): string => `${owner}/${key}`

/** Sees everything that happens, tells it, and holds it against the promises. */
export class Witness {
  readonly files = new Map<string, Picked>()
  /** The first promise that was not kept. */
  violation: string | null = null
  /** What was seen since the last command. */
  seen: string[] = []
  readonly #timeline: Timeline
  #keys!: KeyStore
  #objects!: ObjectStore
  /** What is published, by owner and key. */
  readonly #media = new Map<string, Media>()
  readonly #verified = new Set<string>()
  readonly #pending = new Set<string>()
  /** Whether the server has changed anything since it was last looked at. */
  #isChanged = true
  readonly #successes = new Map<string, string>()
  readonly #sendings = new Set<Sending>()
  readonly #waits = new WeakMap<Tab, Map<string, { requests: number | undefined; until: number; at: number }>>()

  constructor(timeline: Timeline) {
    this.#timeline = timeline
  }

  attach(keys: KeyStore, objects: ObjectStore): void {
    this.#keys = keys
    this.#objects = objects
  }

  tell(what: string): void {
    this.seen.push(what)
  }

  must(holds: boolean, what: string): void {
    if (holds || this.violation !== null) return
    this.violation = what
    this.tell(`!!! ${what}`)
  }

  // What pages do and hear.

  #fileOf(key: string, name?: string): Picked | undefined {
    for (const file of this.files.values()) if (file.key === key || file.name === name) return file
    return undefined
  }

  begun(sending: Sending, headers: Headers, fate: Fate): void {
    const { tab, key, method } = sending
    const { device } = tab
    const name = decodeURIComponent(headers.get('X-File-Name') ?? '')
    const file = method === 'POST' ? this.files.get(name) : this.#fileOf(key)
    const what = `${tab.name} ${method} ${file?.name ?? name}${fate.type === 'fine' ? '' : ` (${fate.type})`}`
    this.tell(what)
    // A look-up bears no name, and a key that has never been sent may be asked for.
    this.must(file !== undefined || method === 'GET', `${what}: nobody has picked that`)
    if (!file) return
    file.key ??= key
    this.must(file.key === key, `the key of ${file.name} has changed`)
    this.must(headers.get('X-File-Sha256') === file.sha256, `the digest of ${file.name} has changed`)
    const sender = headers.get('Authorization')?.slice('Bearer '.length).split('.', 1)[0]
    this.must(sender === undefined || sender === file.owner, `${file.name} of ${file.owner} is sent as ${sender}'s`)
    sending.requests = file.id === null ? undefined : tab.queue?.get(file.id)?.requests
    if (method !== 'POST') return
    file.requests += 1
    const isLate = file.cancel === 'done' && this.#timeline.now > file.cancelledAt + rumour && tab.wokeAt <= file.cancelledAt
    this.must(!isLate, `${file.name} is sent though it was cancelled`)
    for (const other of this.#sendings) {
      const isOther = other.key === key && other.tab !== tab && other.tab.device === device && other.method === 'POST'
      if (!isOther || other.wasFrozen || other.tab.realm.frozen) continue
      this.must(!device.traits.hasLocks, `${file.name} is sent by ${tab.name} while ${other.tab.name} is sending it`)
    }
    this.#sendings.add(sending)
    const row = file.id === null || tab.queue?.get(file.id)?.durable === false ? undefined : device.disk.read()?.uploads.get(file.id)
    if (row?.idempotencyKey !== key) return
    this.must(row.status !== 'succeeded', `${file.name} is sent though its success is stored`)
    this.must(row.requests >= file.requests, `${file.name} is sent for the ${file.requests}. time, and ${row.requests} are stored`)
    const now = this.#timeline.now + device.ahead
    const isClockSet = this.#timeline.now < device.setAt + rumour
    this.must(
      isClockSet || row.notBefore === null || row.notBefore <= now,
      `${file.name} is sent ${(row.notBefore ?? 0) - now} ms too early`,
    )
  }

  ended(sending: Sending): void {
    this.#sendings.delete(sending)
  }

  froze(tab: Tab): void {
    for (const sending of this.#sendings) if (sending.tab === tab) sending.wasFrozen = true
  }

  heard({ tab, key, method, requests }: Sending, { status, headers, url, redirected }: Response): void {
    const file = this.#fileOf(key)
    const wait = headers.get('Retry-After')
    this.tell(`${tab.name} hears ${status}${wait === null ? '' : ` Retry-After ${wait}`} for ${method} ${file?.name}`)
    const isElsewhere = !url.startsWith(new URL(ENDPOINT).origin)
    if (file && redirected && !isElsewhere && !isWorthAnother.test(String(status))) file.isMisled = true
    const waits = this.#waits.get(tab)
    waits?.delete(key)
    // What another place says, and what a look-up that was led astray hears, is not the server's word.
    if (wait === null || isElsewhere || (redirected && method === 'GET') || !/^(409|429|503)$/.test(String(status))) return
    const at = this.#timeline.now
    const now = at + tab.device.ahead
    const until = /^\d+$/.test(wait)
      ? now + Number(wait) * 1000
      : now + Date.parse(wait) - Date.parse(headers.get('Date') ?? new Date(now).toISOString())
    waits?.set(key, { requests, until, at })
  }

  watch(tab: Tab): void {
    const { queue, realm } = tab
    const successes = new Set<string>()
    this.#waits.set(tab, new Map())
    const on = (name: Parameters<typeof queue.on>[0], check?: (upload: Upload<unknown>, payload: Record<string, unknown>) => string) => {
      queue.on(name, (payload) => {
        if (!realm.alive) return
        const { upload } = payload as { upload?: Upload<unknown> }
        if (!upload) return this.tell(`${tab.name} ${name}`)
        const file = this.files.get(upload.name)
        const words = check?.(upload, payload as Record<string, unknown>) ?? ''
        if (name !== 'started' && name !== 'added') this.tell(`${tab.name} ${upload.name} ${name}${words}`)
        if (file && upload.durable && name !== 'cancelled' && (file.told?.revision ?? 0) <= upload.revision) file.told = upload
      })
    }
    for (const name of ['added', 'started', 'paused', 'resumed', 'cancelled', 'offline', 'online'] as const) on(name)
    on('succeeded', ({ name, owner, idempotencyKey, result }) => {
      this.must(!successes.has(idempotencyKey), `${tab.name} is told twice that ${name} has succeeded`)
      successes.add(idempotencyKey)
      const media = this.#media.get(placeOf({ owner, key: idempotencyKey }))
      this.must(media !== undefined, `${name} is said to have succeeded, and nothing was stored`)
      const { uploadId } = result as { uploadId?: string }
      // An answer that broke off says no more than that.
      this.must(uploadId === undefined || uploadId === media?.id, `the receipt of ${name} names another upload`)
      return ''
    })
    on('retrying', (upload, { delay, reason, counted }) => {
      const told = this.#waits.get(tab)?.get(upload.idempotencyKey)
      // An event of another page is about another attempt.
      if (told && upload.requests === told.requests && told.at >= tab.device.setAt)
        this.must(
          (upload.notBefore ?? 0) >= told.until,
          `${upload.name} was told to wait ${told.until - (upload.notBefore ?? 0)} ms longer`,
        )
      return ` in ${delay} ms, ${reason}${counted ? '' : ', not counted'}`
    })
    on('failed', (upload, { error }) => {
      this.#checkFailure(upload as PendingUpload)
      return ` ${(error as Error).message}`
    })
    on('blocked')
    queue.on('warning', ({ message }) => realm.alive && this.tell(`${tab.name} warns: ${message}`))
  }

  #checkFailure({ name, owner, idempotencyKey, reason, error }: PendingUpload): void {
    const file = this.files.get(name)
    this.must(
      failures.includes(reason ?? '') || (reason === 'redirected' && file?.isMisled === true),
      `${name} has failed with ${reason}: ${error?.message}`,
    )
    if (reason !== 'rejected') return
    this.must(file?.isRefused === true, `${name} is said to be refused (${error?.status}), and was not`)
    this.must(!this.#media.has(placeOf({ owner, key: idempotencyKey })), `${name} is said to be refused, and is stored`)
  }

  // What the server does.

  /** A call to one of its stores, as it is carried out. */
  async call<T>(name: string, args: readonly unknown[], work: () => Promise<T>): Promise<T> {
    const keys = this.#keys
    this.#isChanged = true
    if (name === 'reap') return this.#reap(work)
    if (!['claim', 'renew', 'commit', 'reject', 'release', 'intend', 'forget'].includes(name)) return work()
    if (name === 'intend') this.#pending.add(args[1] as string)
    if (name === 'forget') this.#pending.delete(args[0] as string)
    if (name === 'intend' || name === 'forget') return work()
    const claim = claimOf(args)
    const place = placeOf(claim)
    const before = await keys.read(claim.owner, claim.key)
    const result = await work()
    if (name === 'claim') {
      const isFree = before === null || (before.state === 'in_flight' && before.leaseLeftMs <= 0)
      this.must(result === null || isFree, `I13: ${place} is claimed though it was ${before?.state}`)
      return result
    }
    const isDone = result === true || result === 'committed'
    const isHeld = before?.state === 'in_flight' && before.fence === claim.fence
    this.must(!isDone || isHeld, `I6: a ${name} of ${place} by a claim that was lost`)
    if (result === 'committed') {
      const media = args[3] as Media
      this.must(!this.#media.has(place), `I1: ${place} is stored twice`)
      this.#media.set(place, media)
      this.#pending.delete(media.storageKey)
    }
    return result
  }

  async #reap<T>(work: () => Promise<T>): Promise<T> {
    const files = [...this.files.values()].filter(({ key }) => key !== null)
    const rows = await Promise.all(files.map(({ owner, key }) => this.#keys.read(owner, key as string)))
    const result = await work()
    for (const [place, row] of rows.entries()) {
      const { owner, key, name } = files[place]!
      if (row?.state === 'in_flight' && row.leaseLeftMs > 0)
        this.must((await this.#keys.read(owner, key as string)) !== null, `I8: the reaper takes the live claim of ${name}`)
    }
    return result
  }

  /** What it answers, whether or not that arrives. */
  answered({ key, method }: Sending, { status, headers, text }: { status: number; headers: Headers; text: string }): void {
    const file = this.#fileOf(key)
    if (!file || method === 'HEAD') return
    const isReplay = headers.get('Idempotent-Replayed') === 'true'
    this.must(!isReplay || (status < 500 && status !== 408 && status !== 429), `I10: ${status} is replayed for ${file.name}`)
    this.must(status !== 422 || file.isRefused, `${file.name} is refused as another file's key`)
    let [success, code] = [text, status]
    if (method === 'GET') {
      const outcome = JSON.parse(text) as { state?: string; status?: number; body?: string }
      if (outcome.state !== 'completed') return
      success = outcome.body!
      code = outcome.status!
    }
    if (code >= 300) return
    const media = this.#media.get(placeOf({ owner: file.owner, key }))
    this.must(media !== undefined, `G4: ${file.name} is answered ${code}, and there is no media row`)
    if (!media) return
    this.must(
      (JSON.parse(success) as { uploadId: string }).uploadId === media?.id,
      `I3: ${file.name} is answered with an id that is not its own`,
    )
    const known = this.#successes.get(key) ?? success
    this.#successes.set(key, known)
    this.must(known === success, `I4: two answers for ${file.name} differ: ${known} ${success}`)
  }

  // What holds whenever nothing is half done.

  async check(devices: readonly Device[]): Promise<void> {
    for (const device of devices) this.#checkDisk(device)
    if (this.#isChanged) await this.#checkServer()
    this.#isChanged = false
  }

  #checkDisk(device: Device): void {
    const stored = device.disk.read()
    if (!stored) return
    const found = new Set<Picked>()
    for (const [id, row] of stored.uploads) {
      const file = this.files.get(row.name)
      if (!file || file.device !== device) {
        this.must(false, `a record of ${row.name} that nobody has picked there`)
        continue
      }
      found.add(file)
      file.id ??= id
      file.key ??= row.idempotencyKey
      file.isDue = true
      file.isEvicted = false
      const { name } = file
      this.must(row.owner === file.owner, `${name} of ${file.owner} is stored as ${row.owner}'s`)
      this.must(file.id === id, `${name} is stored twice`)
      this.must(row.idempotencyKey === file.key, `the key of ${name} has changed`)
      this.must(row.sha256 === null || row.sha256 === file.sha256, `the digest of ${name} has changed`)
      this.must(file.cancel !== 'done', `${name} is there though it was cancelled`)
      const bytes = stored.bytes.get(id)
      const size = bytes && ('size' in bytes ? bytes.size : bytes.byteLength)
      if (row.status === 'succeeded') {
        const media = this.#media.get(placeOf({ owner: file.owner, key: file.key }))
        this.must(media !== undefined, `${name} has succeeded on the disk, and nothing was stored`)
        file.isDone = true
      } else {
        this.must(!file.isDone, `${name} had succeeded, and is ${row.status}`)
        this.must(size === file.bytes.length, `the bytes of ${name} are gone (${size} of ${file.bytes.length}), and it is ${row.status}`)
      }
      if (row.status === 'failed') this.#checkFailure(row)
      const { told } = file
      if (told && told.idempotencyKey === row.idempotencyKey) this.#checkTold(row, told)
    }
    for (const file of this.files.values()) {
      const isMissed = file.device === device && file.isDue && !file.isEvicted && !file.isDone && file.cancel === 'no'
      this.must(!isMissed || found.has(file), `${file.name} is lost`)
    }
  }

  /** Nothing is told that is not stored. */
  #checkTold(row: PendingUpload, told: Upload<unknown>): void {
    this.must(row.revision >= told.revision, `${row.name} was told to be ${told.status}, and is ${row.status} on the disk`)
    if (row.revision !== told.revision) return
    for (const name of ['status', 'attempts', 'requests', 'notBefore', 'expiresAt', 'sha256'] as const)
      this.must(row[name] === told[name], `the ${name} of ${row.name} was told to be ${told[name]}, and is ${row[name]} on the disk`)
  }

  async #checkServer(): Promise<void> {
    const rows: Media[] = []
    for (const owner of new Set(Array.from(this.files.values(), (file) => file.owner)))
      rows.push(...(await this.#keys.listMedia(owner, 1000)))
    this.must(new Set(rows.map(placeOf)).size === rows.length, 'I1: a key has two media rows')
    for (const [place, { id }] of this.#media)
      this.must(
        rows.some((row) => row.id === id),
        `G1: the media row of ${place} has vanished`,
      )
    for (const row of rows) {
      if (this.#verified.has(row.id)) continue
      this.#verified.add(row.id)
      const file = this.#fileOf(row.key)
      this.must(file !== undefined && file.owner === row.owner, `a media row of ${row.owner} for ${file?.name}, which is ${file?.owner}'s`)
      const object = await this.#objects.open(row.storageKey)
      const bytes = object && (await readAll(object))
      this.must(bytes !== null, `I2: the media row of ${file?.name} has no object`)
      this.must(bytes !== null && digestOf(bytes) === file?.sha256, `I2: the object of ${file?.name} has other bytes`)
    }
    const known = new Set([...this.#pending, ...rows.map(({ storageKey }) => storageKey)])
    for (const object of await this.#objects.list('')) this.must(known.has(object), `I9: object ${object} is in no row`)
  }

  /** What must hold in the end, all healed and all sweeps done. */
  async conclude(): Promise<void> {
    await this.#checkServer()
    const objects = await this.#objects.list('')
    this.must(objects.length === this.#media.size, `I9: ${objects.length} objects for ${this.#media.size} media rows after the sweeps`)
    for (const file of this.files.values()) {
      const isStored = file.key !== null && this.#media.has(placeOf({ owner: file.owner, key: file.key }))
      if (file.isRefused) this.must(!isStored, `${file.name} is stored though it was refused`)
      const mustBe = file.isDone || (file.isDue && !file.isEvicted && file.cancel === 'no' && !file.isRefused)
      this.must(!mustBe || isStored, `${file.name} has never arrived`)
    }
  }
}

/** A new file of `size` bytes; no two are the same. */
export function pick(name: string, size: number, owner: string, device: Device): Picked {
  const bytes = new Uint8Array(size)
  for (let at = 0; at < size; at++) bytes[at] = (at * 31 + name.charCodeAt(at % name.length)) % 256
  return {
    name,
    owner,
    device,
    bytes,
    sha256: digestOf(bytes),
    isRefused: name.startsWith('refused'),
    id: null,
    given: null,
    key: null,
    isDue: false,
    isEvicted: false,
    isDone: false,
    cancel: 'no',
    cancelledAt: 0,
    controller: null,
    isMisled: false,
    requests: 0,
    told: null,
  }
}
