// The form of a destination: a new one, or the settings of one that is stored. What it sends can
// be tried before it is saved.
import { APIError, get, post, write, segment } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { copyButton } from '../kit/json.js'
import { field, notice, open, problem, route, select } from '../parts.js'
import { exchange } from './tester.js'

const maxEndpoints = 5

// lines are the lines of a text area that are not empty.
const lines = (area) => area.value.split('\n').map((line) => line.trim()).filter(Boolean)
const area = (value, properties) => {
  const node = el('textarea', { rows: 2, spellcheck: 'false', autocomplete: 'off', ...properties })
  node.value = value
  return node
}
const input = (properties) => el('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', ...properties })

export default function edit({ destination: id, signal, keys }) {
  const isNew = id === undefined
  const wrong = el('div', { class: 'wrong' })
  const results = el('div', { class: 'results' })
  const form = el('form', { class: 'panel form' }, el('p', { class: 'none' }, 'Reading the settings…'))

  const ready = isNew ? get('sources', { limit: 10 }, signal).then(({ items, total }) => ({ offered: items, total }))
    : get(`destinations/${segment(id)}`, {}, signal).then((d) => ({ d }))
  ready.then(show).catch((error) => { if (!signal.aborted) replace(form, notice(problem(error))) })

  function show({ d, offered = [], total = 0 }) {
    if (d && !d.stored) return replace(form, notice(d.tenant ? 'Its tenant changes it.' : 'The configuration of the server names this destination: change it there.'))
    const settings = d?.settings ?? { sources: total === 1 ? [offered[0].name] : [] }
    const name = input({ required: true, maxlength: 255, placeholder: 'acme' })
    const sources = area(settings.sources.join('\n'))

    // Endpoints. URLs may have credentials, and values of headers are secret: none of them is
    // shown again, so who changes one enters all.
    const list = el('div', { class: 'endpoints' })
    const add = el('button', { type: 'button', class: 'small', onclick: () => addEndpoint().focus() }, 'Add a URL')
    let endpoints = null // null: they stay as they are
    function addEndpoint(address = '') {
      const url = input({ type: 'url', required: true, placeholder: 'https://example.com/hook' })
      url.value = address
      const headers = area('', { placeholder: 'X-Team: 7', rows: 1 })
      const entry = { url, headers }
      const remove = entry.remove = el('button', { type: 'button', class: 'small', onclick: () => {
        endpoints = endpoints.filter((e) => e !== entry)
        entry.node.remove()
        showAdd()
      } }, 'Remove')
      entry.node = el('fieldset', { class: 'endpoint' }, el('legend', { class: 'hidden' }, 'Endpoint'),
        field('URL', url), field('Headers', headers, 'One a line, up to five.'), el('div', { class: 'actions' }, remove))
      endpoints = [...(endpoints ?? []), entry]
      list.append(entry.node)
      showAdd()
      return url
    }
    function showAdd() {
      add.hidden = endpoints === null || endpoints.length >= maxEndpoints
      for (const e of endpoints ?? []) e.remove.hidden = endpoints.length === 1 // it needs one
    }
    if (isNew) addEndpoint()
    else {
      replace(list, el('ul', {}, d.endpoints.map((e) => el('li', {}, el('span', { class: 'mono' }, e.url), e.headers?.length > 0 && ` with ${e.headers.join(', ')}`))),
        el('button', { type: 'button', class: 'small', onclick: () => {
          replace(list)
          for (const e of d.endpoints) addEndpoint(e.url)
          endpoints[0]?.url.focus()
        } }, 'Change…'))
    }
    showAdd()

    const standard = el('input', { type: 'checkbox', checked: isNew })
    const secret = input({ type: 'password', autocomplete: 'new-password' })
    const include = area(settings.filter?.include?.join('\n') ?? '', { placeholder: 'track:Order *' })
    const exclude = area(settings.filter?.exclude?.join('\n') ?? '', { placeholder: 'page' })
    const timeout = input({ placeholder: '5s' })
    timeout.value = settings.timeout ?? ''
    const retries = input({ placeholder: '4h' })
    retries.value = settings.window ?? ''
    const schedule = select([['', 'From 1 s to 10 min'], ['eager', 'Eager: up to 1 min'], ['patient', 'Patient: from 30 s to 30 min']], settings.schedule ?? '')
    const rate = input({ inputmode: 'decimal', placeholder: 'no limit' })
    rate.value = settings.maxRate ?? ''
    const test = el('button', { type: 'button', onclick: () => attempt(tryIt) }, 'Send a sample')
    const save = el('button', { class: 'primary' }, isNew ? 'Create' : 'Save')

    // settled is the document that the form makes. What is empty gets its default, but what is
    // not shown stays as it is.
    let made = null // the secret that goes with a new destination
    function settled() {
      const patterns = { include: lines(include), exclude: lines(exclude) }
      const document = {
        sources: lines(sources),
        filter: patterns.include.length + patterns.exclude.length > 0 ? patterns : null,
        timeout: timeout.value.trim() || null, window: retries.value.trim() || null, schedule: schedule.value || null,
        maxRate: rate.value.trim() ? Number(rate.value) : null,
      }
      if (endpoints) document.endpoints = endpoints.map(endpointOf)
      if (secret.value) document.secret = secret.value
      if (isNew && standard.checked) document.standardSecrets = [made ??= newSecret()]
      return isNew ? Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null)) : document
    }

    async function attempt(work) {
      replace(wrong)
      test.disabled = save.disabled = true
      try {
        await work()
      } catch (error) {
        if (signal.aborted) return
        replace(wrong, notice(error instanceof FormError ? error.message : problem(error)))
      }
      test.disabled = save.disabled = false
    }

    async function tryIt() {
      const document = settled()
      replace(results, el('p', { class: 'none' }, 'Sending…'))
      try {
        const to = document.endpoints ? { document: Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null)) } : { destination: id }
        const { exchanges } = await post('test', { ...to, types: ['track'] }, signal)
        replace(results, exchanges.map(exchange))
        say(`${exchanges.filter((e) => e.outcome === 'delivered').length} of ${exchanges.length} taken`)
      } catch (error) {
        replace(results)
        throw error
      }
    }

    async function saveIt() {
      const at = isNew ? name.value.trim() : id
      await write(isNew ? 'PUT' : 'PATCH', `destinations/${segment(at)}`, { parameters: { version: isNew ? '0' : d.stored.version }, body: settled(), signal })
      location.hash = route('destinations', at)
      if (isNew && standard.checked) showSecret(made)
    }

    form.addEventListener('submit', (event) => {
      event.preventDefault()
      attempt(saveIt)
    })
    keys({ s: ['Send a sample', () => test.click()] })
    replace(form,
      isNew && field('Name', name, 'It cannot be changed later, because deliveries are stored under it.'),
      field('Sources', sources, `Whose calls it gets: their names, one a line.${total > 1 ? ` There ${total > offered.length ? 'are for example' : 'are'} ${offered.map((s) => s.name).join(', ')}.` : ''} Without one it gets no calls.`),
      el('fieldset', { class: 'form' }, el('legend', {}, 'Endpoints'), el('small', {}, 'A delivery goes to all of them at once, until one takes it.'), list, add),
      isNew && el('label', { class: 'check' }, standard, 'Sign as Standard Webhooks, with a new secret'),
      field('Secret of X-Signature', secret, isNew || !d.signed ? 'Leave it empty to send no X-Signature.' : 'Leave it empty to keep the secret.'),
      el('details', { open: Boolean(settings.filter) }, el('summary', {}, 'Which calls'), el('div', { class: 'form' },
        field('Only these', include, 'A type, or a type and an event name that may end in *. One a line; empty takes all.'), field('Not these', exclude))),
      el('details', {}, el('summary', {}, 'Times and limits'), el('div', { class: 'form' },
        field('Time of an attempt', timeout, 'Up to 5s.'), field('How long it is attempted', retries, 'Up to 4h.'),
        field('Between attempts', schedule), field('Attempts a second', rate))),
      wrong,
      el('div', { class: 'actions' }, save, test))
    ;(isNew ? name : sources).focus({ preventScroll: true })
  }

  return {
    title: isNew ? 'New destination' : `Settings of ${id}`,
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {},
        el('nav', { class: 'crumbs', 'aria-label': 'Path' }, el('a', { href: '#/destinations' }, 'Destinations'), !isNew && el('a', { href: route('destinations', id) }, id)),
        el('h1', {}, isNew ? 'New destination' : 'Settings'),
        el('p', { class: 'lead' }, 'Settings made here are kept in the store. All servers of the store use a change within two seconds.'))),
      el('div', { class: 'tester' }, form, results)),
  }
}

