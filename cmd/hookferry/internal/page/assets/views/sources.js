// The sources: what sends calls.
import { get } from '../api.js'
import { el, keyed, replace, text } from '../kit/dom.js'
import { compact, count, since } from '../kit/format.js'
import { destinationLink, pager, panel, pill, searchInput, sendCommand, table, updatePill } from '../parts.js'

// few sources need no filter, and are all that the overview lists; page is how many
// the view lists at a time.
export const few = 10
const page = 50

export default function sources({ every, onStatus, signal, keys }) {
  const list = sourceTable({ whole: true })
  const from = el('p', { class: 'lead' })
  const pages = pager(() => load().catch(() => {})) // the next one says what is wrong
  const filter = searchInput({ 'aria-label': 'Filter sources', placeholder: 'Part of name', hidden: true }, signal, pages.first)
  const send = sendCommand()
  const hint = el('div', { hidden: true }, panel('Send a call', {}, el('p', {}, 'Nothing has come from any source. This sends one:'), send.node))
  onStatus((status) => {
    const { config, calls } = status
    send.update(status)
    text(from, config.file ? `From ${config.file}.` : 'From the flags of serve.')
    hint.hidden = calls.accepted + calls.rejected + calls.limited > 0
  })
  // A slow answer does not replace one that was asked for later.
  let asked = 0
  async function load() {
    const mine = ++asked
    const { items: sources, total = 0, after } = await get('sources', { q: filter.value.trim(), limit: page, after: pages.after() }, signal)
    if (mine !== asked) return
    list.update(sources, total)
    pages.update(sources.length, total, after)
    filter.hidden = !filter.value && total <= few
  }
  every(2_000, load)
  keys({
    '/': ['Filter', () => filter.focus()],
    n: ['Next page', () => pages.turn(1)],
    p: ['Previous page', () => pages.turn(-1)],
  })
  return {
    title: 'Sources',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Sources'), from), filter),
      el('section', { class: 'panel flush', 'aria-label': 'Sources' }, list.node, pages.node), hint),
  }
}

export function sourceTable({ whole = false } = {}) {
  const rows = el('tbody', {})
  const empty = el('p', { class: 'none', hidden: true }, 'No source.')
  const rest = el('a', { href: '#/sources' })
  const more = el('p', { class: 'none', hidden: true }, rest)
  const heads = ['Source', 'State', whole && ['Keys', 'n'], whole && 'Destinations', whole && ['Rate', 'n'], ['Accepted', 'n'], ['Rejected', 'n'], ['Limited', 'n'], ['Last call', 'n']]
  const scroll = table('Sources', heads.filter(Boolean), rows)
  return {
    node: el('div', {}, scroll, empty, more),
    update(list, total) {
      more.hidden = whole || total === list.length
      text(rest, `${count(total - list.length)} more`)
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
            const more = now.destinationCount - now.destinations.length
            const key = JSON.stringify([now.destinations, more])
            if (to.dataset.key !== key) {
              to.dataset.key = key
              replace(to, now.destinations.map((d, i) => [i > 0 && ', ', destinationLink(d)]),
                more > 0 && [' and ', el('a', { href: `#/destinations?source=${encodeURIComponent(now.name)}` }, `${count(more)} more`)])
            }
            ;[now.accepted, now.rejected, now.limited].forEach((n, i) => text(counts[i], compact(n)))
            text(last, now.last ? `${since(now.last)} ago` : 'never')
          },
        }
      })
    },
  }
}
