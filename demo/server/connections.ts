import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

export interface Connections {
  /**
   * Whether a browser may send this request again by itself, should the connection die without an answer. It does so where the connection has
   * been proven: by an earlier request, or by having stood ready for a while.
   */
  isProven(incoming: IncomingMessage): boolean
  /** Destroys every connection but `spared`. */
  destroy(spared?: Socket): void
  /** No new connections; those that are idle, or have never been used, close now, the others after their answer. */
  drain(): void
}

const READY_MS = 100

/** Follows what the server's connections are doing. `node:http` alone counts a connection without a first request as busy. */
export function followConnections(server: Server): Connections {
  const sockets = new Map<Socket, { since: number; requests: number; isBusy: boolean }>()
  const proven = new WeakSet<IncomingMessage>()
  let isDraining = false

  server.on('connection', (socket) => {
    if (isDraining) return socket.destroy()
    sockets.set(socket, { since: performance.now(), requests: 0, isBusy: false })
    socket.on('close', () => sockets.delete(socket))
  })
  const begin = (incoming: IncomingMessage, outgoing: ServerResponse): void => {
    const { socket } = incoming
    const state = sockets.get(socket)
    if (!state) return
    if (state.requests > 0 || performance.now() - state.since > READY_MS) proven.add(incoming)
    state.requests++
    state.isBusy = true
    outgoing.on('close', () => {
      state.isBusy = false
      if (isDraining) socket.destroySoon()
    })
  }
  server.prependListener('request', begin)

  return {
    isProven: (incoming) => proven.has(incoming),
    destroy(spared) {
      for (const socket of sockets.keys()) if (socket !== spared) socket.destroy()
    },
    drain() {
      isDraining = true
      for (const [socket, { isBusy }] of sockets) if (!isBusy) socket.destroy()
    },
  }
}
