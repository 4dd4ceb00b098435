import { Bytes } from './blob.js'

const { structuredClone: real } = globalThis

/** What `structuredClone` comes to, for less: most of it is records. */
export function clone<T>(value: T): T {
  if (typeof value !== 'object' || value === null) return typeof value === 'function' || typeof value === 'symbol' ? real(value) : value
  if (Array.isArray(value)) return value.map(clone) as T
  if (value instanceof Bytes) return value
  if (value instanceof ArrayBuffer) return value.slice(0) as T
  if (value instanceof Uint8Array) return new Uint8Array(value) as T
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) return real(value)
  const copy: Record<string, unknown> = {}
  for (const name in value) copy[name] = clone(value[name])
  return copy as T
}
