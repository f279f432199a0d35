// Destinations are made, changed and deleted in the page, before a server of its own.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { after, before, test } from 'node:test'
import { check, launch, leave, limit, overflow, visit } from './browser.mjs'
import { Receiver, Server, until } from './serve.mjs'

let browser
let receiver
let server

before(async () => {
  receiver = await Receiver.start()
  ;[browser, server] = await Promise.all([launch(), Server.start({
    webhooks: { allow: ['127.0.0.1'] },
    sources: [{ name: 'web', keys: ['web-key'], destinations: ['named'] }],
    destinations: [{ id: 'named', endpoints: [{ url: `${receiver.url}/named` }] }],
  })])
})

after(async () => {
  await browser?.close()
  await server?.stop()
  receiver?.stop()
})

// verified reports whether a request is signed by a secret of Standard Webhooks.
function verified({ headers, body }, secret) {
  const key = Buffer.from(secret.slice('whsec_'.length), 'base64')
  const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${JSON.stringify(body)}`
  const want = `v1,${createHmac('sha256', key).update(signed).digest('base64')}`
  return headers['webhook-signature'].split(' ').includes(want)
}

test('a destination is made in the page, and gets a sample and a call that are signed', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations`, { expected: [/status of 400/] })
  await page.getByRole('link', { name: 'New destination' }).click()
  const name = page.getByLabel('Name')
  await page.getByRole('button', { name: 'Create' }).click()
  await page.locator('.field', { has: name }).getByText('Is required.').waitFor()
  await name.fill('acme')
  assert.ok(await page.getByRole('checkbox', { name: 'web', exact: true }).isChecked()) // the only one
  const secret = await page.locator('.command code').innerText() // before anything is signed with it
  assert.match(secret, /^whsec_/)
  const url = page.getByLabel('URL', { exact: true })
  await url.fill('http://10.0.0.1/hook')
  await page.getByRole('button', { name: 'Create' }).click()
  await page.locator('.field', { has: url }).getByText('10.0.0.1, which is not a public address').waitFor()
  assert.equal(await url.getAttribute('aria-invalid'), 'true')
  assert.ok(await url.evaluate((node) => node === document.activeElement), 'the field that is wrong has no focus')
  assert.equal(await page.getByText('endpoints[0]').count(), 0)
  await url.fill(`${receiver.url}/acme`)
  await page.getByLabel('Headers').fill('X-Team 7')
  await page.getByRole('button', { name: 'Send a sample' }).click()
  await page.locator('.field', { has: page.getByLabel('Headers') }).getByText('has no colon').waitFor()
  await page.getByLabel('Headers').fill('X-Team: 7\nX-Other: a:b')
  await page.getByLabel('Secret of X-Signature').fill('hush')
  await page.getByRole('button', { name: 'Send a sample' }).click()
  await page.locator('.exchange').getByText('Delivered').waitFor()
  assert.equal(receiver.on('/acme'), 1)
  const sample = receiver.got.find((g) => g.path === '/acme')
  assert.equal(sample.headers['x-other'], 'a:b')
  assert.ok(sample.headers['x-signature'])

  await page.getByRole('button', { name: 'Create' }).click()
  assert.ok(verified(sample, secret))
  await page.getByRole('heading', { name: 'acme' }).waitFor()
  await server.track('web-key', 1)
  await until('the call has arrived', () => receiver.on('/acme') === 2)
  assert.ok(verified(receiver.got.findLast((g) => g.path === '/acme'), secret))
  assert.ok(!(await page.content()).includes(secret))
  await leave(page)
})

