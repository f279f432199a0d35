// All destinations, and the table of them that the overview shows too.
import { get, post, segment } from '../api.js'
import { el, keyed, replace, say, set, text } from '../kit/dom.js'
import { compact, count, plural, rate, since, soon, span } from '../kit/format.js'
import { hurry } from '../kit/shell.js'
import { destinationLink, notice, pager, pill, problem, searchInput, select, sourceInput, table, updatePill } from '../parts.js'
import * as words from '../words.js'

// page is how many are listed at a time.
const page = 50

const orders = [['state', 'Worst first'], ['id', 'By name'], ['waiting', 'Most waiting'], ['dead', 'Most given up'], ['retried', 'Most retried'], ['delivered', 'Most delivered']]

export default function destinations({ query, every, signal, keys }) {
  const search = searchInput({ 'aria-label': 'A part of the name or URL', placeholder: 'Part of name or URL', value: query.get('q') ?? '' }, signal, apply)
  const states = Object.entries(words.conditions).map(([state, [word, tone]]) => {
    const input = el('input', { type: 'checkbox', value: state, checked: query.getAll('state').includes(state), onchange: apply })
    const n = el('b', {})
    return { state, input, n, node: el('label', { class: 'chip', 'data-tone': tone, hidden: true }, input, el('span', {}, word, ' ', n)) }
  })
  const { input: source, list: offered } = sourceInput({ 'aria-label': 'Source', placeholder: 'All sources', value: query.get('source') ?? '', onchange: apply }, signal)
  const order = select(orders, query.get('sort') ?? 'state', { 'aria-label': 'Order', onchange: apply })

  const list = destinationTable({ signal })
  const total = el('p', { class: 'lead' })
  const wrong = el('div', { class: 'wrong' })
  const pages = pager(load)

  // The address has the filter, so that it can be sent to somebody.
  function filter() {
    return {
      q: search.value.trim(), source: source.value.trim(),
      state: states.filter((s) => s.input.checked).map((s) => s.state),
      sort: order.value,
    }
  }

  function apply() {
    const shown = new URLSearchParams()
    for (const [name, value] of Object.entries(filter())) for (const v of [value].flat()) if (v && !(name === 'sort' && v === 'state')) shown.append(name, v)
    history.replaceState(null, '', shown.size > 0 ? `#/destinations?${shown}` : '#/destinations')
    pages.first()
  }

  // A slow answer does not replace one that was asked for later.
  let asked = 0
  async function load() {
    const mine = ++asked
    try {
      const answer = await get('destinations', { ...filter(), limit: page, after: pages.after() }, signal)
      if (mine !== asked) return
      replace(wrong)
      show(answer)
      return hurry(answer.items.some(failed))
    } catch (error) {
      if (mine === asked && !signal.aborted) replace(wrong, notice(problem(error)))
    }
  }

  function show(answer) {
    const { q, source, state } = filter()
    const { items, total: n = 0, after } = answer
    list.update(items, q || source || state.length > 0 ? 'No destination matches.' : 'No destination.')
    for (const s of states) {
      const n = answer.states[s.state] ?? 0
      s.node.hidden = n === 0 && !s.input.checked
      text(s.n, compact(n))
    }
    text(total, `${q || source || state.length > 0 ? `${plural(n, 'matches', 'match')} the filter` : `${count(n)} set up, or with deliveries that wait`}; counted since the start`)
    pages.update(items.length, n, after)
  }

  keys({
    '/': ['Filter', () => search.focus()],
    n: ['Next page', () => pages.turn(1)],
    p: ['Previous page', () => pages.turn(-1)],
  })
  every(2_000, load)
  return {
    title: 'Destinations',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Destinations'), total),
        el('div', { class: 'actions' }, el('a', { class: 'button', href: '#/new' }, 'New destination'))),
      el('div', { class: 'filters', role: 'search' },
        el('div', { class: 'chips', role: 'group', 'aria-label': 'States' }, states.map((s) => s.node)), source, offered, order, search),
      wrong,
      el('section', { class: 'panel flush', 'aria-label': 'Destinations' }, list.node, pages.node)),
  }
}

