// A list of any length whose rows have one height, newest first. Only the rows
// in sight are in the document; they are used again as it scrolls. The height is
// --row of the style sheet, in pixels.
import { el } from './kit/dom.js'

// bound is how many items are kept. More would be more than anybody scrolls
// through, and a browser limits the height of an element.
export const bound = 5_000
const spare = 6

// calm is the least time in milliseconds between two paintings for what was
// added. Nobody reads faster, and the browser has time for whoever uses it.
const calm = 100

export class List {
  // make returns a new row; show shows an item in one. onOpen is called with
  // the item that is chosen.
  constructor({ label, make, show, onOpen }) {
    this.height = 30
    this.make = make
    this.show = show
    this.onOpen = onOpen
    this.items = [] // oldest first, so that adding is cheap
    this.rows = []
    this.chosen = null
    this.top = 0 // how far it is scrolled
    this.shift = 0 // how far it is to be scrolled for what was added above
    this.painted = 0
    this.space = el('div', { class: 'space' })
    this.node = el('div', { class: 'list', tabindex: 0, role: 'listbox', 'aria-label': label }, this.space)
    this.node.addEventListener('scroll', () => {
      this.top = this.node.scrollTop
      this.later()
    }, { passive: true })
    this.node.addEventListener('click', (event) => {
      const row = event.target.closest('[role=option]')
      if (row) this.choose(this.items.length - 1 - row.index)
    })
    this.node.addEventListener('keydown', (event) => this.onKey(event))
    new ResizeObserver(() => {
      // A list that has left the document has no style.
      if (!this.node.isConnected) return
      this.height = Number(getComputedStyle(this.node).getPropertyValue('--row'))
      this.later()
    }).observe(this.node)
  }

  // add appends the newest items. Whoever has scrolled down stays at what is
  // being read.
  add(items) {
    if (items.length === 0) return
    for (const item of items) this.items.push(item)
    if (this.items.length > bound) this.items.splice(0, this.items.length - bound)
    if (this.top > 0) this.shift += items.length * this.height
    this.timer ??= setTimeout(() => {
      this.timer = null
      this.later()
    }, Math.max(0, this.painted + calm - performance.now()))
  }

  // reset shows other items, oldest first.
  reset(items) {
    this.items = items
    this.chosen = null
    this.shift = 0
    this.top = this.node.scrollTop = 0
    this.later()
  }

  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null
      this.paint()
    })
  }

  paint() {
    const { items, height, rows } = this
    // What is read of the layout is read before anything is changed, as it would
    // be made anew for that.
    const sight = this.node.clientHeight
    this.painted = performance.now()
    const tall = `${items.length * height}px`
    if (this.space.style.height !== tall) this.space.style.height = tall
    if (this.shift) {
      this.top = Math.min(this.top + this.shift, items.length * height - sight)
      this.node.scrollTop = this.top
      this.shift = 0
    }
    const first = Math.max(0, Math.floor(this.top / height) - spare)
    const last = Math.min(items.length, Math.ceil((this.top + sight) / height) + spare)
    while (rows.length < last - first) {
      const row = this.make()
      row.setAttribute('role', 'option')
      row.id = `row-${rows.length}`
      this.space.append(row)
      rows.push(row)
    }
    let active = ''
    rows.forEach((row, i) => {
      const index = first + i
      row.hidden = index >= last
      if (row.hidden) return
      const item = items[items.length - 1 - index]
      if (row.index !== index || row.height !== height) {
        row.index = index
        row.height = height
        row.style.transform = `translateY(${index * height}px)`
      }
      if (row.item !== item) {
        row.item = item
        this.show(item, row)
      }
      const chosen = item === this.chosen
      if (row.ariaSelected !== String(chosen)) row.ariaSelected = String(chosen)
      if (chosen) active = row.id
    })
    if (active) this.node.setAttribute('aria-activedescendant', active)
    else this.node.removeAttribute('aria-activedescendant')
  }

  choose(index, { open = true } = {}) {
    const item = this.items[index]
    if (!item) return
    this.chosen = item
    const top = (this.items.length - 1 - index) * this.height
    const sight = this.node.clientHeight
    if (top < this.top) this.node.scrollTop = top
    else if (top + this.height > this.top + sight) this.node.scrollTop = top + this.height - sight
    this.later()
    if (open) this.onOpen(item)
  }

  // move chooses the next item below, or above.
  move(by) {
    const at = this.chosen ? this.items.indexOf(this.chosen) : -1
    this.choose(at < 0 ? this.items.length - 1 : Math.min(this.items.length - 1, Math.max(0, at - by)))
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.height) - 1)
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key]
    if (!by) return
    event.preventDefault()
    this.move(by)
  }
}
