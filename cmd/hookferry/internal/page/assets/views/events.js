// What happens, as it happens.
import { get, stream, ConnectionError } from '../api.js'
import { el, replace, say, set, text } from '../kit/dom.js'
import { clock, count } from '../kit/format.js'
import { pretty } from '../kit/json.js'
import { bound, List } from '../list.js'
import { attempts, deliveryRoute, destinationInput, origin, problem, route, searchInput, sendCommand, setOptions, time } from '../parts.js'
import * as words from '../words.js'
import { detail } from './destination.js'

// past is how many of the events before are shown.
const past = 500

export default function events({ query, every, onStatus, signal, keys }) {
  const send = sendCommand()
  onStatus(send.update)
  const filter = {
    kind: query.getAll('kind'),
    destination: query.get('destination') ?? '',
    type: query.get('type') ?? '',
    q: query.get('q') ?? '',
  }

  const list = new List({ label: 'Events, newest first', make: makeRow, show: showRow, onOpen: open })
  const side = el('aside', { class: 'inspect', hidden: true, 'aria-label': 'The chosen event' })
  const state = el('p', { class: 'lead' })
  const empty = el('div', { class: 'empty', hidden: true })

  // The filter. The server applies it, so that what is rare is found in much.
  const kinds = Object.entries(words.kinds).map(([kind, [word, tone]]) => {
    const input = el('input', { type: 'checkbox', value: kind, checked: filter.kind.includes(kind), onchange: apply })
    return { input, node: el('label', { class: 'chip', 'data-tone': tone }, input, el('span', {}, word)) }
  })
  const { input: destination, list: offered } = destinationInput({ 'aria-label': 'Destination', placeholder: 'All destinations', value: filter.destination, onchange: apply }, signal)
  const type = el('select', { 'aria-label': 'Type', onchange: apply })
  setOptions(type, [['', 'All types'], ...words.bodyTypes], filter.type)
  const search = searchInput({ 'aria-label': 'A part of the id or the body', placeholder: 'Part of id or body', value: filter.q }, signal, apply)
  const pauseButton = el('button', { type: 'button', onclick: pause }, 'Pause')
  const clear = el('button', { type: 'button', onclick: () => { list.reset([]); close() } }, 'Clear')

  // What came while it is paused is kept, up to a bound, and shown at once.
  let paused = false
  let held = []
  let missed = 0
  let skipped = 0
  let perSecond = 0
  let connection = 'Connecting'

  function pause() {
    paused = !paused
    text(pauseButton, paused ? 'Resume' : 'Pause')
    set(pauseButton, 'class', paused ? 'primary' : null)
    say(paused ? 'Paused' : 'Resumed')
    if (!paused) {
      list.add(held)
      held = []
      missed = 0
    }
    tell()
  }

  function tell() {
    text(state, [connection, paused && `paused, ${count(held.length + missed)} more`, !paused && perSecond > 0 && `${count(perSecond)} a second`,
      skipped > 0 && `${count(skipped)} left out, as there were too many`].filter(Boolean).join(' · '))
    const none = list.items.length === 0
    empty.hidden = !none
    list.node.hidden = none
    if (none) {
      const filtered = filter.kind.length > 0 || filter.destination || filter.type || filter.q
      const key = filtered ? 'filtered' : 'all'
      if (empty.dataset.key !== key) {
        empty.dataset.key = key
        replace(empty, filtered
          ? [el('h2', {}, 'Nothing matches'), el('p', {}, 'No event that is kept matches the filter. New ones show up here as they happen.'), el('button', { type: 'button', onclick: everything }, 'Show all events')]
          : [el('h2', {}, 'Nothing has happened yet'), el('p', {}, 'Calls, and what becomes of them, show up here as they happen. Send one:'), send.node])
      }
    }
  }

  function everything() {
    for (const k of kinds) k.input.checked = false
    destination.value = type.value = search.value = ''
    apply()
  }

  function apply() {
    filter.kind = kinds.filter((k) => k.input.checked).map((k) => k.input.value)
    filter.destination = destination.value.trim()
    filter.type = type.value
    filter.q = search.value.trim()
    // The address has the filter, so that it can be sent to somebody.
    const query = new URLSearchParams()
    for (const [name, value] of Object.entries(filter)) for (const v of [value].flat()) if (v) query.append(name, v)
    history.replaceState(null, '', query.size > 0 ? `#/events?${query}` : '#/events')
    close()
    connect()
  }

  // What is kept, and then the stream from there. When the connection is lost,
  // the stream is taken up where it ended.
  let running = null
  async function connect() {
    running?.abort()
    running = new AbortController()
    const mine = AbortSignal.any([running.signal, signal])
    let fresh = true
    let newest
    held = []
    missed = 0
    skipped = 0
    for (let wait = 500; !mine.aborted; wait = Math.min(wait * 2, 5_000)) {
      try {
        if (fresh) {
          const { events, seq } = await get('events', { ...filter, limit: past }, mine)
          newest = seq
          list.reset(events.reverse())
          fresh = false
        }
        connection = 'Live'
        tell()
        await stream('GET', 'events/live', { parameters: { ...filter, after: newest }, signal: mine }, (values) => {
          wait = 500
          const came = []
          for (const { event, skipped: n } of values) {
            if (event) came.push(event)
            if (n) skipped += n
          }
          newest = came.at(-1)?.seq ?? newest
          receive(came)
        })
        connection = 'The stream ended, opening it again'
      } catch (error) {
        if (mine.aborted) return
        connection = error instanceof ConnectionError ? 'Connection lost, trying again' : problem(error)
      }
      tell()
      await new Promise((resolve) => setTimeout(resolve, wait))
    }
  }

  let counted = 0
  function receive(came) {
    if (came.length === 0) return
    counted += came.length
    if (paused) {
      held.push(...came)
      if (held.length > bound) {
        missed += held.length - bound
        held = held.slice(-bound)
      }
      return
    }
    list.add(came)
    if (list.node.hidden) tell()
  }

  function open(event) {
    side.hidden = false
    const back = deliveryRoute(event.destination, event)
    const [word, tone] = words.happened(event)
    replace(side,
      el('header', {}, el('h2', { 'data-tone': tone }, word), el('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: close }, '✕')),
      el('dl', { class: 'facts' },
        fact('When', time(event.at, true)),
        fact('Destination', el('a', { href: route('destinations', event.destination) }, event.destination)),
        fact('Delivery', el('span', { class: 'mono' }, event.id)),
        origin(event),
        event.reason && fact('Reason', `${words.reason(event.reason)}. ${words.explain(event.reason)}`),
        event.due && fact('Again at', time(event.due))),
      event.attempt && attempts({ attempts: [event.attempt] }),
      event.body && pretty(event.body, 'Body'),
      el('p', {}, el('a', { class: 'button', href: back }, 'The whole story')))
  }

  function close() {
    side.hidden = true
    list.chosen = null
    list.later()
  }

  keys({
    '/': ['Filter', () => search.focus()],
    ' ': ['Pause and resume', pause],
    j: ['Next', () => list.move(1)],
    k: ['Previous', () => list.move(-1)],
    Enter: ['The whole story of the chosen', () => { if (list.chosen) location.hash = deliveryRoute(list.chosen.destination, list.chosen) }],
    Escape: ['Close what is chosen', close],
  })

  every(1_000, async () => {
    perSecond = counted
    counted = 0
    tell()
  })
  connect()

  return {
    title: 'Events',
    node: el('div', { class: 'fill' },
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Events'), state), el('div', { class: 'actions' }, clear, pauseButton)),
      el('div', { class: 'filters', role: 'search' }, el('div', { class: 'chips', role: 'group', 'aria-label': 'Kinds' }, kinds.map((k) => k.node)), destination, offered, type, search),
      el('div', { class: 'split' }, el('div', { class: 'stream' }, list.node, empty), side)),
  }
}

const fact = (name, value) => el('div', {}, el('dt', {}, name), el('dd', {}, value))

function makeRow() {
  const row = el('div', { class: 'event' })
  row.cells = ['when', 'kind', 'type', 'to', 'detail', 'id'].map((c) => row.appendChild(el('span', { class: c })))
  return row
}

function showRow(e, row) {
  const [word, tone] = words.happened(e)
  row.dataset.tone = tone
  const values = [clock(e.at, true), word, e.type, e.destination, e.line ??= detail(e), e.id]
  values.forEach((v, i) => text(row.cells[i], v))
}
