import type { UploadError } from '../errors.js'
import type { UploadQueueEventName, UploadQueueEvents } from '../events.js'
import { resolveOptions, type UploadQueueOptions } from '../options.js'
import { createUploadQueue, type UploadQueue } from '../queue.js'
import type { Upload } from '../snapshot.js'
import { englishTexts, type UploadQueueTexts } from './element-texts.js'
import { createView, type Refusal } from './element-view.js'
import { type AttachOptions, attach } from './file-picker.js'

export type { UploadQueueTexts, UploadTotals } from './element-texts.js'

/** The events of `<upload-queue>`: those of its queue, with their payload as `detail`, and one for each thing that is not taken. All bubble. */
export type UploadQueueElementEvents = {
  [Name in UploadQueueEventName]: CustomEvent<UploadQueueEvents<unknown>[Name]>
} & {
  /** One thing that is not taken. */
  refused: CustomEvent<Refusal>
}

type Listener<Event> = (this: UploadQueueElement, event: Event) => void

/**
 * Picks files, by a button, a drop or a paste, and shows what becomes of them. Attributes: `endpoint`, `name` and `concurrency` as the options
 * of `createUploadQueue`, `accept` and `multiple` as those of `<input type="file">`, `max-file-size` in bytes. A value that cannot be used is
 * ignored, with an error on the console: what was there before counts, else the default. A queue made of attributes is closed when the element
 * leaves its page or its attributes make another one, once what was picked is saved; what is not sent by then stays stored. One that has no
 * storage first sends what it holds.
 */
export interface UploadQueueElement extends HTMLElement {
  /** The queue that is shown, `null` without one. One that is set takes the place of what the attributes say, and is never closed here. */
  // biome-ignore lint/suspicious/noExplicitAny: an app knows what its server answers.
  queue: UploadQueue<any> | null
  /** Texts that take the place of the English ones, all or some. */
  texts: Partial<UploadQueueTexts>
  /** As of any element, with the types of its own events. */
  addEventListener<Name extends keyof UploadQueueElementEvents>(
    name: Name,
    listener: Listener<UploadQueueElementEvents[Name]>,
    options?: boolean | AddEventListenerOptions,
  ): void
  /** As of any element. */
  addEventListener(name: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void
  /** As of any element, with the types of its own events. */
  removeEventListener<Name extends keyof UploadQueueElementEvents>(
    name: Name,
    listener: Listener<UploadQueueElementEvents[Name]>,
    options?: boolean | EventListenerOptions,
  ): void
  /** As of any element. */
  removeEventListener(name: string, listener: EventListenerOrEventListenerObject, options?: boolean | EventListenerOptions): void
}

declare global {
  interface HTMLElementTagNameMap {
    'upload-queue': UploadQueueElement
  }
}

/** Defines the element, once. Does nothing where there are no custom elements, on a server say. */
export function defineUploadQueue(tag = 'upload-queue'): void {
  if (!globalThis.customElements || customElements.get(tag)) return
  customElements.define(tag, createElementClass())
}

/** A queue that is made of attributes. */
interface OwnQueue {
  readonly queue: UploadQueue<unknown>
  /** The same, for what is picked: that is saved, also when the queue is let go meanwhile. */
  readonly taking: UploadQueue<unknown>
  /** `false` lets it go. */
  hold(isHeld: boolean): void
}

/** The queue is closed when it is let go, as soon as nothing is lost by it; `onClose` is called then. */
function createOwnQueue(options: UploadQueueOptions<unknown>, onClose?: () => void): OwnQueue {
  const queue = createUploadQueue(options)
  let isHeld = true
  let isClosed = false
  let saving = 0
  const look = (): void => {
    const isLost = ({ durable, status }: Upload): boolean => !durable && status !== 'succeeded' && status !== 'failed'
    if (isHeld || isClosed || saving > 0 || queue.getSnapshot().some(isLost)) return
    isClosed = true
    onClose?.()
    queue.close().catch(() => {})
  }
  queue.subscribe(look)
  return {
    queue,
    taking: {
      ...queue,
      async enqueueAll(...files) {
        // A folder takes its time until it is read. Another queue of the name saves to the same place.
        const late = isClosed ? createOwnQueue(options) : undefined
        saving++
        try {
          return await (late?.taking ?? queue).enqueueAll(...files)
        } finally {
          saving--
          late?.hold(false)
          look()
        }
      },
    },
    hold(value) {
      isHeld = value
      look()
    },
  }
}

const createElementClass = (): CustomElementConstructor =>
  class extends HTMLElement implements UploadQueueElement {
    static readonly observedAttributes = ['endpoint', 'name', 'concurrency', 'accept', 'multiple', 'max-file-size', 'lang']
    readonly #view = createView(this.attachShadow({ mode: 'open' }))
    #texts: Partial<UploadQueueTexts> = {}
    #given: UploadQueue<unknown> | null = null
    /** The attributes that its own queue is made of; none without one. */
    #madeOf = ''
    /** Those that are open, by their attributes: an element that comes back finds its uploads. */
    readonly #ownQueues = new Map<string, OwnQueue>()
    /** Each attribute as it was read last, and the value that counts. */
    readonly #read = new Map<string, { text: string | null; value: unknown }>()
    /** End what is taken. */
    #attached: (() => void)[] = []

