// Numbers, times and sizes as texts. Times are shown in the time zone of the
// browser; their titles have UTC.

import { t } from './text.js'

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 })

export const count = (n) => whole.format(n ?? 0)

// compact is count in few characters: 123,456 is 123K. least is the smallest
// number that is shortened.
export const compact = (n, least = 100_000) => (n < least ? whole.format(n) : short.format(n))

// rate is a number per second.
export function rate(n) {
  if (!n) return '0'
  if (n < 0.1) return '<0.1'
  return n < 10 ? n.toFixed(1) : compact(Math.round(n))
}

// span is a duration of that many milliseconds.
export function span(ms) {
  if (ms == null) return '–'
  if (ms === 0) return '0 ms'
  if (ms < 10) return `${ms.toFixed(1)} ms`
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`
  const s = Math.round(ms / 1_000)
  if (s < 120) return `${s} s`
  const m = Math.round(s / 60)
  if (m < 120) return `${m} min`
  const h = Math.round(m / 60)
  return h < 48 ? `${h} h` : t('{n} days', { n: Math.round(h / 24) })
}

// tries is after how many attempts a delivery ended. A dead letter may have had none.
export const tries = (n) => (n > 0 ? `after ${plural(n, 'try', 'tries')}` : 'without an attempt')

// since is how long ago a time is; clocks that differ a little make it no
// negative one.
export const since = (time, now = Date.now()) => span(Math.max(0, now - Date.parse(time)))

// soon is when a time will be.
export function soon(time) {
  const ms = Date.parse(time) - Date.now()
  return ms < 500 ? t('now') : t('in {time}', { time: span(Math.max(1_000, ms)) })
}

const clockFormat = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
const dayFormat = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' })

// Formatting by Intl costs microseconds, and a second has many events.
let lastSecond = -1
let lastClock = ''
function clockOf(ms) {
  const second = Math.floor(ms / 1_000)
  if (second !== lastSecond) {
    lastSecond = second
    lastClock = clockFormat.format(second * 1_000)
  }
  return lastClock
}

// clock is the time of day, with milliseconds if wanted.
export function clock(time, milliseconds = false) {
  const ms = typeof time === 'number' ? time : Date.parse(time)
  return milliseconds ? `${clockOf(ms)}.${String(ms % 1_000).padStart(3, '0')}` : clockOf(ms)
}

// moment is the time of day, and the day if it is another than today.
export function moment(time, milliseconds = false) {
  const date = new Date(time)
  const text = clock(date.getTime(), milliseconds)
  return date.toDateString() === new Date().toDateString() ? text : `${dayFormat.format(date)}, ${text}`
}

// size is that many bytes, by 1,024 as in the configuration.
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KB`
  return `${(bytes / 1024 ** 2).toFixed(1)} MB`
}

// plural is a number with its noun.
export const plural = (n, one, many = one.replace(/([^aeiou])y$/, '$1ie') + 's') => `${count(n)} ${n === 1 ? one : many}`

export const percent = (part, all) => (all > 0 ? `${Math.floor((100 * part) / all)} %` : '')
