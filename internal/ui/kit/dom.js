// Building and updating elements. There is no template language: what a view
// shows is made once, and the parts that change are updated in place, so that
// focus, selection and scrolling survive every refresh.

// el makes an element. Properties named on… are listeners; true and false set
// and leave out an attribute; others are attributes. Children are nodes, texts,
// or lists of them; null, undefined and false are left out.
export function el(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children)
}

// svg is el for SVG.
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children)
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value)
    else set(node, name, value)
  }
  node.append(...children.flat(Infinity).filter((c) => c != null && c !== false))
  return node
}

// set sets an attribute if it has changed.
export function set(node, name, value) {
  if (value === false || value == null) node.removeAttribute(name)
  else if (value === true) node.toggleAttribute(name, true)
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value)
}

// text sets the text of a node if it has changed.
export function text(node, value) {
  if (node.textContent !== String(value)) node.textContent = value
}

// replace makes children all that node has.
export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((c) => c != null && c !== false))
}

// keyed makes the children of parent those of items, in their order. make
// returns the node of an item that is new and a function that updates it; the
// nodes of items that stay are kept.
const known = new WeakMap()
export function keyed(parent, items, key, make) {
  const old = known.get(parent) ?? new Map()
  const now = new Map()
  let at = parent.firstChild
  for (const item of items) {
    const k = key(item)
    const entry = old.get(k) ?? make(item)
    old.delete(k)
    now.set(k, entry)
    entry.update?.(item)
    if (entry.node === at) at = at.nextSibling
    else parent.insertBefore(entry.node, at)
  }
  for (const { node } of old.values()) node.remove()
  known.set(parent, now)
}

// say has a screen reader say something, once.
export function say(message) {
  const node = document.getElementById('say')
  node.textContent = ''
  requestAnimationFrame(() => { node.textContent = message })
}
