/** A browser with one page: what tests need that run in every engine. */
export interface Engine {
  goto(url: string): Promise<void>
  /** The value of a JavaScript expression, awaited; it travels as JSON. */
  evaluate<T>(expression: string): Promise<T>
  close(): Promise<void>
}
