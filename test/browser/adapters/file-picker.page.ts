import { createUploadQueue } from 'uponce'
import { attach, type PickOptions, pickFiles } from 'uponce/file-picker'
import { account } from './account.js'

document.body.innerHTML = `
  <input id="files" type="file" multiple>
  <input id="folder" type="file" webkitdirectory>
  <div id="zone" tabindex="0" style="height: 200px">drop or paste</div>
  <button type="button">pick</button>
  <output></output>`
const element = <E extends HTMLElement>(selector: string): E => document.querySelector<E>(selector) as E

const queue = createUploadQueue({ endpoint: '/uploads', ...account })
const limits: PickOptions = {
  accept: 'image/*, .txt',
  maxFileSize: 10_000_000,
  onRefused: (file, reason) => {
    element('output').textContent += `${file.name}: ${reason}\n`
  },
}

attach(queue, element('#files'), limits)
attach(queue, element('#folder'), { ...limits, enqueue: (_file, path) => ({ metadata: { path } }) })
attach(queue, element('#zone'), { ...limits, enqueue: (_file, path) => ({ metadata: { path } }) })
element('button').addEventListener('click', async () => {
  const files = await pickFiles(limits)
  element('button').title = `${files.length} picked`
  await queue.enqueueAll(files)
})

Object.assign(globalThis, { queue })
