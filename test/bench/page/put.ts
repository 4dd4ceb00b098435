/** The least that keeping a file can be: one put. */
import { commit, openDatabase } from './database.js'
import { enter } from './stage.js'

enter(({ onDurable }) => {
  const opening = openDatabase()
  const save = async (file: File): Promise<void> => commit(await opening, (_records, bytes) => bytes.put(file, crypto.randomUUID()))
  return {
    save,
    async drain(files) {
      for (const file of files) await save(file)
      onDurable()
    },
  }
})
