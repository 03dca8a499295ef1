// JavaScript clients behind a line protocol: one JSON request a line on standard input, one JSON answer a line on
// standard output. The requests are those of test/interop/driver_test.go; bytes are base64, null is null.
//
//   node driver.mjs MODULES CLIENT
//
// MODULES is the folder that has node_modules, CLIENT is one of the files beside this one.

import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const [modules, name] = process.argv.slice(2)
const require = createRequire(modules + '/')
// Standard output is for answers; the clients' loggers write there.
console.log = console.info = console.warn = console.debug = console.error

const encode = b => (b === null || b === undefined ? null : Buffer.from(b).toString('base64'))
const decode = s => (s === null || s === undefined ? null : Buffer.from(s, 'base64'))

// plain is a record as the protocol has it; headers are [name, value] pairs.
function plain({ partition, offset, timestamp, key, value, headers }) {
  return {
    partition,
    offset: Number(offset),
    timestamp: Number(timestamp),
    key: encode(key),
    value: encode(value),
    headers: headers.map(([name, value]) => ({ name, value: encode(value) })),
  }
}

// pairs are the headers of a client that keeps them in an object, several of one name in an array.
function pairs(object) {
  return Object.entries(object ?? {}).flatMap(([name, v]) => (Array.isArray(v) ? v.map(x => [name, x]) : [[name, v]]))
}

// object is the reverse of pairs.
function object(headers) {
  const out = {}
  for (const { name, value } of headers ?? []) {
    out[name] = name in out ? [out[name], decode(value)].flat() : decode(value)
  }
  return out
}

// byPartition splits records. Each part is a send of its own: when one partition of a send is not ready yet, some
// clients send all of it again.
function byPartition(records) {
  const parts = new Map()
  for (const r of records) parts.set(r.partition, [...(parts.get(r.partition) ?? []), r])
  return parts.values()
}

// Cannot is thrown when the client has no way to do what is asked.
class Cannot extends Error {}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// until waits for a condition that something else makes true, and fails after the request's time.
async function until(request, done, state) {
  const deadline = Date.now() + (request.timeout_ms ?? 30000)
  while (!done()) {
    if (Date.now() > deadline) throw new Error(`timed out: ${state()}`)
    await sleep(10)
  }
}

const { default: client } = await import(`./${name}.mjs`)
const ops = client({ require, plain, pairs, object, decode, until, sleep, byPartition, Cannot })
const members = new Map()

// A client may throw where nobody awaits it; then the request under way fails, not the process.
let fail = () => {}
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, e => {
    console.error(event, e)
    fail(e)
  })
}

// A member is what ops.member returns: {seen, failure, close()}.
async function handle(request) {
  const of = m => ({ records: m.seen, ...(m.failure ? { error: String(m.failure) } : {}) })
  switch (request.op) {
    case 'join':
      members.set(request.member, await ops.member(request))
      return {}
    case 'records':
      return of(members.get(request.member))
    case 'leave': {
      const m = members.get(request.member)
      members.delete(request.member)
      await m.close()
      return of(m)
    }
    case 'admin':
      return { admin: (await ops.admin(request, request.admin)) ?? {} }
    default:
      return (await ops[request.op](request)) ?? {}
  }
}

function describe(e) {
  const parts = [`${e?.name ?? 'Error'}: ${e?.message ?? e}`]
  for (const inner of e?.errors ?? []) parts.push(describe(inner))
  if (e?.cause) parts.push(describe(e.cause))
  return parts.join('; ')
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer
  try {
    const stray = new Promise((_, reject) => (fail = reject))
    stray.catch(() => {})
    answer = await Promise.race([handle(JSON.parse(line)), stray])
  } catch (e) {
    answer = { error: describe(e), cannot: e instanceof Cannot }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
process.exit(0)
