import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { canonicalJson } from '../../demo/server/canonical-json.js'

/** A number in one of its forms. The value is exact, since only powers of ten are moved. */
const numberForms = fc
  .tuple(fc.bigInt({ min: -(10n ** 25n), max: 10n ** 25n }), fc.integer({ min: -30, max: 30 }))
  .filter(([digits]) => digits !== 0n)
  .chain(([digits, exponent]) =>
    fc.tuple(fc.nat({ max: 5 }), fc.constantFrom('e', 'E'), fc.constantFrom('', '+')).map(([zeros, e, plus]) => {
      const shifted = exponent - zeros
      const fraction = zeros % 2 === 0 ? '' : '.00'
      return { digits, exponent, text: `${digits}${'0'.repeat(zeros)}${fraction}${e}${shifted >= 0 ? plus : ''}${shifted}` }
    }),
  )

const space = fc.constantFrom('', ' ', '\n', '\t \r\n')

const escaped = (text: string): string =>
  `"${[...Array(text.length).keys()].map((at) => `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`).join('')}"`

/** Another way to write the same JSON value. */
function rewritten(value: unknown, draw: (max: number) => number, gap: () => string): string {
  const string = (text: string): string => (draw(1) ? escaped(text) : JSON.stringify(text))
  const wrap = (text: string): string => `${gap()}${text}${gap()}`
  if (typeof value === 'string') return wrap(string(value))
  if (typeof value === 'number') return wrap(Number.isInteger(value) && draw(1) ? `${value}.0` : String(value))
  if (Array.isArray(value)) return wrap(`[${value.map((item) => rewritten(item, draw, gap)).join(',') || gap()}]`)
  if (value !== null && typeof value === 'object') {
    const members = Object.entries(value)
    for (let at = members.length - 1; at > 0; at--) {
      const other = draw(at)
      ;[members[at], members[other]] = [members[other]!, members[at]!]
    }
    const text = members.map(([name, member]) => `${wrap(string(name))}:${rewritten(member, draw, gap)}`).join(',')
    return wrap(`{${text || gap()}}`)
  }
  return wrap(String(value))
}

const json = fc.jsonValue({ maxDepth: 4 }).filter((value) => !JSON.stringify(value).includes('e'))

describe('canonical JSON', () => {
  it('is one text whatever the order of members, the white space, the escapes and the forms of numbers', () => {
    fc.assert(
      fc.property(json, fc.infiniteStream(fc.nat()), fc.infiniteStream(space), (value, numbers, gaps) => {
        const again = rewritten(
          value,
          (max) => numbers.next().value % (max + 1),
          () => gaps.next().value,
        )
        expect(canonicalJson(again)).toBe(canonicalJson(JSON.stringify(value)))
      }),
      { numRuns: 300 },
    )
  })

  it('differs whenever the values differ', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), (one, two) => {
        const same = canonicalJson(JSON.stringify(one)) === canonicalJson(JSON.stringify(two))
        const sorted = (value: unknown): unknown =>
          value !== null && typeof value === 'object' && !Array.isArray(value)
            ? Object.fromEntries(
                Object.entries(value)
                  .sort(([a], [b]) => (a < b ? -1 : 1))
                  .map(([k, v]) => [k, sorted(v)]),
              )
            : Array.isArray(value)
              ? value.map(sorted)
              : value
        expect(same).toBe(JSON.stringify(sorted(one)) === JSON.stringify(sorted(two)))
      }),
      { numRuns: 500 },
    )
  })

  it('keeps the value', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(JSON.parse(canonicalJson(JSON.stringify(value))!)).toEqual(JSON.parse(JSON.stringify(value)))
      }),
    )
  })

  it('tells numbers apart exactly, and their forms not at all', () => {
    fc.assert(
      fc.property(numberForms, numberForms, (one, two) => {
        const isSame = one.digits * 10n ** BigInt(one.exponent + 30) === two.digits * 10n ** BigInt(two.exponent + 30)
        expect(canonicalJson(one.text) === canonicalJson(two.text)).toBe(isSame)
        expect(canonicalJson(one.text)).toBe(canonicalJson(`${one.digits}e${one.exponent}`))
      }),
      { numRuns: 500 },
    )
  })

  it.each([
    ['1', '1.0', '1e0', '10e-1', '0.1e1', '1E+0', '100.00e-2'],
    ['0', '-0', '0.000', '0e99', '-0.0e-5'],
    ['-120', '-1.2e2', '-12e1'],
    ['"a/é"', '"\\u0061\\/\\u00e9"', '"a/\\u00E9"'],
    ['{"a":1,"b":2}', '{"b":2,"a":1}', ' { "\\u0062" : 2.0 ,\n"a":1 } '],
    ['[]', '[ ]'],
  ])('is the same for %s and the like', (first, ...others) => {
    for (const other of others) expect(canonicalJson(other)).toBe(canonicalJson(first))
  })

  it.each([
    ['9007199254740992', '9007199254740993'],
    ['1e400', '1e401'],
    ['0.1', '0.10000000000000001'],
    ['1e9999999999999999999', '1e9999999999999999998'],
    ['1', '"1"'],
    ['[1,2]', '[2,1]'],
    ['[[1],2]', '[1,[2]]'],
    ['{"a":1}', '{"a":1,"a":1}'],
    ['{"a":1,"a":2}', '{"a":2,"a":1}'],
    ['{"a":null}', '{}'],
    ['"\u00e9"', '"e\u0301"'],
  ])('differs for %s and %s', (one, two) => {
    expect(canonicalJson(one)).not.toBe(canonicalJson(two))
  })

  it.each(['', '{', "{'a':1}", '[1,]', '01', 'NaN', '{"a":1}x', '"\n"', `${'['.repeat(300)}${']'.repeat(300)}`])(
    'is null for %j',
    (text) => {
      expect(canonicalJson(text)).toBeNull()
    },
  )

  it('takes a moment for a text of 1 MiB, whatever is in it', () => {
    const texts = [
      JSON.stringify('x'.repeat(1_000_000)),
      JSON.stringify('"\\'.repeat(300_000)),
      `0.${'0'.repeat(1_000_000)}1`,
      `1${'0'.repeat(1_000_000)}.5`,
      `[${'1,'.repeat(400_000)}1]`,
      `{${Array.from({ length: 60_000 }, (_, n) => `"name${n}":${n}`).join(',')}}`,
      `${'['.repeat(500_000)}${']'.repeat(500_000)}`,
    ]
    const started = performance.now()
    for (const text of texts) canonicalJson(text)
    expect(performance.now() - started).toBeLessThan(10_000)
  })
})
