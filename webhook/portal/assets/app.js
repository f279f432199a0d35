// The portal: what a customer sees of its webhooks, and what it can do.
import { load, settings } from './api.js'
import { replace, say, text } from './kit/dom.js'
import { ConnectionError } from './kit/http.js'
import { notice, problem } from './kit/parts.js'
import { startViews, themeButton } from './kit/shell.js'
import { setWords, t } from './kit/text.js'
import endpoints from './views/endpoints.js'
import endpoint from './views/endpoint.js'
import delivery from './views/delivery.js'
import { create } from './views/settings.js'

const byId = (id) => document.getElementById(id)
const main = byId('main')

const theme = byId('theme')

// connection shows that the server is not reached, from when a request failed until one is answered.
let lost = false
function connection(ok) {
  if (lost === !ok) return
  lost = !ok
  byId('link').hidden = ok
  byId('link').dataset.state = ok ? 'ok' : 'lost'
  text(byId('link-text'), t('Connection lost, trying again'))
  say(ok ? t('Connected again') : t('Connection lost, trying again'))
}

async function start() {
  await load()
  setWords(settings.words)
  text(byId('skip'), t('Skip to the content'))
  if (settings.theme) theme.remove()
  else themeButton(theme)
  const show = startViews({
    main, title: settings.name,
    routes: [
      ['', endpoints, 'all'],
      ['new', create, 'add'],
      ['endpoints/:endpoint', endpoint, 'one'],
      ['endpoints/:endpoint/:tab', endpoint, 'one'],
      ['deliveries/:delivery', delivery, 'log'],
    ],
    shown() {},
    context: () => ({
      watched: (f) => async () => {
        try {
          const wait = await f()
          connection(true)
          return wait
        } catch (error) {
          if (error instanceof ConnectionError) connection(false)
          throw error
        }
      },
    }),
  })
  show()
}

start().catch((error) => replace(main, notice(problem(error))))
