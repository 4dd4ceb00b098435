import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** A program from outside npm that some tests drive. */
export interface Program {
  name: string
  /** Where it is, or undefined when it is not installed. */
  path: string | undefined
  install: string
}

const onPath = (...names: string[]): string | undefined => {
  const folders = (process.env.PATH ?? '').split(delimiter)
  return names.flatMap((name) => folders.map((folder) => join(folder, name))).find((path) => existsSync(path))
}

const webKitDriver = (): string | undefined => {
  const driver = onPath('WebKitWebDriver')
  if (!driver || !onPath('xvfb-run')) return undefined
  try {
    execFileSync('/usr/bin/python3', ['-c', "import gi; gi.require_version('WebKit2', '4.1')"], { stdio: 'ignore' })
    return driver
  } catch {
    return undefined
  }
}

const postgres = (): string | undefined => {
  const debian = '/usr/lib/postgresql'
  const versions = existsSync(debian) ? readdirSync(debian).map((version) => join(debian, version, 'bin/initdb')) : []
  return versions.find((path) => existsSync(path)) ?? onPath('initdb')
}

const rados = (): string | undefined => (onPath('ceph-mon') && onPath('ceph-osd') ? onPath('radosgw') : undefined)

/** An environment variable names a browser that is not on the PATH. */
export const programs = {
  chromium: {
    name: 'Chromium',
    path: process.env.CHROMIUM ?? onPath('chromium', 'chromium-browser', 'google-chrome'),
    install: 'apt-get install chromium (or CHROMIUM=/path/to/it)',
  },
  firefox: {
    name: 'Firefox',
    path: process.env.FIREFOX ?? onPath('firefox-esr', 'firefox'),
    install: 'apt-get install firefox-esr (or FIREFOX=/path/to/it)',
  },
  webKit: {
    name: 'WebKitGTK',
    path: webKitDriver(),
    install: 'apt-get install webkit2gtk-driver xvfb xauth gir1.2-webkit2-4.1 python3-gi',
  },
  postgres: {
    name: 'PostgreSQL',
    path: postgres(),
    install: 'apt-get install postgresql-15',
  },
  rados: {
    name: 'Ceph RADOS Gateway',
    path: rados(),
    install: 'apt-get install --no-install-recommends ceph-mon ceph-osd radosgw',
  },
} satisfies Record<string, Program>
