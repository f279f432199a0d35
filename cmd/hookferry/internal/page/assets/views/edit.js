// The form of a destination: a new one, or the settings of one that is stored. What it sends can
// be tried before it is saved.
import { APIError, get, post, write, segment } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { copied, labelled, notice, open, problem, route, select, sentence } from '../parts.js'
import { exchange } from './tester.js'

const maxEndpoints = 5
const most = 500 // sources to choose from

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
  const form = el('form', { class: 'panel form', novalidate: true }, el('p', { class: 'none' }, 'Reading the settings…'))

  Promise.all([get('sources', { limit: most }, signal), isNew ? null : get(`destinations/${segment(id)}`, {}, signal)]).then(show).catch((error) => { if (!signal.aborted) replace(form, notice(problem(error))) })

  function show([{ items: offered, total }, d]) {
    if (d && !d.stored) return replace(form, notice(d.tenant ? 'Its tenant changes it.' : 'The configuration of the server names this destination: change it there.'))
    const settings = d?.settings ?? { sources: total === 1 ? [offered[0].name] : [] }
    const name = input({ maxlength: 255, placeholder: 'acme' })
    const sources = choice(offered.map((s) => s.name), settings.sources)

    // Endpoints. URLs may have credentials, and values of headers are secret: none of them is
    // shown again, so who changes one enters all.
    const list = el('div', { class: 'endpoints' })
    const add = el('button', { type: 'button', class: 'small', onclick: () => addEndpoint().focus() }, 'Add a URL')
    let endpoints = null // null: they stay as they are
    function addEndpoint(address = '') {
      const url = input({ type: 'url', placeholder: 'https://example.com/hook' })
      url.value = address
      const headers = area('', { placeholder: 'X-Team: 7', rows: 1 })
      const entry = { url, headers, fields: { url: labelled('URL', url), headers: labelled('Headers', headers, 'One a line, up to five.') } }
      const remove = entry.remove = el('button', { type: 'button', class: 'small', onclick: () => {
        endpoints = endpoints.filter((e) => e !== entry)
        entry.node.remove()
        showAdd()
      } }, 'Remove')
      entry.node = el('fieldset', { class: 'endpoint' }, el('legend', { class: 'hidden' }, 'Endpoint'),
        entry.fields.url.node, entry.fields.headers.node, el('div', { class: 'actions' }, remove))
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

    // The secret of a new destination is shown before anything is signed with it.
    const made = isNew && newSecret()
    const standard = el('input', { type: 'checkbox', checked: isNew, onchange: () => { shown.hidden = !standard.checked } })
    const shown = el('div', { class: 'field' }, copied(made),
      el('small', {}, 'Samples are signed with it, too. Give it to the receiver: it is not shown again once the destination is made.'))
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
    function settled() {
      const patterns = { include: lines(include), exclude: lines(exclude) }
      const document = {
        sources: sources.read(),
        filter: patterns.include.length + patterns.exclude.length > 0 ? patterns : null,
        timeout: timeout.value.trim() || null, window: retries.value.trim() || null, schedule: schedule.value || null,
        maxRate: rate.value.trim() ? Number(rate.value) : null,
      }
      if (Number.isNaN(document.maxRate)) throw new FormError('maxRate', 'is not a number')
      if (endpoints) document.endpoints = endpoints.map(endpointOf)
      if (secret.value) document.secret = secret.value
      if (isNew && standard.checked) document.standardSecrets = [made]
      return isNew ? Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null)) : document
    }

    async function attempt(work) {
      replace(wrong)
      for (const f of Object.values(fields)) f.fault(null)
      for (const e of endpoints ?? []) for (const f of Object.values(e.fields)) f.fault(null)
      test.disabled = save.disabled = true
      try {
        await work()
      } catch (error) {
        if (signal.aborted) return
        if (!showFault(error)) replace(wrong, notice(error instanceof FormError ? error.message : problem(error)))
      }
      test.disabled = save.disabled = false
    }

    // showFault shows what is wrong at its field, and reports whether the form has that. The message
    // begins with the field as the API names it.
    function showFault({ field = '', message }) {
      const name = field.replace(/^document\./, '')
      const [, i, part] = /^endpoints\[(\d+)\]\.?(url|headers)?/.exec(name) ?? []
      const at = i === undefined ? fields[name.split(/[[]/)[0]] : endpoints?.[i]?.fields[part ?? 'url']
      if (!at) return false
      at.node.closest('details')?.setAttribute('open', '')
      at.fault(sentence(message.replace(field, '').replace(name, '').trim()))
      ;(at.control.tagName === 'FIELDSET' ? at.control.querySelector('input') : at.control).focus()
      return true
    }

    async function tryIt() {
      const document = settled()
      replace(results, el('p', { class: 'none' }, 'Sending…'))
      try {
        const to = document.endpoints ? { document: Object.fromEntries(Object.entries(document).filter(([, value]) => value !== null)) } : { destination: id }
        const { exchanges } = await post('test', { ...to, types: ['track'] }, signal)
        replace(results, exchanges.map((e) => exchange(e)))
        say(`${exchanges.filter((e) => e.outcome === 'delivered').length} of ${exchanges.length} taken`)
      } catch (error) {
        replace(results)
        throw error
      }
    }

    async function saveIt() {
      const at = isNew ? name.value.trim() : id
      if (!at) throw new FormError('id', 'is required')
      await write(isNew ? 'PUT' : 'PATCH', `destinations/${segment(at)}`, { parameters: { version: isNew ? '0' : d.stored.version }, body: settled(), signal })
      location.hash = isNew ? route('destinations', at) : route('destinations', at, 'settings')
    }

    form.addEventListener('submit', (event) => {
      event.preventDefault()
      attempt(saveIt)
    })
    keys({ s: ['Send a sample', () => test.click()] })
    const fields = {
      id: labelled('Name', name, 'It cannot be changed later, because deliveries are stored under it.'),
      sources: labelled('Sources', sources.node, `Whose calls it gets; without one it gets none.${total > most ? ` These are the first ${most} of ${total}.` : ''}`),
      secret: labelled('Secret of X-Signature', secret, isNew || !d.signed ? 'Leave it empty to send no X-Signature.' : 'Leave it empty to keep the secret.'),
      'filter.include': labelled('Only these', include, 'A type, or a type and an event name that may end in *. One a line; empty takes all.'),
      'filter.exclude': labelled('Not these', exclude),
      timeout: labelled('Time of an attempt', timeout, 'Up to 5s.'),
      window: labelled('How long it is attempted', retries, 'Up to 4h.'),
      schedule: labelled('Between attempts', schedule),
      maxRate: labelled('Attempts a second', rate),
    }
    replace(form,
      isNew && fields.id.node, fields.sources.node,
      el('fieldset', { class: 'form' }, el('legend', {}, 'Endpoints'), el('small', {}, 'A delivery goes to all of them at once, until one takes it.'), list, add),
      isNew && [el('label', { class: 'check' }, standard, 'Sign as Standard Webhooks, with this secret'), shown],
      fields.secret.node,
      el('details', { open: Boolean(settings.filter) }, el('summary', {}, 'Which calls'), el('div', { class: 'form' }, fields['filter.include'].node, fields['filter.exclude'].node)),
      el('details', {}, el('summary', {}, 'Times and limits'), el('div', { class: 'form' },
        fields.timeout.node, fields.window.node, fields.schedule.node, fields.maxRate.node)),
      wrong,
      el('div', { class: 'actions' }, save, test))
    if (isNew) name.focus({ preventScroll: true })
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

// A FormError says what is wrong with a field before the server is asked.
class FormError extends Error {
  constructor(field, message) {
    super(message)
    this.field = field
  }
}

// choice chooses some of these texts, and of those that were chosen before. read returns them.
function choice(offered, before) {
  const boxes = [...new Set([...before, ...offered])].sort().map((value) => {
    const box = el('input', { type: 'checkbox', value, checked: before.includes(value) })
    return { box, node: el('label', {}, box, el('span', {}, value)) }
  })
  const filter = el('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', placeholder: 'Type a part of a name', 'aria-label': 'Filter the sources', hidden: boxes.length <= 8 })
  filter.addEventListener('input', () => {
    for (const { box, node } of boxes) node.hidden = !box.value.toLowerCase().includes(filter.value.trim().toLowerCase())
  })
  return {
    node: el('fieldset', { class: 'form' }, el('legend', {}, 'Sources'), filter, el('div', { class: 'kinds', tabindex: 0, role: 'group', 'aria-label': 'Sources' }, boxes.map((b) => b.node))),
    read: () => boxes.filter((b) => b.box.checked).map((b) => b.box.value),
  }
}

function endpointOf({ url, headers }, i) {
  const entries = lines(headers).map((line) => {
    const at = line.indexOf(':')
    if (at < 1) throw new FormError(`endpoints[${i}].headers`, `"${line}" has no colon behind its name`)
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
    copied(secret),
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
