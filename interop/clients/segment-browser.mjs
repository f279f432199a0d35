// @segment/analytics-next in Chromium: a page of one origin, the collector of
// another. With the argument "batching" the library collects calls, as a source
// may be set to.
import { createServer } from 'node:http'
import { createReadStream } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { createRequire } from 'node:module'
import path from 'node:path'
import { chromium } from 'playwright-core'
import { calls, endpoint, writeKey } from './environment.mjs'

const bundle = path.join(
  path.dirname(createRequire(import.meta.url).resolve('@segment/analytics-next/package.json')), 'dist', 'umd')

// The page, with the library as it is published.
const server = createServer((req, res) => {
  if (req.url === '/') {
    res.setHeader('Content-Type', 'text/html; charset=utf-8')
    res.end('<!doctype html><title>Käse &amp; Wein</title><link rel=icon href=data:,><script src="/umd/index.js"></script>')
    return
  }
  if (/^\/umd\/[\w.-]+\.js$/.test(req.url)) {
    res.setHeader('Content-Type', 'text/javascript; charset=utf-8')
    createReadStream(path.join(bundle, path.basename(req.url)))
      .on('error', () => { res.statusCode = 404; res.end() })
      .pipe(res)
    return
  }
  res.statusCode = 404
  res.end()
})
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))

// run is what the page does with the calls. The library keeps the user's ids
// and traits between calls, so each call begins anew.
async function run({ calls, cdnURL, writeKey, batching }) {
  const integrations = batching && {
    'Segment.io': { deliveryStrategy: { strategy: 'batching', config: { size: 20, timeout: 200 } } },
  }
  const [analytics] = await window.AnalyticsNext.AnalyticsBrowser.load({ writeKey, cdnURL }, { integrations })
  // A call is settled with the library's context once it was sent.
  const sent = []
  for (const { type, userId, anonymousId, ...call } of calls) {
    await analytics.reset()
    if (anonymousId !== undefined) analytics.setAnonymousId(anonymousId)
    const options = { context: call.context, integrations: call.integrations }
    if (call.timestamp !== undefined) options.timestamp = new Date(call.timestamp)
    const user = userId === undefined ? {} : { userId }
    switch (type) {
      case 'identify':
        sent.push(analytics.identify(userId ?? null, call.traits, options))
        break
      case 'track':
        sent.push(analytics.track(call.event, call.properties, { ...options, ...user }))
        break
      case 'page':
      case 'screen':
        sent.push(analytics[type](call.category ?? null, call.name ?? null, call.properties, { ...options, ...user }))
        break
      case 'group':
        sent.push(analytics.group(call.groupId, call.traits, { ...options, ...user }))
        break
      case 'alias':
        sent.push(analytics.alias(userId, call.previousId, options))
        break
    }
    await sent.at(-1)
  }
  const contexts = await Promise.all(sent)
  return contexts.filter((context) => context.failedDelivery()).map((context) => String(context.failedDelivery().reason))
}

const profile = await mkdtemp(path.join(process.env.INTEROP_SCRATCH, 'chromium-'))
let browser
try {
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.INTEROP_CHROMIUM,
    headless: true,
    args: [
      '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync',
    ],
  })
  const page = await browser.newPage()
  page.on('pageerror', (error) => console.error('page:', error.message))
  page.on('console', (message) => console.error('console:', message.text()))
  // Batches go out after the library has said that their calls are sent.
  let delivered = 0
  const all = new Promise((resolve) => {
    page.on('requestfinished', (request) => {
      if (request.method() !== 'POST') return
      delivered += JSON.parse(request.postData()).batch?.length ?? 1
      if (delivered === calls.length) resolve()
    })
  })
  await page.goto(`http://localhost:${server.address().port}/`)
  const failed = await page.evaluate(run, {
    calls, cdnURL: endpoint, writeKey, batching: process.argv[2] === 'batching',
  })
  if (!failed.length) await all
  if (failed.length) throw new Error(`${failed.length} calls failed: ${failed[0]}`)
} finally {
  await browser?.close()
  server.close()
  server.closeAllConnections()
}
