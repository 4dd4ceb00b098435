/** tus-js-client as it comes: two requests a file. It keeps the address of each upload, but not its bytes. */
import { Upload } from 'tus-js-client'
import { eachOf } from './send.js'
import { enter } from './stage.js'

enter(({ atOnce }) => ({
  drain: (files) =>
    eachOf(
      files,
      atOnce,
      (file) =>
        new Promise<void>((onSuccess, onError) => {
          const options = { endpoint: '/tus', removeFingerprintOnSuccess: true }
          new Upload(file, { ...options, metadata: { filename: file.name }, onSuccess: () => onSuccess(), onError }).start()
        }),
    ),
}))
