// Prints each line of JSON as a receiver makes it anew: parsed and stringified.
'use strict'
const lines = require('node:fs').readFileSync(0, 'utf8').split('\n').filter(Boolean)
for (const line of lines) console.log(JSON.stringify(JSON.parse(line)))
