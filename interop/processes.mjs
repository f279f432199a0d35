// The processes that are started, each of them ended at the end.
import { spawn } from 'node:child_process'

const running = new Set()

process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

// start starts a program. Its output is kept, and given to onLine line by line.
export function start(command, args, { onLine, ...options } = {}) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options })
  running.add(child)
  child.output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8')
    let rest = ''
    stream.on('data', (text) => {
      child.output += text
      const lines = (rest + text).split('\n')
      rest = lines.pop()
      for (const line of lines) onLine?.(line)
    })
  }
  child.ended = new Promise((resolve) => {
    child.once('error', (error) => {
      child.output += error.message
      running.delete(child)
      resolve(`could not be started: ${error.message}`)
    })
    child.once('close', (code, signal) => {
      running.delete(child)
      resolve(code === 0 ? '' : `ended with ${signal ?? `status ${code}`}`)
    })
  })
  return child
}

// run runs a program to its end. It throws, with the output, if that is not a
// good one, or takes too long.
export async function run(command, args, { milliseconds = 60_000, ...options } = {}) {
  const child = start(command, args, options)
  const problem = await within(child, milliseconds)
  if (problem) throw new Error(`${[command, ...args].join(' ')}: ${problem}\n${child.output}`)
  return child.output
}

// stop asks a program to end, and insists after a while. It returns what was
// wrong with the way it ended.
export async function stop(child, milliseconds = 60_000) {
  child.kill('SIGTERM')
  return within(child, milliseconds)
}

async function within(child, milliseconds) {
  const problem = await inTime(child.ended, milliseconds)
  if (problem !== undefined) return problem
  await end(child)
  return `did not end within ${milliseconds} ms`
}

// end ends a child. It is given the time to end what it has started itself.
async function end(child) {
  child.kill('SIGTERM')
  if ((await inTime(child.ended, 5_000)) === undefined) {
    child.kill('SIGKILL')
    await child.ended
  }
}

// inTime returns what promise does, or undefined if that takes too long.
async function inTime(promise, milliseconds) {
  let timer
  const late = new Promise((resolve) => { timer = setTimeout(resolve, milliseconds) })
  const value = await Promise.race([promise, late])
  clearTimeout(timer)
  return value
}

// stopAll ends what still runs.
export async function stopAll() {
  await Promise.all([...running].map(end))
}
