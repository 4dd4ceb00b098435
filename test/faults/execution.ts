import { type OpenDatabase, openPostgres } from '../../demo/server/database.js'
import type { RespondPolicy } from '../../demo/server/idempotency.js'
import type { ObjectStore, ObjectWriter } from '../../demo/server/objects.js'
import { createRandom, type Random } from '../helpers/random.js'
import { APP, bearerOf, HOUR, sha256 } from '../server/fixture.js'
import { type Answer, CHUNK, createAnswers, type Delivery, deliver, type Intent } from './delivery.js'
import { createChecker, must, nameOf, takeSnapshot, Violation } from './invariants.js'
import { createOrders, type Order, policies } from './orders.js'
import { type Fate, type Gate, Simulation, type Thread } from './simulation.js'
import { type Code, createWorker, type Statement, type Worker } from './worker.js'

/** A database and object store for one execution after the other. */
export interface Lane {
  admin: OpenDatabase
  /** One for each worker. */
  pools: OpenDatabase[]
  objects: ObjectStore
  lockWaits(): Promise<number>
  /** Breaks the connections of one worker. */
  disconnect(worker: number): Promise<void>
  close(): Promise<void>
}

export async function openLane(url: string, objects: ObjectStore): Promise<Lane> {
  const admin = openPostgres({ url, max: 2 })
  const broken = [0, 0, 0]
  const pools = broken.map((_, n) => openPostgres({ url: `${url}?application_name=w${n + 1}`, max: 4, onError: () => broken[n]!++ }))
  return {
    admin,
    pools,
    objects,
    async lockWaits() {
      const [row] = await admin.query(
        `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
      )
      return row!.n as number
    },
    async disconnect(worker) {
      const before = broken[worker]!
      const ended = await admin.query(
        'SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1',
        [`w${worker + 1}`],
      )
      // The pool must have heard of it. It does not tell of connections that wait for a lock: their statement fails.
      const until = performance.now() + 200
      while (broken[worker]! < before + ended.length && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 1))
    },
    async close() {
      await Promise.all([admin, ...pools].map((pool) => pool.close()))
    },
  }
}

const LEASE = 60_000
const RETENTION = 72 * HOUR
const MAX_RUN = 6 * HOUR
const MAX_BYTES = 4 * CHUNK
const DISCARD = 2 * CHUNK
/** As the server has it. */
const SWEEP = { graceMs: MAX_RUN + LEASE + 60_000, finalGraceMs: 60_000 }
const MAX_STEPS = 60
const MAX_ATTEMPTS = 3

/** What the clients of one execution want, and what can go wrong. */
interface Plan {
  intents: Intent[]
  /** How many clients each intent has at a time. */
  clients: number
  /** Keys whose files the app refuses. */
  refused: Set<string>
  workers: number
  /** Of a step. */
  faultRate: number
  /** Of another event between two steps. */
  eventRate: number
  maxInFlightPerOwner: number
  /** Whether somebody else may store a file for a key, past every claim. */
  imports: boolean
  /** Whether an object can be written after its writer was told that it failed, as in S3. */
  late: boolean
  /** What clients want of a buffered handler. */
  orders: Order[]
  policy: RespondPolicy
  waitMs: number
}

function ordersOf(random: Random, seed: number): Order[] {
  if (random.chance(0.7)) return []
  const order = { owner: random.pick(['alice', 'bob']), key: `order-${seed}`.padEnd(16, '-'), item: 'tea' }
  return random.chance(0.2) ? [order, { ...order, item: 'milk' }] : [order]
}

function planOf(random: Random, seed: number): Plan {
  const intents: Intent[] = []
  const refused = new Set<string>()
  const keys = random.pick([1, 1, 2])
  for (let n = 0; n < keys; n++) {
    const owner = random.pick(['alice', 'bob'])
    const key = `key-${seed}-${n}`.padEnd(16, '-')
    const chunks = random.chance(0.1) ? 8 : random.integer(0, 3)
    if (random.chance(0.1)) refused.add(key)
    const variants = random.chance(0.15) ? 2 : 1
    for (let variant = 0; variant < variants; variant++) {
      const body = new Uint8Array(chunks * CHUNK + 10).fill(n * 10 + variant)
      intents.push({ owner, key, body, digest: sha256(body), hasLength: body.byteLength <= MAX_BYTES && random.chance(0.7) })
    }
  }
  return {
    intents,
    clients: random.pick([1, 2, 3]),
    refused,
    workers: random.integer(2, 3),
    faultRate: random.pick([0, 0.02, 0.05, 0.12]),
    eventRate: random.pick([0.03, 0.1, 0.2]),
    maxInFlightPerOwner: random.pick([1, 8, 8]),
    imports: random.chance(0.1),
    late: random.chance(0.35),
    orders: ordersOf(random, seed),
    policy: random.pick(policies),
    waitMs: random.pick([0, 0, 0, 250]),
  }
}

/** Lets time pass for everything that is stored. Rows that a transaction has in hand stay as they are: nobody can see them age. */
const ELAPSE = (ms: number): string => {
  const by = `interval '${ms} milliseconds'`
  return `
    UPDATE idempotency_keys SET leased_until = leased_until - ${by}, expires_at = expires_at - ${by}
      WHERE (owner, key) IN (SELECT owner, key FROM idempotency_keys FOR UPDATE SKIP LOCKED);
    UPDATE pending_objects SET created_at = created_at - ${by}, dead_at = dead_at - ${by}
      WHERE storage_key IN (SELECT storage_key FROM pending_objects FOR UPDATE SKIP LOCKED)`
}

export interface ExecutionOptions {
  lane: Lane
  seed: number
  code: Code
}

/** What happened, for people. */
export interface Told {
  steps: number
  story: string[]
}

/** One run of several clients, workers and sweepers under faults, ending in peace. Throws `Violation` with its story. */
export async function execute({ lane, seed, code }: ExecutionOptions): Promise<Told> {
  const random = createRandom(seed)
  const plan = planOf(random, seed)
  const { admin, objects } = lane
  const story: string[] = []
  const simulation = new Simulation(lane.lockWaits)
  const deliveries: Delivery[] = []
  const claimants = new Set<string>()
  /** Requests that have changed a key's row without having claimed it. */
  const intruders = new Set<string>()
  /** Requests that have set a key free. */
  const releasers = new Set<string>()
  /** Requests of which a step has failed. */
  const failed = new Set<string>()
  const writers = new Map<string, string>()
  const outlived = new Set<string>()
  const opened: ObjectWriter[] = []
  /** Carried out since the last look. */
  const effects: Statement[] = []
  let failure: unknown
  let steps = 0

  const tell = (line: string): void => void story.push(`${String(steps).padStart(4)} ${line}`)
  const fail = (error: unknown): void => {
    failure ??= error
  }

  const checker = createChecker({ objects, outlived: (storageKey) => outlived.has(storageKey) })
  const answers = createAnswers({ maxBytes: MAX_BYTES, discardBytes: DISCARD, latest: () => checker.last })

  const onEffect = (statements: Statement[]): void => {
    effects.push(...statements.filter(({ kind }) => kind !== 'READ'))
    for (const { kind, rows, params, thread } of statements) {
      tell(`     ${thread.name} ${kind} ${rows} row(s)`)
      if (kind === 'CLAIM' && rows > 0) claimants.add(thread.name)
      if (kind === 'RELEASE' && rows > 0) releasers.add(thread.name)
      if (rows > 0 && ['RENEW', 'COMPLETE', 'RELEASE'].includes(kind) && !claimants.has(thread.name)) intruders.add(thread.name)
      if (kind === 'INTEND') writers.set(params[0] as string, thread.name)
      // The sweeper has waited for longer than any upload may take: only a process that slept all that time can still be writing.
      const writer = writers.get(params[0] as string)
      if (kind === 'FORGET' && writer !== undefined && writer !== thread.name) {
        if (deliveries.some(({ name, ended, process }) => name === writer && !ended && process.alive)) outlived.add(params[0] as string)
      }
    }
  }

  const workers = lane.pools.slice(0, plan.workers).map((database, n) =>
    createWorker({
      name: `w${n + 1}`,
      code,
      simulation,
      database,
      objects,
      onEffect,
      mayBeLate: plan.late,
      policy: plan.policy,
      onWriter: (writer) => opened.push(writer),
      settings: {
        authenticate: bearerOf,
        allowedOrigins: [APP],
        limits: {
          leaseMs: LEASE,
          retentionMs: RETENTION,
          maxUploadMs: MAX_RUN,
          maxBytes: MAX_BYTES,
          discardBytes: DISCARD,
          waitMs: plan.waitMs,
          maxInFlightPerOwner: plan.maxInFlightPerOwner,
        },
        onStored: ({ key }) =>
          simulation.pass('hook', async () => (plan.refused.has(key) ? new Response('not this one', { status: 422 }) : undefined)),
      },
    }),
  )

  const observe = async (statements: Statement[] | null): Promise<void> => checker.observe(await takeSnapshot(admin, objects), statements)

  /** After a step: what must hold holds. The rows are read again only where a statement may have changed more than its own. */
  async function look(): Promise<void> {
    const statements = effects.splice(0)
    const changing = statements.filter(({ kind, rows }) => rows > 0 && kind !== 'INTEND' && kind !== 'FORGET')
    if (changing.length > 0) await observe(statements)
    else {
      const pending = new Map(checker.last.pending)
      for (const { kind, params } of statements) {
        const storageKey = params[0] as string
        if (kind === 'INTEND') pending.set(storageKey, { storageKey, dead: false })
        if (kind === 'FORGET') pending.delete(storageKey)
      }
      await checker.observe({ ...checker.last, pending, objects: new Set(await objects.list('')) }, statements)
    }
    if (failure) throw failure
  }

  async function byHand(what: string, statement: string): Promise<void> {
    tell(what)
    await admin.query(statement)
    await observe(null)
  }

  const elapse = (what: string, ms: number): Promise<void> => byHand(`${what} pass`, ELAPSE(ms))

  function send(intent: Intent, worker: Worker, corrupt = false): Delivery {
    const name = `${worker.name} r${deliveries.length + 1}`
    tell(`${nameOf(intent)} is sent to ${name}${corrupt ? ', damaged on the way' : ''}`)
    const delivery = deliver({
      simulation,
      worker,
      name,
      intent,
      corrupt,
      onAnswer: (answer) => {
        tell(`     ${name} answers ${answer.status} ${answer.error ?? ''}${answer.headers.has('Idempotent-Replayed') ? ' (replay)' : ''}`)
        answered.push([delivery, answer])
      },
    })
    deliveries.push(delivery)
    return delivery
  }

  /** Answers are held against the rows as they are once everything stands still. */
  const answered: [Delivery, Answer][] = []
  async function judge(): Promise<void> {
    await look()
    for (const [order, name, answer] of orderAnswers.splice(0)) orders.check(order, name, answer)
    for (const [delivery, answer] of answered.splice(0)) {
      answers.check(delivery, answer, intruders.has(delivery.name))
      must(
        answer.status !== 500 || answer.error !== 'internal_error' || failedHooks.has(delivery.name),
        `D26: ${delivery.name} answered 500`,
      )
    }
  }
  const failedHooks = new Set<string>()

  async function lookUp(intent: Intent, worker: Worker): Promise<void> {
    const name = `${worker.name} q${steps}`
    tell(`${nameOf(intent)} is looked up at ${name}`)
    const onAnswer = (answer: Answer): void => {
      tell(`     ${name} answers ${answer.status} ${answer.text.slice(0, 40)}`)
      lookedUp.push([intent, answer])
    }
    await deliver({ simulation, worker, name, intent, method: 'GET', onAnswer }).answer
  }
  const lookedUp: [Intent, Answer][] = []

  const orders = createOrders({
    simulation,
    random,
    policy: plan.policy,
    latest: () => checker.last,
    fail,
    did: (thread, what) => ({ claim: claimants, intrude: intruders, release: releasers })[what].has(thread),
    mayHaveFailed: (thread) => failed.has(thread),
  })
  const orderAnswers: [Order, string, Answer][] = []
  /** Orders without an answer yet. */
  const openOrders = new Map<string, { worker: Worker; cut(): void }>()
  function place(order: Order, worker: Worker): Promise<Answer | null> {
    const name = `${worker.name} o${++placed}`
    tell(`${order.owner}/${order.key} is sent to ${name}, for ${order.item}`)
    const { cut, answer } = orders.send(order, worker, name, (answer) => {
      openOrders.delete(name)
      tell(
        `     ${name} answers ${answer.status} ${answer.text.slice(0, 40)}${answer.headers.has('Idempotent-Replayed') ? ' (replay)' : ''}`,
      )
      orderAnswers.push([order, name, answer])
    })
    openOrders.set(name, { worker, cut })
    return answer
  }
  let placed = 0

  const customer = async (order: Order): Promise<void> => {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      if ((await simulation.park('send', { canFail: false })) !== 'go') return
      const answer = await place(order, random.pick(workers))
      if (answer && answer.status < 300) return
    }
  }

  /** A client that tries again until it knows. */
  let working = 0
  const client = async (intent: Intent): Promise<void> => {
    working++
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const fate = await simulation.park('send', { canFail: false })
      if (fate !== 'go') break
      const answer = await send(intent, random.pick(workers), random.chance(plan.faultRate + 0.02)).answer
      if (answer && (answer.status < 300 || answer.error === 'idempotency_key_reuse' || answer.error === 'payload_too_large')) break
    }
    working--
  }

  const isAcceptable = ({ key, body }: Intent): boolean => !plan.refused.has(key) && body.byteLength <= MAX_BYTES

  async function importFile({ owner, key, body, digest }: Intent): Promise<void> {
    const storageKey = `import-${steps}`
    const writer = await objects.create(storageKey)
    await writer.write(body)
    await writer.finish()
    const inserted = await admin.query(
      `INSERT INTO media (id, owner, idempotency_key, storage_key, sha256, bytes, content_type, metadata)
       VALUES (gen_random_uuid(), $1, $2, $3, decode($4, 'hex'), $5, 'image/jpeg', '{}') ON CONFLICT DO NOTHING RETURNING 1`,
      [owner, key, storageKey, digest, body.byteLength],
    )
    if (inserted.length === 0) await objects.delete(storageKey)
    tell(`${owner}/${key} is imported${inserted.length === 0 ? ': it was there' : ''}`)
    await observe(null)
  }

  const canRun = ({ thread: { process } }: { thread: Thread }): boolean => process?.frozen !== true

  const thaw = (): void => {
    for (const { process } of workers) process.frozen = false
  }

  function sweep(worker: Worker): void {
    const name = `${worker.name} s${steps}`
    tell(`${name} sweeps`)
    void simulation.run(name, worker.process, () => worker.sweep(SWEEP))
  }

  /** Something other than one more step. */
  async function happen(): Promise<void> {
    const n = random.integer(0, plan.workers - 1)
    const worker = workers[n]!
    const intent = random.pick(plan.intents)
    const open = deliveries.filter(({ ended, process }) => !ended && process.alive)
    switch (
      random.pick([
        'lease',
        'lease',
        'timer',
        'timer',
        'timer',
        'expire',
        'crash',
        'cut',
        'sweep',
        'again',
        'ask',
        'break',
        'day',
        'import',
        'late',
      ])
    ) {
      case 'lease':
        thaw()
        worker.process.frozen = random.chance(0.7)
        return elapse(`61 s, ${worker.process.frozen ? `asleep in ${worker.name},` : ''}`, LEASE + 1000)
      case 'timer': {
        const timers = simulation.timers.filter((timer) => !timer.isPause && canRun(timer))
        if (timers.length === 0) return
        // Renewals come often, time-outs seldom.
        const beats = timers.filter(({ repeats }) => repeats)
        const timer = random.pick(beats.length > 0 && random.chance(0.9) ? beats : timers)
        tell(`${timer.thread.name} has a timer due, after ${timer.ms} ms`)
        return timer.run()
      }
      case 'expire':
        return byHand(
          `${intent.key} expires`,
          `UPDATE idempotency_keys SET expires_at = now() - interval '1 s'
            WHERE (owner, key) IN (SELECT owner, key FROM idempotency_keys WHERE key = '${intent.key}' FOR UPDATE SKIP LOCKED)`,
        )
      case 'crash':
        tell(`${worker.name} dies`)
        return simulation.crash(worker.process)
      case 'cut':
        if (openOrders.size > 0 && random.chance(0.3)) {
          const [name, { cut }] = random.pick([...openOrders])
          tell(`the client of ${name} goes away`)
          return cut()
        }
        if (open.length > 0) {
          const cut = random.pick(open)
          tell(`the client of ${cut.name} goes away`)
          cut.cut()
        }
        return
      case 'sweep':
        return sweep(worker)
      case 'again':
        if (plan.orders.length > 0 && random.chance(0.5)) void place(random.pick(plan.orders), worker).catch(fail)
        else send(intent, worker)
        return
      case 'ask':
        void lookUp(intent, worker).catch(fail)
        return
      case 'break':
        tell(`the connections of ${worker.name} break`)
        for (const [name, order] of openOrders) if (order.worker === worker) failed.add(name)
        return lane.disconnect(n)
      case 'day':
        // S3 takes minutes at most, and refuses signatures that are older than 15.
        await simulation.deliverAllLate()
        thaw()
        worker.process.frozen = random.chance(0.7)
        if (random.chance(0.5)) return elapse(`73 h, ${worker.process.frozen ? `asleep in ${worker.name},` : ''}`, RETENTION + HOUR)
        await elapse(`7 h, ${worker.process.frozen ? `asleep in ${worker.name},` : ''}`, 7 * HOUR)
        return sweep(workers[(n + 1) % workers.length]!)
      case 'late':
        if (simulation.late.length > 0) tell('what was given up is written')
        return simulation.deliverLate()
      case 'import':
        if (plan.imports && simulation.openTransactions === 0 && isAcceptable(intent)) return importFile(intent)
    }
  }

  /** The steps that are hardest to get right are few among many. */
  const isLateFinish = ({ label }: Gate): boolean => label === 'finish' && plan.late
  const rateOf = (gate: Gate): number => {
    if (gate.label === 'COMMIT') return Math.min(0.5, 8 * plan.faultRate)
    return isLateFinish(gate) ? 4 * plan.faultRate : plan.faultRate
  }
  const fates: Fate[] = ['fail before', 'fail after', 'fail after', 'crash before', 'crash after']
  function proceed(gate: Gate, mayFail: boolean): void {
    const canFail = mayFail && gate.canFail && gate.thread.process !== null && random.chance(rateOf(gate))
    const fate = canFail ? random.pick(isLateFinish(gate) ? (['fail before', 'crash before'] as const) : fates) : 'go'
    if (fate.startsWith('fail') && gate.label === 'hook') failedHooks.add(gate.thread.name)
    if (fate !== 'go') failed.add(gate.thread.name)
    tell(`${gate.thread.name} ${gate.label}${fate === 'go' ? '' : ` ${fate}`}`)
    gate.open(fate)
  }

  async function run(mayFail: boolean, isDone: () => boolean): Promise<void> {
    for (;;) {
      await simulation.settle()
      await judge()
      for (const [intent, answer] of lookedUp.splice(0)) answers.checkOutcome(intent, answer)
      for (const worker of workers) {
        if (worker.process.alive) continue
        worker.restart()
        tell(`${worker.name} starts again`)
      }
      if (isDone()) return
      steps++
      if (mayFail && random.chance(plan.eventRate)) {
        await happen()
        continue
      }
      const ready = simulation.gates.filter(canRun)
      const pauses = simulation.timers.filter((timer) => timer.isPause && canRun(timer))
      if (pauses.length > 0 && (ready.length === 0 || random.chance(0.15))) {
        random.pick(pauses).run()
        continue
      }
      if (ready.length === 0) {
        if (simulation.gates.length === 0 && !simulation.timers.some(({ isPause }) => isPause)) return
        thaw()
        continue
      }
      for (let together = random.chance(0.08) ? 2 : 1; together > 0 && ready.length > 0; together--) {
        const gate = random.pick(ready)
        ready.splice(ready.indexOf(gate), 1)
        if (simulation.gates.includes(gate)) proceed(gate, mayFail)
      }
    }
  }

  /** No more faults: everything ends as it should. */
  async function conclude(): Promise<void> {
    thaw()
    await run(false, () => false)
    must(simulation.openTransactions === 0, 'a transaction was left open')
    simulation.isFree = true
    await simulation.deliverAllLate()
    await elapse('61 s', LEASE + 1000)
    const stored = new Set<string>()
    for (const round of ['after the lease', 'after the retention']) {
      const firsts = new Map<string, string>()
      for (const intent of plan.intents) {
        const answer = (await send(intent, random.pick(workers)).answer)!
        await judge()
        const name = nameOf(intent)
        if (answer.status === 201) stored.add(name)
        const expected = (): boolean => {
          if (answer.status === 201) return !plan.refused.has(intent.key) && intent.body.byteLength <= MAX_BYTES
          if (answer.error === 'idempotency_key_reuse') return plan.intents.filter((other) => nameOf(other) === name).length > 1
          if (answer.status === 422) return plan.refused.has(intent.key)
          return answer.status === 413 && intent.body.byteLength > MAX_BYTES
        }
        must(expected(), `G6: ${round} ${name} is answered ${answer.status} ${answer.error}`)
        firsts.set(name, `${firsts.get(name) ?? ''}${answer.status} `)
      }
      for (const intent of plan.intents) {
        await lookUp(intent, workers[0]!)
        const [, outcome] = lookedUp.pop()!
        answers.checkOutcome(intent, outcome)
        if (plan.intents.filter((other) => nameOf(other) === nameOf(intent)).length > 1) continue
        must(outcome.status === 200, `G6: ${round} a look-up of ${nameOf(intent)} is answered ${outcome.status}`)
      }
      for (const order of plan.orders.slice(0, 1)) {
        const first = (await place(order, random.pick(workers)))!
        const again = (await place(order, random.pick(workers)))!
        await judge()
        const wasReplay = first.headers.has('Idempotent-Replayed')
        const isOther = first.error === 'idempotency_key_reuse' && plan.orders.length > 1
        must(isOther || wasReplay || first.status === 201, `G6: ${round} ${order.key} is answered ${first.status} ${first.error}`)
        must(!wasReplay || round === 'after the lease', `N: ${round} ${order.key} is answered with a replay`)
        must(isOther || (again.text === first.text && again.headers.has('Idempotent-Replayed')), `I4: two answers to ${order.key} differ`)
      }
      if (round === 'after the lease') {
        await elapse('7 h', 7 * HOUR)
        await simulation.run('sweep', null, () => workers[0]!.sweep(SWEEP))
        await look()
        await elapse('2 min', 120_000)
        await simulation.run('sweep', null, () => workers[1]!.sweep(SWEEP))
        await look()
        const { media, pending, objects: kept } = checker.last
        must(pending.size === 0, `G2: ${pending.size} pending object(s) after the sweeps`)
        const lost = [...kept].filter((object) => !outlived.has(object) && !media.some(({ storageKey }) => storageKey === object))
        must(lost.length === 0, `G2: objects without a row after the sweeps: ${lost}`)
        must(media.length === stored.size, `G6: ${media.length} media rows for ${stored.size} keys that were answered 201`)
        await elapse('73 h', RETENTION + HOUR)
      }
    }
  }

  try {
    for (const intent of plan.intents) {
      for (let n = 0; n < plan.clients; n++) void simulation.run(`client of ${nameOf(intent)}`, null, () => client(intent)).catch(fail)
    }
    for (const order of plan.orders) {
      for (let n = 0; n < plan.clients; n++) void simulation.run(`customer of ${order.key}`, null, () => customer(order)).catch(fail)
    }
    await run(true, () => working === 0 || steps >= MAX_STEPS)
    await conclude()
  } catch (error) {
    if (error instanceof Violation) throw new Violation([`seed ${seed}: ${error.message}`, ...story].join('\n'))
    throw new Error([`seed ${seed}`, ...story].join('\n'), { cause: error })
  } finally {
    simulation.isFree = true
    for (const { process } of workers) if (process.alive) simulation.crash(process)
    await simulation.settle()
    for (const writer of opened) await writer.abort()
    await admin.query('DELETE FROM idempotency_keys; DELETE FROM media; DELETE FROM pending_objects')
    for (const object of await objects.list('')) await objects.delete(object)
  }
  return { steps, story }
}
