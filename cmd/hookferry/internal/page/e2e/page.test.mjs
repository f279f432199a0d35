// The page in Chromium, before a real server with real receivers.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { check, launch, leave, limit, overflow, visit } from './browser.mjs'
import { Database, Receiver, Server, until } from './serve.mjs'

let browser
let receiver
let server

const endpoint = (where) => [{ url: receiver.url + where }]
const configuration = () => ({
  history: { maxAge: '1h' },
  sources: [
    { name: 'web', keys: ['web-key'], destinations: ['crm'] },
    { name: 'app', keys: ['app-key'], destinations: ['refuses/eu'] },
    { name: 'both', keys: ['both-key'], destinations: ['crm', 'refuses/eu'] },
    { name: 'shop', keys: ['shop-key'], destinations: ['busy'] },
  ],
  destinations: [
    { id: 'crm', endpoints: endpoint('/crm'), secret: 'hush' },
    { id: 'refuses/eu', endpoints: endpoint('/refuses') },
    { id: 'busy', endpoints: endpoint('/busy') },
    { id: 'off', endpoints: endpoint('/off'), disabled: true },
  ],
})

before(async () => {
  receiver = await Receiver.start()
  receiver.answers['/refuses'] = { status: 422, text: '{"error":"unknown trait plan"}' }
  receiver.answers['/busy'] = { status: 503, text: 'come back later' }
  ;[browser, server] = await Promise.all([launch(), Server.start(configuration())])
})

after(async () => {
  await browser?.close()
  await server?.stop()
  receiver?.stop()
})

const hash = (page, where) => page.evaluate((h) => { location.hash = h }, where)
const row = (page, text) => page.locator('tbody tr', { hasText: text })
const figure = (page, name) => page.locator('.figure', { hasText: name }).locator('.value')

test('a newcomer is told what to type, and sees the first call', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await page.getByRole('heading', { name: 'No call has come yet' }).waitFor()
  await page.getByRole('button', { name: 'Copy' }).nth(1).click()
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `hookferry send track --write-key KEY --endpoint ${server.calls} --user u1 --event "Signed Up"`)
  await hash(page, '#/events')
  await page.getByRole('heading', { name: 'Nothing has happened yet' }).waitFor()
  await page.getByText('Live', { exact: true }).waitFor()
  await server.track('web-key', 1)
  await page.locator('.event:not([hidden])').filter({ hasText: 'Signed Up · user-0' }).waitFor()
  await hash(page, '#/')
  await page.getByRole('heading', { name: 'No call has come yet' }).waitFor({ state: 'hidden' })
  await leave(page)
})

test('the overview says what comes in, what goes out, and what fails and why', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await server.track('web-key', 250)
  await server.track('app-key', 3)
  await server.track('shop-key', 20)
  await until('the totals are shown', async () => /^\d/.test(await figure(page, 'Delivered').innerText()) && (await page.locator('.figure', { hasText: 'Delivered' }).innerText()).includes('251'))
  await until('dead letters are shown', async () => (await figure(page, 'Dead letters').innerText()) === '3')
  await page.locator('.attention').getByText('busy is failing').waitFor()
  await row(page, '/busy').getByText('Failing').waitFor()
  await row(page, '/crm').getByText('Healthy').waitFor()
  await row(page, '/off').getByText('Disabled').waitFor()
  await page.getByRole('list', { name: 'Failed requests' }).getByText('Server error').waitFor()
  await page.getByRole('list', { name: 'Dead letters since' }).getByText('Refused').waitFor()
  assert.equal(await page.locator('#dead').innerText(), '3')
  await until('the chart has a line', async () => (await page.locator('.plot .line[data-tone=ok]').first().getAttribute('d'))?.includes('L'))
  await leave(page)
})

test('charts are read by keyboard, by pointer and as a table', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const slider = page.getByRole('slider', { name: 'Deliveries over time' })
  await until('the chart has data', async () => Number(await slider.getAttribute('aria-valuemax')) >= 59)
  await slider.focus()
  let before
  await until('the moment before is read', async () => { // the chart moves on, and may between the keys
    await page.keyboard.press('End')
    const end = await slider.getAttribute('aria-valuetext')
    await page.keyboard.press('ArrowLeft')
    before = await slider.getAttribute('aria-valuetext')
    return before !== end
  })
  assert.match(before, /^\d\d:\d\d:\d\d: Accepted .+, Delivered .+, Retried .+, Dead .+$/)
  await page.keyboard.press('Tab')
  assert.equal(await page.locator('.readout:visible').count(), 0)
  const box = await slider.boundingBox()
  await page.mouse.move(box.x + box.width / 2, box.y + 50)
  await page.locator('.readout:visible').getByText('Delivered').waitFor()
  await page.locator('.as-table summary').first().click()
  await until('the table has rows', async () => (await page.getByRole('group', { name: 'Deliveries, as a table' }).locator('tbody tr').count()) >= 25)
  await page.getByRole('radio', { name: '1 h' }).check()
  await page.getByText('per 10 s').waitFor()
  await leave(page)
})