export function destinationTable({ signal }) {
  const rows = el('tbody', {})
  const empty = el('p', { class: 'none', hidden: true })
  const scroll = table('Destinations', ['Destination', 'State', ['Delivered/s', 'n'], ['Waiting', 'n'], ['Delivered', 'n'], ['Given up', 'n'], ['Dead letters', 'n'], ['p99', 'n'], ['', 'end']], rows)
  return {
    node: el('div', {}, scroll, empty),
    update(list, none = 'No destination.') {
      scroll.hidden = list.length === 0
      empty.hidden = list.length > 0
      text(empty, none)
      keyed(rows, list, (d) => d.id, (d) => {
        const state = pill('', 'idle')
        const why = el('small', {})
        const cells = [0, 1, 2, 3, 4, 5].map(() => el('td', { class: 'n' }))
        const toggle = pauseButton(d.id, signal)
        const url = el('small', { class: 'mono' })
        const said = el('small', { class: 'said' })
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, destinationLink(d.id), url, said), el('td', {}, state, why), cells, el('td', { class: 'end' }, toggle.node)),
          update(now) {
            const h = words.health(now)
            updatePill(state, h.word, h.tone, h.why)
            text(why, whenLine(now))
            text(said, saidBy(now))
            set(said, 'title', saidBy(now))
            text(url, now.endpoints.map((e) => e.url).join('  '))
            const values = [rate(now.rates.delivered), compact(now.waiting), compact(now.delivered),
              compact(sum(now.dead)), now.deadLetters === undefined ? '–' : compact(now.deadLetters), now.latency.requests > 0 ? span(now.latency.p99) : '–']
            cells.forEach((cell, i) => text(cell, values[i]))
            toggle.update(now)
          },
        }
      })
    },
  }
}

export const sum = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0)

// failed reports whether the latest failure of a destination says how it is now.
export const failed = (d) => d.failure && ['failing', 'refusing', 'retrying'].includes(d.state)

// saidBy is what a destination that does not take its deliveries answered last.
export const saidBy = (d) => (failed(d) ? words.answered(d.failure.attempt) : '')

// whenLine says which try failed, and when there is another one.
export function whenLine(d) {
  const { held, failure } = d
  const next = held?.until ?? (failed(d) ? failure.due : null)
  return [failed(d) && (failure.due ? `try ${failure.attempt.try}` : `given up after ${plural(failure.attempt.try, 'try', 'tries')}`),
    failed(d) && `${since(failure.attempt.at)} ago`,
    next && `${held && held.hold !== 'failing' ? 'looked up again' : 'next'} ${soon(next)}`].filter(Boolean).join(', ')
}

// pauseButton pauses and resumes.
export function pauseButton(id, signal, onChange) {
  let paused = false
  const failed = el('span', {})
  const button = el('button', { type: 'button', class: 'small' }, 'Pause')
  const show = () => {
    text(button, paused ? 'Resume' : 'Pause')
    button.ariaLabel = `${paused ? 'Resume' : 'Pause'} ${id}`
  }
  const toggle = async () => {
    button.disabled = true
    replace(failed)
    try {
      const now = await post(`destinations/${segment(id)}/${paused ? 'resume' : 'pause'}`, undefined, signal)
      paused = now.paused
      show()
      say(`${id} is ${paused ? 'paused' : 'resumed'}`)
      onChange?.(now)
    } catch (error) {
      if (!signal.aborted) replace(failed, notice(problem(error)))
    }
    button.disabled = false
  }
  button.addEventListener('click', toggle)
  show()
  return {
    node: el('div', {}, button, failed),
    toggle,
    update(d) {
      // What the configuration lacks or has disabled is not resumed here.
      button.hidden = d.state === 'unknown'
      paused = d.paused
      show()
    },
  }
}

// steps names the time that one value of a series is of.
export function steps(ms) {
  const s = ms / 1_000
  return s === 1 ? 'per second' : s < 60 ? `per ${s} s` : s === 60 ? 'per minute' : `per ${s / 60} min`
}
