// What the closed lists of the API mean, in words.

export const callTypes = ['track', 'identify', 'page', 'screen', 'group', 'alias']
export const bodyTypes = [...callTypes, 'delete']

// Why a request failed, or a delivery was given up.
export const reasons = {
  timeout: ['Timed out', 'No complete answer within the time of one attempt.'],
  dns: ['Name not resolved', 'The host’s name could not be resolved.'],
  connection: ['No connection', 'The connection was refused, reset, closed or unreachable.'],
  protocol: ['Not HTTP', 'What came back is not HTTP, or is too large.'],
  certificate: ['Bad certificate', 'The certificate does not verify. No request was sent.'],
  address: ['Address refused', 'The address guard refused the address. No request was sent.'],
  authorize: ['Not authorized', 'The program could not get the credentials of the request. No request was sent.'],
  redirect: ['Redirected', 'The answer was 3xx. Redirects are not followed.'],
  throttled: ['Throttled', 'The answer was 408, 425 or 429.'],
  refused: ['Refused', 'The answer was a 4xx that says this delivery is wrong. It is not tried again.'],
  server_error: ['Server error', 'The answer was 5xx, or of no known class.'],
  expired: ['Expired', 'The retry window ended before an endpoint took the delivery.'],
  disabled: ['Disabled', 'The server had disabled the destination. No request was sent.'],
  no_endpoint: ['No endpoint', 'The program said that the destination takes nothing. No request was sent.'],
}

export const reason = (code) => reasons[code]?.[0] ?? code ?? ''
export const explain = (code) => reasons[code]?.[1] ?? ''

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

// answered is what a failed request was answered, or why it was not, in one line. Of
// HTML it has the text.
export function answered(a) {
  const text = a.answer || a.error || ''
  const said = (/^\s*</.test(text) ? text.replace(/<[^>]*>?/g, ' ') : text).replace(/\s+/g, ' ').trim()
  if (said) return `${a.status || reason(a.reason)}: ${said}`
  return a.status ? `${a.status} ${reason(a.reason)}` : explain(a.reason) || reason(a.reason)
}

// The kinds of events, and the states and outcomes of deliveries: word and tone.
export const kinds = {
  accepted: ['Accepted', 'in'],
  attempt: ['Attempt', 'warn'],
  delivered: ['Delivered', 'ok'],
  dead: ['Dead', 'bad'],
}

export const outcomes = {
  delivered: ['Delivered', 'ok'],
  retryable: ['To be retried', 'warn'],
  permanent: ['Given up', 'bad'],
  cut_off: ['Cut off', 'idle'],
}

// happened is the word of an event, and its tone: that of its outcome for an
// attempt.
export function happened(e) {
  const [word, tone] = kinds[e.kind] ?? [e.kind, 'idle']
  return [word, e.kind === 'attempt' ? outcomes[e.outcome]?.[1] ?? tone : tone]
}

export const states = {
  waiting: ['Waiting', 'wait'],
  claimed: ['Being attempted', 'in'],
  delivered: ['Delivered', 'ok'],
  dead: ['Dead', 'bad'],
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
