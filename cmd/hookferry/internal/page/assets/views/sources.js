// The sources: what sends calls.
import { get } from '../api.js'
import { el, keyed, replace, text } from '../dom.js'
import { compact, since } from '../format.js'
import { command, destinationLink, panel, pill, table, updatePill } from '../parts.js'

export default function sources({ every, onStatus, signal }) {
  const list = sourceTable({ whole: true })
  const from = el('p', { class: 'lead' })
  const hint = el('div', { hidden: true }, panel('Send a call', {}, el('p', {}, 'Nothing has come from any source. This sends one:'), command('hookferry send track -user u1 -event "Signed Up"')))
  onStatus(({ config }) => text(from, config.file ? `From ${config.file}.` : 'From the flags of serve.'))
  every(2_000, async () => {
    const { sources } = await get('sources', {}, signal)
    list.update(sources)
    hint.hidden = sources.some((s) => s.accepted + s.rejected + s.limited > 0)
  })
  return {
    title: 'Sources',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Sources'), from)),
      el('section', { class: 'panel' }, list.node), hint),
  }
}

export function sourceTable({ whole = false } = {}) {
  const rows = el('tbody', {})
  const empty = el('p', { class: 'none', hidden: true }, 'No source.')
  const heads = ['Source', 'State', whole && ['Keys', 'n'], whole && 'Destinations', whole && ['Rate', 'n'], ['Accepted', 'n'], ['Rejected', 'n'], ['Limited', 'n'], ['Last call', 'n']]
  const scroll = table('Sources', heads.filter(Boolean), rows)
  return {
    node: el('div', {}, scroll, empty),
    update(list) {
      scroll.hidden = list.length === 0
      empty.hidden = list.length > 0
      keyed(rows, list, (s) => s.name, (s) => {
        const state = pill('', 'idle')
        const cell = () => el('td', { class: 'n' })
        const keys = cell()
        const to = el('td', {})
        const limit = cell()
        const counts = [cell(), cell(), cell()]
        const last = cell()
        return {
          node: el('tr', {}, el('th', { scope: 'row' }, s.name), el('td', {}, state), whole && [keys, to, limit], counts, last),
          update(now) {
            if (!now.enabled) updatePill(state, 'Disabled', 'still')
            else if (!now.last) updatePill(state, 'Silent', 'idle')
            else updatePill(state, 'Sending', 'ok')
            text(keys, now.keys)
            text(limit, now.rate ? `${compact(now.rate)}/s` : 'none')
            if (to.textContent !== now.destinations.join(', ')) replace(to, now.destinations.map((d, i) => [i > 0 && ', ', destinationLink(d)]))
            ;[now.accepted, now.rejected, now.limited].forEach((n, i) => text(counts[i], compact(n)))
            text(last, now.last ? `${since(now.last)} ago` : 'never')
          },
        }
      })
    },
  }
}
