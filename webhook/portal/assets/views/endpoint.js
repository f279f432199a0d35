// One endpoint: how it is, and four tabs about it.
import { get, may, send } from '../api.js'
import { el, replace, say, text } from '../kit/dom.js'
import { segment } from '../kit/http.js'
import { pill, route, tabs, updatePill } from '../kit/parts.js'
import { hurry } from '../kit/shell.js'
import { n, t } from '../kit/text.js'
import { busy, condition, said } from '../parts.js'
import deliveries from './deliveries.js'
import secret from './secret.js'
import settings from './settings.js'
import test from './test.js'

const parts = { '': [n('Deliveries'), deliveries], settings: [n('Settings'), settings], test: [n('Test'), test], secret: [n('Secret & code'), secret] }

export default function endpoint(context) {
  const { endpoint: id, tab = '', every, watched, signal } = context
  const path = `endpoints/${segment(id)}`
  const url = el('span', {}, '…')
  const state = pill('', 'idle')
  const lead = el('p', { class: 'lead' })
  const failure = el('div', { class: 'notice state', hidden: true }, el('b', {}), el('span', {}))
  const wrong = el('div', { class: 'wrong' })
  const toggle = el('button', { type: 'button', hidden: true, onclick: () => busy(toggle, wrong, async () => {
    replace(wrong)
    show(await send('PATCH', path, { version: now.version, enabled: !now.enabled }))
    say(now.enabled ? t('Enabled') : t('Disabled'))
  }) })
  const content = el('div', { class: 'tab' })
  let now = null // the endpoint as it was read last
  let made = null // the tab

  function show(e) {
    now = e
    const { word, tone, why } = condition(e)
    const { answer, when, advised, next } = said(e)
    text(url, e.url)
    document.title = document.title.replace(/^.*? · /, () => `${e.description || e.url} · `)
    updatePill(state, word, tone)
    text(lead, [e.description, why].filter(Boolean).join(' – '))
    failure.hidden = !answer
    failure.dataset.tone = tone === 'bad' ? 'bad' : 'warn'
    text(failure.firstChild, answer)
    text(failure.lastChild, [when, advised, next].filter(Boolean).join(' '))
    toggle.hidden = !may('change')
    text(toggle, e.enabled ? t('Disable') : t('Enable'))
    if (made) made.update?.(e)
    else {
      const [, view] = parts[tab] ?? parts['']
      made = view({ ...context, path, first: e, refresh: async () => show(await get(path, {}, signal)) })
      replace(content, made.node)
    }
  }

  every(1_000, watched(async () => {
    show(await get(path, {}, signal))
    return hurry(now.failure)
  }))
  return {
    title: t('Endpoint'),
    node: el('div', {},
      el('div', { class: 'head' },
        el('div', {}, el('nav', { class: 'crumbs', 'aria-label': t('Path') }, el('a', { href: '#/' }, t('Endpoints'))), el('h1', { class: 'url' }, url, ' ', state), lead),
        el('div', { class: 'actions' }, toggle)),
      wrong, failure,
      tabs(t('About this endpoint'), Object.fromEntries(Object.entries(parts).map(([name, [word]]) => [name, t(word)])), tab, (name) => route('endpoints', id, ...(name ? [name] : []))),
      content),
  }
}
