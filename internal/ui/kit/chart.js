// A line chart over time, as SVG. It is read by pointer, by keyboard (it is a
// slider over time, so screen readers say what is at each step), and as a table.
import { el, replace, svg, set, text } from './dom.js'
import { clock, moment } from './format.js'

const right = 12
const above = 10
const below = 22

// Steps of the time axis, in milliseconds.
const ticks = [10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1.8e6, 3.6e6, 7.2e6, 10.8e6, 14.4e6, 21.6e6, 43.2e6, 86.4e6]

// chart makes one. series have the key in the API's Series, a name, a tone, and
// area for a filled one; show makes a text of a value. update takes a Series.
export function chart({ label, series, show, height = 190, unit = () => '' }) {
  const plot = svg('svg', {
    class: 'plot', height, tabindex: 0, role: 'slider', 'aria-label': `${label} over time`,
    'aria-valuemin': 0, 'aria-valuemax': 0, 'aria-valuenow': 0, 'aria-valuetext': 'no data yet',
  })
  const grid = svg('g', { class: 'grid' })
  const times = svg('g', { class: 'times' })
  const lines = series.map((s) => ({
    ...s,
    on: true,
    fill: s.area && svg('path', { class: 'area', 'data-tone': s.tone }),
    path: svg('path', { class: 'line', 'data-tone': s.tone }),
    dot: svg('circle', { class: 'dot', r: 3.5, 'data-tone': s.tone }),
  }))
  const cross = svg('line', { class: 'cross', y1: above, y2: height - below })
  const cursor = svg('g', { visibility: 'hidden' }, cross, lines.map((l) => l.dot))
  plot.append(grid, times, ...lines.map((l) => l.fill).filter(Boolean), ...lines.map((l) => l.path), cursor)

  const readout = el('div', { class: 'readout', hidden: true, 'aria-hidden': 'true' })
  const per = el('span', { class: 'note' })
  const legend = el('div', { class: 'legend', role: 'group', 'aria-label': `Lines of ${label}` }, lines.map((l) => {
    const button = el('button', { type: 'button', 'data-tone': l.tone, 'aria-pressed': 'true' }, el('i', { 'aria-hidden': 'true' }), l.name)
    button.addEventListener('click', () => {
      l.on = !l.on
      button.ariaPressed = String(l.on)
      draw()
    })
    return button
  }))
  const rows = el('tbody', {})
  const details = el('details', { class: 'as-table' }, el('summary', {}, 'As a table'),
    el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': `${label}, as a table` },
      el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Time'), lines.map((l) => el('th', { scope: 'col', class: 'n' }, l.name)))), rows)))
  details.addEventListener('toggle', () => fillTable())
  const frame = el('div', { class: 'frame' }, plot, readout)
  const node = el('div', { class: 'chart' }, frame, el('div', { class: 'below' }, legend, per), details)

  let data = null
  let width = 0
  let left = 0
  let at = -1 // the step that is read
  let x = () => 0
  let y = () => 0

  new ResizeObserver(([entry]) => {
    width = Math.round(entry.contentRect.width)
    set(plot, 'width', width)
    draw()
  }).observe(frame)

  const length = () => data?.[series[0].key].length ?? 0
  const timeAt = (i) => data.begin + i * data.step

  function draw() {
    if (!data || width < 80) return
    const n = length()
    const shown = lines.filter((l) => l.on)
    const top = ceiling(Math.max(0, ...shown.flatMap((l) => data[l.key])))
    const levels = [0, 0.5, 1].map((part) => [part * top, show(part * top)])
    left = 14 + 6.6 * Math.max(...levels.map(([, label]) => label.length))
    const w = width - left - right
    const h = height - above - below
    x = (i) => left + (n > 1 ? (i / (n - 1)) * w : w)
    y = (v) => above + h - (v / top) * h

    replace(grid, levels.map(([value, label]) => {
      const level = Math.round(y(value)) + 0.5
      return [
        svg('line', { x1: left, x2: width - right, y1: level, y2: level }),
        svg('text', { x: left - 8, y: level + 4, 'text-anchor': 'end' }, label),
      ]
    }))
    const whole = (n - 1) * data.step
    const every = ticks.find((t) => whole / t <= w / 90) ?? ticks.at(-1)
    replace(times, multiples(every, data.begin, data.begin + whole).map((t) => {
      const position = left + ((t - data.begin) / whole) * w
      if (position < left + 16 || position > width - right - 16) return null
      return svg('text', { x: position, y: height - 5, 'text-anchor': 'middle' }, every < 60e3 ? clock(t) : clock(t).slice(0, 5))
    }))
    for (const l of lines) {
      const d = l.on ? pathOf(l.area ? data[l.key] : busy(data[l.key]), x, y) : ''
      set(l.path, 'd', d)
      if (l.fill) set(l.fill, 'd', l.on ? areaOf(data[l.key], x, y) : '')
    }
    text(per, unit(data.step))
    if (at >= 0) read(Math.min(at, n - 1))
    set(plot, 'aria-valuemax', Math.max(0, n - 1))
    if (details.open) fillTable()
  }

  // read shows what is at one step.
  function read(i) {
    at = i
    const px = x(i)
    set(cross, 'x1', px)
    set(cross, 'x2', px)
    for (const l of lines) {
      const value = l.on ? data[l.key][i] : null
      set(l.dot, 'visibility', value == null ? 'hidden' : 'inherit')
      if (value != null) {
        set(l.dot, 'cx', px)
        set(l.dot, 'cy', y(value))
      }
    }
    set(cursor, 'visibility', 'visible')
    const shown = lines.filter((l) => l.on)
    replace(readout, el('b', {}, clock(timeAt(i))),
      shown.map((l) => el('span', { 'data-tone': l.tone }, el('i', {}), l.name, el('em', {}, data[l.key][i] == null ? '–' : show(data[l.key][i])))))
    readout.hidden = false
    const room = readout.offsetWidth
    readout.style.transform = `translateX(${px + 14 + room > width ? px - 14 - room : px + 14}px)`
    set(plot, 'aria-valuenow', i)
    set(plot, 'aria-valuetext', `${clock(timeAt(i))}: ${shown.map((l) => `${l.name} ${data[l.key][i] == null ? 'not known' : show(data[l.key][i])}`).join(', ')}`)
  }

  function leave() {
    at = -1
    readout.hidden = true
    set(cursor, 'visibility', 'hidden')
  }

  frame.addEventListener('pointermove', (event) => {
    if (!data || length() === 0) return
    const part = (event.clientX - frame.getBoundingClientRect().left - left) / (width - left - right)
    read(Math.round(Math.min(1, Math.max(0, part)) * (length() - 1)))
  })
  frame.addEventListener('pointerleave', () => { if (document.activeElement !== plot) leave() })
  plot.addEventListener('blur', leave)
  plot.addEventListener('focus', () => { if (length() > 0 && at < 0 && plot.matches(':focus-visible')) read(length() - 1) })
  plot.addEventListener('keydown', (event) => {
    const n = length()
    if (n === 0) return
    const from = at < 0 ? n - 1 : at
    const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1,
      PageDown: from - Math.ceil(n / 10), PageUp: from + Math.ceil(n / 10), Home: 0, End: n - 1 }[event.key]
    if (to === undefined) return
    event.preventDefault()
    read(Math.min(n - 1, Math.max(0, to)))
  })

  // fillTable has at most 30 rows, the newest first: it is for reading, and the
  // API has the numbers.
  function fillTable() {
    if (!details.open || !data) return
    const n = length()
    const every = Math.max(1, Math.ceil(n / 30))
    const picked = []
    for (let i = n - 1; i >= 0 && picked.length < 30; i -= every) picked.push(i)
    replace(rows, picked.map((i) => el('tr', {}, el('th', { scope: 'row' }, moment(timeAt(i))),
      lines.map((l) => el('td', { class: 'n' }, data[l.key][i] == null ? '–' : show(data[l.key][i]))))))
  }

  return {
    node,
    update(next) {
      data = trimmed(next, series.map((s) => s.key))
      draw()
    },
  }
}

