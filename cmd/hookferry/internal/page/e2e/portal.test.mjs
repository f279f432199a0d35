// The portal of package webhook/portal in Chromium: a program with a real store that mounts it.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import { check, launch, leave, limit, overflow, visit } from './browser.mjs'
import { Receiver, until } from './serve.mjs'

let browser
let receiver
let program
let origin

before(async () => {
  program = spawn(process.env.E2E_PORTAL, { stdio: ['pipe', 'pipe', 'inherit'] })
  program.stdout.setEncoding('utf8')
  const line = once(program.stdout, 'data')
  ;[browser, receiver] = await Promise.all([launch(), Receiver.start()])
  origin = /http:\S+/.exec((await line)[0])[0]
})

after(async () => {
  await browser?.close()
  receiver?.stop()
  program?.stdin.end()
})

const send = (type, n = 1) => fetch(`${origin}/send?type=${type}&n=${n}`, { method: 'POST' })
const home = () => `${origin}/app/webhooks/`
const button = (page, name) => page.getByRole('button', { name, exact: true })
const tab = (page, name) => page.getByRole('navigation', { name: 'About this endpoint' }).getByRole('link', { name })

// verified reports whether a request is signed by a secret.
function verified({ headers, body }, secret) {
  const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${JSON.stringify(body)}`
  const want = createHmac('sha256', Buffer.from(secret.slice('whsec_'.length), 'base64')).update(signed).digest('base64')
  return headers['webhook-signature'].split(' ').includes(`v1,${want}`)
}

// add adds an endpoint in the page, and returns its secret.
async function add(page, url, ...types) {
  await page.goto(`${home()}#/new`)
  await page.getByLabel('URL').fill(url)
  if (types.length > 0) await page.getByLabel('All events').uncheck()
  for (const type of types) await page.getByLabel(type).check()
  await button(page, 'Add the endpoint').click()
  await page.getByText('Copy the secret now').first().waitFor()
  return page.locator('.command code').innerText()
}

test('an endpoint is added; errors stand at their field, and the secret is shown once', { timeout: limit }, async () => {
  const page = await visit(browser, home(), { expected: [/status of 422/] })
  await page.getByRole('heading', { name: 'No endpoints yet' }).waitFor()
  await page.getByRole('link', { name: 'Add an endpoint' }).click()
  const url = page.getByLabel('URL')
  await url.fill('ftp://acme.example')
  await button(page, 'Add the endpoint').click()
  await page.locator('.field', { has: url }).getByText('Has to begin with http:// or https://').waitFor()
  assert.equal(await url.getAttribute('aria-invalid'), 'true')
  assert.ok(await url.evaluate((node) => node === document.activeElement), 'the field that is wrong has no focus')
  await url.fill('http://10.0.0.1/')
  await page.locator('.field', { has: url }).getByText('Has to begin').waitFor({ state: 'hidden' })
  await button(page, 'Add the endpoint').click()
  await page.locator('.field', { has: url }).getByText('not a public address').waitFor()
  await page.getByLabel('All events').uncheck()
  await url.fill(`${receiver.url}/first`)
  await button(page, 'Add the endpoint').click()
  await page.getByText('Choose at least one.').waitFor()
  await page.getByLabel('invoice.paid').check()
  await page.getByLabel('Description').fill('Billing <b>system</b>')
  await button(page, 'Add the endpoint').click()
  await page.getByText('Copy the secret now').first().waitFor()
  await page.locator('.command').getByRole('button', { name: 'Copy' }).click()
  const secret = await page.evaluate(() => navigator.clipboard.readText())
  assert.match(secret, /^whsec_/)
  for (const language of ['Go', 'Python', 'Ruby', 'PHP', 'Node']) {
    await page.getByRole('radio', { name: language }).check()
    await page.locator('.code code').getByText(`WEBHOOK_SECRET=${secret}`).waitFor()
  }
  await send('invoice.paid')
  await send('order.shipped')
  await until('the event has arrived', () => receiver.on('/first') === 1)
  assert.ok(verified(receiver.got.find((g) => g.path === '/first'), secret))
  await page.reload()
  await page.getByText('It was shown when it was made').waitFor()
  assert.ok(!(await page.content()).includes(secret))
  await page.getByText('Billing <b>system</b>').first().waitFor()
  await leave(page)
})

