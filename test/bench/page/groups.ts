/**
 * Lpo, Lpx: puts and deletes go in groups; bodies up to 64 KiB as buffers in the database, larger ones as Blobs. Lpz is the same for large
 * files: they are kept and hashed, in a worker, at the same time. What a persistent queue can be at best, with nothing that goes wrong.
 */
import { createGroups, openDatabase } from './database.js'
import { hashInWorker, hashWhole } from './hash.js'
import { createSend, eachOf } from './send.js'
import { enter } from './stage.js'

const inlineLimit = 64 * 1_024
const wholeLimit = 2 ** 20
/** More at once starve timers. */
const hashedAtOnce = 4

interface Row {
  name: string
  sha256: string | null
}
interface Kept {
  id: string
  name: string
  sha256: string
  body: Blob | ArrayBuffer
}

enter((setting) => {
  const send = createSend(setting)
  const opening = openDatabase()
  const group = createGroups(opening)

  let awaited = 0
  const put = async (id: string, row: Row, body: Blob | ArrayBuffer): Promise<void> => {
    await group((records, bytes) => {
      records.put(row, id)
      bytes.put(body, id)
    })
    awaited -= 1
    if (awaited === 0) setting.onDurable()
  }

  const forget = (id: string): Promise<void> =>
    group((records, bytes) => {
      records.delete(id)
      bytes.delete(id)
    })

  /** Resolves when it is hashed: `durable` then is on its way. */
  const keep = async (file: File): Promise<{ kept: Kept; durable: Promise<void> }> => {
    const id = crypto.randomUUID()
    const { name, size } = file
    if (size > wholeLimit) {
      const durable = put(id, { name, sha256: null }, file)
      const sha256 = await hashInWorker(file)
      await group((records) => records.put({ name, sha256 } satisfies Row, id))
      return { kept: { id, name, sha256, body: file }, durable }
    }
    const buffer = await file.arrayBuffer()
    const sha256 = await hashWhole(buffer)
    const body = size > inlineLimit ? file : buffer
    return { kept: { id, name, sha256, body }, durable: put(id, { name, sha256 }, body) }
  }

  return {
    async drain(files) {
      const ready: Kept[] = []
      const deletes: Promise<void>[] = []
      let sending = 0
      awaited = files.length
      await new Promise<void>((resolve, reject) => {
        const look = (): void => {
          while (sending < setting.atOnce && ready.length > 0) {
            const { id, name, sha256, body } = ready.shift()!
            sending += 1
            send(body, name, sha256).then(() => {
              sending -= 1
              deletes.push(forget(id))
              if (deletes.length === files.length) resolve()
              look()
            }, reject)
          }
        }
        eachOf(files, hashedAtOnce, async (file) => {
          const { kept, durable } = await keep(file)
          durable.then(() => {
            ready.push(kept)
            look()
          }, reject)
        }).catch(reject)
      })
      await Promise.all(deletes)
    },
    async save(file) {
      if (file.size > wholeLimit) await put(crypto.randomUUID(), { name: file.name, sha256: null }, file)
      else await (await keep(file)).durable
    },
    leave: (files) =>
      eachOf(files, hashedAtOnce * 16, async (file) => {
        await (await keep(file)).durable
      }),
    async resume() {
      const database = await opening
      const [ids, rows] = await Promise.all([database.getAllKeys('records'), database.getAll('records') as Promise<Row[]>])
      void eachOf(ids.entries(), setting.atOnce, async ([place, id]) => {
        const { name, sha256 } = rows[place]!
        await send(await database.get('bytes', id), name, sha256!)
        void forget(String(id))
      })
      return rows.length
    },
  }
})
