// The event tester: samples sent now, past the queue, to see what a receiver
// makes of them.
import { get, post } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { plural, span } from '../kit/format.js'
import { plain, pretty } from '../kit/json.js'
import { destinationInput, field, notice, pill, problem } from '../parts.js'
import * as words from '../words.js'

export default function tester({ query, signal, keys }) {
  const { input: destination, list: offered } = destinationInput({ placeholder: 'Type a part of its name', value: query.get('destination') ?? '' }, signal)
  const url = el('input', { type: 'url', placeholder: 'https://example.com/hook', spellcheck: 'false', autocomplete: 'url' })
  const where = el('input', { type: 'radio', name: 'to', value: 'destination', checked: true })
  const there = el('input', { type: 'radio', name: 'to', value: 'url' })
  const destinationField = field('Destination', [destination, offered], 'Its endpoints, headers and secrets are used.')
  const urlField = field('URL', url, 'Without a signature, as there is no secret for it.')
  const types = words.callTypes.map((t) => el('input', { type: 'checkbox', value: t, checked: true }))
  const send = el('button', { class: 'primary' }, 'Send')
  const results = el('div', { class: 'results' })
  const wrong = el('div', { class: 'wrong' })

  const showFields = () => {
    destinationField.hidden = !where.checked
    urlField.hidden = where.checked
  }
  where.addEventListener('change', showFields)
  there.addEventListener('change', showFields)
  showFields()

  const form = el('form', { class: 'panel form' },
    el('fieldset', { class: 'segmented' }, el('legend', { class: 'hidden' }, 'Send to'),
      el('label', {}, where, el('span', {}, 'A destination')), el('label', {}, there, el('span', {}, 'A URL'))),
    destinationField, urlField,
    el('fieldset', { class: 'types' }, el('legend', {}, 'Types'), types.map((input) => el('label', { class: 'check' }, input, input.value))),
    wrong,
    el('div', { class: 'actions' }, send))

  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    replace(wrong)
    const ofTenant = where.checked && /\/[a-z0-9]{24}$/.test(destination.value.trim()) // it gets webhook.test
    const chosen = ofTenant ? [] : types.filter((t) => t.checked).map((t) => t.value)
    const to = where.checked ? { destination: destination.value.trim() } : { url: url.value.trim() }
    if (!Object.values(to)[0]) return replace(wrong, notice(where.checked ? 'Choose a destination.' : 'Give a URL, such as http://localhost:9000/hook.'))
    if (chosen.length === 0 && !ofTenant) return replace(wrong, notice('Choose at least one type.'))
    send.disabled = true
    replace(results, el('p', { class: 'none' }, 'Sending…'))
    try {
      const { exchanges } = await post('test', { ...to, types: chosen }, signal)
      const first = exchanges.find((e) => e.outcome !== 'delivered')
      replace(results, exchanges.map((e) => exchange(e, e === first)))
      const taken = exchanges.filter((e) => e.outcome === 'delivered').length
      say(`${taken} of ${plural(exchanges.length, 'request')} taken`)
    } catch (error) {
      if (signal.aborted) return
      replace(results)
      replace(wrong, notice(problem(error)))
    }
    send.disabled = false
  })

  keys({ s: ['Send', () => form.requestSubmit()] })
  // The only one that there is need not be chosen.
  get('destinations', { limit: 1 }, signal).then(({ items, total }) => {
    if (total === 1 && !destination.value) destination.value = items[0].id
  }, () => {})

  return {
    title: 'Tester',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Tester'), el('p', { class: 'lead' }, 'Sends a sample of each type of call now, past the queue. Nothing is stored, and nothing is retried.'))),
      el('div', { class: 'tester' }, form, results)),
  }
}

// exchange shows one request and its answer, folded unless it is to be open.
export function exchange(e, open = e.outcome !== 'delivered') {
  const [word, tone] = words.outcomes[e.outcome] ?? [e.outcome, 'idle']
  return el('details', { class: 'panel exchange', open },
    el('summary', {},
      el('b', { class: 'type' }, e.type), el('span', { class: 'mono where' }, e.endpoint),
      el('span', { class: 'status' }, e.status || '—'), el('span', { class: 'ms' }, span(e.timing.total)), pill(word, tone)),
    (e.reason || e.error) && notice(`${words.reason(e.reason)}${e.reason ? ': ' : ''}${e.error ?? words.explain(e.reason)}`, tone === 'warn' ? 'warn' : 'bad'),
    timing(e.timing),
    el('div', { class: 'pair' },
      el('section', {}, el('h2', {}, 'Request'), headers(e.headers), pretty(e.body, `Body of the ${e.type} request`)),
      el('section', {}, el('h2', {}, 'Answer'), e.got?.length > 0 && headers(e.got),
        e.answer ? plain(e.answer, `First bytes of the answer to ${e.type}`) : el('p', { class: 'none' }, e.status ? 'No body.' : 'There was none.'))))
}

const headers = (list) => el('dl', { class: 'headers' }, list.map((h) => el('div', { class: /signature/i.test(h.name) && 'marked' }, el('dt', {}, h.name), el('dd', {}, h.value))))

// timing is where the time went, as parts of one bar. What is not known has
// none.
function timing(t) {
  const points = [['Name', t.resolved], ['Connection', t.connected], ['TLS', t.secured], ['Answer', t.firstByte], ['Rest', t.total]].filter(([, at]) => at > 0)
  let before = 0
  const parts = points.map(([name, at], i) => {
    const took = Math.max(0, at - before)
    before = Math.max(before, at)
    return { name, took, tone: i }
  })
  return el('div', { class: 'timing' },
    el('div', { class: 'strip', 'aria-hidden': 'true' }, parts.map((p) => {
      const part = el('span', { 'data-part': p.name })
      part.style.setProperty('--part', p.took)
      return part
    })),
    el('ul', {}, parts.map((p) => el('li', { 'data-part': p.name }, `${p.name} ${span(p.took)}`)), el('li', {}, el('b', {}, `${span(t.total)} in all`))))
}
