import type { UploadErrorCode } from '../errors.js'
import type { UploadQueueEventName, UploadQueueEvents } from '../events.js'
import type { UploadQueueOptions } from '../options.js'
import { createUploadQueue, type UploadQueue } from '../queue.js'
import { englishTexts, type UploadQueueTexts } from './element-texts.js'
import { createView } from './element-view.js'
import { type AttachOptions, attach, type RefusalReason, type Refused } from './file-picker.js'

export type { UploadQueueTexts, UploadTotals } from './element-texts.js'

/** The events of `<upload-queue>`: those of its queue, with their payload as `detail`, and one for each thing that is not taken. All bubble. */
export type UploadQueueElementEvents = {
  [Name in UploadQueueEventName]: CustomEvent<UploadQueueEvents<unknown>[Name]>
} & {
  /** A thing that is not taken, and why: it was refused as it was picked, or the queue could not save it (`error`). */
  refused: CustomEvent<{ file: Refused; reason: RefusalReason | UploadErrorCode | undefined; error?: unknown }>
}

type Listener<Event> = (this: UploadQueueElement, event: Event) => void

/**
 * Picks files, by a button, a drop or a paste, and shows what becomes of them. Attributes: `endpoint`, `name` and `concurrency` as the options
 * of `createUploadQueue`, `accept` and `multiple` as those of `<input type="file">`, `max-file-size` in bytes. A queue made of attributes is
 * closed when the element leaves its page; what is not sent by then stays stored.
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

const events = 'added started progress retrying succeeded failed blocked paused resumed cancelled idle offline online warning'.split(' ')

/** Defines the element, once. Does nothing where there are no custom elements, on a server say. */
export function defineUploadQueue(tag = 'upload-queue'): void {
  if (!globalThis.customElements || customElements.get(tag)) return
  customElements.define(tag, createElementClass())
}

const createElementClass = (): CustomElementConstructor =>
  class extends HTMLElement implements UploadQueueElement {
    static readonly observedAttributes = ['endpoint', 'name', 'concurrency', 'accept', 'multiple', 'max-file-size', 'lang']
    readonly #view = createView(this.attachShadow({ mode: 'open' }))
    #texts: Partial<UploadQueueTexts> = {}
    #given: UploadQueue<unknown> | null = null
    #own: UploadQueue<unknown> | null = null
    /** The attributes that this was made of. */
    #madeOf = ''
    #endings: (() => void)[] = []
    #isDue = false

    get queue(): UploadQueue<unknown> | null {
      return this.#given ?? this.#own
    }

    set queue(queue: UploadQueue<unknown> | null) {
      this.#given = queue
      this.#open()
    }

    get texts(): Partial<UploadQueueTexts> {
      return this.#texts
    }

    set texts(texts: Partial<UploadQueueTexts>) {
      this.#texts = texts
      this.#open()
    }

    connectedCallback(): void {
      // Set before the element was defined, they hide the accessors.
      for (const name of ['queue', 'texts'] as const) {
        const value = Object.getOwnPropertyDescriptor(this, name)?.value
        delete (this as Partial<UploadQueueElement>)[name]
        if (value) Object.assign(this, { [name]: value })
      }
      this.#open()
    }

    disconnectedCallback(): void {
      this.#update()
    }

    attributeChangedCallback(): void {
      this.#update()
    }

    /** Soon: several attributes that change together make one new queue, and an element that is moved comes back at once. */
    #update(): void {
      if (this.#isDue) return
      this.#isDue = true
      queueMicrotask(() => {
        this.#isDue = false
        this.#open()
      })
    }

    /** Shows the queue that is to be shown, and takes files for it; neither, when the element is not on a page. */
    #open(): void {
      const attribute = (name: string): string | undefined => this.getAttribute(name) ?? undefined
      const number = (name: string): number | undefined => (this.hasAttribute(name) ? Number(attribute(name)) : undefined)
      for (const end of this.#endings.splice(0)) end()

      const options = { endpoint: attribute('endpoint'), name: attribute('name'), concurrency: number('concurrency') }
      const madeOf = this.#given || !this.isConnected || !options.endpoint ? '' : JSON.stringify(options)
      if (madeOf !== this.#madeOf) {
        this.#own?.close().catch(() => {})
        this.#own = null
        this.#madeOf = ''
        if (madeOf) this.#own = createUploadQueue(options as UploadQueueOptions<unknown>)
        this.#madeOf = madeOf
      }
      if (!this.isConnected) return

      const { input, follow, setTexts } = this.#view
      const maxFileSize = number('max-file-size')
      setTexts({ ...englishTexts(this.closest<HTMLElement>('[lang]')?.lang), ...this.#texts }, maxFileSize)
      input.accept = attribute('accept') ?? ''
      input.multiple = this.hasAttribute('multiple')
      const { queue } = this
      if (!queue) return
      const limits: AttachOptions = {
        accept: input.accept,
        multiple: input.multiple,
        ...(maxFileSize !== undefined && { maxFileSize }),
        onRefused: (file, reason) => this.#refuse(file, reason),
        onError: (error, file) => this.#refuse(file, (error as { code?: UploadErrorCode }).code, error),
      }
      this.#endings = [
        attach(queue, input, limits),
        attach(queue, this, limits),
        follow(queue),
        ...events.map((name) => queue.on(name as UploadQueueEventName, (detail) => this.#dispatch(name, detail))),
      ]
    }

    #refuse(file: Refused, reason: RefusalReason | UploadErrorCode | undefined, error?: unknown): void {
      this.#view.refuse(file.name, error ?? reason)
      this.#dispatch('refused', { file, reason, error })
    }

    #dispatch(name: string, detail: unknown): void {
      this.dispatchEvent(new CustomEvent(name, { bubbles: true, composed: true, detail }))
    }
  }
