// Long work, such as a retry: it goes on while its progress is shown in the
// corner of every view.
import { el, say, text } from './kit/dom.js'
import { count, percent, plural, size } from './kit/format.js'
import { problem } from './parts.js'

const running = new Set()

addEventListener('beforeunload', (event) => {
  // The server ends work whose reader leaves.
  if (running.size > 0) event.preventDefault()
})

// job shows work. run is given a function that shows how far it is, one that
// shows how much is sent, and a signal that is aborted by the button; it
// returns what to say at the end.
export async function job(title, run) {
  const controller = new AbortController()
  running.add(controller)
  const bar = el('progress', { 'aria-label': title })
  const state = el('span', { class: 'state' }, 'Starting')
  const button = el('button', { type: 'button', class: 'quiet', onclick: () => (running.has(controller) ? controller.abort() : card.remove()) }, 'Stop')
  const card = el('div', { class: 'job', 'data-tone': 'work' }, el('b', {}, title), button, bar, state)
  document.getElementById('jobs').prepend(card)

  const began = performance.now()
  let latest = null
  const paint = () => {
    const { done, total, joined, left } = latest
    latest = null
    if (total) {
      bar.max = total
      bar.value = Math.min(done, total)
    }
    const perSecond = done / ((performance.now() - began) / 1_000)
    text(state, [total ? `${count(done)} of ${count(total)}` : count(done), percent(done, total),
      done > 0 && `${count(perSecond)}/s`, joined > 0 && `${count(joined)} joined`, left > 0 && `${count(left)} left`].filter(Boolean).join(' · '))
  }
  const onProgress = (progress) => {
    if (!latest) requestAnimationFrame(paint)
    latest = progress
  }
  const onSent = (sent, total) => {
    bar.max = total
    bar.value = sent
    text(state, `Sent ${size(sent)} of ${size(total)}`)
  }
  const settle = (tone, message) => {
    running.delete(controller)
    card.dataset.tone = tone
    bar.hidden = true
    text(state, message)
    text(button, 'Dismiss')
    say(`${title}: ${message}`)
  }
  try {
    const message = await run({ onProgress, onSent, signal: controller.signal })
    requestAnimationFrame(() => settle('ok', message))
    setTimeout(() => card.remove(), 10_000)
    return true
  } catch (error) {
    requestAnimationFrame(() => settle(controller.signal.aborted ? 'still' : 'bad', controller.signal.aborted ? 'Stopped. What was done stays done.' : problem(error)))
    return false
  }
}

export const done = (verb, n, noun, seconds) => `${verb} ${plural(n, noun)} in ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s.`
