import { useCallback, useEffect, useState, useSyncExternalStore } from 'react'
import type { UploadQueueOptions } from '../options.js'
import type { UploadReceipt } from '../proof.js'
import { createUploadQueue, type UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'

interface Entry {
  queue: UploadQueue<never>
  /** As they were rendered last. */
  options: Record<string, unknown>
  users: number
}

/** The queues that mounted components use, by name. */
const entries = new Map<string, Entry>()
const none: readonly never[] = []
const subscribeToNothing = (): (() => void) => () => {}

function open(options: Record<string, unknown>): Entry {
  const entry = { options, users: 0 } as unknown as Entry
  const live = (value: unknown, name: string): unknown => {
    // A Standard Schema may be a function, and is more than that.
    if (typeof value !== 'function' || '~standard' in value) return value
    return (...args: unknown[]) => {
      const latest = entry.options[name]
      return typeof latest === 'function' ? latest(...args) : latest
    }
  }
  const lively = Object.entries(options).map(([name, value]) => [name, live(value, name)])
  entry.queue = createUploadQueue(Object.fromEntries(lively))
  return entry
}

/**
 * The queue of `options.name`, made when the first component that asks for it has mounted and closed when the last has unmounted; what is not
 * sent by then stays stored. `null` on the server, as the page is hydrated, and until the component has mounted. Of the options the functions
 * are called as they were rendered last; everything else is as it was when the queue was made. Throws the `TypeError` of `createUploadQueue`,
 * as the component mounts.
 */
export function useUploadQueue<Result = UploadReceipt>(options: UploadQueueOptions<Result>): UploadQueue<Result> | null {
  const { name = 'uploads' } = options
  const given = options as unknown as Record<string, unknown>
  // biome-ignore lint/correctness/useExhaustiveDependencies: other options do not make another queue.
  const subscribe = useCallback(() => {
    const entry = entries.get(name) ?? open(given)
    entries.set(name, entry)
    entry.users += 1
    return () => {
      entry.users -= 1
      // StrictMode, and a page that takes another's place, mount again at once.
      queueMicrotask(() => {
        if (entry.users > 0 || entries.get(name) !== entry) return
        entries.delete(name)
        entry.queue.close().catch(() => {})
      })
    }
  }, [name])
  const queue = useSyncExternalStore(
    subscribe,
    () => entries.get(name)?.queue ?? null,
    () => null,
  )
  useEffect(() => {
    const entry = entries.get(name)
    if (entry) entry.options = given
  })
  return queue as UploadQueue<Result> | null
}

/** What the components of a queue show. */
interface View {
  subscribe(listener: () => void): () => void
  list(): readonly Upload<unknown>[]
  get(id: string): Upload<unknown> | undefined
}
const views = new WeakMap<object, View>()

/** All show what the queue has told last: it tells once a frame, and what mounts in between must not show more than the others. */
function viewOf(queue: UploadQueue<unknown>): View {
  const known = views.get(queue)
  if (known) return known
  const listeners = new Set<() => void>()
  let told = queue.getSnapshot()
  let byId: Map<string, Upload> | undefined
  let end = (): void => {}
  const tell = (): void => {
    told = queue.getSnapshot()
    byId = undefined
    for (const listener of [...listeners]) listener()
  }
  const view: View = {
    list: () => (listeners.size > 0 ? told : queue.getSnapshot()),
    get(id) {
      if (listeners.size === 0) return queue.get(id)
      byId ??= new Map(told.map((upload) => [upload.id, upload]))
      // What came after it was told is new to all.
      return byId.get(id) ?? queue.get(id)
    },
    subscribe(listener) {
      if (listeners.size === 0) {
        end = queue.subscribe(tell)
        tell()
      }
      listeners.add(listener)
      return () => {
        listeners.delete(listener)
        if (listeners.size === 0) end()
      }
    },
  }
  views.set(queue, view)
  return view
}

/**
 * The uploads of a queue, oldest first, or those that `filter` lets through. The same array until one of them changes, and each upload the same
 * object until it does: a row in `memo` is rendered when its own upload has changed. Empty without a queue.
 */
export function useUploads<Result>(
  queue: UploadQueue<Result> | null | undefined,
  filter?: (upload: Upload<Result>) => boolean,
): readonly Upload<Result>[] {
  const [select] = useState(createSelect<Result>)
  const view = queue ? viewOf(queue as UploadQueue<unknown>) : undefined
  return useSyncExternalStore(
    view?.subscribe ?? subscribeToNothing,
    () => select((view?.list() ?? none) as readonly Upload<Result>[], filter),
    () => none,
  )
}

/** One upload; renders when it changes. `undefined` when it is gone, and without a queue. */
export function useUpload<Result>(queue: UploadQueue<Result> | null | undefined, id: string): Upload<Result> | undefined {
  const view = queue ? viewOf(queue as UploadQueue<unknown>) : undefined
  return useSyncExternalStore(
    view?.subscribe ?? subscribeToNothing,
    () => view?.get(id) as Upload<Result> | undefined,
    () => undefined,
  )
}

type Select<Result> = (
  list: readonly Upload<Result>[],
  filter: ((upload: Upload<Result>) => boolean) | undefined,
) => readonly Upload<Result>[]

function createSelect<Result>(): Select<Result> {
  let lastList: unknown
  let lastFilter: unknown
  let kept: readonly Upload<Result>[] = none
  return (list, filter) => {
    if (list !== lastList || filter !== lastFilter) {
      const next = filter ? list.filter((upload) => filter(upload)) : list
      if (next.length !== kept.length || next.some((upload, place) => upload !== kept[place])) kept = next
      lastList = list
      lastFilter = filter
    }
    return kept
  }
}
