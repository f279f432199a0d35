// What a client is told: where the collector is, its write key, and the calls
// to make.
import { readFileSync } from 'node:fs'

export const endpoint = process.env.INTEROP_ENDPOINT
export const writeKey = process.env.INTEROP_WRITE_KEY
export const calls = JSON.parse(readFileSync(process.env.INTEROP_CALLS, 'utf8'))

// dated gives a call the Date that clients take for a timestamp.
export function dated({ timestamp, ...call }) {
  return timestamp === undefined ? call : { ...call, timestamp: new Date(timestamp) }
}