    get #own(): OwnQueue | undefined {
      return this.#ownQueues.get(this.#madeOf)
    }

    get queue(): UploadQueue<unknown> | null {
      return this.#given ?? this.#own?.queue ?? null
    }

    set queue(queue: UploadQueue<unknown> | null) {
      if (queue === this.#given) return
      this.#given = queue
      this.#open()
    }

    get texts(): Partial<UploadQueueTexts> {
      return this.#texts
    }

    set texts(texts: Partial<UploadQueueTexts>) {
      this.#texts = texts ?? {}
      this.#open()
    }

    connectedCallback(): void {
      this.#view.dress()
      // Set before the element was defined, they hide the accessors.
      for (const name of ['queue', 'texts'] as const)
        if (Object.hasOwn(this, name)) {
          const value = this[name]
          delete (this as Partial<UploadQueueElement>)[name]
          Object.assign(this, { [name]: value })
        }
      this.#open()
    }

    disconnectedCallback(): void {
      this.attributeChangedCallback()
    }

    /** Soon: several attributes that change together make one new queue, and an element that is moved comes back at once. */
    attributeChangedCallback(): void {
      queueMicrotask(() => this.#open())
    }

    /** What an attribute says as an option of the queue. What cannot be used leaves it as it was. */
    #option<Value>(name: string, isNumber = false, option = name): Value | undefined {
      const text = this.getAttribute(name)
      const known = this.#read.get(name)
      if (text === known?.text) return known?.value as Value
      // Of an empty text Number makes 0.
      let value: unknown = isNumber && text !== null ? Number(text.trim() || undefined) : (text ?? undefined)
      try {
        if (text !== null) resolveOptions({ endpoint: '/', [option]: value })
      } catch (error) {
        console.error(`<${this.localName} ${name}="${text}"> is ignored. ${(error as Error).message}`)
        value = known?.value
      }
      this.#read.set(name, { text, value })
      return value as Value
    }

    /** Shows the queue that is to be shown, and takes files for it; neither, when the element is not on a page. */
    #open(): void {
      const { isConnected } = this
      const options = {
        endpoint: this.#option<string>('endpoint'),
        name: this.#option<string>('name'),
        concurrency: this.#option<number>('concurrency', true),
      }
      const maxFileSize = this.#option<number>('max-file-size', true, 'maxFileSize')
      for (const end of this.#attached.splice(0)) end()

      const madeOf = this.#given || !isConnected || !options.endpoint ? '' : JSON.stringify(options)
      if (madeOf !== this.#madeOf) {
        this.#own?.hold(false)
        this.#madeOf = madeOf
        if (madeOf && !this.#own)
          this.#ownQueues.set(
            madeOf,
            createOwnQueue(options as UploadQueueOptions<unknown>, () => this.#ownQueues.delete(madeOf)),
          )
        this.#own?.hold(true)
      }
      const queue = isConnected ? this.queue : null
      const { input, follow, setTexts, refuse } = this.#view
      follow(queue)
      if (!isConnected) return

      const texts = englishTexts(this.closest<HTMLElement>('[lang]')?.lang)
      for (const [name, text] of Object.entries(this.#texts)) if (text != null) Object.assign(texts, { [name]: text })
      setTexts(texts, maxFileSize)
      input.accept = this.getAttribute('accept') ?? ''
      input.multiple = this.hasAttribute('multiple')
      const taking = this.#own?.taking ?? queue
      if (!taking) return
      const limits: AttachOptions = {
        accept: input.accept,
        multiple: input.multiple,
        maxFileSize,
        onRefused: (file, reason) => refuse({ file, reason }),
        onError: (error, file) => refuse({ file, reason: (error as Partial<UploadError>).code, error }),
      }
      this.#attached = [attach(taking, input, limits), attach(taking, this, limits)]
    }
  }
