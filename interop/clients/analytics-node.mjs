// analytics-node, which @segment/analytics-node replaced and many still run.
import Analytics from 'analytics-node'
import { calls, dated, endpoint, writeKey } from './environment.mjs'

const analytics = new Analytics(writeKey, { host: endpoint })
const settled = calls.map(({ type, ...call }) => new Promise((resolve, reject) => {
  analytics[type](dated(call), (error) => (error ? reject(error) : resolve()))
}))
await analytics.flush()
await Promise.all(settled)
