import { afterEach, expect, test, vi } from 'vitest'
import { createEmitter } from '../src/events.js'

const uncaught: unknown[] = []
const note = (error: unknown): void => void uncaught.push(error)
let others: NodeJS.UncaughtExceptionListener[] = []
afterEach(() => {
  process.off('uncaughtException', note)
  for (const listener of others) process.on('uncaughtException', listener)
  others = []
})

test('listeners hear their event with its payload, in the order of their coming, until they leave', () => {
  const { on, emit } = createEmitter()
  const heard: unknown[] = []
  const leave = on('warning', ({ message }) => heard.push(['first', message]))
  on('warning', ({ message }) => heard.push(['second', message]))
  on('idle', () => heard.push('idle'))
  emit('warning', { message: 'a' })
  leave()
  leave()
  emit('warning', { message: 'b' })
  emit('online', {})
  expect(heard).toEqual([
    ['first', 'a'],
    ['second', 'a'],
    ['second', 'b'],
  ])
})

test('a listener that leaves or comes while an event is told changes nothing for that event', () => {
  const { on, emit } = createEmitter()
  const heard: string[] = []
  const leave = on('idle', () => {
    heard.push('first')
    leave()
    on('idle', () => heard.push('late'))
  })
  on('idle', () => heard.push('second'))
  emit('idle', {})
  expect(heard).toEqual(['first', 'second'])
})

test('a listener that throws stops neither the queue nor other listeners, and its error is reported', async () => {
  // Vitest's own listener would count it as a failure.
  others = process.listeners('uncaughtException')
  process.removeAllListeners('uncaughtException')
  process.on('uncaughtException', note)
  const { on, emit } = createEmitter()
  const listener = vi.fn()
  on('idle', () => {
    throw new Error('of the app')
  })
  on('idle', listener)
  emit('idle', {})
  expect(listener).toHaveBeenCalledOnce()
  await vi.waitFor(() => expect(uncaught).toHaveLength(1))
  expect(uncaught[0]).toMatchObject({ message: 'of the app' })
})
