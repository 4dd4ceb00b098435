import type { IncomingMessage, ServerResponse } from 'node:http'
import { AwsV4Signer } from 'aws4fetch'

export interface Bucket {
  /** `https://s3.eu-central-1.amazonaws.com/bucket`, say. */
  url: string
  region: string
  accessKeyId: string
  secretAccessKey: string
}

/**
 * Answers `POST /presign?key=…` with a URL that takes a `PUT` for 10 minutes. An app asks first who it is, and puts the account into the object's
 * name. The bucket's CORS rules have to allow `PUT`, the page's origin, and the headers that the queue sends: `Idempotency-Key`, `X-File-Sha256`,
 * `X-File-Name`, `Upload-Metadata`, `Content-Type`.
 */
export function createPresign({ url, ...rest }: Bucket): (request: IncomingMessage, response: ServerResponse) => Promise<void> {
  return async (request, response) => {
    const key = new URL(request.url ?? '', 'http://localhost').searchParams.get('key') ?? ''
    if (request.method !== 'POST' || !/^[\w-]{16,64}$/.test(key)) {
      response.writeHead(400).end()
      return
    }
    const signer = new AwsV4Signer({ ...rest, service: 's3', method: 'PUT', signQuery: true, url: `${url}/${key}?X-Amz-Expires=600` })
    const signed = await signer.sign()
    response.writeHead(200, { 'Content-Type': 'text/plain', 'Cache-Control': 'no-store' }).end(signed.url.href)
  }
}
