// Parts that several views are made of.
import { el, replace, text } from './dom.js'
import { APIError, ConnectionError, get } from './api.js'
import { copyButton } from './json.js'
import { compact, count, moment } from './format.js'
import * as words from './words.js'

// ids counts the ids that were made up.
let ids = 0

// pill is a state as a word with a mark, whose shape differs by tone: colour
// alone tells nothing.
export function pill(word, tone, title) {
  const node = el('span', { class: 'pill' })
  updatePill(node, word, tone, title)
  return node
}

export function updatePill(node, word, tone, title) {
  node.dataset.tone = tone
  text(node, word)
  if (title) node.title = title
}

// time is a time of day whose title has the date, in UTC.
export function time(value, milliseconds) {
  return value ? el('time', { datetime: value, title: value }, moment(value, milliseconds)) : '–'
}

// link is to a route, whose parts are encoded.
export const route = (...parts) => '#/' + parts.map(encodeURIComponent).join('/')

// deliveryRoute leads to the story of the delivery of an event. Sources may have the same ids.
export const deliveryRoute = (destination, { id, source }) =>
  route('destinations', destination, 'deliveries', id) + (source ? `?source=${encodeURIComponent(source)}` : '')

// origin are the facts of whose call a delivery is.
export const origin = ({ source, user, event }) => Object.entries({ Source: source, User: user, Event: event }).filter(([, value]) => value)
  .map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))

export const destinationLink = (id) => el('a', { href: route('destinations', id) }, id)

// notice says what is wrong.
export function notice(message, tone = 'bad') {
  return el('p', { class: 'notice', 'data-tone': tone, role: tone === 'bad' ? 'alert' : 'status' }, message)
}

// problem says what an error means to whoever looks at the page. A lost
// connection is shown for the whole page.
export function problem(error) {
  if (error instanceof APIError) return error.message
  if (error instanceof ConnectionError) return `${error.message}.`
  throw error
}

// field is a labelled control, with a hint below it. Of several nodes the first is
// the control.
export function field(label, nodes, hint) {
  const note = hint && el('small', { id: `hint-${++ids}` }, hint)
  const [control] = [nodes].flat()
  if (note) control.setAttribute('aria-describedby', note.id)
  return el('div', { class: 'field' }, el('label', {}, el('span', {}, label), nodes), note)
}

// searchInput is a field for a part of what is looked for. It calls onChange once
// somebody has stopped typing, unless the view is left by then.
export function searchInput(properties, signal, onChange) {
  const input = el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', ...properties })
  let typing
  input.addEventListener('input', () => {
    clearTimeout(typing)
    typing = setTimeout(() => { if (!signal.aborted) onChange() }, 250)
  })
  return input
}

// select is a list to choose from: texts, or pairs of value and text.
export function select(options, value, properties) {
  const node = el('select', properties)
  setOptions(node, options, value)
  return node
}

export function setOptions(node, options, value = node.value) {
  const pairs = options.map((o) => (Array.isArray(o) ? o : [o, o]))
  if (value && !pairs.some(([v]) => v === value)) pairs.push([value, value])
  const key = JSON.stringify(pairs)
  if (node.dataset.options !== key) {
    node.dataset.options = key
    replace(node, pairs.map(([v, label]) => el('option', { value: v }, label)))
  }
  node.value = value ?? ''
}

// segmented is a small choice, as radio buttons in a row.
export function segmented(label, options, value, onChange) {
  const name = `segmented-${++ids}`
  return el('fieldset', { class: 'segmented' }, el('legend', { class: 'hidden' }, label),
    options.map(([v, word]) => el('label', {},
      el('input', { type: 'radio', name, value: v, checked: v === value, onchange: () => onChange(v) }), el('span', {}, word))))
}

// open shows a modal dialog. It goes away once it is closed, which a click
// beside it does too, unless it is to stay.
export function open(title, { stay = false } = {}) {
  const body = el('div', {})
  const id = `dialog-${++ids}`
  const dialog = el('dialog', { 'aria-labelledby': id, 'data-stay': stay }, el('h2', { id }, title), body)
  const back = document.activeElement
  dialog.addEventListener('close', () => {
    dialog.remove()
    back?.focus?.()
  })
  dialog.addEventListener('click', (event) => { if (event.target === dialog && !stay) dialog.close() })
  document.body.append(dialog)
  dialog.showModal()
  return { dialog, body }
}

// closeDialogs closes those of a view that is left.
export function closeDialogs() {
  for (const dialog of document.querySelectorAll('dialog:not([data-stay])')) dialog.close()
}

