import { type IDBPDatabase, openDB, unwrap } from 'idb'

/** Two stores: what is known of each file, and its bytes. */
export const openDatabase = (): Promise<IDBPDatabase> =>
  openDB('bench', 1, {
    upgrade(database) {
      database.createObjectStore('records')
      database.createObjectStore('bytes')
    },
  })

type Work = (records: IDBObjectStore, bytes: IDBObjectStore) => unknown

/** Resolves when it is on disk. */
export async function commit(database: IDBPDatabase, ...works: Work[]): Promise<void> {
  const transaction = database.transaction(['records', 'bytes'], 'readwrite', { durability: 'strict' })
  // Bare: idb would make a promise for each request.
  const [records, bytes] = [unwrap(transaction.objectStore('records')), unwrap(transaction.objectStore('bytes'))]
  for (const work of works) work(records, bytes)
  await transaction.done
}

/** Whatever came while the last transaction ran goes into the next, 64 at most. */
export function createGroups(database: Promise<IDBPDatabase>): (work: Work) => Promise<void> {
  const waiting: { work: Work; resolve: () => void; reject: (error: unknown) => void }[] = []
  let running = false
  const run = async (): Promise<void> => {
    running = true
    while (waiting.length > 0) {
      const group = waiting.splice(0, 64)
      try {
        await commit(await database, ...group.map(({ work }) => work))
        for (const { resolve } of group) resolve()
      } catch (error) {
        for (const { reject } of group) reject(error)
      }
    }
    running = false
  }
  return (work) =>
    new Promise((resolve, reject) => {
      waiting.push({ work, resolve, reject })
      if (!running) void run()
    })
}
