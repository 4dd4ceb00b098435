import Uppy from '@uppy/core'
import Dashboard from '@uppy/dashboard'
import { createUploadQueue, xhrTransport } from 'uponce'
import { Uponce } from 'uponce/uppy'
import { account } from './account.js'
import '@uppy/core/css/style.min.css'
import '@uppy/dashboard/css/style.min.css'

document.body.appendChild(document.createElement('main'))

const queue = createUploadQueue({ endpoint: '/uploads', transport: xhrTransport(), ...account })
const uppy = new Uppy().use(Dashboard, { target: 'main', inline: true }).use(Uponce, { queue })

const told: string[] = []
uppy.on('upload-success', (file) => told.push(`${file?.name} is stored`))
uppy.on('upload-error', (file, { message }) => told.push(`${file?.name}: ${message}`))
uppy.on('complete', ({ successful, failed }) => told.push(`complete: ${successful?.length} and ${failed?.length}`))
Object.assign(globalThis, { queue, uppy, told })
