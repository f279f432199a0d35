// @rudderstack/rudder-sdk-node.
import Analytics from '@rudderstack/rudder-sdk-node'
import { calls, dated, endpoint, writeKey } from './environment.mjs'

const analytics = new Analytics(writeKey, { dataPlaneUrl: endpoint, flushInterval: 200 })
await Promise.all(calls.map(({ type, ...call }) => new Promise((resolve, reject) => {
  analytics[type](dated(call), (error) => (error ? reject(error) : resolve()))
})))
