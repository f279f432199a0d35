// Parts that several views of the portal are made of.
import { APIError } from './kit/http.js'
import { el, replace } from './kit/dom.js'
import { moment, soon } from './kit/format.js'
import { notice, pill, problem, sentence } from './kit/parts.js'
import { n, t } from './kit/text.js'
import { answered } from './kit/words.js'

// How an endpoint is: its word, its tone, and what to say of it.
const states = {
  failing: [n('Failing'), 'bad', n('Its requests fail. Events are kept, and are sent as soon as it answers again, for some hours.')],
  refusing: [n('Refusing'), 'bad', n('It answers that events are wrong, so they are not sent again. Mend it, and then send again what failed.')],
  invalid: [n('Not ready'), 'warn', n('Its settings are not valid. Events wait.')],
  unknown: [n('Not ready'), 'warn', n('It is not in use yet. Events wait.')],
  lookup: [n('Not ready'), 'warn', n('Its settings cannot be read at the moment. Events wait.')],
  retrying: [n('Retrying'), 'warn', n('Some requests fail, and are made again.')],
  paused: [n('Paused'), 'still', n('Your provider has paused it. Events wait.')],
  waiting: [n('Waiting'), 'wait', n('Events wait for their first attempt.')],
  ok: [n('Healthy'), 'ok', n('It takes what is sent.')],
  idle: [n('No events yet'), 'idle', n('Nothing was sent to it lately.')],
  disabled: [n('Disabled'), 'still', n('Events wait until it is enabled.')],
}

export function condition(e) {
  const [word, tone, why] = states[e.state] ?? [e.state, 'idle', '']
  const because = e.state === 'disabled' && e.reason ? n('It was disabled because its requests kept failing. Events wait until it is enabled.') : why
  return { word: t(word), tone, why: t(because) }
}

export const statePill = (e) => pill(condition(e).word, condition(e).tone)

// advice says what to look at first, by the status of an answer.
const advice = {
  401: n('Look whether it has the secret of this endpoint.'),
  404: n('Look whether the path of the URL is right.'),
}

// said is what an endpoint answered last, if that was wrong, what to do, and what happens next.
export function said(e) {
  const next = e.next ? t('Tried again {when}.', { when: soon(e.next) }) : e.waiting > 0 ? t('{n} waiting.', { n: e.waiting }) : ''
  return { answer: e.failure ? answered(e.failure) : '', when: e.failure ? t('At {time}.', { time: moment(e.failure.at) }) : '', advised: t(advice[e.failure?.status] ?? ''), next }
}

// types says which events an endpoint takes.
export const taken = (e) => (e.types.length > 0 ? e.types.join(', ') : t('All events'))

// form is one whose fields say themselves what is wrong with them. fields are by the names that the
// API gives them. act returns once all is done.
export function form(fields, buttons, act) {
  const wrong = el('div', { class: 'wrong', role: 'alert' })
  const node = el('form', { class: 'form', novalidate: true }, Object.values(fields).map((f) => f.node), wrong, el('div', { class: 'actions' }, buttons))
  node.addEventListener('submit', async (event) => {
    event.preventDefault()
    for (const f of Object.values(fields)) f.fault(null)
    replace(wrong)
    await busy(buttons, wrong, act, (error) => {
      const faults = error instanceof APIError ? error.fields : []
      const ours = faults.filter((f) => fields[f.field])
      for (const f of ours) fields[f.field].fault(sentence(f.message))
      if (ours.length === 0) return false
      const first = fields[ours[0].field].control
      ;(first.tagName === 'FIELDSET' ? first.querySelector('input') : first).focus()
      return true
    })
  })
  return node
}

// busy calls act while the buttons cannot be pressed. What goes wrong is shown in wrong, unless handled
// shows it.
export async function busy(buttons, wrong, act, handled = () => false) {
  for (const b of [buttons].flat()) b.disabled = true
  try {
    await act()
  } catch (error) {
    if (!handled(error)) replace(wrong, notice(problem(error)))
  } finally {
    for (const b of [buttons].flat()) b.disabled = false
  }
}
