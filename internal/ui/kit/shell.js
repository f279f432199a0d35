// The shell around the views of a page: routes, what is done at intervals, the theme.
import { ConnectionError } from './http.js'
import { el, replace, text } from './dom.js'
import { closeDialogs, notice, problem } from './parts.js'
import { t } from './text.js'

// startViews shows the view of the hash, and of each later one. It returns a function that shows it
// for the first time. Each route is a path, a view and a name. The parts of the path that begin with a
// colon are names of what the view is given. shown is called with the name of a route before its view
// is made, and context adds to what views are given, with a signal that ends with the view.
export function startViews({ routes, main, title, shown, context }) {
  let leave = null
  let shownBefore = false

  function show() {
    const [path, query] = location.hash.replace(/^#(main$|\/?)/, '').split('?')
    const parts = path.split('/').map(decoded)
    const route = routes.find(([pattern]) => {
      const names = pattern.split('/')
      return names.length === parts.length && names.every((n, i) => n.startsWith(':') || n === parts[i])
    })
    leave?.abort()
    leave = new AbortController()
    closeDialogs()
    const { signal } = leave
    shown(route?.[2])
    if (!route) {
      document.title = `${t('Not found')} · ${title}`
      replace(main, el('h1', {}, t('Not found')), el('p', {}, t('There is no such view.'), ' ', el('a', { href: '#/' }, t('Go to the overview')), '.'))
      return
    }
    const [pattern, view, name] = route
    const names = {}
    pattern.split('/').forEach((n, i) => { if (n.startsWith(':')) names[n.slice(1)] = parts[i] })
    const problems = el('div', { class: 'problems' })
    const made = view({
      ...names,
      ...context(signal),
      signal,
      query: new URLSearchParams(query),
      // every calls f at once and then at intervals, while the view is shown and
      // can be seen. What goes wrong is shown until it goes well again.
      every: (milliseconds, f) => repeat(milliseconds, signal, async () => {
        const wait = await f()
        replace(problems)
        return wait
      }, (error) => {
        if (error instanceof ConnectionError) replace(problems)
        else replace(problems, notice(problem(error)))
      }),
    })
    document.title = `${made.title} · ${title}`
    main.className = name
    replace(main, problems, made.node)
    if (shownBefore) {
      // A screen reader goes on at the new view's heading.
      const heading = main.querySelector('h1')
      heading.tabIndex = -1
      heading.focus({ preventScroll: true })
      scrollTo(0, 0)
    }
    shownBefore = true
  }

  // The link that skips to the content leads to no view.
  addEventListener('hashchange', () => { if (location.hash !== '#main') show() })
  return show
}

function decoded(part) {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

// hurried is the interval, in milliseconds, while a failure is shown: once it is over it goes away
// within a second.
const hurried = 400
export const hurry = (failing) => (failing ? hurried : undefined)

// repeat calls f at intervals until signal is aborted; f may return another interval. Nothing is asked
// of the server for a page that nobody sees.
export async function repeat(milliseconds, signal, f, onError) {
  while (!signal.aborted) {
    let wait = milliseconds
    if (document.hidden) {
      await visible(signal)
      continue
    }
    try {
      wait = await f() ?? wait
    } catch (error) {
      if (signal.aborted) return
      onError(error)
      wait = Math.max(wait, 2_000)
    }
    await pause(wait, signal)
  }
}

function visible(signal) {
  return new Promise((resolve) => {
    document.addEventListener('visibilitychange', resolve, { once: true, signal })
    signal.addEventListener('abort', resolve, { once: true })
  })
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, milliseconds)
    signal.addEventListener('abort', end)
  })
}

// themeButton makes a button switch between light and dark, and returns what does so. The theme is
// that of the system until one is chosen.
export function themeButton(button) {
  const dark = matchMedia('(prefers-color-scheme: dark)')
  const root = document.documentElement
  const now = () => root.dataset.theme ?? (dark.matches ? 'dark' : 'light')
  const label = () => text(button, now() === 'dark' ? t('Light theme') : t('Dark theme'))

  function change() {
    const next = now() === 'dark' ? 'light' : 'dark'
    if (next === (dark.matches ? 'dark' : 'light')) {
      delete root.dataset.theme
      localStorage.removeItem('hookferry.theme')
    } else {
      root.dataset.theme = next
      localStorage.setItem('hookferry.theme', next)
    }
    label()
  }

  button.addEventListener('click', change)
  dark.addEventListener('change', label)
  label()
  return change
}
