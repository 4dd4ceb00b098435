import { expect, test, vi } from 'vitest'
import { UploadError } from '../src/errors.js'
import { newRecord, type PendingUpload } from '../src/record.js'
import { buildRequest, cleanName, newKey, type WireOptions } from '../src/wire.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, index) => index)
/** Of the empty file, from FIPS 180. */
const sha256 = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
const raw: WireOptions = { body: 'raw', digestHeader: 'X-File-Sha256', nameHeader: 'X-File-Name' }

const record = (facts: Partial<PendingUpload> = {}): PendingUpload => ({
  ...newRecord({
    id: 'u1',
    idempotencyKey: 'b7c6a0f0-0000-4000-8000-000000000001',
    sha256,
    owner: '',
    name: 'a.txt',
    type: 'text/plain',
    size: 256,
    lastModified: 0,
    metadata: {},
    priority: 0,
    order: 1,
    createdAt: 0,
    expiresAt: 1,
    paused: false,
  }),
  ...facts,
})

const bytes = (): Blob => new Blob([everyByte], { type: 'text/plain' })
const headersOf = (facts: Partial<PendingUpload>, own?: HeadersInit, options: Partial<WireOptions> = {}): Record<string, string> =>
  Object.fromEntries(buildRequest(record(facts), bytes(), own, { ...raw, ...options }).headers)

test('a raw request has the key, the digest, the type and the name', () => {
  expect(headersOf({})).toEqual({
    'idempotency-key': 'b7c6a0f0-0000-4000-8000-000000000001',
    'x-file-sha256': sha256,
    'content-type': 'text/plain',
    'x-file-name': 'a.txt',
  })
})

test('a file without a type is octets', () => {
  expect(headersOf({ type: '' })['content-type']).toBe('application/octet-stream')
})

