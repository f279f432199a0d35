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
  redirect: ['Redirected', 'The answer was 3xx. Redirects are not followed.'],
  throttled: ['Throttled', 'The answer was 408, 425 or 429.'],
  refused: ['Refused', 'The answer was another 4xx.'],
  server_error: ['Server error', 'The answer was 5xx, or of no known class.'],
  expired: ['Expired', 'The window ended before an endpoint took the delivery.'],
}

export const reason = (code) => reasons[code]?.[0] ?? code ?? ''
export const explain = (code) => reasons[code]?.[1] ?? ''

// Why the deliveries of a destination wait.
export const holds = {
  paused: ['Paused', 'Somebody paused it. What comes in waits until it is resumed.'],
  disabled: ['Disabled', 'The configuration has it disabled.'],
  unknown: ['Unknown', 'Deliveries wait for it, but the configuration does not have it.'],
  invalid: ['Invalid', 'Its settings are not valid.'],
  lookup: ['Not found out', 'Its settings could not be looked up.'],
  failing: ['Failing', 'It failed too often in a row, and is probed at intervals.'],
}

// health is how a destination is: its word, its tone, and what to say of it.
export function health(d) {
  if (d.held) {
    const [word, why] = holds[d.held.hold] ?? [d.held.hold, '']
    return { word, why, tone: d.held.hold === 'paused' || d.held.hold === 'disabled' ? 'still' : 'bad' }
  }
  if (d.paused) return { word: holds.paused[0], why: holds.paused[1], tone: 'still' }
  if (!d.enabled) return { word: holds.disabled[0], why: holds.disabled[1], tone: 'still' }
  if (d.rates.retried > 0) return { word: 'Retrying', why: 'Some requests fail and are made again.', tone: 'warn' }
  if (d.delivered === 0 && !d.waiting) return { word: 'Idle', why: 'Nothing has been delivered to it yet.', tone: 'idle' }
  return { word: 'Healthy', why: 'What is sent is taken.', tone: 'ok' }
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