test('a spike is within its chart, and no labels overlap', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await page.setViewportSize({ width: 340, height: 860 })
  const n = 60
  const values = (at) => Array.from({ length: n + 1 }, (_, i) => (i === at ? 5_000 : 8 + (i % 3)))
  await page.route('**/api/v1/series?*', (route) => route.fulfill({ json: {
    start: new Date(Date.now() - n * 1_440_000).toISOString(), step: 1_440_000, // a day, in which 6 h are few pixels
    ...Object.fromEntries(['accepted', 'delivered', 'retried', 'dead', 'waiting', 'p50', 'p99'].map((key) => [key, values(key === 'delivered' ? 30 : -1)])),
  } }))
  const chart = page.locator('.chart').first()
  await until('the axis reaches the spike', async () => (await chart.locator('.grid text').allTextContents()).some((label) => Number(label.replace(/\D/g, '')) >= 5_000))
  for (const one of await page.locator('.plot').all()) {
    const boxes = await one.locator('text').evaluateAll((texts) => texts.map((t) => { const { left, right, top, bottom } = t.getBoundingClientRect(); return { left, right, top, bottom } }))
    for (const [i, a] of boxes.entries()) {
      for (const b of boxes.slice(i + 1)) assert.ok(a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top, 'two labels overlap')
    }
  }
  await leave(page)
})

test('live events are filtered, paused, chosen and read', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/events`)
  const options = page.locator('.event:not([hidden])')
  await options.first().waitFor()
  assert.ok(await options.count() < 80, 'rows out of sight are in the document')

  // By kind, and by a part of the body. The address has the filter.
  await page.getByLabel('Dead', { exact: true }).check()
  await until('only dead ones are shown', async () => (await options.count()) === 3 && (await options.filter({ hasText: 'Dead' }).count()) === 3)
  assert.match(page.url(), /#\/events\?kind=dead$/)
  await page.getByLabel('Dead', { exact: true }).uncheck()
  await page.getByLabel('Type').selectOption('identify')
  await page.getByRole('heading', { name: 'Nothing matches' }).waitFor()
  await page.getByRole('button', { name: 'Show all events' }).click()
  await page.keyboard.press('/')
  await page.keyboard.type('needle-7')
  await page.getByRole('heading', { name: 'Nothing matches' }).waitFor()
  await server.track('web-key', 100, (i) => ({ event: 'Looked', userId: `needle-${i}` }))
  await page.getByLabel('Accepted', { exact: true }).check()
  await until('one of many is found', async () => (await options.count()) === 11)
  await page.reload()
  await until('a reload keeps the filter', async () => (await options.count()) === 11)
  await until('all of them are delivered', async () => (await server.api('events?q=needle-7&kind=delivered')).events.length === 11)
  await page.getByLabel('Accepted', { exact: true }).uncheck()
  await until('the other kinds are listed', async () => (await options.count()) > 11)

  // Pausing keeps what comes.
  await page.getByRole('button', { name: 'Pause' }).click()
  const shown = await options.count()
  await server.track('web-key', 1, () => ({ event: 'Paused', userId: 'needle-7' }))
  await page.getByText(/paused, [1-9]/).waitFor()
  assert.equal(await options.count(), shown)
  await page.locator('h1').click()
  await page.keyboard.press(' ')
  await options.filter({ hasText: 'Paused · needle-7' }).waitFor()

  // Choosing, with the keyboard alone.
  await page.keyboard.press('Escape')
  await page.keyboard.press('j')
  await page.keyboard.press('j')
  await page.keyboard.press('k')
  const side = page.getByRole('complementary')
  await side.waitFor()
  await until('one is chosen', async () => (await page.locator('[aria-selected=true]').count()) === 1)
  await options.filter({ hasText: 'Paused · needle-7' }).click()
  await side.getByText('"Paused"').waitFor()
  await side.getByRole('button', { name: 'Copy' }).click()
  assert.equal(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())).userId, 'needle-7')
  await page.keyboard.press('Escape')
  await side.waitFor({ state: 'hidden' })
  await leave(page)
})

test('what comes between the list of a filter and its stream is not missed', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await page.route('**/api/v1/events/live?*', async (route) => {
    await server.track('web-key', 1, () => ({ event: 'In Between', userId: 'between' }))
    await until('it is delivered', async () => (await server.api('events?q=between&kind=delivered')).events.length > 0)
    await route.continue()
  }, { times: 1 })
  await hash(page, '#/events?kind=accepted&q=between')
  await page.locator('.event:not([hidden])').filter({ hasText: 'In Between' }).waitFor()
  await leave(page)
})

test('a destination is paused and resumed', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations`)
  await page.getByRole('searchbox').fill('crm')
  await until('only one is listed', async () => (await page.locator('tbody tr').count()) === 1)
  await page.getByRole('link', { name: 'crm' }).click()
  await page.getByRole('heading', { name: 'crm' }).waitFor()
  await page.getByRole('button', { name: 'Pause crm' }).click()
  await page.getByRole('heading', { name: 'Paused' }).waitFor()
  const came = receiver.on('/crm')
  await server.track('web-key', 25)
  await until('they wait', async () => (await figure(page, 'Waiting').innerText()) === '25')
  const tab = (name) => page.getByRole('navigation', { name: 'About this destination' }).getByRole('link', { name }).click()
  await tab('Speed and failures')
  await until('the chart says so', async () => / Waiting 25$/.test(await page.getByRole('slider', { name: 'Waiting for crm' }).evaluate((plot) => {
    plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'End' }))
    return plot.getAttribute('aria-valuetext')
  })))
  assert.equal(receiver.on('/crm'), came)
  await page.getByRole('button', { name: 'Resume crm' }).click()
  await until('they came', () => receiver.on('/crm') === came + 25)
  await tab('Overview')
  await until('none waits', async () => (await figure(page, 'Waiting').innerText()) === '0')
  assert.match(await figure(page, 'Latency').innerText(), /ms|s$/)
  await tab('Settings')
  await page.getByText('X-Signature').waitFor()
  await leave(page)
})

