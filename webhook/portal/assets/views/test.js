// A test event: sent now, past the queue, to see what the endpoint answers.
import { may, send, settings, types } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { span } from '../kit/format.js'
import { plain, pretty } from '../kit/json.js'
import { labelled, notice, panel, pill, select } from '../kit/parts.js'
import { t } from '../kit/text.js'
import { explain, outcomes, reason } from '../kit/words.js'
import { form } from '../parts.js'

export default function test({ path, first }) {
  const free = !settings.catalogue
  const kind = free ? el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', value: 'test.event' }) : select(types.map((k) => k.type), first.types.find((k) => types.some(({ type }) => type === k)) ?? types[0]?.type)
  const about = el('div', {})
  const results = el('div', { class: 'results' })
  const go = el('button', { class: 'primary' }, t('Send the test'))
  function show() {
    const chosen = types.find((k) => k.type === kind.value)
    replace(about, chosen?.description && el('p', {}, chosen.description), chosen && pretty(chosen.example, t('Example')))
  }
  kind.addEventListener('change', show)
  show()
  const node = form({ type: labelled(t('Event'), kind, t('Its webhook-id begins with test_. It is sent once, and is in no log.')) }, [go], async () => {
    replace(results, el('p', { class: 'none' }, t('Sending…')))
    try {
      const { items } = await send('POST', `${path}/test`, { type: kind.value.trim() })
      replace(results, items.map(exchange))
      say(t(outcomes[items[0].outcome][0]))
    } catch (error) {
      replace(results)
      throw error
    }
  })
  return {
    node: el('div', {}, may('test') ? el('section', { class: 'panel', 'aria-label': t('Test') }, node, about) : el('p', { class: 'none' }, t('Tests are not allowed here.')), results),
  }
}

// exchange shows one request and its answer.
function exchange(e) {
  const [word, tone] = outcomes[e.outcome] ?? [e.outcome, 'idle']
  const why = e.reason && `${reason(e.reason)}: ${e.error || explain(e.reason)}`
  return panel(t('What it answered'), { actions: pill(t(word), tone) },
    el('p', {}, el('b', {}, e.status || '—'), ` · ${span(e.took)} · `, el('span', { class: 'mono' }, e.url)),
    why && notice(why, tone === 'warn' ? 'warn' : 'bad'),
    e.filtered && notice(t('It has not subscribed to events of this type, so it gets none but tests.'), 'warn'),
    el('div', { class: 'pair' },
      el('section', { class: 'form' }, el('h3', {}, t('Request')), headers(e.headers), pretty(e.body, t('Body'))),
      el('section', { class: 'form' }, el('h3', {}, t('Answer')), e.answerHeaders && headers(e.answerHeaders),
        e.answer ? plain(e.answer, t('Beginning of the answer')) : el('p', { class: 'none' }, e.status ? t('No body.') : t('There was none.')))))
}

const headers = (all) => el('dl', { class: 'headers' }, Object.entries(all).flatMap(([name, values]) => values.map((value) =>
  el('div', { class: /^webhook-/i.test(name) && 'marked' }, el('dt', {}, name.toLowerCase()), el('dd', {}, value)))))
