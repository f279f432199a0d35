// What comes in, what goes out, and what fails and why, at a glance.
import { get } from '../api.js'
import { chart } from '../kit/chart.js'
import { el, keyed, set, text } from '../kit/dom.js'
import { clock, compact, count, moment, plural, rate, since, span } from '../kit/format.js'
import { hurry } from '../kit/shell.js'
import { bars, command, figure, panel, route, segmented, sendCommand } from '../parts.js'
import * as words from '../words.js'
import { destinationTable, failed, saidBy, steps, whenLine } from './destinations.js'
import { nodePanel } from './nodes.js'
import { few, sourceTable } from './sources.js'

// most is how many destinations in trouble are named, and listed how many
// destinations are in the table, those in the worst state first.
const most = 5
const listed = 10

export default function overview({ every, onStatus, signal }) {
  const state = el('p', { class: 'lead' }, 'Asking the server…')
  const attention = el('ul', { class: 'attention', 'aria-label': 'What wants looking at', hidden: true })
  const send = sendCommand()
  const begin = el('div', { hidden: true }, firstSteps(send.node))

  const came = figure('Received', 'in', { href: '#/events' })
  const waits = figure('Waiting', 'wait', { href: '#/deliveries?state=waiting' })
  const went = figure('Delivered', 'ok')
  const again = figure('Retried', 'warn')
  const died = figure('Dead letters', 'bad', { href: '#/deliveries?state=dead' })
  const figures = el('div', { class: 'figures flow' }, came.node, waits.node, went.node, again.node, died.node)

  let range = '5m'
  const flow = chart({
    label: 'Deliveries', show: compact, unit: steps, height: 220,
    series: [
      { key: 'accepted', name: 'Accepted', tone: 'in', area: true },
      { key: 'delivered', name: 'Delivered', tone: 'ok' },
      { key: 'retried', name: 'Retried', tone: 'warn' },
      { key: 'dead', name: 'Dead', tone: 'bad' },
    ],
  })
  const backlog = chart({ label: 'Waiting', show: compact, height: 150, series: [{ key: 'waiting', name: 'Waiting', tone: 'wait', area: true }] })
  const latency = chart({
    label: 'Latency', show: span, height: 150,
    series: [{ key: 'p50', name: 'Median', tone: 'in' }, { key: 'p99', name: '99th percentile', tone: 'warn' }],
  })
  async function refreshSeries() {
    const asked = range
    const series = await get('series', { range }, signal)
    if (asked === range) for (const c of [flow, backlog, latency]) c.update(series)
  }
  const ranges = segmented('Time shown', [['5m', '5 min'], ['1h', '1 h'], ['24h', '24 h']], range, (value) => {
    range = value
    refreshSeries().catch(() => {}) // the next one, in a second, says what is wrong
  })

  const errors = bars('Failed requests of the last hour, by reason', 'No request failed in the last hour.')
  const dead = bars('Dead letters since the start, by reason', 'Nothing was given up since the start.')
  const destinations = destinationTable({ signal })
  const rest = el('a', { href: '#/destinations', hidden: true })
  const sources = sourceTable()
  const nodes = nodePanel()

  onStatus((s) => {
    const { totals, rates, calls } = s
    begin.hidden = calls.accepted + totals.accepted + s.waiting + s.dead > 0
    send.update(s)
    came.update(rate(rates.accepted), '/s', `${count(calls.accepted)} calls since ${clock(s.started).slice(0, 5)}`)
    waits.update(compact(s.waiting), '', s.oldest ? `oldest due ${since(s.oldest, Date.parse(s.now))} ago` : `${count(totals.inFlight)} in flight`)
    went.update(rate(rates.delivered), '/s', `${count(totals.delivered)} since the start`)
    again.update(rate(rates.retried), '/s', `${count(totals.retried)} since the start`)
    died.update(compact(s.dead), '', rates.dead > 0 ? `${rate(rates.dead)}/s now` : s.dead > 0 ? 'kept, to be retried' : 'nothing given up')
    dead.update(totals.dead)
    errors.update(s.errors)
  })

  let status = null
  let latest = null
  onStatus((s) => { status = s; tell() })
  every(2_000, async () => {
    const [d, s, n] = await Promise.all([get('destinations', { sort: 'state', limit: listed }, signal), get('sources', { limit: few }, signal), get('nodes', {}, signal)])
    nodes.update(n)
    latest = d
    destinations.update(d.items)
    rest.hidden = (d.total ?? 0) <= listed
    text(rest, `All ${count(d.total ?? 0)} destinations`)
    sources.update(s.items, s.total ?? 0)
    tell()
    return hurry(d.items.some(failed))
  })
  every(1_000, refreshSeries)

  // tell says in sentences what wants looking at, the worst first.
  function tell() {
    if (!status || !latest) return
    const items = []
    const add = (key, tone, head, said = '', { href, name, more = '' } = {}) => items.push({ key, tone, head, said, href, name, more })
    const { calls, config } = status
    if (config.error) add('config', 'bad', 'The newest configuration is not in use', `: ${config.error}`)
    if (config.restart?.length > 0) add('restart', 'warn', 'Some settings count only after a restart', `: ${config.restart.join(', ')}`)
    if (!status.ready) add('ready', 'bad', 'Calls are not accepted', ': the server is starting or stopping, or cannot store them')
    for (const t of status.troubles ?? []) {
      if (t.kind === 'refused') add('refused', 'bad', 'The store refused calls', `, the last one ${moment(t.at)}: ${t.error}`)
      else if (t.kind === 'unusable') add('unusable', 'bad', 'The store cannot be used', `: ${t.error}`)
      else add(`step ${t.step}`, 'warn', 'Maintenance of the store keeps failing', `: ${t.step}, since ${moment(t.at)}; the log says why`)
    }
    if (status.unrouted) add('unrouted', 'warn', 'Sources have no destination', `: calls of ${status.unrouted.join(', ')} are accepted, and go nowhere`)
    if (calls.failed > 0) add('failed', 'bad', `${plural(calls.failed, 'request')} could not be stored`, ', and clients were told to send them again')
    const noted = words.notedIn(latest.states)
    const troubled = words.troubledIn(latest.states)
    for (const d of latest.items.filter((d) => words.noted.includes(d.state)).slice(0, most)) {
      const h = words.health(d)
      // What waits for a destination that is unknown is held once it is due.
      const more = [whenLine(d), d.held?.since && `since ${moment(d.held.since)}`, d.waiting > 0 && `${count(d.waiting)} waiting`].filter(Boolean).join(', ')
      const said = saidBy(d)
      add(`destination ${d.id}`, h.tone, ` is ${h.word.toLowerCase()}`, said || more ? `: ${said || more}` : '',
        { href: route('destinations', d.id), name: d.id, more: said && more })
    }
    if (noted > most) add('more', troubled > most ? 'bad' : 'still', ` ${noted - most === 1 ? 'is' : 'are'} in trouble or paused`, '',
      { href: `#/destinations?${new URLSearchParams(words.noted.map((s) => ['state', s]))}`, name: plural(noted - most, 'more destination') })
    if (calls.unknown > 0) add('unknown', 'warn', `${plural(calls.unknown, 'request')} with an unknown write key`, ' since the start')
    if (calls.rejected > 0) add('rejected', 'warn', `${plural(calls.rejected, 'call')} rejected`, ' since the start, because they are not valid')
    if (calls.limited > 0) add('limited', 'warn', `${plural(calls.limited, 'request')} over the rate`, ' of their source since the start')
    // The texts of a line change all the time. Its link stays the same node, so that it keeps the
    // focus, and that a click which begins on it ends on it.
    keyed(attention, items, (i) => i.key, (i) => {
      const link = i.href && el('a', { href: i.href })
      const [head, said, more] = [el('span', {}), el('span', {}), el('small', {})]
      const node = el('li', {}, el('b', {}, link, head), said, more)
      return {
        node,
        update(now) {
          set(node, 'data-tone', now.tone)
          if (link) text(link, now.name)
          text(head, now.head)
          text(said, now.said)
          text(more, now.more)
        },
      }
    })
    attention.hidden = items.length === 0
    const all = plural(latest.total ?? 0, 'destination')
    text(state, troubled > 0 ? `${count(troubled)} of ${all} ${troubled === 1 ? 'is' : 'are'} in trouble.` : `${all}, none is in trouble.`)
  }

  return {
    title: 'Overview',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Overview'), state)),
      attention, begin, figures,
      panel('Deliveries', { actions: ranges }, flow.node),
      el('div', { class: 'pair' }, panel('Waiting', {}, backlog.node), panel('Latency', { note: 'of requests' }, latency.node)),
      nodes.node,
      panel('Destinations', { actions: rest, note: 'counted since the start' }, destinations.node),
      el('div', { class: 'pair' }, panel('Why requests fail', { note: 'last hour' }, errors.node), panel('Why deliveries died', { note: 'since the start, with those retried or discarded since' }, dead.node)),
      panel('Sources', {}, sources.node)),
  }
}

// firstSteps is what a newcomer sees instead of zeros alone.
function firstSteps(send) {
  return el('section', { class: 'first', 'aria-labelledby': 'first' },
    el('h2', { id: 'first' }, 'No call has come yet'),
    el('p', {}, 'Receive webhooks in one terminal, if nothing does yet, and send a call from another. It shows up here within a second.'),
    el('ol', {},
      el('li', {}, el('span', {}, 'A receiver that prints what it gets'), command('hookferry listen')),
      el('li', {}, el('span', {}, 'A call'), send)),
    el('p', { class: 'more' }, 'From a clone of the repository, say ', el('code', {}, 'go run ./cmd/hookferry'), ' for ', el('code', {}, 'hookferry'),
      '. To see what a receiver makes of every type of call, use the ', el('a', { href: '#/test' }, 'tester'), '.'))
}
