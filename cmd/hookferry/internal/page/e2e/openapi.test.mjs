// The OpenAPI documents of the admin API and of the portal, by a validator that others wrote.
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import SwaggerParser from '@apidevtools/swagger-parser'

for (const where of ['../../admin/openapi.json', '../../../../../webhook/portal/openapi.json']) {
  test(`the OpenAPI document ${where} is valid`, async () => {
    const document = await readFile(new URL(where, import.meta.url), 'utf8')
    await SwaggerParser.validate(JSON.parse(document))
  })
}
