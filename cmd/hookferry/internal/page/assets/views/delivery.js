// The whole story of one delivery.
import { APIError, get, post, work } from '../api.js'
import { el, replace, text } from '../dom.js'
import { plural, soon, tries } from '../format.js'
import { job } from '../jobs.js'
import { pretty } from '../json.js'
import { attempts, origin, panel, pill, route, time, updatePill } from '../parts.js'
import * as words from '../words.js'
import { discard, replay } from './dead.js'

// resend sends a delivery again that was delivered and is kept.
export const resend = (destination, id) => job('Sending it again', async ({ onProgress, signal }) => {
  const last = await work('delivered/resend', { body: { destination, id }, signal }, onProgress)
  return last.done > 0 ? 'Sent again.' : 'It is not kept any more.'
})

// retry has the next try of a delivery that waits begin now.
const retry = (destination, id) => job('Retrying', async ({ signal }) => {
  const { changed, claimed } = await post('waiting/retry', { destination, id }, signal)
  return changed > 0 ? 'Due now.' : claimed > 0 ? 'It is being attempted.' : 'It does not wait for a later time.'
})

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
    replace(actions, story.state === 'waiting' && story.due && el('button', { type: 'button', class: 'primary', onclick: () => retry(destination, id) }, 'Retry now'),
      story.state === 'delivered' && (kept ? el('button', { type: 'button', class: 'primary', onclick: () => resend(destination, id) }, 'Send again')
        : el('span', { class: 'note' }, 'It is not kept, and so cannot be sent again: set history.maxAge to keep what was delivered.')), story.state === 'dead' && story.key && [
      el('button', { type: 'button', class: 'primary', onclick: () => replay({ keys: [story.key] }, 1) }, 'Replay'),
      el('button', { type: 'button', onclick: () => discard({ keys: [story.key] }, 1) }, 'Discard…'),
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
