import { type JSX, memo, StrictMode, useEffect, useRef } from 'react'
import { createRoot } from 'react-dom/client'
import type { Upload } from 'uponce'
import { attach } from 'uponce/file-picker'
import { useUploadQueue, useUploads } from 'uponce/react'

function Uploads(): JSX.Element {
  const queue = useUploadQueue({ endpoint: '/uploads' })
  const uploads = useUploads(queue)
  const input = useRef<HTMLInputElement>(null)
  useEffect(() => (queue && input.current ? attach(queue, input.current) : undefined), [queue])
  return (
    <>
      <input ref={input} type="file" multiple disabled={!queue} />
      <ul>
        {uploads.map((upload) => (
          <Row key={upload.id} upload={upload} />
        ))}
      </ul>
    </>
  )
}

const Row = memo(function Row({ upload }: { upload: Upload }) {
  return (
    <li>
      {upload.name}: {upload.status}
    </li>
  )
})

createRoot(document.querySelector('main') as Element).render(
  <StrictMode>
    <Uploads />
  </StrictMode>,
)
