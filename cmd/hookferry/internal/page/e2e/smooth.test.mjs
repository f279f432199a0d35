// What the page costs the browser while much happens: processor time of its
// thread, tasks that block it, and memory. It needs a quiet machine: go run ./soak page
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { launch, leave, visit } from './browser.mjs'
import { Receiver, Server, until } from './serve.mjs'

const watched = 1_000 * Number(process.env.SOAK_SECONDS ?? 30) // milliseconds
const letters = 10_000
const shown = letters.toLocaleString('en')

let browser
let receiver
let server
let page

before(async () => {
  receiver = await Receiver.start()
  ;[browser, server] = await Promise.all([launch(), Server.start({
    sources: [{ name: 'web', keys: ['web-key'], destinations: ['crm'] }, { name: 'app', keys: ['app-key'], destinations: ['refuses'] }],
    destinations: [{ id: 'crm', endpoints: [{ url: `${receiver.url}/crm` }] }, { id: 'refuses', endpoints: [{ url: `${receiver.url}/refuses` }] }],
  })])
  page = await visit(browser, `${server.page}#/events`)
  await page.evaluate(() => {
    window.longTasks = []
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((e) => e.duration))).observe({ type: 'longtask' })
  })
  page.devtools = await page.context().newCDPSession(page)
  await page.devtools.send('Performance.enable', { timeDomain: 'threadTicks' })
})

after(async () => {
  await browser?.close()
  await server?.stop()
  receiver?.stop()
})

// heap is what the page's objects take once the garbage is collected, in MB.
async function heap() {
  await page.devtools.send('HeapProfiler.collectGarbage')
  const { usedSize } = await page.devtools.send('Runtime.getHeapUsage')
  return usedSize / 1e6
}

// work is how long the page's thread has run, in seconds of its own time.
async function work() {
  const { metrics } = await page.devtools.send('Performance.getMetrics')
  return metrics.find((m) => m.name === 'TaskDuration').value
}

// cost tells what f costs the browser.
async function cost(what, f) {
  const before = await heap()
  await page.evaluate(() => {
    window.longTasks.length = 0
    window.framesSeen = 0
    window.counting = true
    const count = () => { window.framesSeen++; if (window.counting) requestAnimationFrame(count) }
    requestAnimationFrame(count)
  })
  const began = performance.now()
  const worked = await work()
  const said = await f()
  const busy = (await work()) - worked
  const seconds = (performance.now() - began) / 1_000
  const { tasks, frames, nodes } = await page.evaluate(() => {
    window.counting = false
    return { tasks: window.longTasks.slice(), frames: window.framesSeen, nodes: document.querySelectorAll('*').length }
  })
  const after = await heap()
  const blocked = tasks.reduce((a, b) => a + b, 0)
  console.log(`${what}${said ? ` (${said})` : ''}: ${seconds.toFixed(1)} s, ${((100 * busy) / seconds).toFixed(0)} % of a processor, ${(frames / seconds).toFixed(0)} frames/s, ` +
    `${tasks.length} long tasks, the longest ${Math.max(0, ...tasks).toFixed(0)} ms, ${(blocked / seconds / 10).toFixed(1)} % of the time in them; ` +
    `heap ${before.toFixed(1)} to ${after.toFixed(1)} MB, ${nodes} elements`)
  assert.ok(nodes < 1_000, `${nodes} elements are in the document`)
  assert.ok(after < 60, `the heap has ${after} MB`)
  assert.ok(busy / seconds < 0.7, `the page takes ${(100 * busy) / seconds} % of a processor`)
}

// load sends about so many calls a second until it is stopped. Each of them is
// three events: accepted, attempted, delivered.
function load(perSecond) {
  let running = true
  const ended = (async () => {
    const began = performance.now()
    for (let sent = 0; running;) {
      const due = Math.floor(((performance.now() - began) / 1_000) * perSecond) - sent
      if (due > 0) await server.track('web-key', Math.min(due, 100), (i) => ({ event: 'Loaded', userId: `user-${i}`, properties: { plan: 'team', seats: 12, note: 'a few words to read' } }))
      sent += Math.min(due, 100)
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  })()
  return () => {
    running = false
    return ended
  }
}

test('1,000 events a second are watched', async () => {
  const stop = load(340)
  await page.locator('.event').first().waitFor()
  await cost('watching', async () => {
    const seq = async () => (await server.api('events?limit=1')).events[0].seq
    const first = await seq()
    await page.waitForTimeout(watched)
    return `${(((await seq()) - first) / (watched / 1_000)).toFixed(0)} events/s`
  })
  await cost('filtering', async () => {
    const search = page.getByRole('searchbox')
    for (const text of ['user-1', 'user-12', 'nobody', '']) {
      await search.fill(text)
      await until('the filter is applied', async () => page.url().includes(text) && (text === 'nobody'
        ? page.getByRole('heading', { name: 'Nothing matches' }).isVisible() : page.locator('.event:not([hidden])').first().isVisible()))
    }
  })
  await cost('scrolling', async () => {
    const list = page.getByRole('listbox')
    for (let i = 0; i < 10; i++) {
      await list.evaluate((node) => new Promise((resolve) => {
        node.scrollTop += 900
        requestAnimationFrame(() => requestAnimationFrame(resolve))
      }))
    }
    await list.evaluate((node) => { node.scrollTop = 0 })
  })
  await stop()
})

test('dead letters are retried while the page is used', async () => {
  receiver.answers['/refuses'] = { status: 422 }
  await server.track('app-key', letters)
  await until('all are dead', async () => (await server.api('deliveries/count?state=dead')).count === letters)
  receiver.answers['/refuses'] = { status: 200 }
  await page.evaluate(() => { location.hash = '#/deliveries?state=dead' })
  await page.getByRole('button', { name: 'Retry all that match…' }).click()
  await cost('retrying', async () => {
    await page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click()
    await page.locator('.job').getByText(`Retried ${shown} deliveries`).waitFor()
    await page.evaluate(() => { location.hash = '#/' })
    await page.getByRole('heading', { name: 'Overview' }).waitFor()
    await until('all are delivered', async () => receiver.on('/refuses') === 2 * letters)
  })
  await leave(page)
})
