// JSON as indented, coloured text. Webhook bodies are fixed points of
// JSON.stringify(JSON.parse(body)), so nothing is lost by having parsed them.
import { el } from './dom.js'
import { t } from './text.js'

const token = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/g

// pretty returns value as a block that can be scrolled, with a button to copy.
export function pretty(value, label) {
  const text = JSON.stringify(value, null, 2)
  const code = el('code', {})
  let end = 0
  for (const match of text.matchAll(token)) {
    code.append(text.slice(end, match.index))
    const [whole, string, colon] = match
    if (colon) code.append(el('span', { class: 'j-key' }, string), colon)
    else code.append(el('span', { class: string ? 'j-text' : 'j-value' }, whole))
    end = match.index + whole.length
  }
  code.append(text.slice(end))
  return block(code, label, text)
}

// plain returns a text as such a block.
export function plain(text, label) {
  return block(el('code', {}, text), label, text)
}

function block(code, label, text) {
  return el('div', { class: 'code' },
    el('pre', { tabindex: 0, role: 'group', 'aria-label': label }, code),
    copyButton(() => text))
}

// copyButton copies what text returns.
export function copyButton(text) {
  const button = el('button', { type: 'button', class: 'copy' }, t('Copy'))
  button.addEventListener('click', async () => {
    let word = t('Copied')
    try {
      await navigator.clipboard.writeText(text())
    } catch {
      // Without HTTPS, browsers give the clipboard to localhost alone.
      word = t('Not allowed')
    }
    button.textContent = word
    setTimeout(() => { button.textContent = t('Copy') }, 1_500)
  })
  return button
}
