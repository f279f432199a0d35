// What is to be true of the webhook of a call.
import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'

// marker is what tells the webhook of one call from those of all others.
export function marker(o) {
  return o.userId ?? o['User ID'] ?? o.anonymousId
}

const isoTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

// webhookId is the webhook-id of a source's message, as the comment of webhook.Delivery.ID says.
function webhookId(source, messageId) {
  if (source.length > 127) throw new Error('the length takes more than one byte')
  const length = Buffer.of(Buffer.byteLength(source))
  return createHash('sha256').update(length).update(source).update(messageId).digest().subarray(0, 18).toString('base64url')
}

// problems returns what is wrong with the webhooks that one call of a source led to, and
// nothing if all is well. Headers are the static ones; adds and drops tell what
// the client itself changes.
export function problems({ call, forwarded }, webhooks, { source, headers, adds = {}, drops = [] }) {
  if (!forwarded) return webhooks.length ? [`arrived ${times(webhooks.length)}, though it is switched off`] : []
  if (webhooks.length !== 1) return [`arrived ${times(webhooks.length)}`]

  const found = []
  const expect = (what, got, want) => {
    if (!isDeepStrictEqual(got, want)) found.push(`${what} is ${show(got)}, want ${show(want)}`)
  }
  const [{ headers: got, body, signed, standard, arrived }] = webhooks
  expect('the signature', signed ? 'good' : 'wrong', 'good')
  found.push(...standard)
  expect('webhook-id', got['webhook-id'], webhookId(source, body.messageId))
  expect('signatures by Standard Webhooks', got['webhook-signature']?.split(' ').length, 2)
  expect('User-Agent', got['user-agent'], 'Hookferry/1.0')
  expect('Content-Type', got['content-type'], 'application/json')
  for (const [name, value] of Object.entries(headers)) expect(name, got[name.toLowerCase()], value)

  expect('version', body.version, 1)
  expect('type', body.type, call.type)
  if (call.type === 'alias') {
    expect('User ID', body['User ID'], call.userId)
    expect('Previous ID', body['Previous ID'], call.previousId)
    expect('userId', 'userId' in body, false)
  } else {
    expect('userId', body.userId, call.userId ?? null)
  }
  if (call.anonymousId !== undefined) expect('anonymousId', body.anonymousId, call.anonymousId)
  for (const field of ['event', 'name', 'category', 'groupId']) {
    if (call[field] !== undefined && !drops.includes(field)) expect(field, body[field], call[field])
  }
  // Some clients add members of their own to the context, and to the
  // properties of pages and screens.
  for (const field of ['properties', 'traits', 'context']) {
    const want = call[field] ?? {}
    const members = body[field] ?? {}
    const allowed = field === 'properties' && call.type !== 'page' && call.type !== 'screen' ? [] : adds[field] ?? []
    for (const key of new Set([...Object.keys(want), ...Object.keys(members)])) {
      if (key in want) expect(`${field}[${show(key)}]`, members[key], want[key])
      else if (!allowed.includes(key)) found.push(`${field}[${show(key)}] was added`)
    }
  }
  expect('context.library', typeof body.context?.library?.name, 'string')

  for (const field of ['timestamp', 'originalTimestamp', 'receivedAt', 'sentAt']) {
    expect(`${field} in its form`, isoTime.test(body[field]) || body[field], true)
  }
  if (call.timestamp !== undefined) expect('originalTimestamp', body.originalTimestamp, call.timestamp)
  const skew = Math.abs(new Date(body.timestamp) - new Date(call.timestamp ?? arrived))
  if (!(skew < 60_000)) found.push(`timestamp is ${body.timestamp}, ${skew} ms from ${call.timestamp ?? 'now'}`)
  expect('messageId', typeof body.messageId === 'string' && body.messageId !== '', true)
  for (const field of ['writeKey', '_metadata', 'integrations', 'channel', 'batch']) {
    if (field in body) found.push(`${field} was forwarded`)
  }
  return found
}

const times = (n) => (n === 0 ? 'not at all' : `${n} times`)

function show(value) {
  const text = JSON.stringify(value) ?? String(value)
  return text.length > 120 ? text.slice(0, 117) + '...' : text
}
