// What the page says of destinations that do not take their deliveries, and details
// of it that were wrong once, on a wide and on a narrow screen.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import { launch, leave, limit, overflow, visit } from './browser.mjs'
import { Receiver, Server, until } from './serve.mjs'

const narrow = { viewport: { width: 390, height: 844 } }
const views = ['#/destinations', '#/deliveries', '#/test', '#/users']

let browser
let receiver
let server

before(async () => {
  receiver = await Receiver.start()
  receiver.answers['/refuses'] = { status: 422, text: '{\n  "error": "unknown trait plan"\n}' }
  receiver.answers['/busy'] = { status: 503, text: '<!DOCTYPE html><html><title>come back later</title></html>' }
  const to = (id) => ({ id, endpoints: [{ url: `${receiver.url}/${id}` }] })
  ;[browser, server] = await Promise.all([launch(), Server.start({
    sources: [{ name: 'web', keys: ['web-key'], destinations: ['takes', 'refuses', 'busy'] }],
    destinations: [to('takes'), to('refuses'), { ...to('busy'), batch: { maxEvents: 10 } }],
  })])
})

after(async () => {
  await browser?.close()
  await server?.stop()
  receiver?.stop()
})

const row = (page, text) => page.locator('tbody tr', { hasText: text })
const figure = (page, name) => page.locator('.figure', { hasText: name }).locator('.value')

test('the empty overview does not scroll sideways on a narrow screen', { timeout: limit }, async () => {
  const page = await visit(browser, server.page, narrow)
  await page.getByRole('heading', { name: 'No call has come yet' }).waitFor()
  await row(page, '/takes').getByText('Idle').waitFor()
  assert.equal(await overflow(page), 0)
  await leave(page)
})

test('the suggested command sends a call, with a key of the configuration', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  await page.getByText(/KEY is one of sources\[\]\.keys in .*hookferry\.yaml/).waitFor()
  const line = await page.locator('.command', { hasText: 'hookferry send' }).locator('code').innerText()
  const command = line.replace(/^(\$ )?hookferry/, '"$E2E_HOOKFERRY"').replace('KEY', 'web-key')
  const { stdout } = await promisify(execFile)('sh', ['-c', command])
  assert.match(stdout, /^accepted /)
  await page.getByRole('heading', { name: 'No call has come yet' }).waitFor({ state: 'hidden' })
  await leave(page)
})

test('a destination that refuses is in trouble, with the words of its receiver', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const refuses = page.locator('.attention li', { hasText: 'refuses is refusing' })
  await refuses.getByText('422: { "error": "unknown trait plan" }').waitFor()
  await refuses.getByText(/given up after 1 try/).waitFor()
  await page.goto(`${server.page}#/destinations`)
  await row(page, '/refuses').getByText('Refusing').waitFor()
  await row(page, '/refuses').getByText('422: { "error": "unknown trait plan" }').waitFor()
  await row(page, '/busy').getByText('503: come back later').waitFor()
  await row(page, '/busy').getByText(/try \d+, .+ ago, next/).waitFor()
  const order = await page.locator('tbody th a').allInnerTexts()
  assert.equal(order.at(-1), 'takes', `the healthy one is not the last of ${order}`)
  await page.getByRole('link', { name: 'refuses' }).click()
  await page.locator('.failure').getByText('422: { "error": "unknown trait plan" }').waitFor()
  await page.locator('.failure').getByRole('link', { name: 'the delivery' }).click()
  await page.getByText('The answer was a 4xx that says this delivery is wrong.').waitFor()
  await leave(page)
})

test('the link to a destination in trouble stays the same while its line changes', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const line = page.locator('.attention li', { hasText: 'busy is failing' }).or(page.locator('.attention li', { hasText: 'refuses is refusing' })).first()
  const link = await line.getByRole('link').elementHandle()
  await link.focus()
  const before = await line.locator('small').innerText()
  await until('the line changes', async () => await line.locator('small').innerText() !== before)
  assert.ok(await link.evaluate((node) => node === document.activeElement), 'the link has lost the focus')
  await leave(page)
})

