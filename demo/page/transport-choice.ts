import { fetchTransport, type Transport, xhrTransport } from 'uponce'

const transports = { xhr: xhrTransport(), fetch: fetchTransport() }
type Name = keyof typeof transports

const isName = (value: string | null): value is Name => value !== null && value in transports

/** A transport that is whichever one is chosen, kept in the page's address. The next request goes by it. */
export function chooseTransport(inputs: Iterable<HTMLInputElement>): Transport {
  const wanted = new URL(location.href).searchParams.get('transport')
  let chosen: Name = isName(wanted) ? wanted : 'xhr'
  for (const input of inputs) {
    input.checked = input.value === chosen
    input.addEventListener('change', () => {
      if (!input.checked || !isName(input.value)) return
      chosen = input.value
      const url = new URL(location.href)
      url.searchParams.set('transport', chosen)
      history.replaceState(null, '', url)
    })
  }
  return {
    get reportsBytes() {
      return transports[chosen].reportsBytes
    },
    send: (request) => transports[chosen].send(request),
  }
}