test('a failing endpoint is understood, mended, and gets what failed', { timeout: limit }, async () => {
  receiver.answers['/failing'] = { status: 422, text: '<h1>no such table: invoices</h1>' }
  const page = await visit(browser, home(), { expected: [/status of 404/] }) // of a delivery that has another number now
  await add(page, `${receiver.url}/failing`, 'invoice.voided')
  await send('invoice.voided', 30)
  await page.goto(home())
  const row = page.locator('tbody tr', { hasText: '/failing' })
  await row.getByText('Refusing').waitFor()
  await row.getByText('422: no such table: invoices').waitFor()
  await row.getByRole('link').click()
  await page.locator('.notice').getByText('422: no such table: invoices').waitFor()
  await page.getByText('Mend it, and then send again what failed.').waitFor()

  await page.locator('tbody tr').first().waitFor()
  if (process.env.E2E_PICTURE) await writeFile(process.env.E2E_PICTURE, await page.screenshot())

  // The log: filters, pages, one delivery.
  await page.getByLabel('State').selectOption('dead')
  const endpoint = /endpoints\/([^/?]+)/.exec(page.url())[1]
  const dead = `${home()}api/v1/deliveries?endpoint=${endpoint}&state=dead`
  await until('all are given up', async () => (await page.evaluate(async (url) => (await (await fetch(url)).json()).items.length, dead)) === 30)
  await until('a page is full', async () => (await page.locator('tbody tr').count()) === 25)
  await button(page, 'Next').click()
  await until('the second page has the rest', async () => (await page.locator('tbody tr').count()) === 5)
  await button(page, 'Previous').click()
  await page.getByLabel('State').selectOption('delivered')
  await page.getByText('Nothing matches.').waitFor()
  await page.getByLabel('State').selectOption('')
  await page.getByLabel('Type').selectOption('invoice.voided')
  await page.getByLabel('Time').selectOption('24')
  await page.locator('tbody th a').first().click()
  await page.locator('.j-text').getByText('<script>alert(1)</script>').waitFor() // the log is gone
  await page.getByText('no such table: invoices').waitFor()
  receiver.answers['/failing'] = { status: 200, text: 'ok' }
  const before = receiver.on('/failing')
  await button(page, 'Resend').click()
  await page.getByText('It is sent again now.').waitFor()
  await until('one has arrived again', () => receiver.on('/failing') === before + 1)

  await page.getByRole('navigation', { name: 'Path' }).getByRole('link', { name: 'Deliveries' }).click()
  await button(page, 'Resend what failed…').click()
  await check(page, 'the dialog that sends again')
  await page.getByRole('dialog').getByRole('button', { name: 'Resend' }).click()
  await page.getByText('29 deliveries will be sent again now.').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Close' }).click()
  await until('all have arrived again', () => receiver.on('/failing') === before + 30)
  await page.locator('h1').getByText('Healthy').waitFor()
  await page.locator('.notice').waitFor({ state: 'hidden' })
  await leave(page)
})

test('a test shows request and answer, and is in no log', { timeout: limit }, async () => {
  receiver.answers['/tested'] = { status: 400, text: 'unknown parcel' }
  const page = await visit(browser, home())
  const secret = await add(page, `${receiver.url}/tested`, 'order.shipped')
  await tab(page, 'Test').click()
  await page.locator('.code').getByText('"parcel"').waitFor()
  await button(page, 'Send the test').click()
  const answer = page.getByRole('region', { name: 'What it answered' })
  await answer.getByText('unknown parcel').first().waitFor()
  await answer.getByText('Given up').waitFor()
  await answer.locator('.marked', { hasText: 'webhook-id' }).getByText('test_').waitFor()
  assert.ok(verified(receiver.got.find((g) => g.path === '/tested'), secret))
  await page.getByLabel('Event').selectOption('invoice.paid')
  await button(page, 'Send the test').click()
  await page.getByText('It has not subscribed to events of this type').waitFor()
  await tab(page, 'Deliveries').click()
  await page.getByText('Nothing was sent to it yet.').waitFor()
  await leave(page)
})

