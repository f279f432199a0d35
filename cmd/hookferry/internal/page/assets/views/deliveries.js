// Deliveries in every state, the newest first: to look for, to attempt again, or to throw away.
import { APIError, get, work } from '../api.js'
import { el, keyed, replace, set, text } from '../kit/dom.js'
import { count, plural, soon } from '../kit/format.js'
import { done, job } from '../jobs.js'
import { confirm, deliveryRoute, destinationInput, destinationLink, lastAnswer, notice, pager, pill, problem, select, table, time } from '../parts.js'
import * as words from '../words.js'

// page is how many are listed at a time. For a page that few fit, the server is asked most times.
const page = matchMedia('(max-width: 560px)').matches ? 20 : 50
const most = 20

const ages = [['', 'Any time'], ['15m', 'Last 15 min'], ['1h', 'Last hour'], ['24h', 'Last 24 h'], ['7d', 'Last 7 days'], ['own', 'From … to …']]
const lengths = { '15m': 15 * 60e3, '1h': 3600e3, '24h': 24 * 3600e3, '7d': 7 * 24 * 3600e3 }

const acts = {
  retry: ['Retry', 'Retrying', 'Retried', 'Each is attempted again at once. What was delivered is sent once more, under a webhook-id of its own.', 'calm'],
  discard: ['Discard', 'Discarding', 'Discarded', 'What is discarded cannot be brought back. What is being attempted is left.', 'bad'],
}

// changed tells the view that is shown that deliveries are in another state now.
const changed = new EventTarget()

// change retries or discards a Selection, and returns whether it did. It asks first, unless
// deliveries that somebody chose are retried.
export async function change(how, selection, ask = how === 'discard' || !selection.keys) {
  const [word, doing, did, means, tone] = acts[how]
  let what = selection.keys ? plural(selection.keys.length, 'delivery') : 'deliveries'
  if (ask && selection.query) {
    const counted = await get('deliveries/count', selection.query).catch(() => null) // the work says what is wrong
    if (counted) what = plural(counted.count, 'delivery') + (counted.stopped ? ' or more' : '')
  }
  if (ask && !await confirm(`${word} ${what}?`, means, `${word} ${what}`, tone)) return false
  const began = performance.now()
  const ok = await job(`${doing} ${what}`, async ({ onProgress, signal }) => {
    const last = await work(`deliveries/${how}`, { body: selection, signal }, onProgress)
    return done(did, last.done, 'delivery', (performance.now() - began) / 1_000) + (last.claimed > 0 ? ` ${count(last.claimed)} left: being attempted.` : '')
  })
  changed.dispatchEvent(new Event('change'))
  return ok
}

