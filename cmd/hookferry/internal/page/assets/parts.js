// Parts that are of this page alone, beside those of the kit.
import { get } from './api.js'
import { el, replace, text } from './kit/dom.js'
import { commandOf, newID, route } from './kit/parts.js'
export * from './kit/parts.js'

// deliveryRoute leads to the story of the delivery of an event. Sources may have the same ids.
export const deliveryRoute = (destination, { id, source }) =>
  route('destinations', destination, 'deliveries', id) + (source ? `?source=${encodeURIComponent(source)}` : '')

// origin are the facts of whose call a delivery is.
export const origin = ({ source, user, event }) => Object.entries({ Source: source, User: user, Event: event }).filter(([, value]) => value)
  .map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))

export const destinationLink = (id) => el('a', { href: route('destinations', id) }, id)

// sendCommand is a command that sends a call to the server, which update is told the
// status of. Where the sources have keys of their own it lacks one, as the hint says:
// no key is in an answer of the API.
export function sendCommand() {
  const code = el('code', {})
  const hint = el('small', { hidden: true })
  return {
    node: el('div', { class: 'send' }, commandOf(code), hint),
    update({ send, config }) {
      const key = send.data ? send.data !== 'hookferry-data' && `--data ${quoted(send.data)}` : '--write-key KEY'
      const to = send.endpoint !== 'http://localhost:8080' && `--endpoint ${send.endpoint}`
      text(code, ['hookferry send track', key, to, '--user u1 --event "Signed Up"'].filter(Boolean).join(' '))
      hint.hidden = Boolean(send.data)
      text(hint, config.file ? `KEY is one of sources[].keys in ${config.file}.` : 'KEY is the one of serve --write-key or HOOKFERRY_WRITE_KEY.')
    },
  }
}

// quoted is a text as a shell takes it.
const quoted = (word) => (/^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)

// destinationInput is a field for the id of a destination, sourceInput one for the
// name of a source. They offer those that have what is typed in them.
export const destinationInput = (properties, signal) => offeringInput(properties, signal, 'destinations', (d) => d.id)
export const sourceInput = (properties, signal) => offeringInput(properties, signal, 'sources', (s) => s.name)

function offeringInput(properties, signal, path, name) {
  const list = el('datalist', { id: newID('list') })
  const input = el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', list: list.id, ...properties })
  let typing
  let asked = 0
  const offer = async () => {
    const mine = ++asked
    try {
      const { items } = await get(path, { q: input.value.trim(), limit: 50 }, signal)
      if (mine === asked) replace(list, items.map((item) => el('option', { value: name(item) })))
    } catch { /* what is typed is good without an offer */ }
  }
  input.addEventListener('focus', offer)
  input.addEventListener('input', () => {
    clearTimeout(typing)
    typing = setTimeout(offer, 150)
  })
  return { input, list }
}
