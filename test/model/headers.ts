type Fields = Iterable<readonly [string, string]> | Record<string, string>

/** As the real ones, for less. */
class Own {
  readonly #values = new Map<string, string>()

  constructor(fields: Fields = {}) {
    for (const [name, value] of Symbol.iterator in fields ? (fields as Iterable<[string, string]>) : Object.entries(fields))
      this.append(name, value)
  }
  append(name: string, value: string): void {
    const before = this.get(name)
    this.set(name, before === null ? value : `${before}, ${value}`)
  }
  set(name: string, value: string): void {
    for (const character of `${value}`) if (character > '\xff' || character === '\n') throw new TypeError(`${name} cannot be ${value}`)
    this.#values.set(name.toLowerCase(), `${value}`.trim())
  }
  get(name: string): string | null {
    return this.#values.get(name.toLowerCase()) ?? null
  }
  has(name: string): boolean {
    return this.#values.has(name.toLowerCase())
  }
  delete(name: string): void {
    this.#values.delete(name.toLowerCase())
  }
  forEach(visit: (value: string, name: string) => void): void {
    for (const [name, value] of this) visit(value, name)
  }
  *keys(): IterableIterator<string> {
    for (const [name] of this) yield name
  }
  [Symbol.iterator](): IterableIterator<[string, string]> {
    return [...this.#values].sort(([a], [b]) => (a < b ? -1 : 1)).values()
  }
  entries(): IterableIterator<[string, string]> {
    return this[Symbol.iterator]()
  }
}

/** What pages and processes take for the engine's own: there are more of them than of anything else. */
export const CheapHeaders = Own as unknown as typeof Headers
