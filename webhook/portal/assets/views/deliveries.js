// The log of an endpoint: its deliveries, the newest first.
import { get, may, types, work } from '../api.js'
import { el, keyed, replace, text } from '../kit/dom.js'
import { plural, soon } from '../kit/format.js'
import { field, lastAnswer, notice, open, pager, pill, problem, route, select, table, time } from '../kit/parts.js'
import { n, t } from '../kit/text.js'
import { explain, reason, states } from '../kit/words.js'
import { busy } from '../parts.js'

const hours = { 1: n('Last hour'), 24: n('Last 24 hours'), 168: n('Last 7 days') }
const since = (h) => (h ? new Date(Date.now() - h * 3_600_000).toISOString() : undefined)
const ages = () => [['', t('Any time')], ...Object.entries(hours).map(([h, word]) => [h, t(word)])]

export const stateOf = (d) => {
  const [word, tone] = states[d.state] ?? [d.state, 'idle']
  return pill(d.state === 'dead' ? t('Failed') : t(word), tone)
}

export default function deliveries({ endpoint, path, every, signal, watched, refresh }) {
  const state = select([['', t('All states')], ...Object.entries(states).map(([s, [word]]) => [s, s === 'dead' ? t('Failed') : t(word)])], '', { 'aria-label': t('State') })
  const type = select([['', t('All types')], ...types.map((k) => k.type)], '', { 'aria-label': t('Type') })
  const age = select(ages(), '', { 'aria-label': t('Time') })
  const rows = el('tbody', {})
  const list = table(t('Deliveries'), [t('Event'), t('Accepted'), t('State'), [t('Tries'), 'n'], t('Last answer')], rows)
  const empty = el('p', { class: 'none', hidden: true })
  const wrong = el('div', { class: 'wrong' })
  const pages = pager(() => load().catch((error) => { if (!signal.aborted) replace(wrong, notice(problem(error))) }))
  const again = el('button', { type: 'button', hidden: !may('resend'), onclick: () => resend(path, () => Promise.all([load(), refresh()])) }, t('Resend what failed…'))

  let asked = 0
  async function load() {
    const mine = ++asked
    const { items, after } = await get('deliveries', { endpoint, state: state.value, type: type.value, from: since(Number(age.value)), limit: 25, after: pages.after() }, signal)
    if (mine !== asked) return
    replace(wrong)
    keyed(rows, items, (d) => JSON.stringify([d.id, d.state, d.tries, d.due]), (d) => ({ node: row(d) }))
    list.hidden = items.length === 0
    empty.hidden = items.length > 0
    const filtered = state.value || type.value || age.value
    text(empty, after ? t('None on this page; more may follow.') : filtered ? t('Nothing matches.') : t('Nothing was sent to it yet. Send a test event to see what it answers.'))
    pages.update(items.length, 0, after)
  }
  for (const control of [state, type, age]) control.addEventListener('change', () => pages.first())

  function row(d) {
    const why = d.state === 'dead' ? reason(d.reason) : d.state === 'waiting' && Date.parse(d.due) > Date.now() ? soon(d.due) : ''
    return el('tr', {},
      el('th', { scope: 'row' }, el('a', { href: route('deliveries', d.id) }, d.type), el('small', { class: 'mono' }, d.webhookId)),
      el('td', { class: 'when' }, time(d.accepted)),
      el('td', { title: explain(d.reason) }, stateOf(d), why && el('small', {}, why)),
      el('td', { class: 'n' }, d.tries),
      el('td', { class: 'detail' }, d.last ? lastAnswer({ attempts: [d.last] }) : ''))
  }

  // The first page follows what happens.
  every(2_000, watched(async () => { if (pages.isFirst()) await load() }))
  return {
    node: el('div', {},
      el('div', { class: 'filters', role: 'search' }, state, type, age, again),
      wrong, el('section', { class: 'panel flush', 'aria-label': t('Deliveries') }, list, empty, pages.node)),
  }
}

// resend asks since when, and sends again what failed since then.
function resend(path, after) {
  const { body, dialog } = open(t('Resend what failed'))
  const from = select(ages(), '24')
  const state = el('p', { role: 'status' })
  const wrong = el('div', { class: 'wrong' })
  const leaving = new AbortController()
  dialog.addEventListener('close', () => leaving.abort())
  const close = el('button', { type: 'button', onclick: () => dialog.close() }, t('Close'))
  const act = el('button', { type: 'button', class: 'primary', onclick: () => busy(act, wrong, async () => {
    replace(wrong)
    const told = (p) => text(state, p.total > 0 ? t('{n} of {total} sent again…', { n: p.changed, total: p.total }) : t('{n} sent again…', { n: p.changed }))
    const last = await work(`${path}/resend`, { since: since(Number(from.value)) }, told, leaving.signal)
    const message = last.changed > 0 ? t('{n} will be sent again now.', { n: plural(last.changed, t('delivery'), t('deliveries')) }) : t('Nothing failed since then.')
    text(state, message)
    await after()
  }, () => leaving.signal.aborted) }, t('Resend'))
  replace(body, el('p', {}, t('Each event that was given up, or waits for its next attempt, is sent now, with the webhook-id that it had.')),
    field(t('Accepted'), from), state, wrong, el('div', { class: 'actions' }, close, act))
  act.focus()
}
