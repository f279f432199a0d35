// Deliveries that were given up: to look at, to send again, or to throw away.
import { get, segment, work } from '../api.js'
import { el, replace, set, text } from '../dom.js'
import { compact, count, plural, tries } from '../format.js'
import { done, job } from '../jobs.js'
import { pretty } from '../json.js'
import { attempts, confirm, destinationInput, destinationLink, lastAnswer, notice, open, origin, pager, problem, select, table, time } from '../parts.js'
import * as words from '../words.js'

// page is how many are listed at a time.
const page = 50

const ages = [['', 'Any time'], ['15m', 'Last 15 min'], ['1h', 'Last hour'], ['24h', 'Last 24 h'], ['7d', 'Last 7 days'], ['own', 'From … to …']]
const lengths = { '15m': 15 * 60e3, '1h': 3600e3, '24h': 24 * 3600e3, '7d': 7 * 24 * 3600e3 }

// changed tells the view that is shown that there are other dead letters now.
const changed = new EventTarget()

// replay and discard work on a Selection of n dead letters. replayAll asks before it replays several.
export function replay(selection, n) {
  return act('replay', 'Replaying', 'Replayed', selection, n)
}

export async function replayAll(selection, n) {
  return (n === 1 || await confirm(`Replay ${plural(n, 'dead letter')}?`,
    'Each is sent again as if it had just come, in the order they died, beside what is new.', 'Replay', 'calm')) && replay(selection, n)
}

export async function discard(selection, n) {
  const what = plural(n, 'dead letter')
  const yes = await confirm(`Discard ${what}?`, n === 1 ? 'It is deleted, and cannot be brought back.' : 'They are deleted, and cannot be brought back.', `Discard ${what}`)
  return yes && act('discard', 'Discarding', 'Discarded', selection, n)
}

async function act(path, doing, did, selection, n) {
  const began = performance.now()
  const ok = await job(`${doing} ${plural(n, 'dead letter')}`, async ({ onProgress, signal }) => {
    const last = await work(`dead/${path}`, { body: selection, signal }, onProgress)
    return done(did, last.done, 'dead letter', (performance.now() - began) / 1_000)
  })
  changed.dispatchEvent(new Event('change'))
  return ok
}

