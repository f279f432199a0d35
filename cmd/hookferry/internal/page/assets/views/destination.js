// One destination: what happens to its deliveries over time, and why.
import { get, segment, write } from '../api.js'
import { chart } from '../kit/chart.js'
import { el, keyed, replace, text } from '../kit/dom.js'
import { compact, count, moment, plural, rate, since, soon, span } from '../kit/format.js'
import { hurry } from '../kit/shell.js'
import { bars, confirm, deliveryRoute, figure, lastAnswer, notice, panel, pill, problem, route, segmented, table, tabs, time, updatePill } from '../parts.js'
import * as words from '../words.js'
import { change } from './deliveries.js'
import { deleteDestination, showSecret } from './edit.js'
import { failed, pauseButton, saidBy, steps, sum, whenLine } from './destinations.js'

const parts = { '': 'Overview', settings: 'Settings', trouble: 'Speed and failures' }

// A phone shows less of each list, so that the page stays short.
const narrow = () => matchMedia('(max-width: 560px)').matches

export default function destination({ destination: id, tab = '', every, signal, keys }) {
  const state = pill('', 'idle')
  const why = el('p', { class: 'lead' })
  const when = el('span', {})
  const failure = el('div', { class: 'notice failure', hidden: true })
  const toggle = pauseButton(id, signal, show)
  const now = el('button', { type: 'button', class: 'primary', hidden: true, onclick: () => retry() }, 'Retry now')
  const revive = el('button', { type: 'button', hidden: true, onclick: () => change('retry', { query: { destination: [id], state: ['dead'] } }) })
  const changed = el('div', {})
  keys({ p: ['Pause or resume', toggle.toggle], r: ['Retry now', () => { if (!now.hidden) retry() }] })

  const went = figure('Delivered', 'ok')
  const waits = figure('Waiting', 'wait')
  const next = figure('Next attempt', 'in')
  const again = figure('Retried', 'warn')
  const died = figure('Dead letters', 'bad', { href: `#/deliveries?state=dead&destination=${encodeURIComponent(id)}` })
  const speed = figure('Latency, median', 'in')

  let range = '5m'
  const flow = chart({
    label: `Deliveries to ${id}`, show: compact, unit: steps, height: 210,
    series: [
      { key: 'delivered', name: 'Delivered', tone: 'ok', area: true },
      { key: 'retried', name: 'Retried', tone: 'warn' },
      { key: 'dead', name: 'Dead', tone: 'bad' },
    ],
  })
  const backlog = chart({ label: `Waiting for ${id}`, show: compact, height: 150, series: [{ key: 'waiting', name: 'Waiting', tone: 'wait', area: true }] })
  const latency = chart({
    label: `Latency of ${id}`, show: span, height: 150,
    series: [{ key: 'p50', name: 'Median', tone: 'in' }, { key: 'p99', name: '99th percentile', tone: 'warn' }],
  })
  async function refreshSeries() {
    const asked = range
    const series = await get('series', { destination: id, range }, signal)
    if (asked === range) for (const c of [flow, backlog, latency]) c.update(series)
  }
  const ranges = segmented('Time shown', [['5m', '5 min'], ['1h', '1 h'], ['24h', '24 h']], range, (value) => {
    range = value
    refreshSeries().catch(() => {}) // the next one, in a second, says what is wrong
  })

  const errors = bars('Failed requests of the last hour, by reason', 'No request failed in the last hour.')
  const dead = bars('Dead since the start, by reason', 'Nothing was given up.')
  const facts = el('dl', { class: 'facts' })
  const managed = el('div', { class: 'actions' })
  const settled = panel('Settings', { actions: managed }, facts)
  const rows = el('tbody', {})
  const none = el('p', { class: 'none', hidden: true }, 'Nothing has happened yet. ', el('a', { href: `#/test?destination=${encodeURIComponent(id)}` }, 'Send it a sample'), '.')
  const recent = table('Latest events', ['Time', 'What', 'Type', 'Delivery', 'Detail'], rows)

  // What waits, the oldest first.
  const queue = el('tbody', {})
  const nothing = el('p', { class: 'none', hidden: true }, 'Nothing waits.')
  const queued = table('What waits', ['Due', 'Type', 'Delivery', ['Tries', 'n'], 'Last answer'], queue)
  const waiting = { destination: [id], state: ['behind', 'waiting', 'claimed'] }
  const drop = el('button', { type: 'button', class: 'small', hidden: true, onclick: () => change('discard', { query: waiting }) }, 'Discard all…')
  const more = el('a', { href: `#/deliveries?${new URLSearchParams({ destination: id, state: 'waiting' })}` }, 'All of them')
  const queuePanel = panel('What waits', { actions: [more, drop] }, queued, nothing)
  async function refreshQueue() {
    const { items } = await get('deliveries', { ...waiting, order: 'oldest', limit: narrow() ? 3 : 10 }, signal)
    drop.hidden = queued.hidden = items.length === 0
    nothing.hidden = items.length > 0
    keyed(queue, items, (d) => JSON.stringify([d.key, d.due, d.tries]), (d) => ({ node: waitingRow(id, d) }))
  }
  const retry = () => change('retry', { query: waiting }, false)

  // showFailure says what the destination answered last, if it does not take its
  // deliveries.
  function showFailure(d, tone) {
    const said = saidBy(d)
    failure.hidden = !said
    failure.dataset.tone = tone
    const key = `${said} ${d.failure?.source} ${d.failure?.id}`
    if (said && failure.dataset.key !== key) {
      failure.dataset.key = key
      replace(failure, el('b', {}, said), el('span', {}, when, ' · ', el('a', { href: deliveryRoute(id, d.failure) }, 'the delivery')))
    }
    text(when, whenLine(d))
  }

  function show(d) {
    const h = words.health(d)
    updatePill(state, h.word, h.tone)
    text(why, [h.why, d.held?.since && `Since ${moment(d.held.since)}.`,
      d.held?.until && `${d.held.hold === 'failing' ? 'Tried' : 'Looked up'} again ${soon(d.held.until)}.`].filter(Boolean).join(' '))
    showFailure(d, h.tone)
    toggle.update(d)
    now.hidden = d.paused || d.state === 'unknown' || d.waiting === 0
    went.update(compact(d.delivered), '', `since the start; ${rate(d.rates.delivered)}/s now`)
    waits.update(compact(d.waiting), '', d.oldest ? `oldest due ${since(d.oldest)} ago` : `${count(d.inFlight)} in flight`)
    next.update(d.next && !d.paused ? soon(d.next) : '–', '', d.paused ? 'once it is resumed' : d.next ? moment(d.next) : d.inFlight ? `${count(d.inFlight)} in flight` : 'nothing to do')
    again.update(compact(d.retried), '', `since the start; ${rate(d.rates.retried)}/s now`)
    died.update(d.deadLetters === undefined ? '–' : compact(d.deadLetters), '', `kept; ${count(sum(d.dead))} given up since the start${sum(d.dead) > d.deadLetters ? ', with those retried or discarded since' : ''}`)
    revive.hidden = d.deadLetters === 0
    text(revive, d.deadLetters === undefined ? 'Retry dead letters…' : `Retry ${plural(d.deadLetters, 'dead letter')}…`)
    const measured = d.latency.requests > 0
    speed.update(measured ? span(d.latency.p50) : '–', '', measured ? `p99 ${span(d.latency.p99)}` : 'no request yet')
    errors.update(d.errors)
    dead.update(d.dead)
    const more = d.sourceCount - d.sources.length
    const wanted = [
      ['Endpoints', d.endpoints.map((e) => el('div', {}, el('span', { class: 'mono' }, e.url), e.headers?.length > 0 && el('small', {}, ` with ${e.headers.join(', ')}`)))],
      ['Signed', [d.signed && 'X-Signature', d.standard && 'Standard Webhooks'].filter(Boolean).join(' and ') || 'no: without a secret, receivers cannot tell who sends'],
      ['Filter', [...(d.settings?.filter?.include ?? []).map((p) => `only ${p}`), ...(d.settings?.filter?.exclude ?? []).map((p) => `not ${p}`)].join(', ') || 'none'],
      ['Times', [d.settings?.timeout && `${d.settings.timeout} for an attempt`, d.settings?.window && `attempted for ${d.settings.window}`, d.settings?.schedule].filter(Boolean).join(', ') || 'the default'],
      ['Limits', [d.maxConcurrent && `${d.maxConcurrent} at a time`, d.maxRate && `${d.maxRate} a second`].filter(Boolean).join(', ') || 'the default'],
      ['Batches', words.batches(d.settings?.batch)],
      d.tenant ? ['Tenant', d.tenant] : ['Sources', [...d.sources, more > 0 && `${count(more)} more`].filter(Boolean).join(', ') || 'none'],
      ...(d.stored ? [['Changed', [time(d.stored.changed), ` by ${d.stored.by}`]]] : []),
    ]
    manage(d)
    const key = JSON.stringify([d.endpoints, d.signed, d.standard, d.maxConcurrent, d.maxRate, d.sources, more, d.settings, d.stored])
    if (facts.dataset.key !== key) {
      facts.dataset.key = key
      replace(facts, wanted.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))))
    }
  }

  // manage offers to change what is stored, if the configuration does not name it.
  function manage(d) {
    const key = JSON.stringify([Boolean(d.stored), d.enabled, d.settings?.standardSecrets])
    if (managed.dataset.key === key) return
    managed.dataset.key = key
    const button = (word, onclick, kind = 'small') => el('button', { type: 'button', class: kind, onclick }, word)
    const secrets = d.settings?.standardSecrets ?? 0
    replace(managed, !d.stored ? el('span', { class: 'note' }, d.tenant ? 'its tenant changes them' : d.settings ? 'from the configuration file' : '') : [
      el('a', { class: 'button small', href: `${route('destinations', id)}/edit` }, 'Edit'),
      button(d.enabled ? 'Disable' : 'Enable', () => alter('PATCH', '', { disabled: d.enabled })),
      button('New secret…', addSecret),
      secrets > 1 && button('Forget old secrets', () => alter('DELETE', '/secrets')),
      button('Delete…', () => deleteDestination(d, signal)),
    ])
  }

  // alter changes what is stored, and shows what it is now.
  async function alter(method, path, body) {
    replace(changed)
    try {
      const now = await write(method, `destinations/${segment(id)}${path}`, { body, signal })
      if (now.id) show(now)
      return now
    } catch (error) {
      if (!signal.aborted) replace(changed, notice(problem(error)))
    }
  }

  async function addSecret() {
    const means = 'It signs beside those that there are, which stay valid until you forget them here: give the new one to the receiver first.'
    if (!await confirm('Make a new secret?', means, 'Make a new secret', 'calm')) return
    const made = await alter('POST', '/secrets')
    if (made) showSecret(made.secret, made.valid > 1 ? 'The others stay valid until they are forgotten.' : '')
  }

  const content = {
    '': () => [
      el('div', { class: 'figures' }, went.node, waits.node, next.node, again.node, died.node, speed.node),
      panel('Deliveries', { actions: ranges }, flow.node),
      queuePanel,
      panel('Latest events', { actions: el('a', { href: `#/events?destination=${encodeURIComponent(id)}` }, 'Watch live') }, recent, none),
    ],
    settings: () => [settled],
    trouble: () => [
      el('div', { class: 'pair' }, panel('Why requests fail', { note: 'last hour' }, errors.node), panel('Why deliveries died', { note: 'since the start, with those retried or discarded since' }, dead.node)),
      panel('Latency', { actions: ranges, note: 'of requests' }, latency.node),
      panel('Waiting', {}, backlog.node),
    ],
  }

  every(1_000, async () => {
    const d = await get(`destinations/${segment(id)}`, {}, signal)
    show(d)
    return hurry(failed(d))
  })
  if (tab !== 'settings') every(1_000, refreshSeries)
  if (tab === '') every(2_000, refreshQueue)
  if (tab === '') every(2_000, async () => {
    const { events } = await get('events', { destination: id, limit: narrow() ? 5 : 20 }, signal)
    none.hidden = events.length > 0
    recent.hidden = events.length === 0
    keyed(rows, events, (e) => e.seq, (e) => ({ node: eventRow(e) }))
  })

  return {
    title: id,
    node: el('div', {},
      el('div', { class: 'head' },
        el('div', {}, el('nav', { class: 'crumbs', 'aria-label': 'Path' }, el('a', { href: '#/destinations' }, 'Destinations')),
          el('h1', {}, id, ' ', state), why),
        el('div', { class: 'actions' }, el('a', { class: 'button', href: `#/test?destination=${encodeURIComponent(id)}` }, 'Send a sample'), toggle.node, revive, now)),
      failure, changed,
      tabs('About this destination', parts, tab, (name) => route('destinations', id, ...(name ? [name] : []))),
      ...(content[tab] ?? content[''])()),
  }
}