// confirm asks, and returns a promise of the answer. What cannot be undone has
// the focus on the way out.
export function confirm(title, message, action, tone = 'bad') {
  return new Promise((resolve) => {
    const { dialog, body } = open(title)
    let answer = false
    const cancel = el('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel')
    const act = el('button', { type: 'button', class: tone === 'bad' ? 'danger' : 'primary', onclick: () => { answer = true; dialog.close() } }, action)
    replace(body, el('p', {}, message), el('div', { class: 'actions' }, cancel, act))
    dialog.addEventListener('close', () => resolve(answer))
    const focus = tone === 'bad' ? cancel : act
    focus.focus()
  })
}

// command is a line to type in a terminal.
export const command = (line) => commandOf(el('code', {}, line))
const commandOf = (code) => el('div', { class: 'command' }, code, copyButton(() => code.textContent))

// sendCommand is a command that sends a call to the server, which update is told the
// status of. Where the sources have keys of their own it lacks one, as the hint says:
// no key is in an answer of the API.
export function sendCommand() {
  const code = el('code', {})
  const hint = el('small', { hidden: true })
  return {
    node: el('div', { class: 'send' }, commandOf(code), hint),
    update({ send, config }) {
      const key = send.data ? send.data !== 'hookferry-data' && `--data ${quoted(send.data)}` : '--write-key KEY'
      const to = send.endpoint !== 'http://localhost:8080' && `--endpoint ${send.endpoint}`
      text(code, ['hookferry send track', key, to, '--user u1 --event "Signed Up"'].filter(Boolean).join(' '))
      hint.hidden = Boolean(send.data)
      text(hint, config.file ? `KEY is one of sources[].keys in ${config.file}.` : 'KEY is the one of serve --write-key or HOOKFERRY_WRITE_KEY.')
    },
  }
}

// quoted is a text as a shell takes it.
const quoted = (word) => (/^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)

// bars shows counts by reason, largest first.
export function bars(label, empty) {
  const list = el('ol', { class: 'bars', 'aria-label': label })
  const none = el('p', { class: 'none' }, empty)
  const node = el('div', {}, list, none)
  const update = (counts) => {
    const sorted = Object.entries(counts ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1])
    const most = sorted[0]?.[1] ?? 0
    none.hidden = sorted.length > 0
    list.hidden = sorted.length === 0
    replace(list, sorted.map(([code, n]) => {
      const bar = el('span', { class: 'bar', 'aria-hidden': 'true' })
      bar.style.setProperty('--part', n / most)
      return el('li', { title: words.explain(code) }, bar, el('span', {}, words.reason(code)), el('b', { title: count(n) }, compact(n)))
    }))
  }
  update({})
  return { node, update }
}

// figure is a number with its name, and a line below it.
export function figure(name, tone, properties) {
  const value = el('b', {}, '–')
  const unit = el('span', { class: 'unit' })
  const note = el('span', { class: 'note' })
  const node = el(properties?.href ? 'a' : 'div', { class: 'figure', 'data-tone': tone, ...properties },
    el('span', { class: 'name' }, name), el('span', { class: 'value' }, value, unit), note)
  return {
    node,
    update(v, u, n) {
      text(value, v)
      text(unit, u)
      text(note, n)
    },
  }
}

// panel is a part of a view with a heading.
export function panel(title, { actions, note, className } = {}, ...children) {
  const id = `panel-${++ids}`
  return el('section', { class: `panel ${className ?? ''}`, 'aria-labelledby': id },
    el('header', {}, el('h2', { id }, title), note && el('span', { class: 'note' }, note), actions && el('div', { class: 'actions' }, actions)),
    ...children)
}

// table is one whose rows scroll sideways in their own box where they must. On a phone each row
// is a few lines, and its figures bring the words of their heads along; another className has
// rules of its own.
export function table(label, heads, body, className = 'rows') {
  const whole = el('table', { class: className },
    el('thead', {}, el('tr', {}, heads.map((h) => {
      const [word, className] = Array.isArray(h) ? h : [h]
      return el('th', { scope: 'col', class: className }, word || el('span', { class: 'hidden' }, 'Actions'))
    }))),
    body)
  heads.forEach((h, i) => whole.style.setProperty(`--head-${i + 1}`, JSON.stringify(Array.isArray(h) ? h[0] : h)))
  return el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': label }, whole)
}

