/** One token of a text that is known to be JSON. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*|true|false|null|[[\]{}]/g

/** Deeper than anything an app nests, and far from the end of the stack. */
const MAX_DEPTH = 200

/** Too many digits to calculate with; such an exponent is compared as it is written. */
const MAX_EXPONENT_DIGITS = 15

/** The same text for every way to write one number: `1`, `1.0`, `10e-1`. Exact, so two numbers stay two beyond 2^53 as well. */
function canonicalNumber(token: string): string {
  const [, sign = '', integer = '', fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(token) ?? []
  const digits = integer + fraction
  let from = 0
  while (digits[from] === '0') from++
  if (from === digits.length) return '0'
  let to = digits.length
  while (digits[to - 1] === '0') to--
  if (exponent.length > MAX_EXPONENT_DIGITS) return token
  return `${sign}${digits.slice(from, to)}e${Number(exponent) - fraction.length + digits.length - to}`
}

/** Without escapes there is only one way to write a string. */
const canonicalString = (token: string): string => (token.includes('\\') ? JSON.stringify(JSON.parse(token)) : token)

class TooDeep extends Error {}

/**
 * One text for all JSON texts that say the same: white space, member order, escapes and forms of numbers do not matter. A member that is named
 * twice is kept twice, in order, since parsers do not agree on which one counts. Null for what is not JSON, or is nested deeper than 200 levels.
 */
export function canonicalJson(text: string): string | null {
  try {
    JSON.parse(text)
  } catch {
    return null
  }
  const tokens = text.matchAll(TOKEN)
  const next = (): string => tokens.next().value![0]

  const value = (token: string, depth: number): string => {
    if (depth > MAX_DEPTH) throw new TooDeep()
    if (token === '[') return array(depth + 1)
    if (token === '{') return object(depth + 1)
    if (token.startsWith('"')) return canonicalString(token)
    return /^[-\d]/.test(token) ? canonicalNumber(token) : token
  }
  const array = (depth: number): string => {
    const items: string[] = []
    for (let token = next(); token !== ']'; token = next()) items.push(value(token, depth))
    return `[${items.join(',')}]`
  }
  const object = (depth: number): string => {
    const members: [name: string, value: string][] = []
    for (let token = next(); token !== '}'; token = next()) members.push([canonicalString(token), value(next(), depth)])
    members.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
    return `{${members.map((member) => member.join(':')).join(',')}}`
  }

  try {
    return value(next(), 0)
  } catch (error) {
    if (error instanceof TooDeep) return null
    throw error
  }
}
