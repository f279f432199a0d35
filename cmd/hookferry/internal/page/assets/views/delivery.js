// The whole story of one delivery.
import { APIError, get } from '../api.js'
import { el, replace, text } from '../kit/dom.js'
import { plural, soon, tries } from '../kit/format.js'
import { pretty } from '../kit/json.js'
import { attempts, origin, panel, pill, route, time, updatePill } from '../parts.js'
import * as words from '../words.js'
import { change } from './deliveries.js'

export default function delivery({ destination, id, query, every, onStatus, signal }) {
  let kept = false // what was delivered
  onStatus((s) => { kept = s.config.history })
  const state = pill('', 'idle')
  const lead = el('p', { class: 'lead' })
  const facts = el('dl', { class: 'facts' })
  const list = el('div', {})
  const body = el('div', {})
  const actions = el('div', { class: 'actions' })
  const shown = panel('Attempts', {}, list)
  const content = el('div', { class: 'story', hidden: true }, el('div', {}, shown), el('div', {}, panel('Body', {}, body), panel('Facts', {}, facts)))
  const missing = el('div', { class: 'empty', hidden: true }, el('h2', {}, 'Nothing is known of this delivery'),
    el('p', {}, 'It does not wait, is no dead letter, and is not among what was delivered lately. What was delivered longer ago is known only if history.maxAge has it kept.'))

  let seen = ''
  every(1_000, async () => {
    let story
    try {
      story = await get('story', { destination, id, source: query.get('source') }, signal)
    } catch (error) {
      if (!(error instanceof APIError) || error.status !== 404) throw error
      missing.hidden = false
      content.hidden = true
      replace(actions)
      return
    }
    missing.hidden = true
    content.hidden = false
    const [word, tone] = words.states[story.state] ?? [story.state, 'idle']
    updatePill(state, word, tone)
    text(lead, story.state === 'dead' ? `Given up ${tries(story.tries)}: ${words.reason(story.reason).toLowerCase()}. ${words.explain(story.reason)}`
      : story.state === 'delivered' ? `Taken ${tries(story.tries)}.`
        : story.due ? `${plural(story.tries, 'try', 'tries')} so far; the next ${soon(story.due)}.` : 'It waits for its first try.')
    // What has not changed stays, with the focus and the selection in it.
    const now = JSON.stringify([story, kept])
    if (now === seen) return
    seen = now
    replace(list, story.state === 'delivered' && story.attempts.length === 0 ? el('p', { class: 'none' }, 'The attempts are not kept.') : attempts(story))
    const fact = (name, value) => value && el('div', {}, el('dt', {}, name), el('dd', {}, value))
    replace(facts, fact('Type', story.type), origin(story), fact('Accepted', story.accepted && time(story.accepted, true)),
      fact('Ended', story.ended && time(story.ended, true)), fact('Due', story.due && time(story.due)),
      fact('Trace', story.traceparent && el('span', { class: 'mono' }, story.traceparent)))
    replace(body, story.body === undefined ? el('p', { class: 'none' }, 'The body is not kept.') : pretty(story.body, 'Body of the webhook'))
    // What only the memory of the server has is named by its id.
    const selection = story.key ? { keys: [story.key] } : { query: { destination: [destination], id, state: [story.state] } }
    const known = { waiting: story.due, delivered: kept, dead: story.key }[story.state]
    replace(actions, story.state === 'delivered' && !kept && el('span', { class: 'note' }, 'It is not kept, and so cannot be sent again: set history.maxAge to keep what was delivered.'), known && [
      story.state !== 'delivered' && el('button', { type: 'button', onclick: () => change('discard', selection) }, 'Discard…'),
      el('button', { type: 'button', class: 'primary', onclick: () => change('retry', selection, false) }, { waiting: 'Retry now', delivered: 'Send again', dead: 'Retry' }[story.state]),
    ])
  })

  return {
    title: id,
    node: el('div', {},
      el('div', { class: 'head' },
        el('div', {}, el('nav', { class: 'crumbs', 'aria-label': 'Path' }, el('a', { href: '#/destinations' }, 'Destinations'), el('a', { href: route('destinations', destination) }, destination)),
          el('h1', { class: 'id' }, el('span', { class: 'mono' }, id), ' ', state), lead),
        actions),
      content, missing),
  }
}
