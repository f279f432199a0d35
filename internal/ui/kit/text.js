// The texts of a page. A page may have its own words for them, by the English ones.
let own = {}

// setWords takes a page's own words, before the first view is made.
export function setWords(words) { own = words ?? {} }

// t is the text for an English one, in which names in braces stand for values.
export function t(english, values) {
  const text = own[english] ?? english
  return values ? text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole) : text
}

// n marks an English text of a table, which t is given later.
export const n = (english) => english
