// The receiver: Express, and the signature checked as the public documentation
// of webhooks tells receivers to: over the body that was parsed, made a string
// again.
import { createHmac } from 'node:crypto'
import { EventEmitter } from 'node:events'
import express from 'express'

export class Receiver extends EventEmitter {
  // Everything that arrived: {method, path, headers, body, signed}.
  webhooks = []

  constructor(secret) {
    super()
    const app = express()
    app.use(express.json())
    app.post('/hook', (req, res) => {
      const digest = createHmac('sha1', secret).update(JSON.stringify(req.body)).digest('hex')
      this.webhooks.push({
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
  async until(condition, milliseconds) {
    const deadline = AbortSignal.timeout(milliseconds)
    while (!condition() && !deadline.aborted) {
      await new Promise((resolve) => {
        const done = () => {
          this.off('webhook', done)
          deadline.removeEventListener('abort', done)
          resolve()
        }
        this.on('webhook', done)
        deadline.addEventListener('abort', done)
      })
    }
    return condition()
  }

  close() {
    this.server?.close()
    this.server?.closeAllConnections()
  }
}
