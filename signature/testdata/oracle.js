// Signs as receivers' documentation says, over the parsed body, stringified again. Reads lines of
// {"secret", "body"}, prints one signature each: X-Signature, or with an "id" and a "time" that of
// Standard Webhooks by a private key.
'use strict'
const { createHmac, createPrivateKey, sign } = require('node:crypto')
const lines = require('node:fs').readFileSync(0, 'utf8').split('\n').filter(Boolean)
// RFC 8410 has this in front of the 32 bytes of a private key of Ed25519.
const pkcs8 = Buffer.from('302e020100300506032b657004220420', 'hex')
for (const line of lines) {
  const { secret, body, id, time } = JSON.parse(line)
  const stringified = JSON.stringify(JSON.parse(body))
  if (!id) {
    console.log(createHmac('sha1', secret).update(stringified, 'utf8').digest('hex'))
    continue
  }
  const seed = Buffer.from(secret.slice('whsk_'.length), 'base64').subarray(0, 32)
  const key = createPrivateKey({ key: Buffer.concat([pkcs8, seed]), format: 'der', type: 'pkcs8' })
  console.log('v1a,' + sign(null, Buffer.from(`${id}.${time}.${stringified}`), key).toString('base64'))
}
