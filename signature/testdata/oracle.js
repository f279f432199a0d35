// Signs as a receiver's documentation computes signatures: over the parsed body,
// stringified again. Reads lines of {"secret", "body"}, prints one signature each.
'use strict'
const { createHmac } = require('node:crypto')
const lines = require('node:fs').readFileSync(0, 'utf8').split('\n').filter(Boolean)
for (const line of lines) {
  const { secret, body } = JSON.parse(line)
  const stringified = JSON.stringify(JSON.parse(body))
  console.log(createHmac('sha1', secret).update(stringified, 'utf8').digest('hex'))
}
