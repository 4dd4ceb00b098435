import type { UploadQueue } from 'uponce'

/** Shows the uploads of a queue, as a page without a framework does. */
export function showUploads<Result>(queue: UploadQueue<Result>, list: Element): void {
  const show = (): void => {
    const items = queue.getSnapshot().map(({ name, status }) => {
      const item = document.createElement('li')
      item.textContent = `${name}: ${status}`
      return item
    })
    list.replaceChildren(...items)
  }
  queue.subscribe(show)
  show()
}
