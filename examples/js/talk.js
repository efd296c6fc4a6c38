// Plays talk.json of the shared vectors: how a member reacts to the records it reads.
//
//   node talk.js ../../protocol/vectors
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { bootMs } from "./clock.js";
import { readAssignment } from "./records.js";
import { Worker } from "./session.js";
import { nameOf } from "./tasks.js";

const talks = JSON.parse(readFileSync(`${process.argv[2]}/talk.json`, "utf8"));

// Ends the work of tasks that must stop, and waits until the worker has noticed.
async function ended(work, over) {
  do {
    for (const each of work) if (each.signal.aborted) each.end();
    await new Promise(setImmediate);
  } while (!over());
}

async function take(worker, step, work) {
  if (step.stopped) {
    await ended(work, () => ![...worker.held.values()].some((held) => held.stopping));
    return true;
  }
  if (step.read === null) {
    worker.letGo();
    await ended(work, () => worker.session !== 0n); // it has joined again
    return worker.newest === null;
  }
  const record = readAssignment(Buffer.from(step.read, "hex"), new Map());
  worker.hear(record);
  return worker.newest === record;
}

function sets(worker) {
  const held = [...worker.held.values()];
  const names = (fit) => held.filter(fit).map((each) => nameOf(each.task)).sort();
  const roles = ["active", "standby", "learner"].map((role) => [role, names((each) => each.role === role)]);
  return { ...Object.fromEntries(roles), releasing: names((each) => worker.givenUp(each)) };
}

async function play(talk) {
  const [work, sent] = [[], []];
  const run = (task, role, given, signal) => new Promise((end) => work.push({ signal, end }));
  const worker = new Worker("W1", run);
  worker.send = (schema, fields) => sent.push({ schema, ...fields });
  worker.begin();
  for (const [number, step] of talk.steps.entries()) {
    const where = `${talk.name}, step ${number}`;
    worker.session = BigInt(`0x${step.incarnation}`);
    worker.joinsMs = worker.newest ? [] : [[bootMs(), bootMs()]];
    worker.heardMs = bootMs();
    worker.caughtUp(bootMs());
    const before = Object.values(sets(worker)).flat();
    sent.length = 0;
    const obeyed = await take(worker, step, work);
    if (!step.stopped) assert.equal(obeyed, step.obeyed, where);
    const added = [...step.held.standby, ...step.held.learner].some((task) => !before.includes(task));
    const reports = sent.filter(({ schema }) => schema === "Report").length;
    assert.equal(reports, Number(step.report || added), where); // copies are ready at once here
    for (const tasks of Object.values(step.held)) tasks.sort();
    assert.deepEqual(sets(worker), step.held, where);
    worker.sentMs = -Infinity; // a heartbeat is due
    worker.beating = false;
    if (worker.newest) worker.tick();
    const digest = worker.newest ? sent.at(-1).digest : 0n;
    assert.equal(digest.toString(16).padStart(16, "0"), step.digest, where);
  }
}

const say = console.log;
console.log = () => {}; // no lines about starts and stops
for (const talk of talks) await play(talk);
say(`${talks.length} talks agree`);
