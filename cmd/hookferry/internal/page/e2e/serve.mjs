// hookferry serve, with what sends to it and what receives from it. All of them
// end with the test.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'

const children = new Set()
process.once('exit', () => { for (const child of children) child.kill('SIGKILL') })

// A Receiver answers webhooks on paths: answer[path] is a status, and body a
// text for it. Others are answered 200.
export class Receiver {
  static async start() {
    const r = new Receiver()
    r.answers = {}
    r.got = []
    r.server = createServer(async (req, res) => {
      const chunks = []
      for await (const chunk of req) chunks.push(chunk)
      r.got.push({ path: req.url, headers: req.headers, body: JSON.parse(Buffer.concat(chunks)) })
      const { status = 200, text = 'taken' } = r.answers[req.url] ?? {}
      res.writeHead(status, { 'Content-Type': 'text/plain' }).end(text)
    })
    r.server.keepAliveTimeout = 60_000
    r.server.listen(0, '127.0.0.1')
    await once(r.server, 'listening')
    r.url = `http://127.0.0.1:${r.server.address().port}`
    return r
  }

  // on counts what came on a path.
  on(where) { return this.got.filter((g) => g.path === where).length }

  stop() {
    this.server.close()
    this.server.closeAllConnections()
  }
}

// A Database is a PostgreSQL server.
export class Database {
  static async start() {
    const d = new Database()
    const child = spawn(process.env.E2E_POSTGRES, { stdio: ['pipe', 'pipe', 'inherit'] })
    // It ends with this process, as its standard input does.
    d.child = child
    d.ended = once(child, 'close')
    child.stdout.setEncoding('utf8')
    const [line] = await Promise.race([once(child.stdout, 'data'), d.ended.then(([code]) => { throw new Error(`the database ended with status ${code}`) })])
    d.url = line.trim()
    return d
  }

  async stop() {
    this.child.stdin.end()
    await this.ended
  }
}

// free returns an address on which nothing listens, and whose port the system gives
// to nobody, so that it is still there when a server starts again: see porttest.
const given = new Set()
async function free() {
  for (;;) {
    const port = 16_384 + Math.floor(Math.random() * 16_384)
    if (given.has(port)) continue
    const listener = createServer().listen(port, '127.0.0.1')
    try {
      await once(listener, 'listening')
    } catch {
      continue // somebody's
    }
    given.add(port)
    listener.close()
    await once(listener, 'close')
    return `127.0.0.1:${port}`
  }
}

// A Server is a process of hookferry serve in a folder of its own.
export class Server {
  // start starts one with a configuration, on addresses of its own.
  static async start(configuration, { token = '' } = {}) {
    const s = new Server()
    s.folder = await mkdtemp(path.join(tmpdir(), 'hookferry-page-'))
    s.configuration = configuration
    s.token = token
    s.ports = [await free(), await free()]
    await s.restart()
    return s
  }

  async restart() {
    const file = path.join(this.folder, 'hookferry.yaml')
    await writeFile(file, JSON.stringify({
      listen: this.ports[0], data: path.join(this.folder, 'data'), grace: '2s',
      admin: { listen: this.ports[1], ...(this.token && { token: this.token }) },
      ...this.configuration,
    }))
    const child = spawn(process.env.E2E_HOOKFERRY, ['serve', '--config', file], { stdio: ['ignore', 'pipe', 'pipe'] })
    children.add(child)
    this.child = child
    let output = ''
    const addresses = new Promise((resolve, reject) => {
      const read = (text) => {
        output += text
        const calls = /msg=listening .*?address=(\S+)/.exec(output)
        const page = /msg="the page is at" url=http:\/\/(\S+?)\/?\s/.exec(output)
        if (calls && page) resolve([calls[1], page[1]])
      }
      for (const stream of [child.stdout, child.stderr]) {
        stream.setEncoding('utf8')
        stream.on('data', read)
      }
      child.once('close', (code, signal) => {
        children.delete(child)
        reject(new Error(`serve ended with ${signal ?? `status ${code}`}:\n${output}`))
      })
    })
    this.ended = once(child, 'close')
    this.ports = await addresses
    this.calls = `http://${this.ports[0]}`
    this.page = `http://${this.ports[1]}/`
  }

  // kill ends the process as a crash would.
  async kill() {
    this.child.kill('SIGKILL')
    await this.ended
  }

  async stop() {
    this.child.kill('SIGTERM')
    await this.ended
    await rm(this.folder, { recursive: true })
  }

  // track sends calls, in batches of 100.
  async track(key, n, make = (i) => ({ event: 'Signed Up', userId: `user-${i}` })) {
    for (let i = 0; i < n; i += 100) {
      const batch = Array.from({ length: Math.min(100, n - i) }, (_, j) => ({
        type: 'track', messageId: crypto.randomUUID(), timestamp: new Date().toISOString(), ...make(i + j),
      }))
      const response = await fetch(`${this.calls}/v1/batch`, {
        method: 'POST', headers: { Authorization: `Basic ${btoa(`${key}:`)}`, 'Content-Type': 'application/json' },
        body: JSON.stringify({ batch, sentAt: new Date().toISOString() }),
      })
      if (!response.ok) throw new Error(`a batch was answered ${response.status}: ${await response.text()}`)
    }
  }

  // api asks the admin API. With a body, it posts that.
  async api(where, body) {
    const response = await fetch(`${this.page}api/v1/${where}`, {
      method: body ? 'POST' : 'GET', headers: { ...(this.token && { Authorization: `Bearer ${this.token}` }), 'Content-Type': 'application/json' }, body: body && JSON.stringify(body),
    })
    if (!response.ok) throw new Error(`${where} was answered ${response.status}: ${await response.text()}`)
    return response.json()
  }
}

// until waits until what f returns is true. If that takes long it says what it waits for.
export async function until(what, f) {
  const slow = setTimeout(() => console.log(`still waiting until ${what}`), 60_000)
  try {
    for (;;) {
      const last = await f()
      if (last) return last
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  } finally {
    clearTimeout(slow)
  }
}
