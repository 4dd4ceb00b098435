/** tus-js-client, which keeps the address of each upload, but not its bytes. */
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
          const options = { endpoint: '/tus', uploadDataDuringCreation: true, removeFingerprintOnSuccess: true }
          new Upload(file, { ...options, metadata: { filename: file.name }, onSuccess: () => onSuccess(), onError }).start()
        }),
    ),
}))
