// All destinations, and the table of them that the overview shows too.
import { get, post, segment } from '../api.js'
import { el, keyed, replace, say, text } from '../dom.js'
import { compact, count, rate, soon, span } from '../format.js'
import { destinationLink, pill, problem, table, updatePill, notice } from '../parts.js'
import * as words from '../words.js'

export default function destinations({ every, signal }) {
  const filter = el('input', { type: 'search', 'aria-label': 'Filter destinations', placeholder: 'Filter', autocomplete: 'off', spellcheck: 'false' })
  const list = destinationTable({ signal })
  const total = el('p', { class: 'lead' })
  let latest = []
  const show = () => {
    const q = filter.value.trim().toLowerCase()
    const shown = latest.filter((d) => !q || [d.id, ...d.sources, ...d.endpoints.map((e) => e.url)].some((s) => s.toLowerCase().includes(q)))
    list.update(shown)
    text(total, q ? `${count(shown.length)} of ${count(latest.length)}` : `${count(latest.length)} configured, or with deliveries that wait`)
  }
  filter.addEventListener('input', show)
  every(2_000, async () => {
    latest = (await get('destinations', {}, signal)).destinations
    show()
  })
  return {
    title: 'Destinations',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Destinations'), total), filter),
      el('section', { class: 'panel' }, list.node)),
  }
}

// bound is how many rows are shown: the filter finds the others.
const bound = 200

export function destinationTable({ signal }) {
  const rows = el('tbody', {})
  const more = el('p', { class: 'none' })
  const empty = el('p', { class: 'none', hidden: true }, 'No destination.')
  const scroll = table('Destinations', ['Destination', 'State', ['Delivered/s', 'n'], ['Waiting', 'n'], ['Delivered', 'n'], ['Dead', 'n'], ['p99', 'n'], ['', 'end']], rows)
  return {
    node: el('div', {}, scroll, empty, more),
    update(list) {
      scroll.hidden = list.length === 0
      empty.hidden = list.length > 0
      more.hidden = list.length <= bound
      text(more, `${count(list.length - bound)} more: filter them in Destinations.`)
      keyed(rows, list.slice(0, bound), (d) => d.id, (d) => {
        const state = pill('', 'idle')
        const why = el('small', {})
        const cells = [0, 1, 2, 3, 4].map(() => el('td', { class: 'n' }))
        const toggle = pauseButton(d.id, signal)
        const url = el('small', { class: 'mono' })
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, destinationLink(d.id), url), el('td', {}, state, why), cells, el('td', { class: 'end' }, toggle.node)),
          update(now) {
            const h = words.health(now)
            updatePill(state, h.word, h.tone, h.why)
            text(why, reasonLine(now))
            text(url, now.endpoints.map((e) => e.url).join('  '))
            const values = [rate(now.rates.delivered), now.waiting === undefined ? '–' : compact(now.waiting), compact(now.delivered),
              compact(sum(now.dead)), now.latency.requests > 0 ? span(now.latency.p99) : '–']
            cells.forEach((cell, i) => text(cell, values[i]))
            toggle.update(now)
          },
        }
      })
    },
  }
}

export const sum = (counts) => Object.values(counts ?? {}).reduce((a, b) => a + b, 0)

// reasonLine says why it is as it is, and when that may change.
export function reasonLine(d) {
  if (!d.held) return ''
  return [d.held.reason && words.reason(d.held.reason), d.held.until && `probed ${soon(d.held.until)}`].filter(Boolean).join(', ')
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
      button.hidden = d.held?.hold === 'unknown' && !d.paused
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
