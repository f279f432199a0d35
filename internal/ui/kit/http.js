// What pages ask of their server: JSON, and streams of JSON lines.

// An APIError is an answer that is not 2xx, or the error that ends a stream.
export class APIError extends Error {
  constructor(status, { code = '', message = '', field = '', fields = [] } = {}) {
    super(message || `the server answered ${status}`)
    this.status = status
    this.code = code
    this.field = field
    this.fields = fields // what is wrong with a form: pairs of field and message
  }
}

// A ConnectionError says that the server was not reached, or broke off.
export class ConnectionError extends Error {}

// address is that of a path below a base, with parameters that have a value.
export function address(base, path, parameters) {
  const url = new URL(path, base)
  for (const [name, value] of Object.entries(parameters ?? {})) {
    for (const v of Array.isArray(value) ? value : [value]) {
      if (v !== undefined && v !== null && v !== '') url.searchParams.append(name, v)
    }
  }
  return url
}

// segment is a name as a part of a path. There is no way to write "." and ".." as
// one: a URL takes %2E for a dot. No destination has such an id; what may have any
// is a parameter.
export const segment = encodeURIComponent

export async function json(response, signal) {
  try {
    return await response.json()
  } catch (error) {
    if (signal?.aborted) throw error
    throw new ConnectionError('the answer broke off')
  }
}

// silence is how long a stream may say nothing, in milliseconds. The server
// sends an empty line every 15 s.
const silence = 40_000

// lines calls take with each chunk's values of an answer of JSON lines, until the answer ends. A
// last line that is not whole is left out.
export async function lines(response, signal, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const timer = setTimeout(() => reader.cancel(), silence)
    let chunk
    try {
      chunk = await reader.read()
    } catch (error) {
      if (signal?.aborted) throw error
      throw new ConnectionError('the stream broke off')
    } finally {
      clearTimeout(timer)
    }
    if (chunk.done) return
    const lines = (rest + chunk.value).split('\n')
    rest = lines.pop()
    const values = lines.filter((line) => line.trim()).map((line) => JSON.parse(line))
    if (values.length) take(values)
  }
}

// finished returns the last Progress of a stream, and throws unless it says that the work has ended.
export function finished(last) {
  if (last.error) throw new APIError(0, last.error)
  if (!last.ended) throw new ConnectionError('the work was cut off')
  return last
}
