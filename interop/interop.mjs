// The interoperability test: clients of the tracking API that others wrote and
// maintain, unmodified, through hookferry serve to an Express receiver.
//
//     ./run [client ...]
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { callsFor } from './calls.mjs'
import { marker, problems } from './check.mjs'
import { printed, run, start, stop, stopAll } from './processes.mjs'
import { Receiver } from './receiver.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const root = path.dirname(here)

const six = ['identify', 'track', 'page', 'screen', 'group', 'alias']

const browserAdds = {
  properties: ['name', 'category', 'path', 'referrer', 'search', 'title', 'url'],
  context: ['library', 'page', 'userAgent', 'userAgentData', 'locale', 'timezone', 'ip'],
}

// The clients. Lone is whether the language has texts with lone surrogates;
// anonymous, whether a call may go without a user id; adds, which members a
// client adds to those of a call; drops, which fields it has no way to send.
const clients = [
  {
    id: 'segment-node',
    title: `@segment/analytics-node ${npmVersion('@segment/analytics-node')}`,
    command: [process.execPath, 'clients/segment-node.mjs'],
    types: six, lone: true, anonymous: true,
    adds: { properties: ['name', 'category'], context: ['library'] },
  },
  {
    id: 'analytics-node',
    title: `analytics-node ${npmVersion('analytics-node')}`,
    command: [process.execPath, 'clients/analytics-node.mjs'],
    types: six, lone: true, anonymous: true,
    adds: { context: ['library'] },
  },
  {
    id: 'rudder-node',
    title: `@rudderstack/rudder-sdk-node ${npmVersion('@rudderstack/rudder-sdk-node')}`,
    command: [process.execPath, 'clients/rudder-node.mjs'],
    types: six, lone: true, anonymous: true,
    adds: { context: ['library', 'traits'] },
  },
  {
    id: 'segment-browser',
    title: `@segment/analytics-next ${npmVersion('@segment/analytics-next')}`,
    command: [process.execPath, 'clients/segment-browser.mjs'],
    types: six, lone: true, anonymous: true,
    adds: browserAdds,
  },
  {
    id: 'segment-browser-batching',
    title: `@segment/analytics-next ${npmVersion('@segment/analytics-next')}, batching`,
    command: [process.execPath, 'clients/segment-browser.mjs', 'batching'],
    types: six, lone: true, anonymous: true,
    adds: browserAdds,
  },
  {
    id: 'segment-go',
    title: `segmentio/analytics-go ${goVersion('github.com/segmentio/analytics-go/v3')}`,
    command: ['./client', 'segment'], go: true,
    types: six, anonymous: true,
    adds: { context: ['library'] }, drops: ['category'],
  },
  {
    id: 'rudder-go',
    title: `rudderlabs/analytics-go ${goVersion('github.com/rudderlabs/analytics-go/v4')}`,
    command: ['./client', 'rudder'], go: true,
    types: six, anonymous: true,
    adds: { context: ['library'] }, drops: ['category'],
  },
]

function npmVersion(name) {
  return JSON.parse(readFileSync(path.join(here, 'package.json'))).dependencies[name]
}

function goVersion(module) {
  return readFileSync(path.join(here, 'go', 'go.mod'), 'utf8').match(new RegExp(`${module} (\\S+)`))[1]
}

const writeKey = (client) => `interop-key-${client.id}`
const secret = 'gehe1m <&>'
const standardSecrets = [0, 1].map(() => `whsec_${randomBytes(32).toString('base64')}`)

// headersOf returns the static headers of the destination of a client.
const headersOf = (client) => ({ 'X-Static': 'Bearer t0ken: "quoted"', 'X-Client': client.id })

let passed = 0
let failed = 0

function report(what, details, found) {
  found.length ? failed++ : passed++
  console.log(`${found.length ? 'FAIL' : 'ok  '}  ${what.padEnd(46)} ${details}`)
  for (const line of found.slice(0, 12)) console.log(`      ${line.replaceAll('\n', '\n      ')}`)
  if (found.length > 12) console.log(`      and ${found.length - 12} more`)
}

