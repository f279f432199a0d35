// Chromium, with pages that fail a test for whatever a console or the policy
// says.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

export const launch = () => chromium.launch({
  executablePath: process.env.E2E_CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--enable-precise-memory-info'],
})

// visit opens a page in a context of its own. expected are patterns of messages
// of the console that the test provokes.
export async function visit(browser, url, { expected = [], bypassCSP = false, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, permissions: ['clipboard-read', 'clipboard-write'], bypassCSP, ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(0) // a test ends at the time limit of the test runner
  page.complaints = []
  const complain = (what) => { if (!expected.some((pattern) => pattern.test(what))) page.complaints.push(what) }
  page.on('pageerror', (error) => complain(`error: ${error.stack}`))
  page.on('console', (message) => message.type() === 'verbose' || complain(`console ${message.type()}: ${message.text()}`))
  page.on('request', (request) => { if (!request.url().startsWith(new URL(url).origin) && !request.url().startsWith('blob:')) complain(`request to ${request.url()}`) })
  await page.exposeFunction('complain', complain)
  await page.addInitScript(() => {
    // What goes away by itself after 10 s stays, as a busy machine may look later than that.
    const { setTimeout } = window
    window.setTimeout = (f, ms, ...rest) => setTimeout(f, ms === 10_000 ? 2 ** 31 - 1 : ms, ...rest)
    document.addEventListener('securitypolicyviolation', (e) => window.complain(`policy: ${e.violatedDirective} ${e.blockedURI}`))
  })
  await page.goto(url)
  return page
}

// leave closes the page, and fails if anything was complained of.
export async function leave(page) {
  await page.context().close()
  assert.deepEqual(page.complaints, [], 'complaints of the page')
}

// check holds the page to axe's rules. Its script runs where no policy of the
// page holds.
export async function check(page, what) {
  await page.evaluate(axe)
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }))
  const found = violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.target.join(' ')}: ${n.failureSummary.split('\n')[1]?.trim()}`))
  assert.deepEqual(found, [], `accessibility of ${what}`)
}

// overflow returns how far the page is wider than its window, in pixels.
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
