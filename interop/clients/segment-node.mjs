// @segment/analytics-node.
import { Analytics } from '@segment/analytics-node'
import { calls, dated, endpoint, writeKey } from './environment.mjs'

const analytics = new Analytics({ writeKey, host: endpoint })
const failed = []
analytics.on('error', (error) => failed.push(error))
for (const { type, ...call } of calls) analytics[type](dated(call))
await analytics.closeAndFlush({ timeout: 30_000 })
if (failed.length) throw new AggregateError(failed.map((f) => f.reason ?? f))
