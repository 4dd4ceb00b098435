import { describe } from 'vitest'
import type { Program } from './programs.js'

/** `describe` for tests that need a program; where it is missing, they are skipped and say why. */
export const describeWith = (program: Program, name: string, tests: () => void): void => {
  if (program.path) describe(name, tests)
  else describe.skip(`${name} (skipped: ${program.name} is not installed: ${program.install})`, tests)
}
