// One delivery: its attempts, its body, and what happens next.
import { get, may, send } from '../api.js'
import { el, replace, text } from '../kit/dom.js'
import { soon } from '../kit/format.js'
import { segment } from '../kit/http.js'
import { plain, pretty } from '../kit/json.js'
import { attempts, notice, panel, pill, route, time, updatePill } from '../kit/parts.js'
import { t } from '../kit/text.js'
import { explain, reason, states } from '../kit/words.js'
import { busy } from '../parts.js'

export default function delivery({ delivery: id, every, watched, signal }) {
  const path = `deliveries/${segment(id)}`
  const name = el('span', {}, '…')
  const state = pill('', 'idle')
  const lead = el('p', { class: 'lead' })
  const wrong = el('div', { class: 'wrong' })
  const list = el('div', {})
  const body = el('div', {})
  const facts = el('dl', { class: 'facts' })
  const again = el('button', { type: 'button', class: 'primary', hidden: true, onclick: () => busy(again, wrong, async () => {
    const { changed, claimed } = await send('POST', `${path}/resend`, {})
    replace(wrong, notice(changed > 0 ? t('It is sent again now.') : claimed > 0 ? t('It is being sent at the moment.') : t('It waits behind another event, and is sent after that.'), 'ok'))
    if (changed > 0 && was === 'dead') leave() // it is a new delivery now
    else await load()
  }) })
  const [endpoint] = id.split('.')

  // leave shows that the delivery is not there any more. What is shown of it stays.
  let gone = false
  function leave() {
    gone = again.hidden = true
    updatePill(state, t('Not there any more'), 'idle')
    replace(lead, t('It was sent again as a new delivery, or it is too long ago.'), ' ', el('a', { href: route('endpoints', endpoint) }, t('To the log')))
  }

  let seen = ''
  let was = ''
  async function load() {
    if (gone) return
    let d
    try {
      d = await get(path, {}, signal)
    } catch (error) {
      if (error.status !== 404) throw error
      return leave()
    }
    if (d.state === 'delivered' && was !== 'delivered') replace(wrong) // what was said of sending it again
    was = d.state
    const [word, tone] = states[d.state] ?? [d.state, 'idle']
    updatePill(state, d.state === 'dead' ? t('Failed') : t(word), tone)
    text(name, d.type)
    text(lead, next(d))
    const now = JSON.stringify(d)
    if (now === seen) return
    seen = now
    again.hidden = !may('resend') || d.state === 'behind' || d.state === 'claimed'
    text(again, d.state === 'waiting' ? t('Send now') : t('Resend'))
    replace(list, attempts({ attempts: d.attempts.map((a) => ({ ...a, endpoint: a.url })), accepted: d.accepted, ended: d.ended }))
    replace(body, pretty(d.body, t('Body')))
    const fact = (what, value) => value && el('div', {}, el('dt', {}, what), el('dd', {}, value))
    const last = d.attempts.at(-1)
    replace(facts, fact('webhook-id', el('span', { class: 'mono' }, d.webhookId)), fact(t('Accepted'), time(d.accepted, true)),
      fact(t('Ended'), d.ended && time(d.ended, true)), fact(t('Tried until'), d.expires && d.state !== 'dead' && time(d.expires)),
      fact(t('Headers'), last?.headers && plain(last.headers.trim(), t('Headers'))))
    if (d.behind) facts.append(fact(t('Behind'), [t('{n} events with the same key. First: ', { n: d.behind.count }), el('a', { href: route('deliveries', d.behind.first.id) }, d.behind.first.type)]))
  }

  every(1_000, watched(load))
  return {
    title: t('Delivery'),
    node: el('div', {},
      el('div', { class: 'head' },
        el('div', {}, el('nav', { class: 'crumbs', 'aria-label': t('Path') }, el('a', { href: '#/' }, t('Endpoints')), el('a', { href: route('endpoints', endpoint) }, t('Deliveries'))), el('h1', {}, name, ' ', state), lead),
        el('div', { class: 'actions' }, again)),
      wrong,
      el('div', { class: 'story' }, el('div', {}, panel(t('Attempts'), {}, list)), el('div', {}, panel(t('Body'), {}, body), panel(t('Facts'), {}, facts)))),
  }
}

// next says what became of a delivery, or what happens next.
function next(d) {
  switch (d.state) {
    case 'delivered': return t('It was taken.')
    case 'dead': return `${reason(d.reason)}. ${explain(d.reason)}`
    case 'claimed': return t('It is being sent.')
    case 'behind': return t('It is sent after the events with the same key before it.')
    default: return Date.parse(d.due) > Date.now() ? t('The next attempt is {when}.', { when: soon(d.due) }) : t('It waits for its turn.')
  }
}
