// Parts that several views are made of.
import { el, replace, set, text } from './dom.js'
import { APIError, ConnectionError } from './http.js'
import { copyButton } from './json.js'
import { compact, count, moment } from './format.js'
import { t } from './text.js'
import * as words from './words.js'

// newID makes an id of an element.
let ids = 0
export const newID = (what) => `${what}-${++ids}`

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

// labelled is a control with a label, a hint and a place for what is wrong with it.
export function labelled(label, control, hint) {
  const note = el('small', { id: newID('hint') }, hint)
  const fault = el('span', { class: 'fault', id: newID('fault'), hidden: true })
  set(control, 'aria-describedby', `${fault.id} ${note.id}`)
  const id = newID('control')
  const group = control.tagName === 'FIELDSET'
  if (!group) control.id = id
  const made = {
    node: el('div', { class: 'field' }, group ? control : [el('label', { for: id }, el('span', {}, label)), control], fault, hint && note),
    control,
    fault(message) {
      fault.hidden = !message
      replace(fault, message ?? '')
      set(group ? control.querySelector('input') : control, 'aria-invalid', message ? 'true' : null)
    },
  }
  control.addEventListener('input', () => made.fault(null)) // what was wrong is being mended
  return made
}

// sentence is what the server says is wrong with a field, below that field.
export const sentence = (message) => message.charAt(0).toUpperCase() + message.slice(1) + (message.endsWith('.') ? '' : '.')

// tabs are links to the parts of a view, of which one is shown. names has their words by their names in
// routes, and to makes the route of one.
export function tabs(label, names, current, to) {
  return el('nav', { class: 'tabs', 'aria-label': label }, Object.entries(names).map(([name, word]) => {
    const link = el('a', { href: to(name) }, word)
    set(link, 'aria-current', name === current ? 'page' : null)
    return link
  }))
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
    const cancel = el('button', { type: 'button', onclick: () => dialog.close() }, t('Cancel'))
    const act = el('button', { type: 'button', class: tone === 'bad' ? 'danger' : 'primary', onclick: () => { answer = true; dialog.close() } }, action)
    replace(body, el('p', {}, message), el('div', { class: 'actions' }, cancel, act))
    dialog.addEventListener('close', () => resolve(answer))
    const focus = tone === 'bad' ? cancel : act
    focus.focus()
  })
}

// command is a line to type in a terminal.
export const command = (line) => commandOf(el('code', {}, line))
export const commandOf = (code) => el('div', { class: 'command shell' }, code, copyButton(() => code.textContent))

// copied is a text to copy, such as a secret.
export const copied = (value) => el('div', { class: 'command' }, el('code', {}, value), copyButton(() => value))

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
      return el('th', { scope: 'col', class: className }, word || el('span', { class: 'hidden' }, t('Actions')))
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
  const previous = el('button', { type: 'button', onclick: () => turn(-1) }, t('Previous'))
  const next = el('button', { type: 'button', onclick: () => turn(1) }, t('Next'))
  const node = el('nav', { class: 'pager', 'aria-label': t('Pages'), hidden: true }, place, previous, next)
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
      text(place, n > 0 ? `${count(before + 1)} – ${count(before + n)}${total ? ` ${t('of {n}', { n: count(total) })}` : ''}` : '')
      previous.disabled = afters.length === 1
      next.disabled = !following
      node.hidden = !following && (n === 0 || afters.length === 1)
    },
  }
}

// lastAnswer shows the answer to the latest attempt of a delivery.
export function lastAnswer({ attempts: list, ended }) {
  const last = list?.at(-1)
  if (!last) return ended ? t('no attempt was made') : ''
  return [last.status > 0 && el('b', {}, last.status, ' '), last.error || last.answer || '']
}

// attempts lists the requests of a delivery.
export function attempts({ attempts: list, accepted, ended }) {
  if (!list?.length) return el('p', { class: 'none' }, ended ? t('No attempt was made.') : t('No attempt yet.'))
  const longest = Math.max(...list.map((a) => a.took), 1)
  return el('ol', { class: 'attempts' }, list.map((a) => {
    const good = a.status >= 200 && a.status < 300 && !a.reason
    const bar = el('span', { class: 'took', 'aria-hidden': 'true' })
    bar.style.setProperty('--part', a.took / longest)
    return el('li', { 'data-tone': good ? 'ok' : 'bad' },
      el('div', { class: 'line' },
        el('b', { class: 'status' }, a.status || '—'),
        el('span', { class: 'what' }, good ? t('Taken') : words.reason(a.reason)),
        el('span', { class: 'try' }, t('try {n}', { n: a.try })),
        bar,
        el('span', { class: 'ms' }, `${a.took < 10 ? a.took.toFixed(1) : count(a.took)} ms`)),
      el('div', { class: 'where' },
        el('span', { class: 'mono' }, `POST ${a.endpoint}`),
        el('span', {}, time(a.at, true), accepted && ` · ${after(accepted, a.at)}`),
        a.batch && el('span', {}, t('in the batch'), ' ', el('span', { class: 'mono' }, a.batch))),
      a.error && el('p', { class: 'error' }, a.error),
      a.answer && el('pre', { class: 'answer', tabindex: 0, role: 'group', 'aria-label': t('First bytes of the answer to try {n}', { n: a.try }) }, a.answer))
  }))
}

// after is how long after it was accepted something was.
function after(from, to) {
  const s = Math.floor((Date.parse(to) - Date.parse(from)) / 1_000)
  if (s < 1) return t('at once')
  const parts = [[Math.floor(s / 86_400), 'd'], [Math.floor(s / 3_600) % 24, 'h'], [Math.floor(s / 60) % 60, 'min'], [s % 60, 's']]
  return parts.filter(([n]) => n > 0).slice(0, 2).map(([n, unit]) => `${n} ${unit}`).join(' ') + ' ' + t('later')
}