test('what is typed when a view is left does not change the address', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations`)
  for (const view of ['#/destinations', '#/events']) {
    await hash(page, view)
    await page.getByRole('searchbox').fill('crm')
    await hash(page, '#/test')
    await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 250))) // as a filter waits for what is typed
    assert.match(page.url(), /#\/test$/)
  }
  await leave(page)
})

test('thousands of destinations, and hundreds of sources and audiences, are listed in part', { timeout: limit }, async () => {
  const ids = Array.from({ length: 2_000 }, (_, i) => `d${String(i).padStart(4, '0')}`)
  const many = await Server.start({
    sources: [{ name: 'first', keys: ['first-key'], destinations: ids.slice(0, 1_000) }, { name: 'second', keys: ['second-key'], destinations: ids.slice(1_000) },
      ...Array.from({ length: 300 }, (_, i) => ({ name: `more-${i}`, keys: [`key-${i}`], destinations: [] }))],
    destinations: ids.map((id, i) => ({ id, endpoints: endpoint(i === 1_234 ? '/busy' : '/many') })),
  })
  try {
    await many.track('second-key', 5)
    await until('one of them fails', async () => (await many.api('destinations?state=failing')).total === 1)
    const page = await visit(browser, many.page)
    const asked = []
    page.on('requestfinished', (r) => {
      // The last may not be told any more, when the page is left.
      if (r.url().includes('/api/v1/destinations')) r.sizes().then(({ responseBodySize }) => asked.push(responseBodySize), () => {})
    })
    await page.locator('.attention').getByText('d1234 is failing').waitFor()
    await page.getByText('1 of 2,000 destinations is in trouble.').waitFor()
    const rows = page.locator('tbody tr')
    await page.getByRole('link', { name: 'All 2,000 destinations' }).click()
    await page.getByText('1 – 50 of 2,000').waitFor()
    await until('the one that fails is first', async () => /d1234.*Failing/.test(await rows.first().textContent()))
    await page.getByLabel('Order').selectOption('id')
    await page.getByRole('link', { name: 'd0000' }).waitFor()
    assert.equal(await rows.count(), 50)
    await page.getByRole('button', { name: 'Next' }).click()
    await page.getByText('51 – 100 of 2,000').waitFor()
    await page.getByRole('link', { name: 'd0050' }).waitFor()
    await page.locator('h1').click()
    await page.keyboard.press('p')
    await page.getByRole('link', { name: 'd0000' }).waitFor()

    await page.getByLabel('Source').fill('SEC')
    await until('what is typed is completed', async () => (await page.locator('datalist option').evaluateAll((list) => list.map((o) => o.value))).join() === 'second')
    await page.getByLabel('Source').fill('second')
    await page.keyboard.press('Enter')
    await page.getByText('1,000 match the filter').waitFor()
    await page.getByRole('checkbox', { name: /^Failing/ }).check()
    await page.getByText('1 matches the filter').waitFor()
    await page.reload()
    await page.getByText('1 matches the filter').waitFor()
    assert.equal(await rows.count(), 1)
    await page.keyboard.press('/')
    await page.keyboard.type('nothing of this name')
    await page.getByText('No destination matches.').waitFor()
    assert.ok(Math.max(...asked) < 50_000, `an answer has ${Math.max(...asked)} bytes`)

    await hash(page, '#/sources')
    await page.getByText('1 – 50 of 302').waitFor()
    assert.equal(await rows.count(), 50)
    await page.locator('h1').click()
    await page.keyboard.press('n')
    await page.getByText('51 – 100 of 302').waitFor()
    await page.getByRole('searchbox', { name: 'Filter sources' }).fill('SECOND')
    await until('one is found', async () => (await rows.count()) === 1)
    await page.getByRole('link', { name: '990 more' }).click()
    await page.getByText('1,000 match the filter').waitFor()
    await hash(page, '#/deliveries?state=dead')
    await page.getByLabel('Destination').fill('d199')
    await until('what is typed is completed', async () => (await page.locator('datalist option').count()) === 10)

    await Promise.all(Array.from({ length: 60 }, (_, i) => many.api('audiences', { destination: 'd0000', name: `List ${String(i).padStart(2, '0')}` })))
    await hash(page, '#/users')
    await page.getByText('1 – 50 of 60').waitFor()
    assert.equal(await rows.count(), 50)
    await page.getByRole('button', { name: 'Next' }).click()
    await page.getByText('51 – 60 of 60').waitFor()
    await row(page, 'List 59').waitFor()
    await page.getByRole('searchbox', { name: 'Filter audiences' }).fill('LIST 3')
    await until('some are found', async () => (await rows.count()) === 10)

    // Sources that are chosen stay so while others are looked for.
    const choice = page.locator('form .types .types')
    await page.getByText('252 more, which the filter finds').waitFor()
    await choice.getByLabel('first', { exact: true }).check()
    await page.getByRole('searchbox', { name: 'Filter sources' }).fill('second')
    await until('two are offered', async () => (await choice.getByRole('checkbox').count()) === 2)
    await choice.getByLabel('second', { exact: true }).check()
    await page.getByRole('searchbox', { name: 'Filter sources' }).press('Enter')
    await page.getByLabel('User ids').fill('u1')
    await page.getByRole('button', { name: 'Delete users…' }).click()
    await page.getByRole('dialog').getByText('Every destination of first, second is sent a deletion').waitFor()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    await leave(page)
  } finally {
    await many.stop()
  }
})

test('what waits for a destination that is gone, and is not due, is shown', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await page.route('**/api/v1/destinations?*', async (route) => {
    const response = await route.fetch()
    const json = await response.json()
    json.items[0] = { ...json.items[0], id: 'gone', state: 'unknown', enabled: false, endpoints: [], waiting: 3, held: undefined }
    json.states.unknown = 1
    await route.fulfill({ response, json })
  })
  await page.locator('.attention').getByText('gone is unknown: 3 waiting').waitFor()
  assert.equal(await row(page, 'gone').getByRole('button').count(), 0)
  await leave(page)
})

test('a destination that fails says why, and when it is tried again', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations/busy`)
  await page.locator('.failure').getByText('503: come back later').waitFor()
  await row(page, '503 · Server error').first().waitFor()
  await page.getByText(/Tried again (now|in \d+ s)/).waitFor()
  await until('the next attempt is known', async () => /now|in \d+ s/.test(await figure(page, 'Next attempt').innerText()))

  // What waits for it, attempted now or forgotten.
  const waiting = page.getByRole('group', { name: 'What waits' }).locator('tbody tr')
  await waiting.filter({ hasText: '503 come back later' }).first().waitFor()
  const came = receiver.on('/busy')
  await page.getByRole('button', { name: 'Retry now' }).click()
  await page.locator('.job').getByText(/Retried/).waitFor()
  await until('it is attempted', () => receiver.on('/busy') > came)
  await page.getByRole('button', { name: 'Discard all…' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
  await page.getByRole('link', { name: 'Speed and failures' }).click()
  await page.getByRole('list', { name: 'Failed requests' }).getByText('Server error').waitFor()
  await page.getByRole('link', { name: 'Overview' }).last().click()
  await row(page, '503 · Server error').first().getByRole('link').click()
  await page.getByText('come back later').first().waitFor()
  await leave(page)
})