// pager has the buttons that turn the pages of a list. It calls load, which asks the
// server for the page that begins after after().
export function pager(load) {
  let afters = ['']
  let before = 0 // how many are on the pages before
  let shown = 0
  let following = ''
  const sizes = []
  const place = el('span', { class: 'note' })
  const previous = el('button', { type: 'button', onclick: () => turn(-1) }, 'Previous')
  const next = el('button', { type: 'button', onclick: () => turn(1) }, 'Next')
  const node = el('nav', { class: 'pager', 'aria-label': 'Pages', hidden: true }, place, previous, next)
  function turn(by) {
    if (by > 0 && following) {
      afters.push(following)
      sizes.push(shown)
    } else if (by < 0 && afters.length > 1) {
      afters.pop()
      sizes.pop()
    } else return
    before = sizes.reduce((a, b) => a + b, 0)
    following = ''
    load()
  }
  return {
    node,
    turn,
    after: () => afters.at(-1),
    isFirst: () => afters.length === 1,
    first() {
      afters = ['']
      sizes.length = before = 0
      load()
    },
    // update says that the page has n entries of total, and which after gives the next
    // page. An empty last page turns back to the one before it. A single page shows no buttons.
    update(n, total, after = '') {
      shown = n
      following = after
      if (n === 0 && !after && afters.length > 1) return turn(-1)
      text(place, n > 0 ? `${count(before + 1)} – ${count(before + n)}${total ? ` of ${count(total)}` : ''}` : '')
      previous.disabled = afters.length === 1
      next.disabled = !following
      node.hidden = !following && (n === 0 || afters.length === 1)
    },
  }
}

// destinationInput is a field for the id of a destination, sourceInput one for the
// name of a source. They offer those that have what is typed in them.
export const destinationInput = (properties, signal) => offeringInput(properties, signal, 'destinations', (d) => d.id)
export const sourceInput = (properties, signal) => offeringInput(properties, signal, 'sources', (s) => s.name)

function offeringInput(properties, signal, path, name) {
  const list = el('datalist', { id: `list-${++ids}` })
  const input = el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', list: list.id, ...properties })
  let typing
  let asked = 0
  const offer = async () => {
    const mine = ++asked
    try {
      const { items } = await get(path, { q: input.value.trim(), limit: 50 }, signal)
      if (mine === asked) replace(list, items.map((item) => el('option', { value: name(item) })))
    } catch { /* what is typed is good without an offer */ }
  }
  input.addEventListener('focus', offer)
  input.addEventListener('input', () => {
    clearTimeout(typing)
    typing = setTimeout(offer, 150)
  })
  return { input, list }
}

// lastAnswer shows the answer to the latest attempt of a delivery.
export function lastAnswer({ attempts: list, ended }) {
  const last = list?.at(-1)
  if (!last) return ended ? 'no attempt was made' : ''
  return [last.status > 0 && el('b', {}, last.status, ' '), last.error || last.answer || '']
}

// attempts lists the requests of a delivery.
export function attempts({ attempts: list, accepted, ended }) {
  if (!list?.length) return el('p', { class: 'none' }, ended ? 'No attempt was made.' : 'No attempt yet.')
  const longest = Math.max(...list.map((a) => a.took), 1)
  return el('ol', { class: 'attempts' }, list.map((a) => {
    const good = a.status >= 200 && a.status < 300 && !a.reason
    const bar = el('span', { class: 'took', 'aria-hidden': 'true' })
    bar.style.setProperty('--part', a.took / longest)
    return el('li', { 'data-tone': good ? 'ok' : 'bad' },
      el('div', { class: 'line' },
        el('b', { class: 'status' }, a.status || '—'),
        el('span', { class: 'what' }, good ? 'Taken' : words.reason(a.reason)),
        el('span', { class: 'try' }, `try ${a.try}`),
        bar,
        el('span', { class: 'ms' }, `${a.took < 10 ? a.took.toFixed(1) : count(a.took)} ms`)),
      el('div', { class: 'where' },
        el('span', { class: 'mono' }, `POST ${a.endpoint}`),
        el('span', {}, time(a.at, true), accepted && ` · ${after(accepted, a.at)}`)),
      a.error && el('p', { class: 'error' }, a.error),
      a.answer && el('pre', { class: 'answer', tabindex: 0, role: 'group', 'aria-label': `First bytes of the answer to try ${a.try}` }, a.answer))
  }))
}

// after is how long after it was accepted something was.
function after(from, to) {
  const s = Math.floor((Date.parse(to) - Date.parse(from)) / 1_000)
  if (s < 1) return 'at once'
  const parts = [[Math.floor(s / 86_400), 'd'], [Math.floor(s / 3_600) % 24, 'h'], [Math.floor(s / 60) % 60, 'min'], [s % 60, 's']]
  return parts.filter(([n]) => n > 0).slice(0, 2).map(([n, unit]) => `${n} ${unit}`).join(' ') + ' later'
}
