// A muster worker for Node, written from protocol/GRAMMAR.md alone: it joins a group, sends
// heartbeats, takes and releases tasks, and fences itself. Put your work into `run`.
//
//   npm install
//   node worker.js GROUP HOST:PORT[,…] [MEMBER]   starts and stops go to standard output as JSON
//
// MUSTER_TOPIC_PREFIX is the prefix of the topics, MUSTER_SIGNING_KEYS a keyring if events are signed.
// It needs Linux, for the boot-time clock. Read session.js first, then kafka.js; the rest is encoding.
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Link } from "./kafka.js";
import { Worker } from "./session.js";

// The work. Ends soon after `signal` is aborted, and asks `mayRun` before it uses what the task owns.
// `given` has the fencing token for outside systems: generation and epoch.
async function run(task, role, given, signal, mayRun) {
  while (!signal.aborted && mayRun()) await sleep(50, null, { signal }).catch(() => {});
}

async function main(group, servers, member = randomBytes(16).toString("base64url")) {
  const link = await Link.open(group, member, servers);
  const worker = new Worker(member, run, (value) => link.write(value), (inTime) => {
    link.close();
    if (inTime) return;
    console.error("the group notices the end when the session is over: Kafka is away");
    process.exitCode = 1;
    setTimeout(() => process.exit(), 5_000).unref(); // its client would go on trying
  });
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
else console.error("usage: node worker.js GROUP HOST:PORT[,…] [MEMBER]");
