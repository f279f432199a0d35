// The calls that every client makes: legal content that careless code spoils.

// A text of each kind that encoders, templates and terminals trip over.
const texts = {
  accents: 'Zürich, Łódź, naïve',
  scripts: '東京 Ελλάδα עברית हिन्दी العربية',
  emoji: '👩‍👩‍👧‍👦 🏴‍☠️ 🇪🇺 é',
  separators: 'line\u2028paragraph\u2029end',
  html: `<script>alert("x" + '&amp;')</script>`,
  quotes: `"\\"/\\/'`,
  controls: '\u0000\u0001\b\t\n\u000b\f\r\u001f\u007f\u0080\u009f',
  edges: '\ud7ff\ue000\ufffd\ufffe\uffff\u{10000}\u{10ffff}\ufeff',
  empty: '',
  space: '  ',
  looksLikeJSON: '{"a":[1,2]}',
  looksLikeADate: '2015-02-10T00:00:00.000Z',
  looksLikeANumber: '1e3',
}

const numbers = [
  0, 1, -1, 0.1, -0.1, 1.5, 100, 1e20, 1e21, 1.5e300, 1e-6, 1e-7, 123456789.125,
  9007199254740991, -9007199254740991, 5e-324, 2.2250738585072014e-308,
  1.7976931348623157e308, 0.30000000000000004, 4.35, 1.0,
]

// Keys that are array indices come first, in numeric order, wherever a
// receiver parses them.
const keys = {
  10: 'ten',
  2: 'two',
  0: 'zero',
  '-1': 'minus one',
  '01': 'leading zero',
  1.5: 'fraction',
  4294967294: 'the last index',
  4294967295: 'no index any more',
  'with space': true,
  'with.dot': true,
  $dollar: true,
  schlüssel: true,
  '😀': true,
  '\u2028': true,
  '<&>': true,
  '"quoted"': true,
  UPPER: 1,
  upper: 2,
}

function nested(depth) {
  let value = { bottom: true }
  for (let i = 0; i < depth; i++) value = i % 2 ? [value] : { [`level ${depth - i}`]: value }
  return value
}

function nasty() {
  return {
    ...texts,
    numbers,
    keys,
    nested: nested(60),
    emptyObject: {},
    emptyArray: [],
    nothing: null,
    yes: true,
    no: false,
    mixed: [null, [], {}, '', 0, false, [[1]], { '': 'empty key' }],
  }
}

// callsFor returns the cases that a client sends. Each has a call, whose user
// id (or anonymous id) nobody else has, and forwarded, whether it is to arrive.
// The client says which types of call it has, and with lone whether it can
// send lone surrogates.
export function callsFor(client) {
  const cases = [
    ['identify', { type: 'identify', traits: nasty() }],
    ['identify, empty', { type: 'identify', traits: {} }],
    ['track', { type: 'track', event: 'Order Completed', properties: nasty() }],
    ['track, nasty name', { type: 'track', event: 'Käse & <Wein> "🧀"\u2028', properties: {} }],
    ['track, large', { type: 'track', event: 'Large', properties: { text: 'ß<&>\u2028😀'.repeat(800) } }],
    ['page', { type: 'page', name: 'Käse & Wein', category: 'Läden', properties: nasty() }],
    ['screen', { type: 'screen', name: 'Käse & Wein', properties: nasty() }],
    ['group', { type: 'group', groupId: 'gruppe-ß', traits: nasty() }],
    ['alias', { type: 'alias', previousId: 'früher <anonym>' }],
    ['context', {
      type: 'track',
      event: 'With Context',
      properties: { a: 1 },
      context: { app: { name: 'Käse', build: '1.0' }, ip: '203.0.113.7', custom: { ...texts, deep: nested(10) } },
    }],
    ['the past', { type: 'track', event: 'Long Ago', properties: {}, timestamp: '2019-03-04T05:06:07.089Z' }],
    ['switched off', { type: 'track', event: 'Off', integrations: { All: false, Other: true } }, false],
    ['switched off by name', { type: 'identify', traits: {}, integrations: { Webhooks: false } }, false],
    ['switched on by name', { type: 'track', event: 'On', integrations: { All: false, Webhooks: true } }],
    ['wrong case', { type: 'track', event: 'On', integrations: { all: false, webhooks: false } }],
  ]
  for (const type of ['track', 'identify', 'page', 'group']) {
    cases.push([`anonymous ${type}`, {
      type,
      anonymous: true,
      ...(type === 'track' && { event: 'Anonymous' }),
      ...(type === 'group' && { groupId: 'g' }),
      [type === 'track' || type === 'page' ? 'properties' : 'traits']: { known: false },
    }])
  }
  if (client.lone) {
    cases.push(['lone surrogates', {
      type: 'track',
      event: 'Broken \ud83d',
      properties: { high: '\ud83d', low: '\ude00', swapped: '\ude00\ud83d', 'key \udfff': 1 },
    }])
  }
  // Enough for several batches.
  for (let i = 0; i < 60; i++) {
    cases.push([`burst ${i}`, { type: 'track', event: 'Burst', properties: { i } }])
  }
  return cases
    .filter(([, call]) => client.types.includes(call.type) && (client.anonymous || !call.anonymous))
    .map(([name, { anonymous, ...call }, forwarded = true], i) => {
      call[anonymous ? 'anonymousId' : 'userId'] = `${client.id} ${i} ü`
      return { name, call, forwarded }
    })
}
