type Value = string | boolean | ((event: Event) => void)

/**
 * An element. Attributes by their names, `true` for an empty one, `on…` for a listener. Text goes in as text: nothing here parses HTML, so a
 * file may be called anything.
 */
export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, Value> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value)
    else if (value !== false) element.setAttribute(name, value === true ? '' : value)
  }
  element.append(...children)
  return element
}

/** The element of index.html with this id. */
export const byId = <Type extends HTMLElement = HTMLElement>(id: string): Type => {
  const element = document.getElementById(id)
  if (!element) throw new Error(`index.html has no #${id}`)
  return element as Type
}

/** Writes only what differs, so that nothing is laid out, or read out, again. */
export const setText = (element: Element, text: string): void => {
  if (element.textContent !== text) element.textContent = text
}

export const setTitle = (element: HTMLElement, title: string): void => {
  if (element.title !== title) element.title = title
}

/** Switches a button off and on in a way that leaves the focus where it is. */
export const setEnabled = (button: HTMLButtonElement, enabled: boolean): void => button.setAttribute('aria-disabled', String(!enabled))

export const onPress = (button: HTMLButtonElement, work: () => void): void =>
  button.addEventListener('click', () => {
    if (button.getAttribute('aria-disabled') !== 'true') work()
  })

/** Shows a list of keyed elements in this order, moving and creating as few as possible; drops the others. */
export function showInOrder(parent: Element, elements: Iterable<Element>): void {
  let next = parent.firstElementChild
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling
    else parent.insertBefore(element, next)
  }
  while (next) {
    const following = next.nextElementSibling
    next.remove()
    next = following
  }
}

/** A short form of a long value; the whole of it on hover, and in the clipboard on a click. */
export interface CopyButton {
  element: HTMLButtonElement
  show(value: string | null, of: string): void
}

export function createCopyButton(label: string, say: (text: string) => void): CopyButton {
  let current = ''
  const value = h('code')
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(current)
      say(`${label} copied.`)
    } catch {
      say(`This browser does not let the page copy. ${label}: ${current}`)
    }
  }
  const element = h('button', { type: 'button', class: 'copy', onclick: copy }, `${label} `, value)
  return {
    element,
    show(next, of) {
      current = next ?? ''
      element.disabled = next === null
      setText(value, next === null ? '…' : `${next.slice(0, 8)}…`)
      setTitle(element, next === null ? '' : `${next}\nClick to copy`)
      // It begins with what can be seen, for those who speak to the page.
      const spoken = `${label} ${value.textContent} of ${of}, ${next === null ? 'not known yet' : 'copy'}`
      if (element.getAttribute('aria-label') !== spoken) element.setAttribute('aria-label', spoken)
    },
  }
}
