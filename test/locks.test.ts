import { expect, test } from 'vitest'
import { FakeLocks } from './helpers/locks.js'

/** A promise that the test settles. */
const gate = () => {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { open, opened }
}

test('one at a time holds an exclusive lock, in the order of asking', async () => {
  const locks = new FakeLocks()
  const order: string[] = []
  const first = gate()
  const requests = [
    locks.request('a', async () => {
      order.push('first in')
      await first.opened
      order.push('first out')
    }),
    locks.request('a', () => order.push('second')),
    locks.request('a', () => order.push('third')),
    locks.request('b', () => order.push('another name')),
  ]
  expect(order).toEqual([])
  await requests[3]
  expect(await locks.query()).toEqual({
    held: [{ clientId: 'fake', name: 'a', mode: 'exclusive' }],
    pending: [
      { clientId: 'fake', name: 'a', mode: 'exclusive' },
      { clientId: 'fake', name: 'a', mode: 'exclusive' },
    ],
  })
  first.open()
  await Promise.all(requests)
  expect(order).toEqual(['first in', 'another name', 'first out', 'second', 'third'])
  expect(await locks.query()).toEqual({ held: [], pending: [] })
})

test('a request passes on what its callback returns or throws, and the lock is free after either', async () => {
  const locks = new FakeLocks()
  expect(await locks.request('a', async (lock) => lock?.name)).toBe('a')
  await expect(locks.request('a', () => Promise.reject(new Error('no')))).rejects.toThrow('no')
  await expect(
    locks.request('a', () => {
      throw new Error('no')
    }),
  ).rejects.toThrow('no')
  expect(await locks.request('a', { ifAvailable: true }, (lock) => lock !== null)).toBe(true)
})

test('ifAvailable gets null while another holds the lock', async () => {
  const locks = new FakeLocks()
  const held = gate()
  const request = locks.request('a', () => held.opened)
  expect(await locks.request('a', { ifAvailable: true }, (lock) => lock)).toBeNull()
  held.open()
  await request
})

test('shared locks are held together, and an exclusive one waits for all of them', async () => {
  const locks = new FakeLocks()
  const order: string[] = []
  const gates = [gate(), gate()]
  const readers = gates.map(({ opened }) => locks.request('a', { mode: 'shared' }, () => opened))
  const writer = locks.request('a', () => order.push('writer'))
  const late = locks.request('a', { mode: 'shared' }, () => order.push('late reader'))
  expect((await locks.query()).held).toHaveLength(2)
  gates[0]?.open()
  await readers[0]
  expect(order).toEqual([])
  gates[1]?.open()
  await Promise.all([writer, late])
  expect(order).toEqual(['writer', 'late reader'])
})

test('steal takes the lock at once, and the robbed request rejects with AbortError', async () => {
  const locks = new FakeLocks()
  const robbed = locks.request('a', () => new Promise(() => {}))
  const next = locks.request('a', () => 'next')
  expect(await locks.request('a', { steal: true }, () => 'thief')).toBe('thief')
  await expect(robbed).rejects.toMatchObject({ name: 'AbortError' })
  expect(await next).toBe('next')
})

test('an aborted signal takes a request out of the line, and never takes a lock that is held', async () => {
  const locks = new FakeLocks()
  const held = gate()
  const holder = new AbortController()
  const first = locks.request('a', { signal: holder.signal }, () => held.opened.then(() => 'kept'))
  const waiter = new AbortController()
  const second = locks.request('a', { signal: waiter.signal }, () => 'never')
  const third = locks.request('a', () => 'third')
  waiter.abort(new Error('left the line'))
  await expect(second).rejects.toThrow('left the line')
  holder.abort()
  held.open()
  expect(await first).toBe('kept')
  expect(await third).toBe('third')
  await expect(locks.request('a', { signal: AbortSignal.abort() }, () => 'never')).rejects.toMatchObject({ name: 'AbortError' })
})

test('what the standard does not support is refused', async () => {
  const locks = new FakeLocks()
  const { signal } = new AbortController()
  for (const options of [
    { steal: true, ifAvailable: true },
    { steal: true, mode: 'shared' as const },
    { steal: true, signal },
    { ifAvailable: true, signal },
  ])
    await expect(locks.request('a', options, () => {})).rejects.toMatchObject({ name: 'NotSupportedError' })
  await expect(locks.request('-a', () => {})).rejects.toMatchObject({ name: 'NotSupportedError' })
})