test('an endpoint is changed, rotated, disabled and deleted, and a change meanwhile is told', { timeout: limit }, async () => {
  const page = await visit(browser, home(), { expected: [/status of 409/, /status of 404/] })
  const first = await add(page, `${receiver.url}/before`, 'customer.created')
  await tab(page, 'Settings').click()
  await page.getByLabel('Description').fill('CRM')
  await page.getByLabel('URL').fill(`${receiver.url}/changed`)
  await button(page, 'Save').click()
  await page.getByText('Saved.').waitFor()
  await page.locator('h1').getByText('/changed').waitFor()

  // Somebody else changes it while the form is open.
  await page.evaluate(async () => {
    const path = `api/v1/endpoints/${location.hash.split('/')[2]}`
    const { version } = await (await fetch(path)).json()
    await fetch(path, { method: 'PATCH', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ version, description: 'CRM of Bob' }) })
  })
  await page.getByText('CRM of Bob').first().waitFor()
  await page.getByLabel('Description').fill('CRM of Ann')
  await button(page, 'Save').click()
  await page.getByRole('alert').getByText('Somebody has changed it meanwhile').waitFor()

  await tab(page, 'Secret').click()
  await button(page, 'New secret…').click()
  await page.getByRole('dialog').getByText('signed with both secrets for 24 h').waitFor()
  await check(page, 'the dialog of a new secret')
  await page.getByRole('dialog').getByRole('button', { name: 'Make a new secret' }).click()
  await page.getByText('The old secret signs beside the new one until').waitFor()
  const second = await page.locator('.command code').innerText()
  assert.notEqual(first, second)
  await send('customer.created')
  await until('the event has arrived', () => receiver.on('/changed') === 1)
  const got = receiver.got.find((g) => g.path === '/changed')
  assert.ok(verified(got, first) && verified(got, second))
  receiver.answers['/changed'] = { status: 401, text: 'who are you?' }
  await send('customer.created')
  await page.locator('.notice').getByText('Look whether it has the secret of this endpoint.').waitFor()
  receiver.answers['/changed'] = { status: 200 }

  await button(page, 'Disable').click()
  await page.locator('h1').getByText('Disabled').waitFor()
  await send('customer.created')
  await tab(page, 'Deliveries').click()
  await page.locator('tbody').getByText('Waiting').waitFor()
  await button(page, 'Enable').click()
  await until('it arrives once it is enabled', () => receiver.on('/changed') === 3)

  await tab(page, 'Settings').click()
  await button(page, 'Delete…').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('heading', { name: 'Endpoints' }).waitFor()
  await page.locator('tbody').getByText('/changed').waitFor({ state: 'detached' })
  await leave(page)
})

test('all is done by keyboard', { timeout: limit }, async () => {
  const page = await visit(browser, home())
  const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key) }
  // reach presses Tab until a control with a name has the focus.
  const reach = (name) => until(`the focus is on ${name}`, async () => {
    await press('Tab')
    return page.evaluate((n) => (document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent).trim().startsWith(n), name)
  })
  await page.getByRole('link', { name: 'Add an endpoint' }).waitFor()
  await reach('Skip to the content')
  await press('Enter')
  await reach('Add an endpoint')
  await press('Enter')
  await page.getByRole('heading', { name: 'Add an endpoint' }).waitFor()
  await reach('URL')
  await page.keyboard.type(`${receiver.url}/keys`)
  await press('Enter')
  await page.getByText('Copy the secret now').first().waitFor()
  await reach('Test')
  await press('Enter')
  await reach('Send the test')
  await press('Enter')
  await until('the test has arrived', () => receiver.on('/keys') === 1)
  await reach('Settings')
  await press('Enter')
  await reach('Delete…')
  await press('Enter')
  await page.getByRole('dialog').waitFor()
  await press('Escape')
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Delete…')
  await leave(page)
})

