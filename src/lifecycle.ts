export interface LifecycleOptions {
  /** The page is about to stop: it is left, kept for the back button, or frozen. From now on nothing of it may run. */
  onLeave(): void
  /** It goes on after all. */
  onReturn(): void
}

/** Follows a page that may be stopped and go on. Returns the function that ends it. */
export function followLifecycle({ onLeave, onReturn }: LifecycleOptions): () => void {
  const onPageShow = (event: Event): void => {
    if ((event as PageTransitionEvent).persisted) onReturn()
  }
  // Those of the document do not bubble in Chromium, so they are caught on their way down. Workers have none of them.
  // https://wicg.github.io/page-lifecycle/
  const listeners: [string, (event: Event) => void][] = [
    ['pagehide', onLeave],
    ['pageshow', onPageShow],
    ['freeze', onLeave],
    ['resume', onReturn],
  ]
  for (const [type, listener] of listeners) globalThis.addEventListener?.(type, listener, true)
  return () => {
    for (const [type, listener] of listeners) globalThis.removeEventListener?.(type, listener, true)
  }
}
