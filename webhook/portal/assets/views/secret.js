// The secret of an endpoint, and code that verifies with it.
import { may, send, settings } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { moment, span } from '../kit/format.js'
import { plain } from '../kit/json.js'
import { confirm, copied, notice, panel, problem, segmented } from '../kit/parts.js'
import { t } from '../kit/text.js'

const languages = [['go', 'Go'], ['node', 'Node'], ['python', 'Python'], ['ruby', 'Ruby'], ['php', 'PHP']]
let language = 'node'

// The secrets that were made since the page was loaded. Nobody can ask for them again.
const made = new Map()
export const keep = (id, secret) => made.set(id, secret)

export default function secret({ endpoint: id, path, first, refresh, signal }) {
  const shown = el('div', { class: 'form' })
  const old = el('p', { class: 'note' })
  const wrong = el('div', { class: 'wrong' })
  const code = el('div', {})
  const overlap = span(settings.overlap * 1_000)

  function show() {
    const key = made.get(id)
    replace(shown, key ? [notice(t('Copy the secret now: it is not shown again.'), 'warn'), copied(key)]
      : el('p', {}, t('Each request is signed with a secret that you and your provider have. It was shown when it was made. If it is lost or known to others, make a new one.')))
  }

  async function showCode() {
    try {
      const response = await fetch(`code/${language}.txt`, { signal })
      const text = await response.text()
      if (response.ok) replace(code, plain(text.replace('{{secret}}', made.get(id) ?? 'whsec_...').trimEnd(), t('Code of a receiver')))
    } catch (error) {
      if (!signal.aborted) replace(code, notice(t('The code could not be loaded.')))
    }
  }

  const rotate = may('rotate') && el('button', { type: 'button', onclick: async () => {
    if (!await confirm(t('Make a new secret?'), t('Requests are signed with both secrets for {time}. Put the new one into your receiver within that time: then the old one ends.', { time: overlap }), t('Make a new secret'), 'calm')) return
    replace(wrong)
    try {
      const answer = await send('POST', `${path}/rotate`, {})
      keep(id, answer.secret)
      show()
      say(t('Copy the secret now: it is not shown again.'))
      await Promise.all([refresh(), showCode()])
    } catch (error) {
      replace(wrong, notice(problem(error)))
    }
  } }, t('New secret…'))

  function update(e) {
    const until = e.oldSecrets?.[0]
    old.hidden = !until
    replace(old, until ? t('The old secret signs beside the new one until {time}.', { time: moment(until) }) : '')
  }

  show()
  showCode()
  update(first)
  return {
    update,
    node: el('div', {},
      panel(t('Secret'), { actions: rotate }, shown, old, wrong),
      panel(t('Code of a receiver'), {}, el('p', {}, t('It answers 401 to requests that do not come from your provider. Read the secret from the environment, not from the code.')),
        segmented(t('Language'), languages, language, (value) => {
          language = value
          showCode()
        }), code)),
  }
}