test('the story of a delivery has every attempt and the body', { timeout: limit }, async () => {
  const { items: [letter] } = await server.api('deliveries?state=dead')
  const page = await visit(browser, `${server.page}#/destinations/${encodeURIComponent(letter.destination)}/deliveries/${letter.id}`)
  await page.getByRole('heading', { name: letter.id }).waitFor()
  await page.getByText('Given up after 1 try: refused.').waitFor()
  await page.getByText('{"error":"unknown trait plan"}').waitFor()
  await page.getByText(`POST ${receiver.url}/refuses`).waitFor()
  await page.getByRole('group', { name: 'Body of the webhook' }).getByText('"Signed Up"').waitFor()
  await leave(page)

  // An id may be any text, also what is no name in a path.
  await server.track('web-key', 1, () => ({ messageId: '..', event: 'Up And Away', userId: 'u1' }))
  const up = await visit(browser, `${server.page}#/events?q=up and away`)
  await up.locator('.event:not([hidden])').filter({ hasText: 'Up And Away' }).first().click()
  await up.getByRole('link', { name: 'The whole story' }).click()
  await up.getByText('Taken after 1 try.').waitFor()
  await up.getByRole('group', { name: 'Body of the webhook' }).getByText('"Up And Away"').waitFor()

  // What was delivered is sent again.
  const came = receiver.on('/crm')
  await up.getByRole('button', { name: 'Send again' }).click()
  await up.locator('.job').getByText('Retried 1 delivery').waitFor()
  await until('it came again', () => receiver.on('/crm') === came + 1)
  await leave(up)

  // From the overview, by its messageId.
  await server.track('web-key', 1, () => ({ messageId: 'm-found', event: 'Found', userId: 'u1' }))
  await until('it is kept', async () => (await server.api('deliveries?id=m-found&state=delivered')).items.some((d) => d.destination === 'crm'))
  const overview = await visit(browser, server.page)
  await overview.getByRole('link', { name: 'Deliveries' }).click()
  await overview.getByRole('heading', { name: 'Deliveries', level: 1 }).waitFor() // before it, keys are the overview's
  await overview.keyboard.press('/')
  await overview.keyboard.type('m-found')
  await overview.keyboard.press('Enter')
  const arrived = receiver.on('/crm')
  await overview.locator('tbody tr', { hasText: 'm-found' }).filter({ hasText: 'crm' }).getByRole('checkbox').check()
  await overview.getByRole('button', { name: 'Retry 1 selected' }).click()
  await overview.locator('.job').getByText('Retried 1 delivery').waitFor()
  await until('it came again', () => receiver.on('/crm') === arrived + 1)
  await leave(overview)

  const missing = await visit(browser, `${server.page}#/destinations/crm/deliveries/nothing`, { expected: [/404/] })
  await missing.getByRole('heading', { name: 'Nothing is known of this delivery' }).waitFor()
  await leave(missing)
})