// trimmed leaves out the last step, which is not over, and of the time before
// the server started all but what fills a minute of steps: then the first calls
// of a new server are more than a spike at the edge.
function trimmed(from, keys) {
  const n = from.accepted.length
  const known = from.accepted.findIndex((v) => v != null)
  const first = Math.max(0, Math.min(known < 0 ? n : known, n - 61))
  return { begin: Date.parse(from.start) + first * from.step, step: from.step, ...Object.fromEntries(keys.map((k) => [k, from[k].slice(first, -1)])) }
}

// ceiling is the end of the value axis: the next 1, 2, 4 or 10 of its size.
function ceiling(most) {
  if (most <= 0) return 2
  const size = 10 ** Math.floor(Math.log10(most))
  const top = [1, 2, 4, 6, 10].find((f) => f * size >= most) * size
  return top < 2 && Number.isInteger(most) ? 2 : top
}

// multiples are the local times between from and to that are round.
function multiples(step, from, to) {
  const zone = new Date(to).getTimezoneOffset() * 60e3
  const all = []
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) all.push(t)
  return all
}

// busy leaves out the zeros between zeros: a line along the axis is noise.
function busy(values) {
  return values.map((v, i) => (v === 0 && !values[i - 1] && !values[i + 1] ? null : v))
}

// pathOf draws the values that are known; a gap stays a gap.
function pathOf(values, x, y) {
  let d = ''
  let pen = false
  values.forEach((v, i) => {
    if (v == null) {
      pen = false
      return
    }
    d += `${pen ? 'L' : 'M'}${x(i).toFixed(1)} ${y(v).toFixed(1)}`
    if (!pen && values[i + 1] == null) d += 'h0' // a dot
    pen = true
  })
  return d
}

function areaOf(values, x, y) {
  let d = ''
  let begin = -1
  for (let i = 0; i <= values.length; i++) {
    const known = i < values.length && values[i] != null
    if (known) {
      d += `${begin < 0 ? `M${x(i).toFixed(1)} ${y(0).toFixed(1)}L` : 'L'}${x(i).toFixed(1)} ${y(values[i]).toFixed(1)}`
      if (begin < 0) begin = i
    } else if (begin >= 0) {
      d += `L${x(i - 1).toFixed(1)} ${y(0).toFixed(1)}Z`
      begin = -1
    }
  }
  return d
}
