export interface Family {
  type: string
  help: string
  value: number
}

/**
 * Reads Prometheus' text format, as far as the server uses it, and strictly: families one after another, each with HELP, TYPE and one sample
 * without labels; counters end in `_total`. Throws for everything else. https://prometheus.io/docs/instrumenting/exposition_formats/
 */
export function parseMetrics(text: string): Map<string, Family> {
  const families = new Map<string, Family>()
  const lines = text.split('\n')
  if (lines.pop() !== '') throw new Error('the last line has no end')
  if (lines.length % 3 !== 0) throw new Error(`${lines.length} lines are not three for each metric`)
  for (let at = 0; at < lines.length; at += 3) {
    const [, name, help] = /^# HELP ([a-z][a-z0-9_]*) (\S.*\S)$/.exec(lines[at]!) ?? []
    const [, typed, type] = /^# TYPE ([a-z][a-z0-9_]*) (counter|gauge)$/.exec(lines[at + 1]!) ?? []
    const [, sampled, value] = /^([a-z][a-z0-9_]*) (\d+(?:\.\d+)?(?:e\+\d+)?)$/.exec(lines[at + 2]!) ?? []
    if (!name || !help || !type || !value || typed !== name || sampled !== name)
      throw new Error(`not a metric: ${lines.slice(at, at + 3).join(' | ')}`)
    if (help.includes('\\')) throw new Error(`an escape in the help of ${name}`)
    if ((type === 'counter') !== name.endsWith('_total')) throw new Error(`${name} is a ${type}`)
    if (families.has(name)) throw new Error(`${name} comes twice`)
    families.set(name, { type, help, value: Number(value) })
  }
  return families
}