test('the servers of a store that is shared are listed', { timeout: limit }, async () => {
  const alone = await visit(browser, server.page)
  await figure(alone, 'Received').waitFor()
  await until('the server has said that it is alone', async () => (await alone.locator('tbody tr').count()) > 0)
  assert.equal(await alone.locator('.panel', { hasText: 'Last sign' }).isVisible(), false)
  await leave(alone)

  const database = await Database.start()
  const servers = []
  try {
    for (const name of ['first', 'second']) {
      servers.push(await Server.start({
        queue: { url: database.url },
        sources: [{ name: 'web', keys: ['web-key'], destinations: ['crm'] }],
        destinations: [{ id: 'crm', endpoints: endpoint(`/${name}`) }],
      }))
    }
    const [one, two] = servers
    const page = await visit(browser, one.page)
    const rows = page.getByRole('group', { name: 'Servers' }).locator('tbody tr')
    await until('both are listed, and are ready', async () => (await rows.filter({ hasText: 'Ready' }).count()) === 2)
    const { node } = await one.api('status')
    const { node: other } = await two.api('status')
    assert.match(await rows.filter({ hasText: node }).textContent(), /answers this page/)
    assert.doesNotMatch(await rows.filter({ hasText: other }).textContent(), /answers this page/)
    await check(page, 'the servers')
    assert.equal(await overflow(page), 0)

    // A pause on one page holds on both, and what is accepted by one waits for both.
    await row(page, '/first').getByRole('button', { name: 'Pause crm' }).click()
    const second = await visit(browser, two.page)
    await row(second, '/second').getByText('Paused').waitFor()
    await two.track('web-key', 7)
    for (const p of [page, second]) await until('7 wait on each page', async () => (await figure(p, 'Waiting').innerText()) === '7')
    await row(second, '/second').getByRole('button', { name: 'Resume crm' }).click()
    await until('they came', () => receiver.on('/first') + receiver.on('/second') === 7)
    await until('what each has delivered is told of both', async () => {
      const { nodes } = await one.api('nodes')
      return nodes.reduce((n, { delivered }) => n + delivered, 0) === 7
    })
    await leave(second)

    // One that stops is listed no longer.
    await servers.pop().stop()
    await until('one is left', async () => (await rows.count()) === 1)
    assert.match(await rows.first().textContent(), /answers this page/)
    await leave(page)
  } finally {
    for (const s of servers) await s.stop()
    await database.stop()
  }
})

test('a server that says nothing of itself is listed', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const seen = new Date().toISOString()
  const node = { name: '<b>web2</b>/ghijkl', seen, ready: false, inFlight: 0, delivered: 0, rates: { accepted: 0, delivered: 0, retried: 0, dead: 0 } }
  await page.route('**/api/v1/nodes', (route) => route.fulfill({ json: { shared: true, nodes: [node] } }))
  await row(page, '<b>web2</b>/ghijkl').waitFor()
  assert.match(await row(page, '<b>web2</b>/ghijkl').textContent(), /Takes no calls.*\?.*ago/)
  await leave(page)
})

