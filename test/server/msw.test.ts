import { http } from 'msw'
import { setupServer } from 'msw/node'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { createFixture, MiB, newKey, problemOf, replayMarkers } from './fixture.js'
import { post } from './wire.js'

const { handler, state } = createFixture()
const base = 'http://api.example'
const server = setupServer(
  http.all(`${base}/uploads`, ({ request }) => handler(request)),
  http.all(`${base}/uploads/outcome`, ({ request }) => handler(request)),
)
beforeAll(() => server.listen({ onUnhandledRequest: 'error' }))
afterAll(() => server.close())

it('behind msw an upload is stored, replayed, looked up and refused as over a connection', async () => {
  const key = newKey()
  const first = await post(base, { key, body: new Uint8Array(300_000) })
  expect(first.status).toBe(201)
  const again = await post(base, { key, body: new Uint8Array(300_000) })
  expect(replayMarkers(again)).toEqual(['true', 'true'])
  expect(await again.text()).toBe(await first.text())
  const headers = { Authorization: 'Bearer alice', 'Idempotency-Key': key }
  expect(await (await fetch(`${base}/uploads/outcome`, { headers })).json()).toMatchObject({ state: 'completed', source: 'key' })
  expect(await problemOf(await post(base, { key, body: 'other' }))).toEqual({ status: 422, error: 'idempotency_key_reuse' })
  expect(await problemOf(await post(base, { key: 'short', body: new Uint8Array(300_000) }))).toEqual({
    status: 400,
    error: 'idempotency_key_required',
  })
  expect((await post(base, { body: new Uint8Array(2 * MiB) })).status).toBe(413)
  expect((await post(base, { body: new Uint8Array() })).status).toBe(201)
  expect(await state()).toBe('3/2/2/0')
})
