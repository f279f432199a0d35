// The admin API: JSON, streams of JSON lines, and uploads. Paths are relative to
// the page, so that it works below a prefix.
import { APIError, ConnectionError, address, finished, json, lines } from './kit/http.js'
export { APIError, ConnectionError, segment } from './kit/http.js'

const base = new URL('api/v1/', document.baseURI)
const tokenKey = 'hookferry.token'

// The page sets askToken: it returns a promise of a token that somebody typed.
let ask = null
export function onUnauthorized(askToken) { ask = askToken }

// letIn resolves once the server lets requests in: with the token of this tab, with
// one that is typed, or without one. All requests wait for it, so that none is
// refused for want of a token.
let entry = null
function letIn() {
  entry ??= enter().catch((error) => {
    entry = null
    throw error
  })
  return entry
}

async function enter() {
  for (;;) {
    const response = await send('GET', 'access', {})
    if (!response.ok) throw new APIError(response.status, await response.json().catch(() => ({})))
    if ((await json(response)).granted) return
    sessionStorage.setItem(tokenKey, await ask())
  }
}

const token = () => sessionStorage.getItem(tokenKey)

async function request(method, path, options = {}) {
  for (;;) {
    const mine = letIn()
    await mine
    options.signal?.throwIfAborted()
    const response = await send(method, path, options)
    if (response.ok) return response
    if (response.status !== 401) throw new APIError(response.status, await response.json().catch(() => ({})))
    refused(mine)
  }
}

// refused has the next request find out anew whether it is let in, as the server has
// another token now. It is told by each request that was let in before.
function refused(before) {
  if (entry === before) entry = null
}

async function send(method, path, { parameters, body, signal }) {
  const headers = {}
  if (token()) headers.Authorization = `Bearer ${token()}`
  if (body !== undefined) headers['Content-Type'] = 'application/json'
  try {
    return await fetch(address(base, path, parameters), {
      method, headers, signal, cache: 'no-store', credentials: 'omit',
      body: body === undefined ? body : JSON.stringify(body),
    })
  } catch (error) {
    if (signal?.aborted) throw error
    throw new ConnectionError('the server cannot be reached')
  }
}

export async function get(path, parameters, signal) {
  const response = await request('GET', path, { parameters, signal })
  return json(response, signal)
}

export const post = (path, body, signal) => write('POST', path, { body, signal })

export async function write(method, path, options) {
  const response = await request(method, path, options)
  return json(response, options.signal)
}

// stream calls take with each chunk's values of an answer of JSON lines, until the answer ends.
export async function stream(method, path, options, take) {
  await lines(await request(method, path, options), options.signal, take)
}

// work is a stream of Progress: it throws unless the last one says that the
// work has ended.
export async function work(path, options, onProgress) {
  let last = {}
  await stream('POST', path, options, (values) => {
    last = values.at(-1)
    onProgress(last)
  })
  return finished(last)
}

// upload is work with a file. Unlike fetch, XMLHttpRequest tells how much of it
// is sent.
export async function upload(method, path, { parameters, file, signal }, onSent, onProgress) {
  for (;;) {
    const mine = letIn()
    await mine
    const xhr = new XMLHttpRequest()
    const ended = new Promise((resolve, reject) => {
      xhr.onload = resolve
      xhr.onerror = () => reject(new ConnectionError('the server cannot be reached'))
      xhr.onabort = () => reject(signal.reason)
    })
    xhr.open(method, address(base, path, parameters))
    xhr.setRequestHeader('Content-Type', 'text/plain')
    if (token()) xhr.setRequestHeader('Authorization', `Bearer ${token()}`)
    xhr.upload.onprogress = (e) => onSent(e.loaded, e.total)
    let read = 0
    let last = {}
    xhr.onprogress = () => {
      if (xhr.status !== 200) return
      const end = xhr.responseText.lastIndexOf('\n') + 1
      for (const line of xhr.responseText.slice(read, end).split('\n')) {
        if (!line.trim()) continue
        last = JSON.parse(line)
        onProgress(last)
      }
      read = end
    }
    const abort = () => xhr.abort()
    signal?.addEventListener('abort', abort, { once: true })
    try {
      xhr.send(file)
      await ended
    } finally {
      signal?.removeEventListener('abort', abort)
    }
    if (xhr.status === 401) {
      refused(mine)
      continue
    }
    if (xhr.status < 200 || xhr.status > 299) {
      let problem = {}
      try { problem = JSON.parse(xhr.responseText) } catch { /* a proxy's own text */ }
      throw new APIError(xhr.status, problem)
    }
    xhr.onprogress()
    return finished(last)
  }
}

// download hands the lines of a path to the browser as a file.
export async function download(path, name, signal) {
  const response = await request('GET', path, { signal })
  const url = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = url
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(url), 60_000)
}
