// What the closed lists of deliveries mean, in words.
import { count, size } from './format.js'
import { n, t } from './text.js'

// Why a request failed, or a delivery was given up.
export const reasons = {
  timeout: [n('Timed out'), n('No complete answer within the time of one attempt.')],
  dns: [n('Name not resolved'), n('The host’s name could not be resolved.')],
  connection: [n('No connection'), n('The connection was refused, reset, closed or unreachable.')],
  protocol: [n('Not HTTP'), n('What came back is not HTTP, or is too large.')],
  certificate: [n('Bad certificate'), n('The certificate does not verify. No request was sent.')],
  address: [n('Address refused'), n('The address guard refused the address. No request was sent.')],
  authorize: [n('Not authorized'), n('The program could not get the credentials of the request. No request was sent.')],
  redirect: [n('Redirected'), n('The answer was 3xx. Redirects are not followed.')],
  throttled: [n('Throttled'), n('The answer was 408, 425 or 429.')],
  refused: [n('Refused'), n('The answer was a 4xx that says this delivery is wrong. It is not tried again.')],
  server_error: [n('Server error'), n('The answer was 5xx, or of no known class.')],
  expired: [n('Expired'), n('The retry window ended before an endpoint took the delivery.')],
  disabled: [n('Disabled'), n('The server had disabled the destination. No request was sent.')],
  backlog: [n('Backlog'), n('Too much waited for the destination, or for too long. No further request was sent.')],
  no_endpoint: [n('No endpoint'), n('The program said that the destination takes nothing. No request was sent.')],
}

export const reason = (code) => (reasons[code] ? t(reasons[code][0]) : code ?? '')
export const explain = (code) => (reasons[code] ? t(reasons[code][1]) : '')

// answered is what a failed request was answered, or why it was not, in one line. Of
// HTML it has the text.
export function answered(a) {
  const text = a.answer || a.error || ''
  const said = (/^\s*</.test(text) ? text.replace(/<[^>]*>?/g, ' ') : text).replace(/\s+/g, ' ').trim()
  if (said) return `${a.status || reason(a.reason)}: ${said}`
  return a.status ? `${a.status} ${reason(a.reason)}` : explain(a.reason) || reason(a.reason)
}

// batches says how many events a request to an endpoint has.
export const batches = (b) => (!b ? t('each event has a request of its own') : [
  t('up to {n} events in a request', { n: count(b.maxEvents) }), b.maxBytes > 0 && t('up to {size}', { size: size(b.maxBytes) }),
  b.maxWait && t('waiting up to {time} for more', { time: b.maxWait })].filter(Boolean).join(', '))

// The outcomes of attempts, and the states of deliveries: word and tone.
export const outcomes = {
  delivered: [n('Delivered'), 'ok'],
  retryable: [n('To be retried'), 'warn'],
  permanent: [n('Given up'), 'bad'],
  cut_off: [n('Cut off'), 'idle'],
}

export const states = {
  behind: [n('Behind another'), 'wait'],
  waiting: [n('Waiting'), 'wait'],
  claimed: [n('Being attempted'), 'in'],
  delivered: [n('Delivered'), 'ok'],
  dead: [n('Dead'), 'bad'],
}
