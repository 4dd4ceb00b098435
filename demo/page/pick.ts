/** Files out of the inputs, off the desktop, and out of the clipboard. */
export function followPicks(options: { inputs: HTMLInputElement[]; dropZone: HTMLElement; onFiles(files: File[]): void }): void {
  const { inputs, dropZone, onFiles } = options
  const take = (list: FileList | null | undefined): void => {
    const files = [...(list ?? [])]
    if (files.length > 0) onFiles(files)
  }

  for (const input of inputs) {
    input.addEventListener('change', () => {
      take(input.files)
      // The same file picked again is picked again.
      input.value = ''
    })
  }

  const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') ?? false
  // Anywhere on the page: a file dropped beside the zone would replace the page.
  addEventListener('dragover', (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    dropZone.dataset.over = 'true'
  })
  addEventListener('dragleave', (event) => {
    if (event.relatedTarget === null) delete dropZone.dataset.over
  })
  addEventListener('drop', (event) => {
    if (!hasFiles(event)) return
    event.preventDefault()
    delete dropZone.dataset.over
    take(event.dataTransfer?.files)
  })
  addEventListener('paste', (event) => take(event.clipboardData?.files))
}