test.each([
  ['Japanese', '写真 2024.jpg', undefined],
  ['accented', 'Ärger à Noël.pdf', undefined],
  ['decomposed accents', 'A\u0308rger.pdf', undefined],
  ['emoji', '👩‍👩‍👧 party.png', undefined],
  ['quotes', `say "hi" & 'bye'.txt`, undefined],
  ['percent', '100%25 %zz.txt', undefined],
  ['a path', '../../etc/passwd', undefined],
  ['a Windows path', 'C:\\temp\\a.txt', undefined],
  ['semicolon and comma', 'a;b,c=d.txt', undefined],
  ['right to left', '\u202egpj.exe', undefined],
  ['very long', 'é'.repeat(2_000), undefined],
  ['empty', '', undefined],
  ['CR and LF', 'a\r\nX-Evil: 1\n.txt', 'a__X-Evil: 1_.txt'],
  ['NUL, DEL and C1', 'a\u0000b\u007fc\u0085d', 'a_b_c_d'],
  ['a lone high surrogate', 'a\ud83d.txt', 'a\ufffd.txt'],
  ['a lone low surrogate', '\ude00a.txt', '\ufffda.txt'],
  ['surrogates in the wrong order', '\ude00\ud83d', '\ufffd\ufffd'],
  ['a pair beside a lone one', '😀\ud83d', '😀\ufffd'],
])('a name that is %s goes out as ASCII and comes back', (_name, name, clean = name) => {
  expect(cleanName(name)).toBe(clean)
  const wire = headersOf({ name: clean })
  for (const value of Object.values(wire)) expect(value).toMatch(/^[\x20-\x7e]*$/)
  expect(decodeURIComponent(wire['x-file-name'] as string)).toBe(clean)
  expect(wire['x-file-name']).toMatch(/^[\w.!~*'()%-]*$/)
})

test('the name goes out under another header, or not at all', () => {
  expect(headersOf({}, undefined, { nameHeader: 'X-Name' })).toMatchObject({ 'x-name': 'a.txt' })
  expect(Object.values(headersOf({}, undefined, { nameHeader: false }))).not.toContain('a.txt')
})

test.each<[WireOptions['digestHeader'], string | undefined, string | undefined]>([
  ['X-File-Sha256', sha256, undefined],
  ['Repr-Digest', undefined, 'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'],
  ['both', sha256, 'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'],
])('digestHeader %s', (digestHeader, hex, repr) => {
  const wire = headersOf({}, undefined, { digestHeader })
  expect([wire['x-file-sha256'], wire['repr-digest']]).toEqual([hex, repr])
})

test('metadata travels as in tus: keys as they are, values as base64 of their UTF-8', () => {
  const metadata = { album: 'summer', title: 'Fußball ⚽', empty: '', 'x/y': 'a,b c' }
  const value = headersOf({ metadata })['upload-metadata'] as string
  expect(value).toBe('album c3VtbWVy,title RnXDn2JhbGwg4pq9,empty ,x/y YSxiIGM=')
  const decoded = value.split(',').map((pair) => {
    const [key, encoded] = pair.split(' ') as [string, string]
    return [key, Buffer.from(encoded, 'base64').toString()]
  })
  expect(Object.fromEntries(decoded)).toEqual(metadata)
})

test('a lone surrogate in metadata becomes the replacement character, and a long value goes out whole', () => {
  const decode = (metadata: Record<string, string>): string =>
    Buffer.from(headersOf({ metadata })['upload-metadata']?.split(' ')[1] as string, 'base64').toString()
  expect(decode({ a: 'x\ud83d' })).toBe('x\ufffd')
  expect(decode({ a: 'é'.repeat(100_000) })).toBe('é'.repeat(100_000))
})

test("the app's headers come last and may change what is not the queue's", () => {
  const wire = headersOf({ metadata: { a: 'b' } }, { Authorization: 'Bearer t', 'content-type': 'image/x-raw', 'X-FILE-NAME': 'other' })
  expect(wire).toMatchObject({ authorization: 'Bearer t', 'content-type': 'image/x-raw', 'x-file-name': 'other' })
  expect(wire['idempotency-key']).toBe('b7c6a0f0-0000-4000-8000-000000000001')
  expect(headersOf({}, new Headers({ a: '1' }))).toMatchObject({ a: '1' })
  expect(headersOf({}, [['a', '1']])).toMatchObject({ a: '1' })
})

test.each(['Idempotency-Key', 'idempotency-key', 'X-FILE-SHA256', 'Repr-Digest'])("%s is not the app's to set", (name) => {
  expect(() => headersOf({}, { [name]: 'mine' })).toThrow(
    expect.objectContaining({ code: 'invalid-request', message: expect.stringContaining(name.toLowerCase()) }),
  )
})

test.each<[string, unknown]>([
  ['a line break in a value', { Authorization: 'Bearer secret\nX: 1' }],
  ['a letter outside Latin-1', { Authorization: 'Bearer secret 写' }],
  ['a space in a name', { 'X Authorization': 'secret' }],
  ['null', null],
  ['a string', 'secret'],
])('a header that cannot be sent is refused without its value in the message: %s', (_name, own) => {
  try {
    headersOf({}, own as HeadersInit)
    expect.unreachable()
  } catch (error) {
    expect(error).toBeInstanceOf(UploadError)
    expect(error).toMatchObject({ code: 'invalid-request', cause: expect.anything() })
    expect((error as Error).message).not.toContain('secret')
  }
})

test.each<[string | undefined, string, boolean]>([
  ['Apple Computer, Inc.', 'made for this request', false],
  [undefined, 'made for this request', false],
  ['Google Inc.', 'as it was stored', true],
  ['', 'as it was stored', true],
])('a raw body is the bytes; in an engine of %j in a Blob %s', async (vendor, _how, isStored) => {
  vi.stubGlobal('navigator', { vendor })
  const stored = bytes()
  const { body } = buildRequest(record(), stored, undefined, raw)
  expect(body).toBeInstanceOf(Blob)
  expect(body === stored).toBe(isStored)
  expect(new Uint8Array(await (body as Blob).arrayBuffer())).toEqual(everyByte)
  vi.unstubAllGlobals()
})

test('a buffer goes along as it is, and as a Blob for transports that know no other', async () => {
  const buffer = everyByte.slice().buffer
  const request = buildRequest(record(), buffer, undefined, raw)
  expect(request.buffer).toBe(buffer)
  expect(new Uint8Array(await (request.body as Blob).arrayBuffer())).toEqual(everyByte)
  expect(buildRequest(record(), bytes(), undefined, raw)).not.toHaveProperty('buffer')
})

test('a form has the metadata, then the file under its field with name, type and bytes; the browser sets the type of the whole', async () => {
  const { headers, body } = buildRequest(
    record({ name: '写真.jpg', type: 'image/jpeg', metadata: { a: '1', b: 'ü' } }),
    bytes(),
    undefined,
    {
      ...raw,
      body: { field: 'photo' },
    },
  )
  expect(Object.fromEntries(headers)).toEqual({
    'idempotency-key': 'b7c6a0f0-0000-4000-8000-000000000001',
    'x-file-sha256': sha256,
    'x-file-name': '%E5%86%99%E7%9C%9F.jpg',
  })
  const form = body as FormData
  expect([...form.keys()]).toEqual(['a', 'b', 'photo'])
  expect([form.get('a'), form.get('b')]).toEqual(['1', 'ü'])
  const file = form.get('photo') as File
  expect([file.name, file.type]).toEqual(['写真.jpg', 'image/jpeg'])
  expect(new Uint8Array(await file.arrayBuffer())).toEqual(everyByte)
})

test('a file without a type is octets in a form as well', () => {
  const { body } = buildRequest(record({ type: '' }), new Blob([everyByte]), undefined, { ...raw, body: { field: 'f' } })
  expect(((body as FormData).get('f') as File).type).toBe('application/octet-stream')
})

test.each<[string, Partial<WireOptions>]>([
  ['raw', {}],
  ['with both digests', { digestHeader: 'both' }],
])('attempt 5 is attempt 1, but for the headers of the app: %s', async (_name, options) => {
  const once = record({ name: '写真.jpg', metadata: { a: 'ü' } })
  const later = { ...once, attempts: 4, requests: 4, revision: 12, status: 'uploading' as const, notBefore: 99, reason: 'http' }
  const [one, five] = [once, later].map((attempt, index) =>
    buildRequest(attempt, bytes(), { Authorization: `Bearer ${index}` }, { ...raw, ...options }),
  ) as [ReturnType<typeof buildRequest>, ReturnType<typeof buildRequest>]
  expect([one.headers.get('authorization'), five.headers.get('authorization')]).toEqual(['Bearer 0', 'Bearer 1'])
  for (const { headers } of [one, five]) headers.delete('authorization')
  expect([...five.headers]).toEqual([...one.headers])
  expect(await (five.body as Blob).text()).toBe(await (one.body as Blob).text())
})

test('a key is bare, or a structured-field string', () => {
  expect(newKey('bare', () => 'abc')).toBe('abc')
  expect(newKey('quoted', () => 'abc')).toBe('"abc"')
  expect(headersOf({ idempotencyKey: '"abc"' })['idempotency-key']).toBe('"abc"')
})