test('a destination is changed, given another secret, disabled and deleted', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations/acme`, { expected: [/status of 40[04]/] }) // 404 once it is deleted
  const tab = (name) => page.getByRole('navigation', { name: 'About this destination' }).getByRole('link', { name })
  await tab('Settings').click()
  await page.getByRole('link', { name: 'Edit' }).click()
  await page.locator('.endpoints').getByText('with X-Other, X-Team').waitFor()
  await page.getByText('Which calls').click()
  await page.getByLabel('Only these').fill('track:Signed *')
  await page.getByText('Times and limits').click()
  await page.getByLabel('Time of an attempt').fill('1h')
  await page.getByRole('button', { name: 'Save' }).click()
  await page.locator('.field', { has: page.getByLabel('Time of an attempt') }).locator('.fault').waitFor()
  await page.getByLabel('Time of an attempt').fill('2s')
  await page.getByRole('button', { name: 'Send a sample' }).click() // as it is stored
  await page.locator('.exchange').getByText('Delivered').waitFor()
  await page.getByRole('button', { name: 'Save' }).click()
  const facts = page.getByRole('region', { name: 'Settings' })
  await facts.getByText('only track:Signed *').waitFor()
  await facts.getByText('2s for an attempt').waitFor()
  await facts.getByText('X-Signature and Standard Webhooks').waitFor()

  await facts.getByRole('button', { name: 'New secret…' }).click()
  await page.getByRole('dialog').getByText('stay valid until you forget them').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Make a new secret' }).click()
  await page.getByRole('dialog').getByText('The others stay valid').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Done' }).click()
  await facts.getByRole('button', { name: 'Forget old secrets' }).click()
  await until('one secret is left', async () => (await server.api('destinations/acme')).settings.standardSecrets === 1)
  await facts.getByRole('button', { name: 'Disable' }).click()
  await page.getByRole('heading', { name: 'acme' }).getByText('Disabled').waitFor()
  await facts.getByRole('button', { name: 'Enable' }).waitFor()

  // What the form does not show again is entered anew.
  await facts.getByRole('link', { name: 'Edit' }).click()
  await page.getByRole('button', { name: 'Change…' }).click()
  assert.equal(await page.getByLabel('URL', { exact: true }).inputValue(), `${receiver.url}/acme`)
  await page.getByLabel('URL', { exact: true }).fill(`${receiver.url}/other`)
  await page.getByRole('button', { name: 'Add a URL' }).click()
  await page.getByRole('button', { name: 'Remove' }).nth(1).click()
  await page.getByRole('button', { name: 'Save' }).click()
  await facts.getByText(`${receiver.url}/other`).waitFor()
  await facts.getByRole('button', { name: 'Delete…' }).click()
  await page.getByLabel('Discard what waits').check()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('heading', { name: 'Destinations' }).waitFor()
  await until('it is gone', async () => (await server.api('destinations')).total === 1)
  await leave(page)
})

test('what the configuration names is not changed in the page', { timeout: limit }, async () => {
  const page = await visit(browser, `${server.page}#/destinations/named/settings`)
  await page.getByText('from the configuration file').waitFor()
  assert.equal(await page.getByRole('link', { name: 'Edit' }).count(), 0)
  await page.evaluate(() => { location.hash = '#/destinations/named/edit' })
  await page.getByText('The configuration of the server names this destination').waitFor()
  await leave(page)
})

test('a link opens the portal of one tenant, and its tenant is helped when it fails', { timeout: limit }, async () => {
  receiver.answers['/shop'] = { status: 422, text: 'no such order' }
  await server.api('tenants', { id: 'shop' })
  const { url } = await server.api('tenants/shop/portal?for=ann', {})
  const page = await visit(browser, url)
  await page.getByRole('link', { name: 'Add an endpoint' }).click()
  assert.ok(!page.url().includes('hfl_'), 'the link is still in the address')
  await page.getByLabel('URL').fill(`${receiver.url}/shop`)
  await page.getByRole('button', { name: 'Add the endpoint' }).click()
  await page.getByText('Copy the secret now').first().waitFor()
  await page.getByRole('link', { name: 'Test', exact: true }).click()
  await page.getByLabel('Event').fill('order.placed')
  await page.getByRole('button', { name: 'Send the test' }).click()
  await page.getByText('no such order').first().waitFor()
  await leave(page)

  const { items: [destination] } = await server.api('tenants/shop/destinations')
  await server.api(`destinations/${encodeURIComponent(destination.id)}/pause`, {})
  const operator = await visit(browser, `${server.page}#/destinations`)
  await operator.getByRole('link', { name: destination.id }).click()
  await operator.getByRole('heading', { name: destination.id }).getByText('Paused').waitFor()
  await operator.getByRole('link', { name: 'Settings' }).click()
  await operator.getByText('its tenant changes them').waitFor()
  await operator.getByRole('link', { name: 'Send a sample' }).click()
  await operator.getByRole('button', { name: 'Send' }).click()
  await operator.locator('.exchange').getByText('webhook.test').first().waitFor()
  await leave(operator)

  const ended = await visit(browser, url.slice(0, -1), { expected: [/status of 401/] })
  await ended.getByRole('heading', { name: 'This link has ended.' }).waitFor()
  await leave(ended)
})

for (const [width, colorScheme] of [[390, 'light'], [1440, 'dark']]) {
  test(`the form is accessible and fits, ${width} px, ${colorScheme}`, { timeout: limit }, async () => {
    const page = await visit(browser, `${server.page}#/new`, { colorScheme, viewport: { width, height: 800 }, bypassCSP: true, reducedMotion: 'reduce' })
    await page.getByLabel('Name').waitFor()
    for (const summary of ['Which calls', 'Times and limits']) await page.getByText(summary).click()
    await page.getByRole('button', { name: 'Add a URL' }).click()
    assert.equal(await overflow(page), 0)
    await check(page, 'the form')
    if (process.env.E2E_SHOTS) await page.screenshot({ path: `${process.env.E2E_SHOTS}/edit-${width}-${colorScheme}.png`, fullPage: true })
    await leave(page)
  })
}
