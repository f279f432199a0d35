// Deliveries by messageId, user and destination: those that wait, that were given up, that were
// delivered and are kept, and the latest that the server has in memory.
import { get } from '../api.js'
import { el, replace, say } from '../dom.js'
import { plural } from '../format.js'
import { deliveryRoute, destinationInput, destinationLink, notice, panel, pill, problem, table, time } from '../parts.js'
import * as words from '../words.js'
import { resend } from './delivery.js'

// most is how many are shown of each kind.
const most = 50

export default function find({ query, onStatus, signal, keys }) {
  let kept = false // what was delivered
  const known = new Promise((resolve) => { onStatus((s) => { kept = s.config.history; resolve() }) })
  const plain = (name, placeholder) => el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', 'aria-label': name, placeholder, value: query.get(name === 'User' ? 'user' : 'id') ?? '' })
  const id = plain('messageId', 'messageId')
  const user = plain('User', 'User')
  const { input: destination, list } = destinationInput({ 'aria-label': 'Destination', placeholder: 'All destinations', value: query.get('destination') ?? '' }, signal)
  const results = el('div', {})
  const go = el('button', { class: 'primary' }, 'Find')
  const form = el('form', { class: 'filters', role: 'search' }, id, user, destination, list, go)

  form.addEventListener('submit', (event) => {
    event.preventDefault()
    const shown = new URLSearchParams()
    for (const [name, value] of Object.entries(wanted())) if (value) shown.set(name, value)
    history.replaceState(null, '', `#/find${shown.size > 0 ? `?${shown}` : ''}`)
    search()
  })
  const wanted = () => ({ id: id.value.trim(), user: user.value.trim(), destination: destination.value.trim() })

  // A slow answer does not replace one that was asked for later.
  let asked = 0
  async function search() {
    const filter = wanted()
    if (!Object.values(filter).some(Boolean)) return replace(results, notice('Give a messageId, a user or a destination.', 'calm'))
    const mine = ++asked
    replace(results, el('p', { class: 'none' }, 'Looking…'))
    try {
      await known
      const found = await all(filter)
      if (mine === asked) show(found, filter)
    } catch (error) {
      if (mine === asked && !signal.aborted) replace(results, notice(problem(error)))
    }
  }

  // all asks every place that may know, and returns each delivery once: as the store has it
  // rather than as the memory of what happened has it.
  async function all(filter) {
    const nothing = Promise.resolve({ items: [] })
    const [dead, delivered, waiting, { events = [] }] = await Promise.all([
      get('dead', { ...filter, order: 'newest', limit: most }, signal),
      kept ? get('delivered', { ...filter, limit: most }, signal) : nothing,
      filter.destination ? get('waiting', { ...filter, limit: most }, signal) : nothing,
      get('events', { destination: filter.destination, q: filter.id || filter.user, limit: 500 }, signal),
    ])
    const found = new Map()
    const add = (d, state, at) => {
      const key = JSON.stringify([d.destination, d.source ?? '', d.id])
      if (!found.has(key)) found.set(key, { ...d, state, at })
    }
    for (const d of [...waiting.items, ...dead.items, ...delivered.items]) add({ ...d, kept: d.state === 'delivered' }, d.state, d.ended ?? d.due)
    const fits = (e) => (!filter.id || e.id === filter.id) && (!filter.user || e.user === filter.user)
    for (const e of events) if (fits(e)) add(e, { delivered: 'delivered', dead: 'dead' }[e.kind] ?? 'waiting', e.at)
    return [...found.values()].sort((a, b) => b.at.localeCompare(a.at))
  }

  function show(found, filter) {
    say(plural(found.length, 'delivery', 'deliveries'))
    const places = ['dead letters', kept && 'delivered deliveries that are kept', filter.destination && 'waiting deliveries'].filter(Boolean)
    const hint = el('p', { class: 'none' }, `Searched: ${places.join(', ')}, and the latest events; up to ${most} of each are shown.${filter.destination ? '' : ' Choose a destination to search its waiting deliveries, too.'}`)
    if (found.length === 0) return replace(results, panel('None', {}, hint))
    const rows = el('tbody', {}, found.map((d) => {
      const [word, tone] = words.states[d.state]
      return el('tr', {},
        el('td', {}, pill(word, tone)), el('td', { class: 'when' }, time(d.at)), el('td', {}, d.type, d.event && el('small', {}, d.event)),
        el('th', { scope: 'row', class: 'mono' }, el('a', { href: deliveryRoute(d.destination, d) }, d.id), d.user && el('small', {}, d.user)),
        el('td', {}, destinationLink(d.destination)),
        el('td', {}, d.kept && el('button', { type: 'button', class: 'small', onclick: () => resend(d.destination, d.id) }, 'Send again')))
    }))
    replace(results, panel(plural(found.length, 'delivery', 'deliveries'), { className: 'flush' }, table('Deliveries', ['State', 'When', 'Type', 'Delivery', 'Destination', ''], rows), hint))
  }

  keys({ '/': ['Find', () => id.focus()] })
  if (Object.values(wanted()).some(Boolean)) search()
  return {
    title: 'Find',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Find a delivery'), el('p', { class: 'lead' }, 'By its messageId, its user or its destination.'))),
      form, results),
  }
}
