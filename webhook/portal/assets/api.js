// The API of the portal, by paths relative to the page.
import { APIError, ConnectionError, address, finished, json, lines } from './kit/http.js'

const base = new URL('api/v1/', document.baseURI)

async function request(method, path, { parameters, body, signal } = {}) {
  let response
  try {
    response = await fetch(address(base, path, parameters), {
      method, signal, cache: 'no-store', headers: body === undefined ? {} : { 'Content-Type': 'application/json' },
      body: body === undefined ? body : JSON.stringify(body),
    })
  } catch (error) {
    if (signal?.aborted) throw error
    throw new ConnectionError('the server cannot be reached')
  }
  if (response.ok) return response
  throw new APIError(response.status, await response.json().catch(() => ({})))
}

export const get = async (path, parameters, signal) => json(await request('GET', path, { parameters, signal }), signal)
export const send = async (method, path, body, parameters) => json(await request(method, path, { body, parameters }))

// work sends what takes long, and calls onProgress for each line of the answer. It returns the last.
export async function work(path, body, onProgress, signal) {
  let last = {}
  await lines(await request('POST', path, { body, signal }), signal, (values) => {
    last = values.at(-1)
    onProgress(last)
  })
  return finished(last)
}

// settings are what the program has decided, and types the types of its events.
export let settings = {}
export let types = []
export async function load() {
  const [s, t] = await Promise.all([get('settings'), get('types')])
  settings = s
  types = t.items
}
export const may = (action) => settings.actions.includes(action)
