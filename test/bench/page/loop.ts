/** L, Lx: a bare loop. Nothing is hashed, nothing kept. */
import { createSend, eachOf } from './send.js'
import { enter } from './stage.js'

enter((setting) => {
  const send = createSend(setting)
  return { drain: (files) => eachOf(files, setting.atOnce, (file) => send(file, file.name, setting.digests[file.name]!)) }
})