function eventRow(e) {
  const [word, tone] = words.happened(e)
  return el('tr', {},
    el('td', { class: 'when' }, time(e.at, true)),
    el('td', {}, pill(word, tone)),
    el('td', {}, e.type),
    el('th', { scope: 'row', class: 'mono' }, el('a', { href: deliveryRoute(e.destination, e) }, e.id)),
    el('td', { class: 'detail' }, detail(e)))
}

function waitingRow(destination, d) {
  return el('tr', {},
    el('td', { class: 'when' }, d.state === 'behind' ? 'behind another' : time(d.due)),
    el('td', {}, d.type, d.event && el('small', {}, d.event)),
    el('th', { scope: 'row', class: 'mono' }, el('a', { href: deliveryRoute(destination, d) }, d.id), d.user && el('small', {}, d.user)),
    el('td', { class: 'n' }, d.tries),
    el('td', { class: 'detail' }, lastAnswer(d)))
}

// detail says the rest of an event in one line.
export function detail(e) {
  switch (e.kind) {
    case 'accepted':
      return words.about(e.body)
    case 'attempt':
      return [e.attempt.status || '', e.attempt.reason ? words.reason(e.attempt.reason) : '', span(e.attempt.took),
        e.due && `again at ${moment(e.due)}`].filter(Boolean).join(' · ')
    case 'dead':
      return words.reason(e.reason)
    default:
      return e.attempt ? [e.attempt.status, span(e.attempt.took)].filter(Boolean).join(' · ') : ''
  }
}
