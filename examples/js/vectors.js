// Checks the encoding with the shared vectors, on which every reader and writer of muster agrees.
//
//   node vectors.js ../../protocol/vectors
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { inflateSync } from "node:zlib";
import * as keys from "./keys.js";
import * as records from "./records.js";
import * as signing from "./signing.js";
import * as tasks from "./tasks.js";
import { write } from "./wire.js";

const folder = process.argv[2];
const raw = (hex) => Buffer.from(hex, "hex");
const printed = (found) => found.map(tasks.nameOf);
let checked = 0;

function load(name) {
  const vectors = JSON.parse(readFileSync(`${folder}/${name}.json`, "utf8"));
  checked += vectors.length;
  return vectors;
}

function joined({ value, parts = [] }) {
  const joiner = new records.Joiner();
  for (const [key, part] of parts) {
    const whole = joiner.feed(key, raw(part));
    if (whole === undefined) continue;
    assert.equal(whole.toString("hex"), value);
    return whole;
  }
  assert.equal(parts.length, 0, "parts that did not join");
  return raw(value);
}

for (const v of load("keys")) {
  if (v.murmur2 !== undefined) assert.equal(keys.murmur2(Buffer.from(v.key)), v.murmur2, v.key);
  for (const count of [1, 3, 16, 50])
    assert.equal(keys.partitionOf(v.key, count), v[`of_${count}`], v.key);
}
for (const v of load("tasksets")) {
  const units = v.units.map(([label, size]) => ({ label, size }));
  const found = tasks.readSet(raw(v.bytes), units);
  assert.deepEqual(printed(found), v.tasks, v.name);
  const [mine, [value]] = tasks.writeSets(found);
  assert.deepEqual(printed(tasks.readSet(value, mine)).sort(), [...v.tasks].sort(), `${v.name} written`);
}
for (const v of load("digest")) {
  const sum = v.held.reduce((sum, held) => sum + keys.digestOf(held, held.role), 0n);
  assert.equal(BigInt.asUintN(64, sum).toString(16).padStart(16, "0"), v.digest, v.name);
}
const names = new Map();
for (const v of load("dictionary")) {
  const { version, units } = records.readDictionary(joined(v));
  assert.equal(version.toString(16).padStart(16, "0"), v.version);
  names.set(version, units);
}
for (const v of load("assignments")) {
  const a = records.readAssignment(joined(v), names);
  assert.equal(a.incarnation, BigInt(`0x${v.incarnation}`), v.name);
  const found = [a.coordinator_epoch, a.generation, a.epoch, a.revision, a.report, a.fault];
  assert.deepEqual(found, [v.coordinator_epoch, v.generation, v.epoch, v.revision, v.report, v.fault]);
  assert.deepEqual([a.session_timeout_ms, a.heartbeat_interval_ms, a.message],
    [v.session_timeout_ms, v.heartbeat_interval_ms, v.message]);
  for (const role of ["active", "standby", "learner"]) assert.deepEqual(printed(a[role]), v[role], v.name);
}
for (const v of load("hostile"))
  assert.throws(() => records.readAssignment(raw(v.value), names), `${v.name} was read`);
for (const v of load("signatures")) {
  const key = { id: v.key_id, algorithm: v.algorithm, secret: raw(v.secret).toString("base64") };
  const value = v.value === null ? null : raw(v.value);
  const found = signing.signature(key, v.topic, Buffer.from(v.key), value, v.signed_ms);
  assert.equal(found.toString("hex"), v.signature, v.key_id);
}
for (const v of load("keyrings"))
  assert.equal(signing.signer(v.keyring.keys, v.group, v.at_ms)?.id ?? null, v.signer, v.name);
const many = Array.from({ length: 5000 }, (_, i) =>
  ({ label: `orders-to-warehouse-${String(i).padStart(4, "0")}-`, number: i % 3 }));
const [its, [sets]] = tasks.writeSets(many);
const { units: rows, extras: [{ name, value: lines }] } = tasks.namesOf(its);
const named = inflateSync(lines).toString().split("\n").slice(0, -1).map((line) => line.split("\0"));
assert.deepEqual([name, rows], ["units", []]);
assert.deepEqual(printed(tasks.readSet(sets, named.map(([label, size]) => ({ label, size: Number(size) })))), printed(many));
const w1 = 0x0102030405060708n;
const answer = [{ name: "coordinator_epoch", value: Buffer.from("0500000000000000", "hex") }];
const written = {
  "first join": write("Join", { member: "W1", incarnation: w1, capacity: 1, make_before_break: true }),
  "report of nothing": write("Report", { member: "W1", incarnation: w1, epoch: 3, revision: 9, extras: answer }),
  "heartbeat of nothing": write("Heartbeat", { member: "W1", epoch: 0, digest: 0n }),
  "heartbeat, large numbers": write("Heartbeat", { member: "W1", epoch: 2 ** 31 - 1, digest: 2n ** 64n - 1n }),
  leave: write("Leave", { member: "W1", incarnation: w1 }),
};
for (const v of load("events"))
  if (v.name in written) {
    assert.equal(written[v.name].toString("hex"), v.value, v.name);
    delete written[v.name];
  }
assert.deepEqual(Object.keys(written), []);
console.log(`${checked} vectors agree`);