// A FormError says what is wrong before the server is asked.
class FormError extends Error {}

function endpointOf({ url, headers }) {
  const entries = lines(headers).map((line) => {
    const at = line.indexOf(':')
    if (at < 1) throw new FormError(`The header "${line}" has no colon behind its name.`)
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()]
  })
  return { url: url.value.trim(), ...(entries.length > 0 && { headers: Object.fromEntries(entries) }) }
}

// newSecret makes a secret of Standard Webhooks: 32 random bytes.
function newSecret() {
  return `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))}`
}

// showSecret shows a secret that nobody can ask for again.
export function showSecret(secret, more) {
  const { body, dialog } = open('The secret for the receiver', { stay: true })
  replace(body, el('p', {}, 'Give it to the receiver now: it is not shown again.', more && ` ${more}`),
    el('div', { class: 'command' }, el('code', {}, secret), copyButton(() => secret)),
    el('div', { class: 'actions' }, el('button', { type: 'button', class: 'primary', onclick: () => dialog.close() }, 'Done')))
}

// deleteDestination asks what is to become of what waits, and deletes.
export function deleteDestination(d, signal) {
  const { body, dialog } = open(`Delete ${d.id}?`)
  const wrong = el('div', { class: 'wrong' })
  const waiting = [['keep', 'Keep what waits, for a destination with this name that is made later'], ['discard', 'Discard what waits']].map(([value, label], i) => {
    const radio = el('input', { type: 'radio', name: 'waiting', value, checked: i === 0 })
    return { radio, node: el('label', { class: 'check' }, radio, label) }
  })
  const cancel = el('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel')
  const act = el('button', { type: 'button', class: 'danger', onclick: async () => {
    act.disabled = true
    try {
      const chosen = waiting.find((w) => w.radio.checked).radio.value
      await write('DELETE', `destinations/${segment(d.id)}`, { parameters: { waiting: chosen }, signal })
      dialog.close()
      say(`${d.id} is deleted`)
      location.hash = '#/destinations'
    } catch (error) {
      if (error instanceof APIError) replace(wrong, notice(problem(error)))
      act.disabled = false
    }
  } }, 'Delete')
  replace(body, el('fieldset', { class: 'form' }, el('legend', { class: 'hidden' }, 'What waits for it'), waiting.map((w) => w.node)), wrong, el('div', { class: 'actions' }, cancel, act))
  cancel.focus()
}