test('a delivery that waits is retried from its own page', { timeout: limit }, async () => {
  const { items: [{ id }] } = await server.api('deliveries?destination=busy&state=waiting')
  const page = await visit(browser, `${server.page}#/destinations/busy/deliveries/${id}`)
  const came = receiver.on('/busy')
  await page.getByRole('button', { name: 'Retry now' }).click()
  await page.locator('.job').getByText(/Retried/).waitFor()
  await until('it is attempted', () => receiver.on('/busy') > came)
  await page.getByText('in the batch').first().waitFor()
  await page.goto(`${server.page}#/destinations/busy/settings`)
  await page.getByText('up to 10 events in a request').waitFor()
  await leave(page)
})

test('a delivery is found by its state, its user, its event, its messageId and its destination', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/deliveries`, { expected: [/404/] })
  const find = async (label, value) => {
    await page.getByRole('searchbox', { name: label }).or(page.getByRole('combobox', { name: label })).fill(value)
    await page.keyboard.press('Enter')
  }
  await find('User', 'nobody')
  await page.getByText('No delivery matches the filter.').waitFor()
  await find('User', 'u1') // of the suggested command
  await find('Event', 'Signed*')
  for (const word of ['Dead', 'Waiting']) {
    await page.getByLabel('State').selectOption({ label: word })
    await until(`only those that are ${word} are listed`, async () => {
      const n = await page.locator('tbody tr').count()
      return n > 0 && (await row(page, word).count()) === n
    })
  }
  await page.getByLabel('State').selectOption('delivered')
  await page.getByText('delivered deliveries are not kept; history.maxAge keeps them').waitFor()
  await page.getByText('The latest are among the events').waitFor()
  await page.getByLabel('State').selectOption('dead')
  await row(page, 'Refused').first().waitFor()
  const id = await row(page, 'Dead').first().locator('th a').innerText()
  await page.getByLabel('State').selectOption('')
  await find('User', '')
  await find('Event', '')
  await find('messageId', id)
  await until('all of it is found', async () => (await row(page, id).count()) === 2) // of a call for three destinations, one of which has taken it
  await find('Destination', 'busy')
  await until('one is found', async () => (await row(page, id).count()) === 1)
  assert.match(page.url(), new RegExp(`destination=busy&id=${id}$`))
  await page.getByRole('link', { name: id }).click()
  await page.getByRole('heading', { name: id }).getByText(/Waiting|Being attempted/).waitFor()
  await leave(page)
})

test('a search that few deliveries fit goes on by itself, and then says how', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const afters = []
  const answer = (from, items) => page.route('**/api/v1/deliveries?*', (route) => {
    const at = Number(new URL(route.request().url()).searchParams.get('after') ?? 0)
    afters.push(at)
    return route.fulfill({ json: at - from < 3 || !items ? { items: [], after: String(at + 1) } : { items } })
  })
  await answer(0)
  await page.goto(`${server.page}#/deliveries?user=rare`)
  await page.getByText('The search stopped after 20 steps').waitFor()
  assert.deepEqual(afters, Array.from({ length: 20 }, (_, i) => i))
  await page.unrouteAll({ behavior: 'ignoreErrors' })
  const { items } = await server.api('deliveries?limit=1')
  await answer(20, items)
  await page.getByRole('button', { name: 'Next' }).click()
  await row(page, items[0].id).waitFor()
  assert.deepEqual(afters.slice(20), [20, 21, 22, 23])
  await leave(page)
})

test('the button to copy covers no text', { timeout: limit }, async () => {
  for (const viewport of [{ width: 1440, height: 900 }, narrow.viewport]) {
    const page = await visit(browser, `${server.page}#/deliveries?state=dead`, { viewport })
    await page.locator('tbody th a').first().click()
    await page.locator('.story .code').waitFor()
    const covers = await page.evaluate(() => [...document.querySelectorAll('.copy')].filter((button) => {
      const a = button.getBoundingClientRect()
      const b = button.parentElement.querySelector('pre, code').getBoundingClientRect()
      return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
    }).length)
    assert.equal(covers, 0)
    await leave(page)
  }
})

