// The servers of a store that several share.
import { el, keyed, text } from '../kit/dom.js'
import { compact, rate, since } from '../kit/format.js'
import { panel, pill, table, updatePill } from '../parts.js'

export function nodePanel() {
  const rows = el('tbody', {})
  const scroll = table('Servers', ['Server', 'State', 'Version', ['Up', 'n'], ['In flight', 'n'], ['Delivered', 'n'], ['Delivered/s', 'n'], ['Last sign', 'n']], rows)
  const note = 'The figures, charts, events and latencies of this page are of the server that answers; what waits, the dead letters and pauses are of all.'
  const node = panel('Servers', {}, scroll, el('p', { class: 'none' }, note))
  node.hidden = true
  return {
    node,
    update({ shared, nodes }) {
      node.hidden = !shared
      keyed(rows, nodes, (n) => n.name, (n) => {
        const state = pill('', 'idle')
        const version = el('td', {})
        const cells = [0, 1, 2, 3, 4].map(() => el('td', { class: 'n' }))
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, n.name, n.self && el('small', {}, 'answers this page')), el('td', {}, state), version, cells),
          update(now) {
            if (now.ready) updatePill(state, 'Ready', 'ok')
            else updatePill(state, 'Takes no calls', 'warn', 'It is starting or stopping, cannot store calls, or did not say.')
            text(version, now.version ?? '?')
            const values = [now.started ? since(now.started) : '?', compact(now.inFlight), compact(now.delivered), rate(now.rates.delivered),
              now.seen ? `${since(now.seen)} ago` : '?']
            values.forEach((v, i) => text(cells[i], v))
          },
        }
      })
    },
  }
}
