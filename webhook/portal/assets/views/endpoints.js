// All endpoints, and how they are.
import { get, may } from '../api.js'
import { el, keyed, replace, text } from '../kit/dom.js'
import { notice, pager, problem, route, table } from '../kit/parts.js'
import { hurry } from '../kit/shell.js'
import { t } from '../kit/text.js'
import { condition, said, statePill, taken } from '../parts.js'

export default function endpoints({ every, signal, watched }) {
  const rows = el('tbody', {})
  const list = table(t('Endpoints'), [t('Endpoint'), t('State'), t('Events'), t('Latest failure')], rows)
  const add = may('create') && el('a', { class: 'button primary', href: '#/new' }, t('Add an endpoint'))
  const empty = el('div', { class: 'empty', hidden: true }, el('h2', {}, t('No endpoints yet')),
    el('p', {}, t('An endpoint is a URL of yours that is told of events, such as a function of your server.')))
  const wrong = el('div', { class: 'wrong' })
  const pages = pager(() => load().catch((error) => { if (!signal.aborted) replace(wrong, notice(problem(error))) }))

  async function load() {
    const { items, after } = await get('endpoints', { limit: 25, after: pages.after() }, signal)
    replace(wrong)
    keyed(rows, items, (e) => e.id, () => row())
    list.hidden = items.length === 0
    empty.hidden = items.length > 0 || !pages.isFirst()
    pages.update(items.length, 0, after)
    return hurry(items.some((e) => e.failure))
  }

  function row() {
    const url = el('a', { class: 'mono' })
    const about = el('small', {})
    const state = el('td', {})
    const events = el('td', { class: 'wide' })
    const failure = el('td', { class: 'detail' })
    return {
      node: el('tr', {}, el('th', { scope: 'row' }, url, about), state, events, failure),
      update(e) {
        text(url, e.url)
        url.href = route('endpoints', e.id)
        text(about, e.description)
        if (state.dataset.state !== e.state) replace(state, statePill(e))
        state.dataset.state = e.state
        state.title = condition(e).why
        text(events, taken(e))
        text(failure, said(e).answer)
      },
    }
  }

  every(2_000, watched(load))
  return {
    title: t('Endpoints'),
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, t('Endpoints')), el('p', { class: 'lead' }, t('Your URLs that are told of events.'))), el('div', { class: 'actions' }, add)),
      wrong, el('section', { class: 'panel flush', 'aria-label': t('Endpoints') }, list, empty, pages.node)),
  }
}
