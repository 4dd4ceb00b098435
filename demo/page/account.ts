/** Who uses the page. */
export interface Account {
  /** Whose uploads are seen and sent; `null`: signed out. */
  readonly owner: string | null
  /** What tells the server who it is: nothing, where a cookie does. */
  readonly headers: Record<string, string>
}

const storageKey = 'uponce-demo-account'

const read = (): string => {
  try {
    return localStorage.getItem(storageKey) ?? ''
  } catch {
    return ''
  }
}

/** The account that is chosen, in all tabs of the browser: one of them sends for all. */
export function chooseAccount(select: HTMLSelectElement, onChange: () => void): Account {
  let chosen = read()
  const change = (value: string): void => {
    chosen = value
    select.value = value
    onChange()
  }
  select.value = chosen
  select.addEventListener('change', () => {
    try {
      localStorage.setItem(storageKey, select.value)
    } catch {
      // Then this tab alone has changed.
    }
    change(select.value)
  })
  addEventListener('storage', ({ key }) => {
    if (key === storageKey) change(read())
  })
  return {
    get owner() {
      return chosen === 'signed-out' ? null : chosen
    },
    get headers(): Record<string, string> {
      return chosen === '' || chosen === 'signed-out' ? {} : { Authorization: `Bearer ${chosen}` }
    },
  }
}