test('deliveries are filtered, looked at, retried and discarded', { timeout: limit }, async () => {
  await server.track('both-key', 60)
  const dead = async () => (await server.api('deliveries/count?state=dead')).count
  await until('63 are dead', async () => (await dead()) === 63)
  const page = await visit(browser, `${server.page}#/deliveries?state=dead`)
  const rows = page.locator('tbody tr')
  const listed = (n) => until(`${n} are listed`, async () => (await rows.count()) === n)
  const none = () => page.getByText('No delivery matches the filter.').waitFor()
  await listed(50)
  await page.getByLabel('User').fill('user-7')
  await page.keyboard.press('Enter')
  await listed(1)
  await page.getByLabel('User').fill('')
  await page.keyboard.press('Enter')
  await listed(50)
  await page.getByRole('button', { name: 'Next' }).click()
  await listed(13)
  await page.getByText('51 – 63').waitFor()
  await page.getByRole('button', { name: 'Previous' }).click()
  await listed(50)

  await page.getByLabel('Reason').selectOption('timeout')
  await none()
  await page.getByLabel('Reason').selectOption('refused')
  await page.getByLabel('Destination').fill('refuses/eu')
  await page.keyboard.press('Enter')
  await page.getByLabel('Type').selectOption('track')
  await page.getByLabel('When they were accepted').selectOption('1h')
  await listed(50)
  await page.getByLabel('When they were accepted').selectOption('own')
  await page.getByLabel('Accepted from').fill('2020-01-01T00:00:00')
  await page.getByLabel('Accepted before').fill('2020-01-02T00:00:00')
  await none()

  // What is asked about is what is listed, not what a filter asks for meanwhile.
  await hash(page, '#/deliveries?state=dead&reason=refused&destination=refuses/eu')
  await listed(50)
  await page.route(/\/api\/v1\/deliveries\?/, () => {}) // they are not answered
  const discarded = []
  await page.route('**/api/v1/deliveries/discard', (route) => {
    discarded.push(route.request().postDataJSON())
    return route.fulfill({ contentType: 'text/plain', body: '{"done":62,"claimed":1,"ended":true}\n' })
  })
  await page.getByLabel('Reason').selectOption('')
  await page.getByRole('button', { name: 'Discard all that match…' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Discard 63 deliveries' }).click()
  await page.locator('.job').getByText(/Discarded 62 deliveries in .* 1 left: being attempted/).waitFor()
  assert.deepEqual(discarded, [{ query: { state: ['dead'], reason: 'refused', destination: ['refuses/eu'] } }])
  await page.unrouteAll({ behavior: 'ignoreErrors' })
  await hash(page, '#/deliveries?state=dead')
  await page.reload()
  await listed(50)

  // One, with its body, by keyboard.
  await page.locator('h1').click()
  await page.keyboard.press('j')
  await page.keyboard.press('Enter')
  await page.getByRole('group', { name: 'Body of the webhook' }).getByText('"Signed Up"').waitFor()
  await page.getByText('{"error":"unknown trait plan"}').waitFor()
  receiver.answers['/refuses'] = { status: 200 }
  const came = receiver.on('/refuses')
  await page.getByRole('button', { name: 'Retry' }).click()
  await page.locator('.job').getByText('Retried 1 delivery').waitFor()
  await until('it came', () => receiver.on('/refuses') === came + 1)

  // Some, selected on two pages.
  await page.getByRole('button', { name: 'Dismiss' }).click()
  await page.goBack()
  await listed(50)
  await rows.nth(0).getByRole('checkbox').check()
  await rows.nth(1).getByRole('checkbox').check()
  await page.getByRole('button', { name: 'Next' }).click()
  await listed(12)
  await rows.nth(0).getByRole('checkbox').check()
  await page.getByRole('button', { name: 'Retry 3 selected' }).click()
  await until('they came', () => receiver.on('/refuses') === came + 4)
  await until('59 are left', async () => (await dead()) === 59)

  // Discarding asks first, with the focus on the way out. Without a state, nothing is offered.
  const dialog = page.getByRole('dialog')
  await page.getByRole('button', { name: 'Discard all that match…' }).click()
  await until('Cancel has the focus', () => dialog.getByRole('button', { name: 'Cancel' }).evaluate((b) => b === document.activeElement))
  await page.keyboard.press('Enter')
  await dialog.waitFor({ state: 'hidden' })
  assert.equal(await dead(), 59)
  await page.getByLabel('State').selectOption('')
  await until('nothing is offered', () => page.getByRole('button', { name: 'Discard all that match…' }).isDisabled())
  await page.getByLabel('State').selectOption('dead')
  await page.getByRole('button', { name: 'Discard all that match…' }).click()
  await dialog.getByRole('button', { name: 'Discard 59 deliveries' }).click()
  await none()
  assert.equal(await dead(), 0)
  assert.equal(receiver.on('/refuses'), came + 4)
  await leave(page)
})

test('10,000 dead letters are retried with a progress bar', { timeout: 4 * limit }, async () => {
  receiver.answers['/refuses'] = { status: 422 }
  await server.track('app-key', 10_000)
  await until('all are dead', async () => (await server.api('deliveries/count?state=dead')).count === 10_000, limit)
  receiver.answers['/refuses'] = { status: 200 }
  const came = receiver.on('/refuses')
  const page = await visit(browser, `${server.page}#/deliveries?state=dead`)
  await page.getByRole('button', { name: 'Retry all that match…' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Retry 10,000 deliveries' }).click()
  const bar = page.locator('progress[aria-label="Retrying 10,000 deliveries"]')
  await bar.waitFor({ state: 'attached' }) // it is hidden once all is done
  // It goes on while other views are shown.
  await hash(page, '#/sources')
  await page.locator('.job').getByText('Retried 10,000 deliveries').waitFor({ timeout: limit })
  await bar.waitFor({ state: 'hidden' })
  await until('all came', () => receiver.on('/refuses') === came + 10_000, limit)
  await page.getByRole('button', { name: 'Dismiss' }).click()
  assert.equal((await server.api('deliveries/count?state=dead')).count, 0)
  await leave(page)
})

test('the tester shows request, signature, answer and timing', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/test?destination=crm`)
  for (const type of ['screen', 'group', 'alias', 'page']) await page.getByLabel(type, { exact: true }).uncheck()
  await page.getByRole('button', { name: 'Send' }).click()
  const exchanges = page.locator('.exchange')
  await until('there are two', async () => (await exchanges.count()) === 2)
  await exchanges.first().locator('summary').click()
  const first = exchanges.first()
  await first.getByText('X-Signature').waitFor()
  await first.getByText('"type": "track"').or(first.getByText('"track"')).first().waitFor()
  await first.getByText('taken', { exact: true }).waitFor()
  await first.getByText(/in all/).waitFor()

  await page.getByRole('radio', { name: 'A URL' }).check()
  await page.getByRole('textbox', { name: 'URL' }).fill(`${receiver.url}/busy`)
  await page.getByRole('button', { name: 'Send' }).click()
  await exchanges.first().getByText('come back later').waitFor()
  await exchanges.first().locator('summary').getByText('503').waitFor()

  await page.getByRole('textbox', { name: 'URL' }).fill('ftp://example.com/')
  await page.getByRole('button', { name: 'Send' }).click()
  await page.getByRole('alert').waitFor()
  page.complaints = page.complaints.filter((c) => !/400/.test(c))
  await leave(page)
})

test('audiences are made and synced from a file, and users deleted', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/users`)
  await page.getByText('No audience yet.').waitFor()
  const form = page.getByRole('region', { name: 'New audience' })
  await form.getByLabel('Destination').fill('crm')
  await form.getByLabel('Name').fill('Big Spenders!')
  await form.getByRole('button', { name: 'Create' }).click()
  await row(page, 'Big Spenders!').waitFor()
  const file = path.join(server.folder, 'members.txt')
  await writeFile(file, Array.from({ length: 1_000 }, (_, i) => `member-${i}\n`).join(''))
  const came = receiver.on('/crm')
  await row(page, 'Big Spenders!').locator('input[type=file]').setInputFiles(file)
  await page.getByRole('dialog').getByRole('button', { name: 'Sync' }).click()
  await page.locator('.job').getByText('1,000 users joined, 0 left.').waitFor()
  await until('the destination was told', () => receiver.on('/crm') === came + 1_000)
  const download = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Download members of Big Spenders!' }).click()
  const lines = (await readFile(await (await download).path(), 'utf8')).trim().split('\n')
  assert.equal(lines.length, 1_000)
  assert.ok(lines.includes('member-7'))
  // A file that lacks most members may be a mistake.
  await writeFile(file, 'member-7\n')
  await row(page, 'Big Spenders!').locator('input[type=file]').setInputFiles(file)
  await page.getByRole('dialog').getByRole('button', { name: 'Sync' }).click()
  await page.getByRole('dialog').getByText('999 of 1000 members would leave').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Let them leave' }).click()
  await page.locator('.job').getByText('0 users joined, 999 left.').waitFor()

  await page.getByLabel('User ids').fill('u1\nu2')
  await page.getByLabel('web', { exact: true }).check()
  await page.getByRole('button', { name: 'Delete users…' }).click()
  await page.getByRole('dialog').getByText('Every destination of web is sent a deletion').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await page.locator('.job').getByText('Their deletion is on its way.').waitFor()
  await until('the destination was told', () => receiver.got.filter((g) => g.path === '/crm' && g.body.type === 'delete').length > 0)
  await leave(page)
})

test('sources are listed with what they sent', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/sources`)
  await row(page, 'web').getByText('Sending').waitFor()
  await row(page, 'app').getByText('10,003').waitFor()
  await row(page, 'both').getByRole('link', { name: 'refuses/eu' }).click()
  await page.getByRole('heading', { name: 'refuses/eu' }).waitFor()
  await leave(page)
})

test('the keyboard reaches everything', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  for (const [key, heading] of [['e', 'Events'], ['d', 'Destinations'], ['l', 'Deliveries'], ['s', 'Sources'], ['t', 'Tester'], ['u', 'Users'], ['o', 'Overview']]) {
    await until(`g ${key} leads to ${heading}`, async () => { // again, if a second passes between the two
      await page.keyboard.press('g')
      await page.keyboard.press(key)
      return page.getByRole('heading', { name: heading, exact: true, level: 1 }).isVisible()
    })
  }
  for (const from of ['the overview', 'the list itself']) {
    await page.locator('main h1').click()
    await page.keyboard.press('f')
    await until(`the messageId can be typed, from ${from}`, () => page.getByRole('searchbox', { name: 'messageId' }).evaluate((input) => input === document.activeElement))
  }
  await hash(page, '#/')
  await page.getByRole('heading', { name: 'Overview' }).click()
  await page.keyboard.press('?')
  const dialog = page.getByRole('dialog', { name: 'Keyboard shortcuts' })
  await dialog.getByText('Deliveries').waitFor()
  await dialog.getByLabel('Single-key shortcuts').uncheck()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'hidden' })
  await page.keyboard.press('?')
  assert.equal(await dialog.count(), 0, 'a shortcut that is switched off works')
  await page.getByRole('button', { name: 'Shortcuts' }).click()
  await dialog.getByLabel('Single-key shortcuts').check()
  await page.keyboard.press('Escape')

  const theme = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  const light = await theme()
  await page.keyboard.press('Shift+T')
  assert.notEqual(await theme(), light)
  const dark = await theme()
  await page.reload()
  assert.equal(await theme(), dark, 'the theme after a reload')
  await page.keyboard.press('Shift+T')
  assert.equal(await theme(), light)

  // Each stop of Tab is visible, and none is a trap.
  await page.reload()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  await until('the table is there', async () => (await row(page, '/crm').count()) > 0)
  const stops = new Set()
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press('Tab')
    const stop = await page.evaluate(() => {
      const node = document.activeElement
      if (node === document.body) return null
      const shown = node.matches('.segmented input') ? node.nextElementSibling : node
      const style = getComputedStyle(shown)
      return { name: `${node.tagName} ${node.id} ${node.textContent} ${node.ariaLabel} ${node.value ?? ''}`, visible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 }
    })
    if (!stop) break
    assert.ok(stop.visible, `the focus is not visible on ${stop.name}`)
    stops.add(stop.name)
  }
  assert.ok(stops.size > 20, `only ${stops.size} stops`)
  await leave(page)
})

const views = ['#/', '#/events', '#/destinations', '#/destinations/busy', '#/destinations/busy/settings', '#/destinations/busy/trouble', '#/deliveries', '#/new', '#/sources', '#/test?destination=busy', '#/users']

for (const [colorScheme, width] of [['light', 1280], ['dark', 360]]) {
  test(`every view is accessible, ${colorScheme} and ${width} pixels wide`, { timeout: limit }, async () => {
    receiver.answers['/refuses'] = { status: 422, text: '{"error":"unknown trait plan"}' }
    await server.track('app-key', 5)
    await until('they are dead', async () => (await server.api('deliveries/count?state=dead')).count >= 5)
    const { items: [letter] } = await server.api('deliveries?state=dead')
    const page = await visit(browser, server.page, { colorScheme, viewport: { width, height: 740 }, bypassCSP: true, reducedMotion: 'reduce' })
    for (const view of [...views, `#/destinations/${encodeURIComponent(letter.destination)}/deliveries/${letter.id}`]) {
      await hash(page, view)
      await until(`${view} is filled`, () => page.locator('main .figures, main .event, main form, main .attempts, main tbody tr, main .facts dd, main .chart').first().isVisible())
      if (view.startsWith('#/test')) {
        await page.getByRole('button', { name: 'Send' }).click()
        await page.locator('.exchange').first().waitFor()
      }
      if (view === '#/events') await page.locator('.event:not([hidden])').first().click()
      assert.equal(await overflow(page), 0, `pixels that ${view} is too wide`)
      if (width < 560) {
        await page.setViewportSize({ width: 390, height: 844 })
        const tall = await page.evaluate(() => document.documentElement.scrollHeight)
        assert.ok(tall <= 4 * 844, `${view} is ${tall} px high, at 390 px`)
        await page.setViewportSize({ width, height: 740 })
      }
      if (view === '#/deliveries' && width < 560) {
        assert.equal(await page.getByRole('group', { name: 'Deliveries' }).evaluate((box) => box.scrollWidth - box.clientWidth), 0, 'pixels that deliveries are too wide')
      }
      await check(page, view)
    }
    await page.getByRole('link', { name: 'Hookferry, overview' }).click()
    await hash(page, '#/deliveries?state=dead')
    await page.getByRole('button', { name: 'Retry all that match…' }).click()
    await page.getByRole('dialog').waitFor()
    await check(page, 'a question')
    await leave(page)
  })
}

