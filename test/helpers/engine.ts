/** A page of a browser: what tests need that run in every engine. */
export interface EnginePage {
  goto(url: string): Promise<void>
  reload(): Promise<void>
  /** The value of a JavaScript expression, awaited; it travels as JSON. Short ones only: in some engines all pages wait for it. */
  evaluate<T>(expression: string): Promise<T>
  close(): Promise<void>
}

/** A browser, and its first page; `close` ends it. */
export interface Engine extends EnginePage {
  newPage(): Promise<EnginePage>
}

/** Calls a function in the page. It sees the page's globals, and nothing of the place where it was written. */
export const run = <T, Argument = undefined>(
  page: EnginePage,
  work: (argument: Argument) => T | Promise<T>,
  ...[argument]: Argument extends undefined ? [] : [argument: Argument]
): Promise<T> => page.evaluate(`(${work})(${JSON.stringify(argument)})`)
