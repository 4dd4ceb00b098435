import { fileURLToPath } from 'node:url'
import { Application, type DeclarationReflection, PackageJsonReader, type ProjectReflection, ReflectionKind } from 'typedoc'
import { beforeAll, expect, test } from 'vitest'

/** What apps name, or look at. Of a function's parameters its own text tells. */
const kinds =
  ReflectionKind.Class |
  ReflectionKind.Interface |
  ReflectionKind.TypeAlias |
  ReflectionKind.Function |
  ReflectionKind.Variable |
  ReflectionKind.Constructor |
  ReflectionKind.Method |
  ReflectionKind.Accessor |
  ReflectionKind.Property

let project: ProjectReflection

beforeAll(async () => {
  // As `npm run docs` reads it.
  const options = fileURLToPath(new URL('../package.json', import.meta.url))
  const app = await Application.bootstrap({ options, logLevel: 'Error' }, [new PackageJsonReader()])
  project = (await app.convert()) as ProjectReflection
}, 60_000)

const declarations = (): DeclarationReflection[] => project.getReflectionsByKind(kinds) as DeclarationReflection[]

const isDocumented = (reflection: DeclarationReflection): boolean => {
  const { signatures = [], getSignature, parent } = reflection
  const own = [...signatures, ...(getSignature ? [getSignature] : [])]
  if (own.length > 0 ? own.every((signature) => signature.hasComment()) : reflection.hasComment()) return true
  // A text of its own has no place in the source: a status of the mapped type `Record<UploadStatus, string>`.
  if (reflection.inheritedFrom?.name.startsWith('Record.')) return true
  // What is written where it is used, the `{ upload: Upload }` of an event, is told of there.
  let owner = parent
  if (!owner?.kindOf(ReflectionKind.TypeLiteral)) return false
  while (owner && !owner.kindOf(kinds)) owner = owner.parent
  return owner !== undefined && isDocumented(owner as DeclarationReflection)
}

test('every entry of the package is in the reference', () => {
  const modules = project.children?.map(({ name }) => name.replace('adapters/', ''))
  expect(modules?.sort()).toEqual(['element', 'file-picker', 'filepond', 'index', 'react', 'service-worker', 'uppy'])
  expect(declarations().length).toBeGreaterThan(200)
})

test('every export, and every member of one, has a docstring', () => {
  const undocumented = declarations().filter((reflection) => !isDocumented(reflection))
  expect(undocumented.map((reflection) => reflection.getFriendlyFullName())).toEqual([])
})