export default function dead({ query, every, onStatus, signal, keys }) {
  const { input: destination, list: offered } = destinationInput({ 'aria-label': 'Destination', placeholder: 'All destinations', value: query.get('destination') ?? '' }, signal)
  const type = select([['', 'All types'], ...words.bodyTypes], query.get('type') ?? '', { 'aria-label': 'Type' })
  const reason = select([['', 'All reasons'], ...Object.entries(words.reasons).map(([code, [word]]) => [code, word])], query.get('reason') ?? '', { 'aria-label': 'Reason' })
  const user = el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', 'aria-label': 'User', placeholder: 'All users', value: query.get('user') ?? '' })
  const order = select([['newest', 'Newest first'], ['oldest', 'Oldest first']], query.get('order') ?? 'newest', { 'aria-label': 'Order' })
  const age = select(ages, query.get('from') || query.get('to') ? 'own' : query.get('age') ?? '', { 'aria-label': 'When they died' })
  const from = el('input', { type: 'datetime-local', 'aria-label': 'Died from', step: 1, value: local(query.get('from')) })
  const to = el('input', { type: 'datetime-local', 'aria-label': 'Died before', step: 1, value: local(query.get('to')) })
  const own = el('span', { class: 'own' }, from, '–', to)

  const total = el('p', { class: 'lead' })
  const rows = el('tbody', {})
  const all = el('input', { type: 'checkbox', 'aria-label': 'Select all on this page' })
  const scroll = table('Dead letters', [[all, 'check'], 'Died', 'Destination', 'Type and event', 'Reason', ['Tries', 'n'], 'Delivery and user', 'Last answer'], rows, 'letters')
  const empty = el('div', { class: 'empty', hidden: true })
  const wrong = el('div', { class: 'wrong' })
  const pages = pager(() => {
    current = -1
    load()
  })
  const replayButton = el('button', { type: 'button', class: 'primary', onclick: () => onChosen(replay) })
  const discardButton = el('button', { type: 'button', onclick: () => onChosen(discard) })

  let letters = []
  let listed = {} // the filter that they are of
  let matching = 0
  let current = -1
  const chosen = new Map() // key to letter, across pages

  function filter() {
    const f = {}
    if (destination.value.trim()) f.destination = destination.value.trim()
    if (type.value) f.type = type.value
    if (reason.value) f.reason = reason.value
    if (user.value.trim()) f.user = user.value.trim()
    if (age.value === 'own') {
      if (from.value) f.from = new Date(from.value).toISOString()
      if (to.value) f.to = new Date(to.value).toISOString()
    } else if (age.value) f.from = new Date(Date.now() - lengths[age.value]).toISOString()
    return f
  }

  const isFiltered = () => Boolean(destination.value || type.value || reason.value || user.value || age.value)

  function apply() {
    own.hidden = age.value !== 'own'
    const search = new URLSearchParams()
    const f = filter()
    if (age.value && age.value !== 'own') {
      delete f.from
      search.set('age', age.value)
    }
    for (const [name, value] of Object.entries(f)) search.set(name, value)
    if (order.value !== 'newest') search.set('order', order.value)
    history.replaceState(null, '', search.size > 0 ? `#/dead?${search}` : '#/dead')
    chosen.clear()
    pages.first()
  }
  for (const control of [destination, type, reason, user, age, from, to, order]) control.addEventListener('change', apply)
  own.hidden = age.value !== 'own'

  // load lists the page. A slow answer does not replace one that was asked for
  // later.
  let asked = 0
  async function load() {
    const mine = ++asked
    const f = filter()
    try {
      const [list, { count: n }] = await Promise.all([
        get('dead', { ...f, order: order.value, limit: page, after: pages.after() }, signal), get('dead/count', f, signal)])
      if (mine !== asked) return
      replace(wrong)
      letters = list.items
      listed = f
      matching = n
      show()
      pages.update(letters.length, n, list.after)
    } catch (error) {
      if (!signal.aborted && mine === asked) replace(wrong, notice(problem(error)))
    }
  }

  let drawn = ''
  function show() {
    text(total, isFiltered() ? `${plural(matching, 'matches', 'match')} the filter` : matching > 0 ? `${plural(matching, 'delivery', 'deliveries')} given up and kept` : '')
    const key = JSON.stringify(letters.map((l) => l.key))
    if (key !== drawn) {
      drawn = key
      replace(rows, letters.map(row))
    }
    scroll.hidden = letters.length === 0
    empty.hidden = letters.length > 0
    if (letters.length === 0) {
      replace(empty, isFiltered()
        ? [el('h2', {}, 'Nothing matches'), el('p', {}, 'No dead letter matches the filter.'), el('button', { type: 'button', onclick: everything }, 'Show all dead letters')]
        : [el('h2', {}, 'No dead letters'), el('p', {}, 'A delivery ends up here when a receiver refuses it for good, or its window ends. It is kept with its attempts, to be replayed once the receiver is mended.')])
    }
    showChosen()
  }

  function everything() {
    destination.value = type.value = reason.value = user.value = age.value = ''
    apply()
  }

  function row(letter, i) {
    const check = el('input', { type: 'checkbox', 'aria-label': `Select ${letter.id}`, value: letter.key })
    check.addEventListener('change', () => {
      if (check.checked) chosen.set(letter.key, letter)
      else chosen.delete(letter.key)
      showChosen()
    })
    return el('tr', { 'data-index': i },
      el('td', { class: 'check' }, check),
      el('td', { class: 'when' }, time(letter.ended)),
      el('td', { class: 'to', title: letter.destination }, destinationLink(letter.destination)),
      el('td', { class: 'type' }, letter.type, letter.event && el('small', {}, letter.event)),
      el('td', { class: 'why', title: words.explain(letter.reason) }, words.reason(letter.reason)),
      el('td', { class: 'n' }, letter.tries),
      el('th', { scope: 'row', class: 'mono' }, el('button', { type: 'button', class: 'as-link', onclick: () => inspect(letter) }, letter.id), letter.user && el('small', {}, letter.user)),
      el('td', { class: 'detail' }, lastAnswer(letter)))
  }

  function showChosen() {
    const n = chosen.size
    for (const tr of rows.children) {
      const letter = letters[tr.dataset.index]
      tr.querySelector('input').checked = chosen.has(letter.key)
      set(tr, 'data-current', Number(tr.dataset.index) === current)
    }
    all.checked = letters.length > 0 && letters.every((l) => chosen.has(l.key))
    all.indeterminate = !all.checked && letters.some((l) => chosen.has(l.key))
    const what = n > 0 ? `${count(n)} selected` : isFiltered() ? `${compact(matching)} matching` : `all ${compact(matching)}`
    text(replayButton, `Replay ${what}`)
    text(discardButton, `Discard ${what}…`)
    replayButton.disabled = discardButton.disabled = matching === 0 && n === 0
  }

  all.addEventListener('change', () => {
    for (const letter of letters) {
      if (all.checked) chosen.set(letter.key, letter)
      else chosen.delete(letter.key)
    }
    showChosen()
  })

  async function onChosen(f) {
    const n = chosen.size
    // Not of a filter whose answer is still to come: n is said of what is listed.
    const selection = n > 0 ? { keys: [...chosen.keys()] } : { filter: listed }
    if (await (f === replay && n === 0 ? replayAll : f)(selection, n || matching)) chosen.clear()
    else return
    if (!signal.aborted) load()
  }

  // inspect shows one with its body and all of its attempts.
  async function inspect(letter) {
    const { dialog, body } = open(letter.id)
    dialog.classList.add('wide')
    replace(body, el('p', { class: 'none' }, 'Loading…'))
    try {
      const whole = await get(`dead/${segment(letter.key)}`, {}, signal)
      const act = (f) => async () => {
        dialog.close()
        if (await f({ keys: [letter.key] }, 1)) load()
      }
      replace(body,
        el('p', {}, 'Given up ', time(whole.ended), ` ${tries(whole.tries)}: `, el('b', {}, words.reason(whole.reason)), '. ', words.explain(whole.reason)),
        el('dl', { class: 'facts' },
          el('div', {}, el('dt', {}, 'Destination'), el('dd', {}, destinationLink(whole.destination))),
          el('div', {}, el('dt', {}, 'Type'), el('dd', {}, whole.type)),
          origin(whole),
          el('div', {}, el('dt', {}, 'Accepted'), el('dd', {}, time(whole.accepted, true)))),
        attempts(whole),
        whole.body !== undefined && pretty(whole.body, 'Body of the webhook'),
        el('div', { class: 'actions' },
          el('button', { type: 'button', onclick: () => dialog.close() }, 'Close'),
          el('button', { type: 'button', onclick: act(discard) }, 'Discard…'),
          el('button', { type: 'button', class: 'primary', onclick: act(replay) }, 'Replay')))
    } catch (error) {
      if (!signal.aborted) replace(body, notice(problem(error)), el('div', { class: 'actions' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Close')))
    }
    dialog.addEventListener('click', (event) => { if (event.target.closest('a')) dialog.close() })
  }

  const move = (by) => {
    if (letters.length === 0) return
    current = Math.min(letters.length - 1, Math.max(0, current + by))
    showChosen()
    rows.children[current].scrollIntoView({ block: 'nearest' })
  }
  keys({
    j: ['Next', () => move(1)],
    k: ['Previous', () => move(-1)],
    x: ['Select', () => { rows.children[current]?.querySelector('input').click() }],
    Enter: ['Look at it', () => { if (letters[current]) inspect(letters[current]) }],
    n: ['Next page', () => pages.turn(1)],
    p: ['Previous page', () => pages.turn(-1)],
    '/': ['Filter', () => destination.focus()],
  })

  changed.addEventListener('change', load, { signal })
  // The first page follows what happens while nothing is selected.
  every(3_000, async () => { if (pages.isFirst() && chosen.size === 0) await load() })

  return {
    title: 'Dead letters',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Dead letters'), total), el('div', { class: 'actions' }, discardButton, replayButton)),
      el('div', { class: 'filters', role: 'search' }, destination, offered, type, reason, user, age, own, order),
      wrong,
      el('section', { class: 'panel flush', 'aria-label': 'Dead letters' }, scroll, empty, pages.node)),
  }
}

// local is a time for an input of type datetime-local.
function local(time) {
  if (!time) return ''
  const date = new Date(time)
  return new Date(date - date.getTimezoneOffset() * 60e3).toISOString().slice(0, 19)
}
