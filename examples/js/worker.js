// A muster worker for Node, from protocol/GRAMMAR.md alone: joins a group, heartbeats, takes and
// gives up tasks, fences itself. Put your work into `run`.
//
//   npm install
//   node worker.js GROUP HOST:PORT [MEMBER]   starts and stops go to standard output as JSON
//
// MUSTER_TOPIC_PREFIX names the topics, MUSTER_SIGNING_KEYS a keyring where events must be signed.
// Linux, for its boot-time clock. Read session.js first, then kafka.js; the rest is bytes.
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Link } from "./kafka.js";
import { Worker } from "./session.js";

// The work. Ends soon after `signal` is aborted, and asks `mayRun` before it touches anything.
// `given` carries the fencing token for the outside world: generation and epoch.
async function run(task, role, given, signal, mayRun) {
  while (!signal.aborted && mayRun()) await sleep(50, null, { signal }).catch(() => {});
}

async function main(group, servers, member = randomBytes(16).toString("base64url")) {
  const link = await Link.open(group, member, servers);
  const worker = new Worker(member, run, (value) => link.write(value), () => link.close());
  worker.begin();
  const ticking = setInterval(() => worker.tick(), 100);
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.leave());
  await link.follow(worker);
  clearInterval(ticking);
}

if (process.argv.length >= 4)
  await main(...process.argv.slice(2)).catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
else console.error("usage: node worker.js GROUP HOST:PORT [MEMBER]");
