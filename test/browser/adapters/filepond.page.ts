import * as FilePond from 'filepond'
import { createUploadQueue, xhrTransport } from 'uponce'
import { attachPond } from 'uponce/filepond'
import { account } from './account.js'
import 'filepond/dist/filepond.min.css'

document.body.innerHTML = '<form><input type="file" name="files" multiple></form>'

const queue = createUploadQueue({ endpoint: '/uploads', transport: xhrTransport(), ...account })
const pond = FilePond.create(document.querySelector('input') as HTMLInputElement, { allowMultiple: true })
attachPond(queue, pond)

Object.assign(globalThis, { queue, pond })
