// The keyboard. A view names its keys while it is shown; single keys do nothing
// while somebody types, and can be switched off altogether.
import { el, replace } from './kit/dom.js'
import { open } from './parts.js'

const go = { o: ['#/', 'Overview'], e: ['#/events', 'Events'], d: ['#/destinations', 'Destinations'], l: ['#/deliveries', 'Deliveries'],
  s: ['#/sources', 'Sources'], t: ['#/test', 'Tester'], u: ['#/users', 'Users'] }

const offKey = 'hookferry.keys'
let here = {}
let common = {}
let prefix = 0

// setKeys gives the view's keys: { key: [what it does, function] }.
export function setKeys(keys) { here = keys }

export function startKeys(keys) {
  common = keys
  document.addEventListener('keydown', onKey)
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return
  if (event.target.closest('dialog')) return
  if (event.key === 'Escape' && event.target.matches('input, textarea')) {
    event.target.blur()
    return
  }
  if (event.target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select, [role=slider]')) return
  if (localStorage.getItem(offKey) === 'off') return
  // Space and Enter are the focused control's own.
  if ((event.key === ' ' || event.key === 'Enter') && event.target.closest('button, a, summary, input')) return
  if (performance.now() - prefix < 1_500 && go[event.key]) {
    prefix = 0
    event.preventDefault()
    location.hash = go[event.key][0]
    return
  }
  prefix = event.key === 'g' ? performance.now() : 0
  const action = (here[event.key] ?? common[event.key])?.[1]
  if (action) {
    event.preventDefault()
    action()
  }
}

const names = { ' ': 'Space', ArrowDown: '↓', ArrowUp: '↑' }

// showKeys lists them all.
export function showKeys() {
  const list = (title, keys) => Object.keys(keys).length > 0 && [
    el('h3', {}, title),
    el('dl', { class: 'keys' }, Object.entries(keys).map(([key, [what]]) =>
      el('div', {}, el('dt', {}, key.split(' then ').map((k, i) => [i > 0 && ' then ', el('kbd', {}, names[k] ?? k)])), el('dd', {}, what)))),
  ]
  const off = el('input', { type: 'checkbox', checked: localStorage.getItem(offKey) !== 'off' })
  off.addEventListener('change', () => localStorage.setItem(offKey, off.checked ? 'on' : 'off'))
  const { dialog, body } = open('Keyboard shortcuts')
  replace(body,
    el('div', { class: 'columns' },
      el('div', {}, list('Go to', Object.fromEntries(Object.entries(go).map(([k, [, what]]) => [`g then ${k}`, [what]])))),
      el('div', {}, list('In this view', here), list('Everywhere', common))),
    el('label', { class: 'check' }, off, 'Single-key shortcuts'),
    el('div', { class: 'actions' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Close')))
}
