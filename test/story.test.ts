import type { Upload, UploadQueue } from 'uponce'
import { beforeEach, expect, test } from 'vitest'
import { followStories, inOneSentence } from '../demo/page/story.js'
import { createEmitter } from '../src/events.js'

type Facts = Partial<Omit<Upload, 'error'>> & { error?: { code: string; status?: number; message?: string } | null }

const first = {
  id: 'a',
  status: 'pending',
  requests: 0,
  attempts: 0,
  reason: null,
  error: null,
  replayed: false,
  notBefore: null,
  createdAt: 0,
  endedAt: null,
}

/** A queue of one upload, of which nothing but its events is real. */
function follow() {
  const emitter = createEmitter<unknown>()
  const queue = { on: emitter.on, getSnapshot: () => [upload] } as unknown as UploadQueue
  let upload = first as unknown as Upload
  const become = (facts: Facts): { upload: Upload } => {
    upload = { ...upload, ...facts } as Upload
    return { upload }
  }
  const stories = followStories(queue, () => {})
  return {
    stories,
    get upload() {
      return upload
    },
    lines: () => stories.of(upload).map(({ text }) => text),
    start: () => emitter.emit('started', become({ status: 'uploading', requests: upload.requests + 1 })),
    move: () => emitter.emit('progress', { ...become({}), loaded: 1, total: 2 }),
    retry(code: string, status?: number) {
      const error = status === undefined ? { code } : { code, status }
      emitter.emit('retrying', { ...become({ status: 'pending', reason: code, error }), delay: 2000, reason: code, counted: false })
    },
    succeed: (replayed: boolean) =>
      emitter.emit('succeeded', {
        ...become({ status: 'succeeded', reason: null, error: null, replayed, endedAt: 1 }),
        result: null,
        replayed,
      }),
  }
}

beforeEach(() => sessionStorage.clear())

test('questions what became of a request are one line, and are not told as files sent', () => {
  const story = follow()
  story.start()
  story.retry('network')
  story.start()
  for (let times = 0; times < 22; times++) {
    story.retry('in-progress', 200)
    story.start()
  }
  expect(story.lines().slice(1)).toEqual([
    'Attempt 1 begins',
    'No answer came: next attempt in 2.0 s, and it does not count',
    'Attempt 2 begins, with the same key',
    'The server was asked 22 times what became of it: still busy with the earlier request',
  ])
  expect(inOneSentence(story.upload, story.stories.asked(story.upload), [], undefined)).toEqual([
    'no answer came',
    'the server was asked 22 times what became of it',
  ])

  story.move()
  story.move()
  story.succeed(false)
  expect(story.lines().slice(5)).toEqual(['The file is sent again, with the same key', 'Succeeded: the server stored it and proved it'])
  expect(inOneSentence(story.upload, story.stories.asked(story.upload), [], 1)).toEqual([
    'no answer came',
    'the server was asked 22 times what became of it',
    'the file was sent again, with the same key',
    'the server stored it',
    'one object exists',
  ])
})

test('a file that the server refuses as busy was sent, and the answer to a later question ends it', () => {
  const story = follow()
  story.start()
  story.retry('in-progress', 409)
  story.start()
  expect(story.lines().at(-1)).toMatch(/^The server is still busy with the earlier request/)
  story.retry('in-progress', 200)
  story.start()
  expect(story.lines().at(-1)).toBe('The server was asked what became of it: still busy with the earlier request')
  story.succeed(true)
  expect(story.lines().slice(1)).toHaveLength(3)
  expect(inOneSentence(story.upload, story.stories.asked(story.upload), [], 1)).toEqual([
    'no answer came',
    'the server was asked what became of it',
    'the server replayed its stored answer',
    'one object exists',
  ])
})

test.each([
  ['http', 503, true],
  ['in-progress', 409, true],
  ['network', undefined, false],
])('after a question, %s %s: the file was sent again: %s', (code, status, wasSent) => {
  const story = follow()
  story.start()
  story.retry('in-progress', 200)
  story.start()
  story.retry(code, status)
  expect(story.lines().includes('The file is sent again, with the same key')).toBe(wasSent)
})

test('a reload keeps the number of questions', () => {
  const story = follow()
  story.start()
  story.retry('in-progress', 200)
  dispatchEvent(new Event('pagehide'))
  const again = follow()
  expect(again.stories.asked(story.upload)).toBe(1)
  expect(again.stories.of(story.upload).at(-1)?.text).toBe('The server was asked what became of it: still busy with the earlier request')
})