test('Back closes a dialog', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/sources`)
  await page.getByRole('heading', { name: 'Sources' }).waitFor()
  await page.evaluate(() => { location.hash = '#/deliveries?state=dead' })
  await page.getByRole('button', { name: 'Discard all that match…' }).click()
  await page.getByRole('dialog').waitFor()
  await page.goBack()
  await page.getByRole('heading', { name: 'Sources' }).waitFor()
  assert.equal(await page.getByRole('dialog').count(), 0)
  await leave(page)
})

test('the tab of each view is in sight on a narrow screen', { timeout: limit }, async () => {
  const outside = (page) => page.evaluate(() => {
    const tab = document.querySelector('nav [aria-current]').getBoundingClientRect()
    return Math.max(0, Math.round(-tab.left), Math.round(tab.right - innerWidth))
  })
  for (const view of views) {
    const page = await visit(browser, `${server.page}${view}`, narrow)
    await page.locator('#dead:not([hidden])').waitFor()
    await page.locator('#noted:not([hidden])').waitFor()
    await until(`the tab of ${view} is in sight`, async () => (await outside(page)) === 0)
    assert.equal(await overflow(page), 0)
    await page.setViewportSize({ width: 1440, height: 900 })
    await page.setViewportSize(narrow.viewport)
    await until(`the tab of ${view} is in sight again`, async () => (await outside(page)) === 0)
    await leave(page)
  }
})

test('after a restart the dead letters of before are counted', { timeout: limit }, async () => {
  const { count } = await server.api('deliveries/count?state=dead&destination=refuses')
  assert.ok(count > 0)
  await server.kill()
  await server.restart()
  const page = await visit(browser, server.page)
  await until('the overview counts them', async () => (await figure(page, 'Dead letters').innerText()) === String(count))
  assert.equal(await page.getByRole('heading', { name: 'No call has come yet' }).isVisible(), false)
  await page.getByText('counted since the start').waitFor()
  assert.equal(await page.getByRole('columnheader', { name: 'Given up' }).count(), 1)
  await until('the list counts them', async () => (await row(page, '/refuses').locator('td.n').nth(4).innerText()) === String(count))
  await page.goto(`${server.page}#/destinations/refuses`)
  await until('its view counts them', async () => (await figure(page, 'Dead letters').innerText()) === String(count))
  await page.getByText('0 given up since the start').waitFor()
  await leave(page)
})

test('a dead letter without an attempt says so', { timeout: limit }, async () => {
  const page = await visit(browser, server.page)
  const untried = (letter) => ({ ...letter, reason: 'expired', tries: 0, attempts: [] })
  const change = (where, f) => page.route(where, async (route) => {
    const response = await route.fetch()
    await route.fulfill({ response, json: f(await response.json()) })
  })
  await change('**/api/v1/deliveries?*', (json) => ({ ...json, items: json.items.map(untried) }))
  await change('**/api/v1/story?*', untried)
  const { items: [letter] } = await server.api('deliveries?state=dead')
  await page.goto(`${server.page}#/deliveries?state=dead`)
  await row(page, 'refuses').first().getByText('no attempt was made').waitFor()
  await page.goto(`${server.page}#/destinations/refuses/deliveries/${letter.id}`)
  await page.getByText('Given up without an attempt: expired.').waitFor()
  await page.getByText('No attempt was made.').waitFor()
  await leave(page)
})

test('no request is refused before a token is asked for', { timeout: limit }, async () => {
  const guarded = await Server.start({ sources: [{ name: 'web', keys: ['web-key'] }] }, { token: 'open-sesame-0123456789' })
  try {
    const page = await visit(browser, guarded.page)
    const refused = []
    page.on('response', (response) => { if (response.status() === 401) refused.push(response.url()) })
    await page.reload()
    const dialog = page.getByRole('dialog', { name: 'This server asks for a token' })
    await dialog.getByLabel('Token').fill('wrong')
    await page.keyboard.press('Enter')
    await dialog.getByText('That token was not right.').waitFor()
    await dialog.getByLabel('Token').fill('open-sesame-0123456789')
    await page.keyboard.press('Enter')
    await page.getByText('Connected').waitFor()
    assert.deepEqual(refused, [])
    await leave(page)
  } finally {
    await guarded.stop()
  }
})

test('what a destination refused is sent again from its own page', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations/refuses`)
  const came = receiver.on('/refuses')
  const { count } = await server.api('deliveries/count?state=dead&destination=refuses')
  await page.getByRole('button', { name: `Retry ${count} dead letter` }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Retry' }).click()
  await until('they are sent again', () => receiver.on('/refuses') === came + count)
  await leave(page)
})
