// The OpenAPI document of the admin API, by a validator that others wrote.
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import SwaggerParser from '@apidevtools/swagger-parser'

test('the OpenAPI document is valid', async () => {
  const document = await readFile(new URL('../../admin/openapi.json', import.meta.url), 'utf8')
  await SwaggerParser.validate(JSON.parse(document))
})
