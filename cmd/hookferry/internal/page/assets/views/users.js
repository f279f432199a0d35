// Users: audiences that destinations are told of, and deletions.
import { download, get, post, segment, upload, work } from '../api.js'
import { el, keyed, replace, text } from '../kit/dom.js'
import { count, plural, size } from '../kit/format.js'
import { done, job } from '../jobs.js'
import { command, confirm, destinationInput, destinationLink, field, notice, pager, panel, problem, searchInput, table } from '../parts.js'
import { few } from './sources.js'

// direct is how many users are sent as JSON rather than as lines.
const direct = 1_000

// page is how many audiences are listed at a time, and how many sources are offered.
const page = 50

export default function users({ every, signal }) {
  const rows = el('tbody', {})
  const empty = el('p', { class: 'none', hidden: true })
  const scroll = table('Audiences', ['Audience', 'Destination', ['', 'end']], rows)
  scroll.hidden = true
  const wrong = el('div', { class: 'wrong' })

  const pages = pager(() => refresh().catch(() => {})) // the next one says what is wrong
  const filter = searchInput({ 'aria-label': 'Filter audiences', placeholder: 'Part of name', hidden: true }, signal, pages.first)

  // A slow answer does not replace one that was asked for later.
  let asked = 0
  async function refresh() {
    const mine = ++asked
    const { items: audiences, total = 0, after } = await get('audiences', { q: filter.value.trim(), limit: page, after: pages.after() }, signal)
    if (mine !== asked) return
    scroll.hidden = audiences.length === 0
    empty.hidden = audiences.length > 0
    filter.hidden = !filter.value && total <= few
    text(empty, filter.value ? 'No audience matches.' : 'No audience yet. Make one below, then upload a file with one user id a line.')
    pages.update(audiences.length, total, after)
    keyed(rows, audiences, (a) => JSON.stringify([a.destination, a.name]), (a) => {
      const path = `destinations/${segment(a.destination)}/audiences/${segment(a.name)}/members`
      const file = el('input', { type: 'file', class: 'hidden', accept: 'text/plain,text/csv,.txt,.csv', tabindex: -1, 'aria-label': `Members of ${a.name}` })
      file.addEventListener('change', () => {
        if (file.files[0]) sync(a, path, file.files[0])
        file.value = ''
      })
      return {
        node: el('tr', {}, el('th', { scope: 'row' }, a.name), el('td', {}, destinationLink(a.destination)),
          el('td', { class: 'end' }, file,
            el('button', { type: 'button', class: 'small', 'aria-label': `Upload members of ${a.name}`, onclick: () => file.click() }, 'Upload…'),
            el('button', { type: 'button', class: 'small', 'aria-label': `Download members of ${a.name}`, onclick: () => save(path, `${a.name}.txt`) }, 'Download'))),
      }
    })
  }

  async function save(path, name) {
    replace(wrong)
    try {
      await download(path, name, signal)
    } catch (error) {
      if (!signal.aborted) replace(wrong, notice(problem(error)))
    }
  }

  async function sync(a, path, file) {
    const yes = await confirm(`Sync ${a.name} with ${file.name}?`,
      `${size(file.size)}. ${a.destination} is told of each user who joins, and of each who leaves because the file does not have them.`, 'Sync', 'calm')
    if (yes) run(a, path, file)
  }

  // run syncs. If more than half would leave, it asks whether they may.
  function run(a, path, file, parameters) {
    const began = performance.now()
    job(`Syncing ${a.name}`, async ({ onProgress, onSent, signal }) => {
      let last
      try {
        last = await upload('PUT', path, { parameters, file, signal }, onSent, onProgress)
      } catch (error) {
        if (error.field === 'allowShrink') {
          confirm(`Let more than half of ${a.name} leave?`, `${problem(error)}.`, 'Let them leave').then((yes) => { if (yes) run(a, path, file, { allowShrink: true }) })
        }
        throw error
      }
      return `${plural(last.joined ?? 0, 'user')} joined, ${count(last.left ?? 0)} left. ${done('Read', last.done, 'line', (performance.now() - began) / 1_000)}`
    })
  }

  // Making an audience.
  const { input: to, list: offered } = destinationInput({ required: true, placeholder: 'Type a part of its name' }, signal)
  const name = el('input', { required: true, spellcheck: 'false', autocomplete: 'off', placeholder: 'big spenders' })
  const createWrong = el('div', { class: 'wrong' })
  const create = el('form', { class: 'form' },
    field('Destination', [to, offered]), field('Name', name, 'The destination sees it as a trait, such as big_spenders.'), createWrong,
    el('div', { class: 'actions' }, el('button', {}, 'Create')))
  create.addEventListener('submit', async (event) => {
    event.preventDefault()
    replace(createWrong)
    try {
      await post('audiences', { destination: to.value.trim(), name: name.value.trim() }, signal)
      name.value = ''
      await refresh()
      replace(createWrong, notice('Created. Upload its members in the list.', 'ok'))
    } catch (error) {
      if (!signal.aborted) replace(createWrong, notice(problem(error)))
    }
  })

  // Deleting users.
  const ids = el('textarea', { rows: 4, spellcheck: 'false', autocomplete: 'off', placeholder: 'One user id a line' })
  const file = el('input', { type: 'file', accept: 'text/plain,text/csv,.txt,.csv' })
  const from = el('div', { class: 'types' })
  const rest = el('small', {})
  const part = searchInput({ 'aria-label': 'Filter sources', placeholder: 'Part of name', hidden: true }, signal, () => offer().catch(() => {}))
  part.addEventListener('keydown', (event) => { if (event.key === 'Enter') event.preventDefault() }) // it is in the form
  const chosen = new Set() // names of sources

  // offer lists sources to choose, and those that are chosen.
  let wanted = 0
  async function offer() {
    const mine = ++wanted
    const { items: sources, total = 0 } = await get('sources', { q: part.value.trim(), limit: page }, signal)
    if (mine !== wanted) return
    const names = sources.map((s) => s.name)
    const others = [...chosen].filter((name) => !names.includes(name))
    keyed(from, [...others, ...names], (name) => name, (name) => {
      const input = el('input', { type: 'checkbox', onchange: () => (input.checked ? chosen.add(name) : chosen.delete(name)) })
      input.checked = chosen.has(name)
      return { node: el('label', { class: 'check' }, input, name) }
    })
    part.hidden = !part.value && total <= few
    text(rest, total > names.length ? `${count(total - names.length)} more, which the filter finds` : '')
  }
  const deleteWrong = el('div', { class: 'wrong' })
  const form = el('form', { class: 'form' },
    field('User ids', ids), field('or a file of them', file, 'One id a line, in UTF-8, of any length.'),
    el('fieldset', { class: 'types' }, el('legend', {}, 'Sources (none means all)'), part, from, rest), deleteWrong,
    el('div', { class: 'actions' }, el('button', { class: 'danger' }, 'Delete users…')))
  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    replace(deleteWrong)
    const list = ids.value.split(/\r?\n/).map((s) => s.trim()).filter(Boolean)
    const lines = file.files[0] ?? (list.length > direct ? new Blob([list.join('\n')]) : null)
    if (file.files[0] && list.length > 0) return replace(deleteWrong, notice('Give ids or a file, not both.'))
    if (!lines && list.length === 0) return replace(deleteWrong, notice('Give at least one user id.'))
    const sources = [...chosen]
    const what = file.files[0] ? `the users in ${file.files[0].name}` : plural(list.length, 'user')
    const where = sources.length > 0 ? sources.join(', ') : 'all sources'
    if (!(await confirm(`Ask to delete ${what}?`, `Every destination of ${where} is sent a deletion for each of them. Receivers cannot undo it.`, 'Delete'))) return
    const began = performance.now()
    const ok = await job(`Deleting ${what}`, async ({ onProgress, onSent, signal }) => {
      const last = lines
        ? await upload('POST', 'deletions', { parameters: { source: sources }, file: lines, signal }, onSent, onProgress)
        : await work('deletions', { body: { users: list, sources: sources.length > 0 ? sources : undefined }, signal }, onProgress)
      return `Their deletion is on its way. ${done('Read', last.done, 'user', (performance.now() - began) / 1_000)}`
    })
    if (ok) {
      form.reset()
      chosen.clear()
      offer().catch(() => {})
    }
  })

  every(5_000, refresh)
  every(10_000, offer)

  return {
    title: 'Users',
    node: el('div', {},
      el('div', { class: 'head' }, el('div', {}, el('h1', {}, 'Users'), el('p', { class: 'lead' }, 'Audiences tell a destination who joins and leaves a set of users. Deletions tell all of them to forget somebody.'))),
      wrong,
      panel('Audiences', { actions: filter }, scroll, empty, pages.node),
      el('div', { class: 'pair' }, panel('New audience', {}, create),
        panel('Delete users', {}, form, el('details', { class: 'more' }, el('summary', {}, 'From a terminal'), command('hookferry delete-user u1 u2'))))),
  }
}