export default function deliveries({ query, every, signal, keys }) {
  const plain = (name, label) => el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', 'aria-label': label, placeholder: label, value: query.get(name) ?? '' })
  const { input: destination, list: offered } = destinationInput({ 'aria-label': 'Destination', placeholder: 'All destinations', value: query.get('destination') ?? '' }, signal)
  const named = (pairs) => pairs.map(([code, [word]]) => [code, word])
  const controls = {
    destination,
    state: select([['', 'All states'], ...named(Object.entries(words.states))], query.get('state') ?? '', { 'aria-label': 'State' }),
    type: select([['', 'All types'], ...words.bodyTypes], query.get('type') ?? '', { 'aria-label': 'Type' }),
    event: plain('event', 'Event, also Order *'),
    id: plain('id', 'messageId'),
    user: plain('user', 'User'),
    reason: select([['', 'All reasons'], ...named(Object.entries(words.reasons))], query.get('reason') ?? '', { 'aria-label': 'Reason' }),
    age: select(ages, query.get('from') || query.get('to') ? 'own' : query.get('age') ?? '', { 'aria-label': 'When they were accepted' }),
    from: el('input', { type: 'datetime-local', 'aria-label': 'Accepted from', step: 1, value: local(query.get('from')) }),
    to: el('input', { type: 'datetime-local', 'aria-label': 'Accepted before', step: 1, value: local(query.get('to')) }),
  }
  const { age, from, to, ...plainly } = controls
  const own = el('span', { class: 'own' }, from, '–', to)

  const rows = el('tbody', {})
  const all = el('input', { type: 'checkbox', 'aria-label': 'Select all on this page' })
  const scroll = table('Deliveries', [[all, 'check'], 'Accepted', 'Destination', 'Type and event', 'State', ['Tries', 'n'], 'Delivery and user', 'Last answer'], rows, 'letters')
  const empty = el('p', { class: 'none', hidden: true })
  const wrong = el('div', { class: 'wrong' })
  const pages = pager(() => {
    current = -1
    load()
  })
  const retryButton = el('button', { type: 'button', class: 'primary', onclick: () => onChosen('retry') })
  const discardButton = el('button', { type: 'button', onclick: () => onChosen('discard') })

  let items = []
  let listed = {} // the query that they are of
  let calm = true // they took one request
  let current = -1
  const chosen = new Set() // keys, across pages

  function wanted() {
    const q = {}
    for (const [name, control] of Object.entries(plainly)) if (control.value.trim()) q[name] = control.value.trim()
    if (age.value === 'own') {
      if (from.value) q.from = new Date(from.value).toISOString()
      if (to.value) q.to = new Date(to.value).toISOString()
    } else if (age.value) q.from = new Date(Date.now() - lengths[age.value]).toISOString()
    return q
  }

  function apply() {
    own.hidden = age.value !== 'own'
    const search = new URLSearchParams(wanted())
    if (age.value && age.value !== 'own') {
      search.delete('from')
      search.set('age', age.value)
    }
    history.replaceState(null, '', search.size > 0 ? `#/deliveries?${search}` : '#/deliveries')
    chosen.clear()
    pages.first()
  }
  for (const control of Object.values(controls)) control.addEventListener('change', apply)
  own.hidden = age.value !== 'own'

  // load lists the page. A slow answer does not replace one that was asked for
  // later.
  let asked = 0
  async function load() {
    const mine = ++asked
    const q = wanted()
    const found = []
    let after = pages.after()
    let times = 0
    try {
      do {
        const part = await get('deliveries', { ...q, limit: page - found.length, after }, signal)
        if (mine !== asked) return
        found.push(...part.items)
        after = part.after
        if (++times % 5 === 0) text(empty, `Looking: ${plural(found.length, 'delivery')} so far…`)
      } while (after && found.length < page && times < most)
      replace(wrong)
    } catch (error) {
      if (signal.aborted || mine !== asked) return
      replace(wrong, notice(problem(error)), q.state === 'delivered' && el('p', {}, el('a', { href: '#/events?kind=delivered' }, 'The latest are among the events'), '.'))
      if (!(error instanceof APIError)) return
      found.length = 0
      after = ''
    }
    [items, listed, calm] = [found, q, times === 1]
    keyed(rows, items, (d) => JSON.stringify([d.key, d.state, d.tries, d.due]), (d) => ({ node: row(d) }))
    scroll.hidden = items.length === 0
    const further = after && found.length < page
    empty.hidden = items.length > 0 && !further || wrong.childElementCount > 0
    text(empty, further ? `The search stopped after ${most} steps of up to 10,000 deliveries. The next page goes on behind them.`
      : Object.keys(q).length > 0 ? 'No delivery matches the filter.' : 'There are no deliveries.')
    showChosen()
    pages.update(items.length, 0, after)
  }

  function row(d) {
    const check = el('input', { type: 'checkbox', 'aria-label': `Select ${d.id}` })
    check.addEventListener('change', () => choose([d], check.checked))
    const why = d.state === 'dead' ? words.reason(d.reason) : d.state === 'waiting' && d.due && `next ${soon(d.due)}`
    return el('tr', {},
      el('td', { class: 'check' }, check),
      el('td', { class: 'when' }, time(d.accepted)),
      el('td', { class: 'to', title: d.destination }, destinationLink(d.destination)),
      el('td', { class: 'type' }, d.type, d.event && el('small', {}, d.event)),
      el('td', { class: 'why', title: words.explain(d.reason) }, pill(...words.states[d.state] ?? [d.state, 'idle']), why && el('small', {}, why)),
      el('td', { class: 'n' }, d.tries),
      el('th', { scope: 'row', class: 'mono' }, el('a', { href: deliveryRoute(d.destination, d) }, d.id), d.user && el('small', {}, d.user)),
      el('td', { class: 'detail' }, lastAnswer(d)))
  }

  function choose(some, on) {
    for (const d of some) {
      if (on) chosen.add(d.key)
      else chosen.delete(d.key)
    }
    showChosen()
  }
  all.addEventListener('change', () => choose(items, all.checked))

  function showChosen() {
    items.forEach((d, i) => {
      rows.children[i].querySelector('input').checked = chosen.has(d.key)
      set(rows.children[i], 'data-current', i === current)
    })
    all.checked = items.length > 0 && items.every((d) => chosen.has(d.key))
    all.indeterminate = !all.checked && items.some((d) => chosen.has(d.key))
    const what = chosen.size > 0 ? `${count(chosen.size)} selected` : 'all that match'
    text(retryButton, `Retry ${what}${chosen.size > 0 ? '' : '…'}`)
    text(discardButton, `Discard ${what}…`)
    const none = chosen.size === 0 && (!listed.state || items.length === 0)
    retryButton.disabled = discardButton.disabled = none
    retryButton.title = discardButton.title = none ? 'Select deliveries, or choose a state' : ''
  }

  async function onChosen(how) {
    // Not of a filter whose answer is still to come: it is said of what is listed.
    const { destination: to, state, ...rest } = listed
    const selection = chosen.size > 0 ? { keys: [...chosen] } : { query: { ...rest, state: [state], ...(to && { destination: [to] }) } }
    if (await change(how, selection)) chosen.clear()
    if (!signal.aborted) showChosen()
  }

  const move = (by) => {
    if (items.length === 0) return
    current = Math.min(items.length - 1, Math.max(0, current + by))
    showChosen()
    rows.children[current].scrollIntoView({ block: 'nearest' })
  }
  keys({
    j: ['Next', () => move(1)],
    k: ['Previous', () => move(-1)],
    x: ['Select', () => { rows.children[current]?.querySelector('input').click() }],
    Enter: ['Look at it', () => { rows.children[current]?.querySelector('th a').click() }],
    n: ['Next page', () => pages.turn(1)],
    p: ['Previous page', () => pages.turn(-1)],
    '/': ['Find', () => controls.id.focus()],
  })

  changed.addEventListener('change', load, { signal })
  // The first page follows what happens while nothing is selected, and the search is short.
  every(3_000, async () => { if (pages.isFirst() && chosen.size === 0 && calm) await load() })

  return {
    title: 'Deliveries',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Deliveries'), el('p', { class: 'lead' }, 'The newest first.')), el('div', { class: 'actions' }, discardButton, retryButton)),
      el('div', { class: 'filters', role: 'search' }, ...Object.values(plainly), offered, age, own),
      wrong,
      el('section', { class: 'panel flush', 'aria-label': 'Deliveries' }, scroll, empty, pages.node)),
  }
}

// local is a time for an input of type datetime-local.
function local(time) {
  if (!time) return ''
  const date = new Date(time)
  return new Date(date - date.getTimezoneOffset() * 60e3).toISOString().slice(0, 19)
}