test('every view is accessible and fits, light and dark, wide and narrow', { timeout: limit }, async () => {
  receiver.answers['/busy'] = { status: 503, text: 'come back later' }
  const page = await visit(browser, home(), { bypassCSP: true, reducedMotion: 'reduce' }) // colours change at once
  await page.setViewportSize({ width: 1440, height: 900 })
  await add(page, `${receiver.url}/busy/with-a-path-that-is-longer-than-a-telephone-is-wide/0123456789abcdef`, 'invoice.created')
  const one = (await page.evaluate(() => location.hash)).replace('/secret', '')
  receiver.answers['/busy/with-a-path-that-is-longer-than-a-telephone-is-wide/0123456789abcdef'] = { status: 503, text: 'come back later' }
  await send('invoice.created', 30)
  await page.goto(home() + one)
  await page.locator('tbody').getByText('come back later').first().waitFor()
  const log = new URL(await page.locator('tbody th a').first().getAttribute('href'), home()).hash
  const views = { 'the list': '#/', 'the form': '#/new', 'the log': one, settings: `${one}/settings`, 'the test': `${one}/test`, 'the secret': `${one}/secret`, 'a delivery': log, nothing: '#/nothing' }
  for (const [what, hash] of Object.entries(views)) {
    // Colours do not depend on the width, and the order of elements not on colours.
    for (const [width, height, theme] of [[1440, 900, 'light'], [390, 844, 'dark']]) {
      await page.setViewportSize({ width, height })
      await page.goto(home() + hash)
      await page.locator('main h1').waitFor()
      if (what === 'the test' && width === 1440) {
        await button(page, 'Send the test').click()
        await page.getByText('come back later').last().waitFor()
      }
      if (what === 'the log') await page.locator('tbody tr').first().waitFor()
      await page.evaluate((th) => { document.documentElement.dataset.theme = th }, theme)
      assert.equal(await overflow(page), 0, `${what} is wider than ${width} px`)
      await check(page, `${what}, ${theme}, at ${width} px`)
      const tall = await page.evaluate(() => document.documentElement.scrollHeight)
      if (width === 390) assert.ok(tall <= 4 * height, `${what} is ${tall} px high`)
    }
  }
  await leave(page)
})

test('the program decides on looks, words and actions, and on who sees anything', { timeout: limit }, async () => {
  const page = await visit(browser, `${origin}/fixed/webhooks/`, { expected: [/status of 401/] })
  await page.getByRole('heading', { name: 'Endpunkte' }).waitFor()
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'de')
  assert.equal(await page.locator('#theme').count(), 0)
  assert.equal(await page.locator('.brand img').evaluate((img) => img.complete && img.naturalWidth > 0), true)
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).getPropertyValue('--accent').trim()), '#ffb74d')
  assert.equal(await page.getByText('Add an endpoint').count(), 0)
  await page.locator('tbody th a').first().click()
  await page.locator('h1').getByText(receiver.url).waitFor()
  for (const name of ['Disable', 'Resend what failed…']) assert.equal(await button(page, name).count(), 0, name)
  const url = page.url()
  await page.goto('about:blank') // so that it asks for nothing of another tenant
  await page.context().addCookies([{ name: 'tenant', value: 'globex', url: origin }])
  await page.goto(`${origin}/app/webhooks/`)
  await page.getByRole('heading', { name: 'No endpoints yet' }).waitFor()
  await page.context().addCookies([{ name: 'tenant', value: 'nobody', url: origin }])
  await page.goto(url.replace('#', '?#'))
  await page.getByRole('heading', { name: 'Sign in to see your webhooks.' }).waitFor()
  await leave(page)
})
