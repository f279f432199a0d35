// The shell around the views: routes, the state of the connection, the token,
// the theme, the keyboard.
import { APIError, ConnectionError, get, onUnauthorized } from './api.js'
import { el, replace, say, set, text } from './kit/dom.js'
import { compact, count, span } from './kit/format.js'
import { setKeys, showKeys, startKeys } from './keys.js'
import { field, notice, open, problem } from './parts.js'
import { repeat, startViews, themeButton } from './kit/shell.js'
import { notedIn } from './words.js'
import overview from './views/overview.js'
import events from './views/events.js'
import destinations from './views/destinations.js'
import destination from './views/destination.js'
import edit from './views/edit.js'
import delivery from './views/delivery.js'
import deliveries from './views/deliveries.js'
import sources from './views/sources.js'
import tester from './views/tester.js'
import users from './views/users.js'

// Routes are the parts of the hash; a part that begins with a colon is a name.
const routes = [
  ['', overview, 'overview'],
  ['events', events, 'events'],
  ['destinations', destinations, 'destinations'],
  ['new', edit, 'destinations'],
  ['destinations/:destination', destination, 'destinations'],
  ['destinations/:destination/edit', edit, 'destinations'],
  ['destinations/:destination/:tab', destination, 'destinations'],
  ['destinations/:destination/deliveries/:id', delivery, 'destinations'],
  ['deliveries', deliveries, 'deliveries'],
  ['sources', sources, 'sources'],
  ['test', tester, 'test'],
  ['users', users, 'users'],
]

const byId = (id) => document.getElementById(id)
const main = byId('main')

// Views.

const tabs = document.querySelectorAll('nav a')

const show = startViews({
  routes, main, title: 'Hookferry',
  shown(name) {
    for (const link of tabs) set(link, 'aria-current', link.dataset.view === name ? 'page' : null)
    setKeys({})
  },
  context: (signal) => ({ keys: setKeys, onStatus: (f) => watchStatus(f, signal) }),
})

// The status of the server: asked for once for all who show it.

let status = null
const watchers = new Set()

function watchStatus(f, signal) {
  if (status) f(status)
  watchers.add(f)
  signal.addEventListener('abort', () => watchers.delete(f))
}

const forever = new AbortController().signal

function startStatus() {
  repeat(2_000, forever, async () => {
    status = await get('status')
    connected(true)
    text(byId('about'), `${status.version} · up ${span(Date.parse(status.now) - Date.parse(status.started))}`)
    badge('dead', status.dead, 'dead letters')
    for (const f of watchers) f(status)
  }, (error) => connected(false, error))
  repeat(5_000, forever, async () => {
    const { states } = await get('destinations', { limit: 1 })
    badge('noted', notedIn(states), 'in trouble or paused')
  }, () => {})
}

function badge(id, n, what) {
  const node = byId(id)
  node.hidden = n === 0
  text(node, compact(n, 1_000))
  set(node, 'aria-label', `${count(n)} ${what}`)
}

let reached = null

function connected(ok, error) {
  const lost = error && !(error instanceof ConnectionError) ? `Status: ${problem(error)}` : 'Connection lost, trying again'
  const state = !ok ? 'lost' : status.ready ? 'ok' : 'wait'
  byId('link').dataset.state = state
  text(byId('link-text'), { ok: 'Connected', wait: 'Not accepting calls', lost }[state])
  document.documentElement.toggleAttribute('data-lost', !ok)
  if (reached !== null && reached !== ok) say(ok ? 'Connected again' : 'Connection lost')
  reached = ok
}

// The token.

onUnauthorized(() => new Promise((resolve, reject) => {
  const input = el('input', { type: 'password', name: 'token', autocomplete: 'current-password', required: true, spellcheck: 'false' })
  const { dialog, body } = open('This server asks for a token', { stay: true })
  const form = el('form', {},
    sessionStorage.getItem('hookferry.token') && notice('That token was not right.'),
    el('p', {}, 'It is the one of ', el('code', {}, 'hookferry serve --admin-token'), ' or ', el('code', {}, 'HOOKFERRY_ADMIN_TOKEN'), '. This tab keeps it until it is closed.'),
    field('Token', input),
    el('div', { class: 'actions' }, el('button', { class: 'primary' }, 'Continue')))
  form.addEventListener('submit', (event) => {
    event.preventDefault()
    resolve(input.value.trim())
    dialog.close()
  })
  // Whoever closes it is asked again by the next request.
  dialog.addEventListener('close', () => reject(new APIError(401, { message: 'a token is needed' })))
  replace(body, form)
  input.focus()
}))

const switchTheme = themeButton(byId('theme'))
byId('help').addEventListener('click', showKeys)
function find() {
  const focus = () => main.querySelector('input[aria-label=messageId]').focus()
  if (location.hash.startsWith('#/deliveries')) return focus()
  addEventListener('hashchange', focus, { once: true }) // after the view is made
  location.hash = '#/deliveries'
}
startKeys({ f: ['Find a delivery', find], '?': ['These shortcuts', showKeys], T: ['Light or dark', switchTheme] })

show()
startStatus()
