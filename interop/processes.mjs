// The processes that are started, each of them ended at the end.
import { spawn } from 'node:child_process'

const running = new Set()

process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

// start starts a program. Its output is kept; printed reads it line by line.
export function start(command, args, options = {}) {
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
      for (const line of lines) child.onLine?.(line)
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
// good one.
export async function run(command, args, options = {}) {
  const child = start(command, args, options)
  const problem = await child.ended
  if (problem) throw new Error(`${[command, ...args].join(' ')}: ${problem}\n${child.output}`)
  return child.output
}

// stop asks a program to end, waits for that, and returns what was wrong with it.
export async function stop(child) {
  child.kill('SIGTERM')
  return child.ended
}

// printed waits until a program prints a line of which find makes a value, and
// returns that value.
export async function printed(child, what, find) {
  let tell
  const found = new Promise((resolve) => { tell = resolve })
  child.onLine = (line) => { const value = find(line); if (value) tell(value) }
  for (const line of child.output.split('\n')) child.onLine(line)
  const value = await Promise.race([found, child.ended.then(() => undefined)])
  if (value === undefined) throw new Error(`${what}\n${child.output}`)
  return value
}

// stopAll ends what still runs.
export async function stopAll() {
  await Promise.all([...running].map((child) => {
    child.kill('SIGKILL')
    return child.ended
  }))
}
