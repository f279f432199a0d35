// Chromium, with pages that fail a test for whatever a console or the policy
// says.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

// limit bounds each test, in milliseconds. A test takes seconds, but a machine may have much else to do.
export const limit = 180_000

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

export const launch = () => chromium.launch({
  executablePath: process.env.E2E_CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--enable-precise-memory-info'],
})

// visit opens a page: one that was left, if there is one, as a new one costs Chromium a second of a
// processor. expected are patterns of messages of the console that the test provokes.
export async function visit(browser, url, { expected = [], bypassCSP = false, viewport = { width: 1280, height: 860 }, ...media } = {}) {
  browser.left ??= []
  const at = browser.left.findIndex((page) => page.bypassCSP === bypassCSP)
  const page = at < 0 ? await open(browser, bypassCSP) : browser.left.splice(at, 1)[0]
  page.complaints = []
  page.expected = expected
  page.origin = new URL(url).origin
  await page.setViewportSize(viewport)
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'no-preference', ...media })
  await page.goto(url)
  return page
}

async function open(browser, bypassCSP) {
  const context = await browser.newContext({ permissions: ['clipboard-read', 'clipboard-write'], bypassCSP })
  const page = await context.newPage()
  page.setDefaultTimeout(0) // a test ends at the time limit of the test runner
  page.bypassCSP = bypassCSP
  const complain = (what) => { if (!page.expected.some((pattern) => pattern.test(what))) page.complaints.push(what) }
  page.on('pageerror', (error) => complain(`error: ${error.stack}`))
  page.on('console', (message) => message.type() === 'verbose' || complain(`console ${message.type()}: ${message.text()}`))
  page.on('request', (request) => { if (!request.url().startsWith(page.origin) && !/^(blob:|about:blank$)/.test(request.url())) complain(`request to ${request.url()}`) })
  await page.exposeFunction('complain', complain)
  await page.addInitScript(() => {
    // What goes away by itself after 10 s stays, as a busy machine may look later than that.
    const { setTimeout } = window
    window.setTimeout = (f, ms, ...rest) => setTimeout(f, ms === 10_000 ? 2 ** 31 - 1 : ms, ...rest)
    document.addEventListener('securitypolicyviolation', (e) => window.complain(`policy: ${e.violatedDirective} ${e.blockedURI}`))
  })
  return page
}

// leave ends what the page does and keeps, and fails if anything was complained of. The page ends
// first: a request that it makes without its session would be refused, and complained of. What it
// kept goes from an empty document of its origin. A test that fails does not come here, and nothing
// of its page is seen again.
export async function leave(page) {
  await page.goto('about:blank')
  await page.unrouteAll({ behavior: 'ignoreErrors' })
  await page.route('**/*', (route) => route.fulfill({ contentType: 'text/html', body: '<link rel="icon" href="data:,">' }))
  await page.goto(`${page.origin}/left`)
  await page.evaluate(() => {
    localStorage.clear()
    sessionStorage.clear()
  })
  await page.context().clearCookies()
  await page.goto('about:blank')
  await page.unrouteAll()
  page.context().browser().left.push(page)
  assert.deepEqual(page.complaints, [], 'complaints of the page')
}

// check holds the page to axe's rules. Its script runs where no policy of the
// page holds.
export async function check(page, what) {
  if (!await page.evaluate(() => 'axe' in window)) await page.evaluate(axe)
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }))
  const found = violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.target.join(' ')}: ${n.failureSummary.split('\n')[1]?.trim()}`))
  assert.deepEqual(found, [], `accessibility of ${what}`)
}

// overflow returns how far the page is wider than its window, in pixels.
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
