import { afterAll, beforeAll, expect, test } from 'vitest'
import { describeWith } from '../helpers/describe-with.js'
import { type Engine, type EnginePage, run } from '../helpers/engine.js'
import { launchFirefox } from '../helpers/firefox.js'
import { bundleForSite } from '../helpers/page.js'
import { programs } from '../helpers/programs.js'
import { eventually, type Stage, setStage } from '../helpers/stage.js'
import { launchWebKit } from '../helpers/webkit.js'

declare global {
  var picker: typeof import('uponce/file-picker')
  var element: typeof import('uponce/element')
}

const engines = [
  { name: 'Firefox', program: programs.firefox, launch: launchFirefox },
  { name: 'WebKit', program: programs.webKit, launch: launchWebKit as () => Promise<Engine> },
]

/** An entry of the built package, in a page, by the name of a global. */
const load = async (page: EnginePage, entry: 'file-picker' | 'element', name: string): Promise<void> => {
  const contents = `export * from 'uponce/${entry}'`
  const site = await bundleForSite({ stdin: { contents, resolveDir: '.' }, splitting: false })
  const source = new TextDecoder().decode(site.get('stdin.js'))
  const module = `new Blob([${JSON.stringify(source)}], { type: 'text/javascript' })`
  await page.evaluate(`import(URL.createObjectURL(${module})).then((${name}) => void Object.assign(globalThis, { ${name} }))`)
}

for (const { name, program, launch } of engines)
  describeWith(program, `what is picked in ${name}`, () => {
    let stage: Stage
    beforeAll(async () => {
      stage = await setStage(launch)
    })
    afterAll(() => stage?.stop())

    test('the file picker takes an input, a drop and a paste, empties the input, and both files of it survive lost answers and a reload', async () => {
      const account = stage.newAccount()
      // An engine may send a request again by itself; all are lost until the page has noticed.
      await account.order({ fault: 'lose-answer', times: 1_000 })
      const page = await stage.open(account)
      await load(page, 'file-picker', 'picker')
      const value = await run(page, () => {
        const dataOf = (...names: string[]): DataTransfer => {
          const data = new DataTransfer()
          for (const name of names) data.items.add(new File([name], name, { type: 'text/plain' }))
          return data
        }
        document.body.innerHTML = '<input type="file" multiple accept=".txt"><div></div>'
        const input = document.querySelector('input') as HTMLInputElement
        const zone = document.querySelector('div') as HTMLElement
        const refused: string[] = []
        const onRefused = (file: { name: string }, reason: string): void => void refused.push(`${file.name} ${reason}`)
        picker.attach(queue, input, { onRefused })
        picker.attach(queue, zone, { accept: 'text/*', onRefused })
        Object.assign(globalThis, { refused })
        input.files = dataOf('one.txt', 'two.txt', 'three.exe').files
        input.dispatchEvent(new Event('change', { bubbles: true }))
        const drop = new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: dataOf('dropped.txt') })
        zone.dispatchEvent(drop)
        // Firefox leaves aside what the event is made with, and lets it be filled.
        const paste = new ClipboardEvent('paste', { bubbles: true, cancelable: true, clipboardData: new DataTransfer() })
        paste.clipboardData?.items.add(new File(['pasted'], 'pasted.txt', { type: 'text/plain' }))
        zone.dispatchEvent(paste)
        return `${input.value}${input.files?.length} ${drop.defaultPrevented}`
      })
      expect(value).toBe('0 true')
      await eventually(() => page.list().then((uploads) => uploads.filter(({ reason }) => reason === 'network').length)).toBeGreaterThan(0)
      expect(await page.evaluate('refused')).toEqual(['three.exe type-not-accepted'])
      await page.restart()
      await account.endFaults()
      const names = ['dropped.txt', 'one.txt', 'pasted.txt', 'two.txt']
      await eventually(() => page.statuses()).toEqual(names.map(() => 'succeeded'))
      const { media, objects } = await account.state()
      expect(media.map(({ fileName }) => fileName).sort()).toEqual(names)
      expect(objects).toBe(4)
    })

    test('the file picker asks by an input where there is no picker, and resolves with nothing when it is cancelled', async () => {
      const page = await stage.newPage(stage.newAccount())
      await load(page, 'file-picker', 'picker')
      const found = await run(page, async () => {
        // No user is here to click: the engine must not ask for one.
        Object.defineProperty(navigator, 'userActivation', { value: undefined })
        HTMLInputElement.prototype.click = function () {
          this.dispatchEvent(new Event('cancel'))
        }
        return `${(await picker.pickFiles()).length} ${document.querySelectorAll('input').length} ${'showOpenFilePicker' in globalThis}`
      })
      expect(found).toBe('0 0 false')
    })

    test('<upload-queue> takes two files and a drop; after lost answers and a reload it shows all of them, and their end', async () => {
      const account = stage.newAccount()
      await account.order({ fault: 'lose-answer', times: 1_000 })
      const page = await stage.open(account)
      const show = async (): Promise<void> => {
        await load(page, 'element', 'element')
        await run(page, () => {
          element.defineUploadQueue()
          const shown = document.createElement('upload-queue')
          shown.toggleAttribute('multiple', true)
          shown.queue = queue
          document.body.append(shown)
        })
      }
      const rows = (): Promise<string[]> =>
        run(page, () =>
          [...(document.querySelector('upload-queue')?.shadowRoot?.querySelectorAll('li') ?? [])]
            .map((row) => ['name', 'state'].map((part) => row.querySelector(`[part=${part}]`)?.textContent).join(': '))
            .sort(),
        )
      await show()
      await run(page, () => {
        const shown = document.querySelector('upload-queue') as HTMLElement
        const input = shown.shadowRoot?.querySelector('input') as HTMLInputElement
        const data = new DataTransfer()
        for (const name of ['one.txt', 'two.txt']) data.items.add(new File([name], name, { type: 'text/plain' }))
        input.files = data.files
        input.dispatchEvent(new Event('change', { bubbles: true }))
        const dropped = new DataTransfer()
        dropped.items.add(new File(['dropped'], 'dropped.txt', { type: 'text/plain' }))
        shown.shadowRoot
          ?.querySelector('[part=hint]')
          ?.dispatchEvent(new DragEvent('drop', { bubbles: true, composed: true, cancelable: true, dataTransfer: dropped }))
      })
      await eventually(async () => (await rows()).join()).toMatch(/Next attempt in .* No readable answer/)
      const background = await run(page, () => {
        const pick = document.querySelector('upload-queue')?.shadowRoot?.querySelector('button') as HTMLElement
        return getComputedStyle(pick).backgroundColor
      })
      expect(background, 'the style was taken').toBe('rgb(36, 86, 211)')
      await page.restart()
      await show()
      await eventually(() => rows().then(({ length }) => length)).toBe(3)
      await account.endFaults()
      await eventually(rows).toEqual(['dropped.txt: Done', 'one.txt: Done', 'two.txt: Done'])
      expect((await account.state()).objects).toBe(3)
    })
  })
