// The receiver: Express, and the signature checked as the public documentation
// of webhooks tells receivers to: over the body that was parsed, made a string
// again. The headers of Standard Webhooks are checked over the bytes of the body,
// with the libraries of its specification: here, and by a verifier in Go.
import { createHmac } from 'node:crypto'
import { EventEmitter } from 'node:events'
import express from 'express'
import { Webhook } from 'standardwebhooks'

export class Receiver extends EventEmitter {
  // Everything that arrived: {headers, body, signed, standard}, where standard
  // is what the libraries have against it.
  webhooks = []

  constructor(secret, standardSecrets, verifier) {
    super()
    const hooks = standardSecrets.map((s) => new Webhook(s))
    const app = express()
    app.use(express.json({ verify: (req, _, bytes) => { req.bytes = bytes } }))
    app.post('/hook', async (req, res) => {
      const digest = createHmac('sha1', secret).update(JSON.stringify(req.body)).digest('hex')
      const standard = await problems(hooks, verifier, req)
      this.webhooks.push({
        arrived: Date.now(),
        standard,
        headers: req.headers,
        body: req.body,
        signed: req.headers['x-signature'] === digest,
      })
      res.sendStatus(200)
      this.emit('webhook')
    })
    this.app = app
  }

  // listen returns the URL.
  async listen() {
    this.server = this.app.listen(0, '127.0.0.1')
    await new Promise((resolve, reject) => this.server.once('listening', resolve).once('error', reject))
    return `http://127.0.0.1:${this.server.address().port}/hook`
  }

  // until waits for condition() to hold, looking at each arrival.
  async until(condition) {
    while (!condition()) await new Promise((resolve) => this.once('webhook', resolve))
  }

  close() {
    this.server?.close()
    this.server?.closeAllConnections()
  }
}

// problems returns what a library of Standard Webhooks says against a request,
// with any of the secrets.
async function problems(hooks, verifier, req) {
  const found = []
  for (const [i, hook] of hooks.entries()) {
    try {
      hook.verify(req.bytes, req.headers)
    } catch (error) {
      found.push(`npm standardwebhooks, secret ${i}: ${error.message}`)
    }
  }
  const headers = Object.fromEntries(Object.entries(req.headers).filter(([name]) => name.startsWith('webhook-')))
  const answer = await fetch(verifier, { method: 'POST', headers, body: req.bytes })
  const text = await answer.text()
  if (!answer.ok) found.push(`Go standardwebhooks, ${text.trim()}`)
  return found
}
