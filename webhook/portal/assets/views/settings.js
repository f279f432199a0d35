// The settings of an endpoint: a new one, or one that there is.
import { may, send, settings as program, types } from '../api.js'
import { el, replace, say } from '../kit/dom.js'
import { confirm, labelled, notice, problem, route } from '../kit/parts.js'
import { t } from '../kit/text.js'
import { batches } from '../kit/words.js'
import { form } from '../parts.js'
import { keep } from './secret.js'

// fieldsOf are the fields of the form, with what e has; read returns what they have.
function fieldsOf(e) {
  const url = el('input', { type: 'url', autocomplete: 'off', spellcheck: 'false', required: true, placeholder: 'https://example.com/webhooks', value: e.url ?? '' })
  const description = el('input', { type: 'text', autocomplete: 'off', maxlength: 255, value: e.description ?? '' })
  const chosen = kinds(e.types ?? [])
  return {
    fields: {
      url: labelled(t('URL'), url, t('Events are sent to it by POST, as JSON.')),
      description: labelled(t('Description'), description, t('For yourself.')),
      types: labelled(t('Events'), chosen.node, ''),
    },
    read: () => ({ url: url.value.trim(), description: description.value.trim(), types: chosen.read() }),
  }
}

// kinds chooses types of events: all, or some of the catalogue.
function kinds(before) {
  const free = !program.catalogue
  const own = before.filter((k) => !types.some(({ type }) => type === k)) // patterns, such as invoice.*
  const all = el('input', { type: 'checkbox', checked: before.length === 0 })
  const boxes = [...types, ...own.map((type) => ({ type }))].map(({ type, description }) => {
    const box = el('input', { type: 'checkbox', value: type, checked: before.includes(type) })
    return { box, node: el('label', {}, box, el('span', {}, type, description && el('small', {}, description))) }
  })
  const list = el('div', { class: 'kinds', tabindex: 0, role: 'group', 'aria-label': t('Types of events') }, boxes.map((b) => b.node))
  const typed = el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', 'aria-label': t('Types of events'), placeholder: 'invoice.paid, order.*', value: free ? before.join(', ') : '' })
  const some = free ? typed : list
  const show = () => { some.hidden = all.checked }
  all.addEventListener('change', show)
  show()
  return {
    node: el('fieldset', { class: 'form' }, el('legend', {}, t('Events')), el('label', { class: 'check' }, all, t('All events')), some),
    read: () => (all.checked ? [] : free ? typed.value.split(/[\s,]+/).filter(Boolean) : boxes.filter((b) => b.box.checked).map((b) => b.box.value)),
  }
}

// none says what is wrong if neither all events nor one is chosen.
function none(fields, wanted) {
  const empty = wanted.types.length === 0 && !fields.types.control.querySelector('input').checked
  if (empty) fields.types.fault(t('Choose at least one.'))
  return empty
}

export function create() {
  const { fields, read } = fieldsOf({})
  const save = el('button', { class: 'primary' }, t('Add the endpoint'))
  const node = form(fields, [save], async () => {
    const wanted = read()
    if (none(fields, wanted)) return
    const { endpoint, secret } = await send('POST', 'endpoints', wanted)
    keep(endpoint.id, secret)
    location.hash = route('endpoints', endpoint.id, 'secret')
  })
  return {
    title: t('Add an endpoint'),
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('nav', { class: 'crumbs', 'aria-label': t('Path') }, el('a', { href: '#/' }, t('Endpoints'))), el('h1', {}, t('Add an endpoint')))),
      el('section', { class: 'panel', 'aria-label': t('Add an endpoint') }, node)),
  }
}

export default function settings({ path, first, refresh }) {
  const { fields, read } = fieldsOf(first)
  let now = first
  const saved = el('div', {})
  const save = el('button', { class: 'primary' }, t('Save'))
  const node = may('change') ? form(fields, [save], async () => {
    replace(saved)
    const wanted = read()
    if (none(fields, wanted)) return
    now = await send('PATCH', path, { ...wanted, version: now.version })
    replace(saved, notice(t('Saved.'), 'ok'))
    await refresh()
  }) : el('dl', { class: 'facts' }, el('div', {}, el('dt', {}, t('Events')), el('dd', {}, first.types.join(', ') || t('All events'))))
  const more = first.moreUrls?.length > 0 && el('p', { class: 'note' }, t('Your provider has given it further URLs: '), first.moreUrls.join(', '))
  const requests = el('p', { class: 'note' }, t('Requests: {what}.', { what: batches(first.batch) }))
  const wrong = el('div', { class: 'wrong' })
  const remove = may('delete') && el('button', { type: 'button', class: 'danger', onclick: async () => {
    if (!await confirm(t('Delete this endpoint?'), t('What waits for it is given up, and its deliveries are no longer shown. Disable it instead to keep them.'), t('Delete'))) return
    try {
      await send('DELETE', path, undefined, { version: now.version })
      say(t('Deleted'))
      location.hash = '#/'
    } catch (error) {
      replace(wrong, notice(problem(error)))
    }
  } }, t('Delete…'))
  return {
    // Whoever saves has seen what is shown, so a change by somebody else in between is a conflict,
    // but enabling and disabling here is none.
    update(e) { if (JSON.stringify([e.url, e.description, e.types]) === JSON.stringify([now.url, now.description, now.types])) now = e },
    node: el('section', { class: 'panel', 'aria-label': t('Settings') }, node, saved, requests, more, remove && el('div', { class: 'fold' }, wrong, remove)),
  }
}
