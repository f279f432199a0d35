// What the closed lists of the API mean, in words, beside those of the kit.
import { outcomes } from './kit/words.js'
export * from './kit/words.js'

export const callTypes = ['track', 'identify', 'page', 'screen', 'group', 'alias']
export const bodyTypes = [...callTypes, 'delete']

// How a destination is, the worst first: its word, its tone, and what to say of it.
export const conditions = {
  failing: ['Failing', 'bad', 'One attempt after the other fails. It is probed at intervals while deliveries wait.'],
  refusing: ['Refusing', 'bad', 'It refuses deliveries for good: each becomes a dead letter at once.'],
  invalid: ['Invalid', 'bad', 'Its settings are not valid.'],
  unknown: ['Unknown', 'bad', 'Deliveries wait for it, but the configuration does not have it.'],
  lookup: ['Not found out', 'bad', 'Its settings could not be looked up.'],
  retrying: ['Retrying', 'warn', 'Some requests fail and are made again.'],
  paused: ['Paused', 'still', 'Somebody paused it. What comes in waits until it is resumed.'],
  waiting: ['Waiting', 'wait', 'Deliveries wait. No attempt has ended since the server started.'],
  ok: ['Healthy', 'ok', 'What is sent is taken.'],
  idle: ['Idle', 'idle', 'Nothing was sent to it since the server started.'],
  disabled: ['Disabled', 'still', 'The configuration has it disabled.'],
}

export function health(d) {
  const [word, tone, why] = conditions[d.state] ?? [d.state, 'idle', '']
  return { word, tone, why }
}

// troubled are the conditions that somebody should see to. noted are those that the
// overview names: a pause may have been forgotten.
export const troubled = Object.keys(conditions).filter((state) => conditions[state][1] === 'bad')
export const noted = [...troubled, 'paused']

// notedIn and troubledIn count such destinations, by the counts of states.
const total = (states, among) => among.reduce((n, state) => n + (states[state] ?? 0), 0)
export const notedIn = (states) => total(states, noted)
export const troubledIn = (states) => total(states, troubled)

// The kinds of events: word and tone.
export const kinds = {
  accepted: ['Accepted', 'in'],
  attempt: ['Attempt', 'warn'],
  delivered: ['Delivered', 'ok'],
  dead: ['Dead', 'bad'],
}

// happened is the word of an event, and its tone: that of its outcome for an
// attempt.
export function happened(e) {
  const [word, tone] = kinds[e.kind] ?? [e.kind, 'idle']
  return [word, e.kind === 'attempt' ? outcomes[e.outcome]?.[1] ?? tone : tone]
}

// about says in a few words what a webhook's body is about.
export function about(body) {
  if (!body || typeof body !== 'object') return ''
  const who = body.userId ?? body.anonymousId ?? body['User ID'] ?? ''
  const what = {
    track: body.event, page: body.name ?? body.properties?.path, screen: body.name,
    group: body.groupId, alias: body['Previous ID'] ?? body.previousId,
  }[body.type]
  return [what, who].filter((s) => s !== undefined && s !== '').join(' · ')
}