test('a token is asked for, kept for the tab, and sent with every request', { timeout: limit }, async () => {
  const guarded = await Server.start(configuration(), { token: 'open-sesame-0123456789' })
  try {
    const page = await visit(browser, `${guarded.page}#/events`)
    const dialog = page.getByRole('dialog', { name: 'This server asks for a token' })
    await dialog.getByLabel('Token').fill('wrong')
    await page.keyboard.press('Enter')
    await dialog.getByText('That token was not right.').waitFor()
    await dialog.getByLabel('Token').fill('open-sesame-0123456789')
    await dialog.getByRole('button', { name: 'Continue' }).click()
    await page.getByText('Connected').waitFor()
    await guarded.track('web-key', 1)
    await page.locator('.event:not([hidden])').filter({ hasText: 'Signed Up' }).waitFor()
    await page.reload()
    await page.locator('.event:not([hidden])').filter({ hasText: 'Signed Up' }).waitFor()
    assert.equal(await dialog.count(), 0)
    assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0, 'the token is kept beyond the tab')
    await leave(page)
  } finally {
    await guarded.stop()
  }
})

test('a lost connection is shown, and taken up again', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/events`, { expected: [/ERR_/] })
  await page.locator('.lead').getByText('Live').waitFor()
  await server.track('web-key', 1, () => ({ event: 'Before It', userId: 'u1' }))
  await page.locator('.event:not([hidden])').filter({ hasText: 'Before It' }).waitFor()
  await server.kill()
  await page.getByText('Connection lost').first().waitFor()
  assert.ok(await page.locator('.event:not([hidden])').count() > 0, 'what was shown is gone')
  await server.restart()
  await page.getByText('Connected', { exact: true }).waitFor()
  await page.locator('.lead').getByText('Live').waitFor()
  await server.track('web-key', 1, () => ({ event: 'Back Again', userId: 'u1' }))
  await page.locator('.event:not([hidden])').filter({ hasText: 'Back Again' }).waitFor()
  await leave(page)
})