async function main(scratch) {
  const chosen = process.argv.slice(2)
  for (const id of chosen) {
    if (!clients.some((c) => c.id === id)) throw new Error(`no client ${id}; there are ${clients.map((c) => c.id).join(', ')}`)
  }

  const hookferry = path.join(scratch, 'hookferry')
  await run('go', ['build', '-o', hookferry, './cmd/hookferry'], { cwd: root })
  await run('go', ['build', '-o', path.join(scratch, 'client'), '.'],
    { cwd: path.join(here, 'go'), env: { ...process.env, GOWORK: 'off' } })

  const verifier = await startVerifier(path.join(scratch, 'client'))
  const receiver = new Receiver(secret, standardSecrets, verifier.url)
  const hook = await receiver.listen()
  try {
    const server = await serve(hookferry, scratch, hook)
    const sent = []
    for (const client of clients) {
      if (chosen.length && !chosen.includes(client.id)) continue
      sent.push(await send(client, server.endpoint, receiver, scratch))
    }
    // Everything that the server still wanted to send has been sent once it
    // ended; what arrived twice, or should not have, is known by then.
    const problem = await stop(server.process)

    for (const { client, cases, found, milliseconds } of sent) {
      const markers = new Set(cases.map(({ call }) => marker(call)))
      const webhooks = receiver.webhooks.filter(({ body }) => markers.has(marker(body)))
      for (const c of cases) {
        const own = webhooks.filter(({ body }) => marker(body) === marker(c.call))
        for (const p of problems(c, own, { source: client.id, headers: headersOf(client), adds: client.adds, drops: client.drops })) found.push(`${c.name}: ${p}`)
      }
      report(client.title, `${cases.length} calls, ${webhooks.length} webhooks, ${milliseconds} ms`, found)
    }
    const known = new Set(sent.flatMap(({ cases }) => cases.map(({ call }) => marker(call))))
    const strays = receiver.webhooks.filter(({ body }) => !known.has(marker(body)))
    report('nothing else arrived', '', strays.map(({ body }) => JSON.stringify(body).slice(0, 200)))
    report('Standard Webhooks, npm and Go libraries', `${receiver.webhooks.length} webhooks`,
      receiver.webhooks.length ? receiver.webhooks.flatMap(({ standard }) => standard) : ['nothing arrived'])
    report('the server ended as it should', '', problem ? [problem, server.process.output] : [])
    if (failed) console.log(`\nThe server's log:\n${server.process.output}`)
  } finally {
    receiver.close()
    await stop(verifier.process)
  }
}

// startVerifier starts the verifier in Go, and tells its URL once it serves.
async function startVerifier(command) {
  const child = start(command, ['verify'], {
    env: { ...process.env, INTEROP_STANDARD_SECRETS: standardSecrets.join(' ') },
  })
  const at = await printed(child, 'the verifier does not say where it listens', (line) => line.match(/^verifying on (\S+)$/)?.[1])
  return { process: child, url: `http://${at}/` }
}

// serve starts the server on a port of its own choice, and tells its URL once it
// serves. Each client is a source with a destination of its own: what takes the
// wrong way has the wrong header. JSON is YAML.
async function serve(hookferry, scratch, hook) {
  const file = path.join(scratch, 'hookferry.yaml')
  await writeFile(file, JSON.stringify({
    listen: '127.0.0.1:0',
    admin: { listen: 'off' },
    data: 'data',
    sources: clients.map((client) => ({ name: client.id, keys: [writeKey(client)], destinations: [client.id] })),
    destinations: clients.map((client) => ({
      id: client.id, endpoints: [{ url: hook, headers: headersOf(client) }], secret, standardSecrets,
    })),
  }))
  const child = start(hookferry, ['serve', '--config', file])
  const number = await printed(child, 'hookferry serve does not say where it listens', (line) =>
    [...line.matchAll(/127\.0\.0\.1:([1-9]\d*)/g)].find(([address]) => address !== new URL(hook).host)?.[1])
  return { process: child, endpoint: `http://127.0.0.1:${number}` }
}

// send runs a client, and waits for what it sent to arrive.
async function send(client, endpoint, receiver, scratch) {
  const cases = callsFor(client)
  const file = path.join(scratch, `${client.id}.json`)
  await writeFile(file, JSON.stringify(cases.map(({ call }) => call)))
  const begun = Date.now()
  const found = []
  try {
    await run(...command(client, scratch), {
      cwd: client.go ? scratch : here,
      env: {
        ...process.env,
        no_proxy: '*', // whatever proxy the machine has
        NO_PROXY: '*',
        INTEROP_ENDPOINT: endpoint,
        INTEROP_WRITE_KEY: writeKey(client),
        INTEROP_CALLS: file,
        INTEROP_SCRATCH: scratch,
      },
    })
  } catch (error) {
    found.push(error.message)
  }
  if (found.length) return { client, cases, found, milliseconds: Date.now() - begun }
  const missing = new Set(cases.filter((c) => c.forwarded).map(({ call }) => marker(call)))
  await receiver.until(() => {
    for (const { body } of receiver.webhooks) missing.delete(marker(body))
    return missing.size === 0
  })
  return { client, cases, found, milliseconds: Date.now() - begun }
}

function command({ command: [program, ...args] }, scratch) {
  return [program === './client' ? path.join(scratch, 'client') : program, args]
}

const scratch = await mkdtemp(path.join(tmpdir(), 'hookferry-interop-'))

async function cleanUp() {
  await stopAll()
  await rm(scratch, { recursive: true, force: true, maxRetries: 10 })
}

for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, async () => {
    console.log(`ended by ${signal}`)
    await cleanUp()
    process.exit(1)
  })
}
// The only time limit, so that a hang ends and says where it is.
setTimeout(async () => {
  console.log(`FAIL  not done in 10 minutes; ${passed} passed, ${failed} failed so far`)
  await cleanUp()
  process.exit(1)
}, 600_000).unref()
try {
  await main(scratch)
} catch (error) {
  report('the test itself', '', [error.stack ?? String(error)])
} finally {
  await cleanUp()
}
console.log(`\n${passed} passed, ${failed} failed`)
process.exitCode = failed ? 1 : 0
