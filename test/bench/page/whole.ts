/** L+: each file for itself is hashed as a whole, kept in one transaction, sent, deleted. */
import { commit, openDatabase } from './database.js'
import { hashWhole } from './hash.js'
import { createSend, eachOf } from './send.js'
import { enter } from './stage.js'

interface Row {
  name: string
  sha256: string
}

enter((setting) => {
  const send = createSend(setting)
  const opening = openDatabase()
  const keep = async (file: File): Promise<{ id: string; sha256: string }> => {
    const id = crypto.randomUUID()
    const sha256 = await hashWhole(await file.arrayBuffer())
    await commit(await opening, (records, bytes) => {
      records.put({ name: file.name, sha256 } satisfies Row, id)
      bytes.put(file, id)
    })
    return { id, sha256 }
  }
  const forget = async (id: string): Promise<void> =>
    commit(await opening, (records, bytes) => {
      records.delete(id)
      bytes.delete(id)
    })
  return {
    async drain(files) {
      let kept = 0
      await eachOf(files, setting.atOnce, async (file) => {
        const { id, sha256 } = await keep(file)
        kept += 1
        if (kept === files.length) setting.onDurable()
        await send(file, file.name, sha256)
        await forget(id)
      })
    },
    async save(file) {
      await keep(file)
    },
    leave: (files) =>
      eachOf(files, 16, async (file) => {
        await keep(file)
      }),
    async resume() {
      const database = await opening
      const [ids, rows] = await Promise.all([database.getAllKeys('records'), database.getAll('records') as Promise<Row[]>])
      void eachOf(ids.entries(), setting.atOnce, async ([place, id]) => {
        const { name, sha256 } = rows[place]!
        await send(await database.get('bytes', id), name, sha256)
        await forget(String(id))
      })
      return rows.length
    },
  }
})
