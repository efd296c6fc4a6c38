// A muster worker for Node, from protocol/GRAMMAR.md alone (sections in brackets): joins a group,
// heartbeats, takes and gives up tasks, fences itself. Put your work into `run`.
//
//   npm install
//   node worker.js GROUP HOST:PORT [MEMBER]   starts and stops go to standard output as JSON
//
// Linux, for its boot-time clock.
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { inflateSync } from "node:zlib";

const PREFIX = process.env.MUSTER_TOPIC_PREFIX ?? "muster";
const ROLES = ["active", "standby", "learner"]; // in digests 1, 2, 3

// The work. Ends soon after `signal` is aborted, and asks `mayRun` before it touches anything.
// `given` carries the fencing token for the outside world: generation and epoch.
async function run(task, role, given, signal, mayRun) {
  while (!signal.aborted && mayRun()) await sleep(50, null, { signal }).catch(() => {});
}

// ----------------------------------------------------------------------------- values [3, 4]

// First ten bytes of a value, and its fields as the grammar lists them. A map is a list of pairs.
const SCHEMAS = {
  Join: ["c3013b834dd00c1483f0", `member: string, incarnation: u64, instance_id: string?, rack: string?,
    capacity: int, tags: [Tag], protocols: [string], topics: [string]?, static: [string],
    units: [UnitRef], active: bytes, standby: bytes, learner: bytes, ready: bytes, releasing: bytes,
    lags: [Lag], config_offset: long?, rebalance_timeout_ms: long?, make_before_break: boolean,
    extras: [Extra]`],
  Report: ["c301cd5c45241620def1", `member: string, incarnation: u64, epoch: int, revision: long,
    units: [UnitRef], active: bytes, standby: bytes, learner: bytes, ready: bytes, releasing: bytes,
    lags: [Lag], extras: [Extra]`],
  Heartbeat: ["c30184d7c1ae25d0c22b", "member: string, epoch: int, digest: u64"],
  Leave: ["c301b6ed0ef0d77c19a9", "member: string, incarnation: u64, temporary: boolean, extras: [Extra]"],
  MemberAssignment: ["c30183a7063d7eeccdd7", `incarnation: u64, coordinator_epoch: long,
    generation: int, epoch: int, revision: long, dictionary: u64?, units: [UnitRef], active: bytes,
    standby: bytes, learner: bytes, report: boolean, fault: string, session_timeout_ms: int,
    heartbeat_interval_ms: int, message: string, extras: [Extra]`],
  Dictionary: ["c301ed277f4d4d8871a9", "version: u64, units: [UnitRef], extras: [Extra]"],
  Packed: ["c3011d988ce4a267a731", "size: long, deflated: bytes"],
  Part: ["c3013d34d0b96921618b", "id: u64, index: int, count: int, size: long, slice: bytes"],
  UnitRef: ["", "label: string, size: int"], Tag: ["", "key: string, value: string"],
  Extra: ["", "name: string, value: bytes"],
};
const FIELDS = Object.fromEntries(Object.entries(SCHEMAS).map(([schema, [, fields]]) =>
  [schema, fields.split(/,\s+/).map((field) => field.split(": "))]));
const TASKS_MAX = 4_194_304; // no set has more [5]
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const schemaOf = (value) => Object.keys(SCHEMAS).find((name) => value.toString("hex", 0, 10) === SCHEMAS[name][0]);
const check = (good, problem) => { if (!good) throw new Error(problem); };

class Reader {
  constructor(data, at) { [this.data, this.at] = [data, at]; }
  end() { check(this.at === this.data.length, `${this.data.length - this.at} bytes left over`); }
  take(count) {
    check(count >= 0 && count <= this.data.length - this.at, `${count} bytes wanted at byte ${this.at}`);
    this.at += count;
    return this.data.subarray(this.at - count, this.at);
  }
  byte() { return this.take(1)[0]; }
  number(bytesMax) {
    for (let value = 0n, i = 0; i < bytesMax; i++) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << BigInt(7 * i);
      if (byte < 0x80) return value;
    }
    throw new Error(`no number at byte ${this.at}`);
  }
  varint() { return Number(this.number(5)); }
  long() {
    const value = this.number(10);
    return Number(BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n)));
  }
  list(item) {
    const items = [];
    for (let count; (count = this.long()) !== 0; ) {
      if (count < 0) this.long(); // the size of the block
      check(Math.abs(count) <= this.data.length, `a list of ${count}`);
      for (let i = Math.abs(count); i > 0; i--) items.push(item());
    }
    return items;
  }
  value(type) {
    if (type in FIELDS) return Object.fromEntries(FIELDS[type].map(([name, of]) => [name, this.value(of)]));
    if (type.endsWith("?")) return this.long() ? this.value(type.slice(0, -1)) : null;
    switch (type[0] === "[" ? "[" : type) {
      case "boolean": return this.byte() !== 0;
      case "int": case "long": return this.long();
      case "u64": return this.take(8).readBigUInt64LE();
      case "bytes": return this.take(this.long());
      case "string": return utf8.decode(this.take(this.long()));
      case "[": return this.list(() => this.value(type.slice(1, -1)));
    }
  }

  // A segment of a task set [5]: ascending positions below its size.
  segment(size) {
    const [form, bit, found] = [this.byte(), this.bits(), []];
    const put = (at) => {
      check(at < size && found.push(at) <= TASKS_MAX, `position ${at} of ${size}`);
      return at;
    };
    const rice = (n, k) => {
      check(n <= TASKS_MAX && k <= 32, `${n} values of Rice ${k}`);
      const values = new Array(n).fill(0);
      if (k === 32) return values;
      for (let i = 0; i < n; i++) while (!bit()) values[i] += 2 ** k;
      for (let i = 0; i < n; i++) for (let j = 0; j < k; j++) values[i] += bit() * 2 ** j;
      return values;
    };
    if ((form & 0x7f) === 1) { // runs
      const [n, k, m] = [this.varint(), this.byte(), this.byte()];
      const [skips, lengths] = [rice(n, k), rice(n, m)];
      for (let i = 0, at = 0; i < n; i++, at++) {
        at += skips[i];
        for (let left = lengths[i]; left >= 0; left--) put(at++);
      }
    } else if ((form & 0x7f) === 2) { // gaps
      let [n, at] = [this.varint(), put(this.varint())];
      check(n >= 1, "no gaps");
      const [base, k] = n > 1 ? [this.varint(), this.byte()] : [0, 32];
      for (const gap of rice(n - 1, k)) at = put(at + 1 + base + gap);
    } else if ((form & 0x7f) === 3) { // triplets
      const classes = [];
      for (let i = 0; i < size; i += 3) classes.push(bit() | (bit() << 1));
      const symbols = classes.map((c) => (c ? 2 * c - 1 + bit() : 0)).map((s) => (s === 6 ? s + bit() : s));
      const members = [[], [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]];
      symbols.forEach((symbol, i) => members[symbol].forEach((j) => put(3 * i + j)));
    } else if ((form & 0x7f) === 4) for (let at = 0; at < size; at++) bit() && put(at); // bitmap
    else check((form & 0x7f) === 0, `form ${form}`); // nothing
    if (form < 0x80) return found;
    check(size <= TASKS_MAX, `all but some of ${size}`);
    const listed = new Set(found);
    return Array.from({ length: size }, (_, at) => at).filter((at) => !listed.has(at));
  }
  bits() {
    let [byte, left] = [0, 0];
    return () => {
      [byte, left] = left ? [byte >> 1, left - 1] : [this.byte(), 7];
      return byte & 1;
    };
  }
}

export function read(schema, value) {
  check(schemaOf(value) === schema, `not a ${schema}`);
  const reader = new Reader(value, 10);
  const row = reader.value(schema);
  reader.end();
  return row;
}

// Fields that are not given are zero, empty or null: eight bytes 00 for u64, one for the others.
export const write = (schema, row) => Buffer.concat([Buffer.from(SCHEMAS[schema][0], "hex"), bytesOf(schema, row)]);

function bytesOf(type, value) {
  if (value === undefined) return Buffer.alloc(type === "u64" ? 8 : 1);
  if (type in FIELDS) return Buffer.concat(FIELDS[type].map(([name, of]) => bytesOf(of, value[name])));
  switch (type[0] === "[" ? "[" : type) {
    case "boolean": return Buffer.from([value ? 1 : 0]);
    case "u64": return Buffer.from(value.toString(16).padStart(16, "0"), "hex").reverse();
    case "bytes": return Buffer.concat([long(value.length), value]);
    case "string": return bytesOf("bytes", Buffer.from(value));
    case "[": { // a block of all items, and one of none
      const items = value.map((item) => bytesOf(type.slice(1, -1), item));
      return Buffer.concat([...(items.length ? [long(items.length)] : []), ...items, long(0)]);
    }
    default: return long(value);
  }
}

const long = (value) => Buffer.from(varint(value < 0 ? -2n * BigInt(value) - 1n : 2n * BigInt(value)));

function varint(value) {
  const out = [];
  let rest = BigInt(value);
  for (; rest >= 0x80n; rest >>= 7n) out.push(Number(rest & 0x7fn) | 0x80);
  return [...out, Number(rest)];
}

// ------------------------------------------------------------- tasks [5], their names [6]

// A task is its unit's label and its number, -1 for a connector itself.
const first = (label) => (label.endsWith("-") ? 1 : 0);
export const nameOf = ({ label, number }) => (number < 0 ? label.slice(0, -1) : label + number);

export function readSet(data, units) {
  if (!data.length) return [];
  for (const { label, size } of units) check(label && size >= 0 && size < 2 ** 31, `unit ${label} of ${size}`);
  const [reader, tasks] = [new Reader(data, 1), []];
  check(data[0] === 1 || data[0] === 2, `set codec ${data[0]}`);
  for (const together of data[0] === 1 ? [units] : units.map((unit) => [unit])) {
    let [unit, start] = [0, 0];
    for (const position of reader.segment(together.reduce((sum, { size }) => sum + size, 0))) {
      while (position >= start + together[unit].size) start += together[unit++].size;
      const { label } = together[unit];
      tasks.push({ label, number: position - start - first(label) });
    }
  }
  reader.end();
  return tasks;
}

// The units of some sets, and each set as gaps (form 2) over all units.
export function writeSets(...sets) {
  const [sizes, starts] = [{}, {}];
  for (const { label, number } of sets.flat())
    sizes[label] = Math.max(sizes[label] ?? 0, number + first(label) + 1);
  const units = Object.keys(sizes).sort().map((label) => ({ label, size: sizes[label] }));
  units.reduce((start, { label, size }) => ((starts[label] = start + first(label)), start + size), 0);
  const positions = sets.map((set) => set.map(({ label, number }) => starts[label] + number));
  return [units, positions.map((set) => gapsOf(set.sort((a, b) => a - b)))];
}

function gapsOf(positions) {
  const n = positions.length;
  const head = n ? [1, 2, ...varint(n), ...varint(positions[0])] : [];
  if (n < 2) return Buffer.from(head);
  const gaps = positions.slice(1).map((position, i) => position - positions[i] - 1);
  const k = Math.max(0, Math.floor(Math.log2((positions[n - 1] - positions[0]) / (n - 1))) - 1);
  const bits = gaps.flatMap((gap) => [...new Array(gap >> k).fill(0), 1]);
  for (const gap of gaps) for (let i = 0; i < k; i++) bits.push((gap >> i) & 1);
  const packed = new Array(Math.ceil(bits.length / 8)).fill(0);
  bits.forEach((bit, i) => (packed[i >> 3] |= bit << (i & 7)));
  return Buffer.from([...head, 0, k, ...packed]); // base 0
}

export function readAssignment(value, names) {
  const a = read("MemberAssignment", value);
  const units = a.dictionary === null ? a.units : names.get(a.dictionary);
  check(units, `no dictionary ${a.dictionary}`);
  for (const role of ROLES) a[role] = readSet(a[role], units);
  return a;
}

export function readDictionary(value) {
  if (schemaOf(value) !== "Packed") return read("Dictionary", value);
  const { size, deflated } = read("Packed", value);
  check(size >= 0 && size <= 32 * deflated.length, `${size} bytes packed into ${deflated.length}`);
  const inner = inflateSync(deflated, { maxOutputLength: Math.max(1, size) });
  check(inner.length === size, `${inner.length} bytes instead of ${size}`);
  return read("Dictionary", inner);
}

// Puts the parts of split records together [4]; answers undefined until a record is whole.
export class Joiner {
  #open = new Map();
  feed(key, value) {
    const whole = wholeKey(key);
    if (value === null || schemaOf(value) !== "Part") {
      if (whole !== key) return undefined; // a tombstone that tidies up a part
      this.#open.delete(whole);
      return value;
    }
    const { id, index, count, size, slice } = read("Part", value);
    const fits = index >= 0 && index < count && count <= size && size <= 64 << 20 && slice.length;
    check(fits, `part ${index} of ${count} of ${size} bytes`);
    if (this.#open.get(whole)?.id !== id) this.#open.set(whole, { id, slices: {} });
    const { slices } = this.#open.get(whole);
    slices[index] = slice;
    if (Object.keys(slices).length < count) return undefined;
    this.#open.delete(whole);
    const joined = Buffer.concat(Object.values(slices)); // by index
    const sum = createHash("sha256").update(joined).digest().readBigUInt64LE();
    check(joined.length === size && sum === id, "parts join to other bytes than were split");
    return joined;
  }
}

// ------------------------------------------------------------------- keys [2], digest [7]

export function murmur2(data) {
  const m = 0x5bd1e995;
  let [h, at] = [0x9747b28c ^ data.length, 0];
  for (; at + 4 <= data.length; at += 4) {
    let k = Math.imul(data.readInt32LE(at), m);
    k = Math.imul(k ^ (k >>> 24), m);
    h = Math.imul(h, m) ^ k;
  }
  if (at < data.length) h = Math.imul(h ^ data.readUIntLE(at, data.length - at), m);
  h = Math.imul(h ^ (h >>> 13), m);
  return (h ^ (h >>> 15)) >>> 0;
}

export function wholeKey(key) {
  const [group, member, part] = key.split("|");
  if (part === undefined) return key;
  if (member) return `${group}|${member}`;
  return part.split(".")[0] === "names" ? `${group}||names` : group;
}

export function partitionOf(key, partitions) {
  const owner = wholeKey(key).replace(/\|\|names$/, "");
  return (murmur2(Buffer.from(owner)) & 0x7fffffff) % partitions;
}

export function digestOf(task, role) {
  const u = (x) => BigInt.asUintN(64, x);
  let name = 0xcbf29ce484222325n;
  for (const byte of Buffer.from(task.label)) name = u((name ^ BigInt(byte)) * 0x100000001b3n);
  let x = u(name + BigInt(task.number + 1) * 0x9e3779b97f4a7c15n + BigInt(role) * 0xd1b54a32d192ed03n);
  x = u((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = u((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}

// ------------------------------------------------------------------------------ the talk [8]

// Milliseconds since boot, time asleep included: leases are measured on it. The kernel tells it in
// hundredths of a second; a clock that stops in sleep has the rest.
let ahead = -Infinity;
function bootMs() {
  const upMs = 1000 * Number(readFileSync("/proc/uptime", "latin1").split(" ")[0]);
  const awakeMs = Number(process.hrtime.bigint()) / 1e6;
  ahead = Math.max(ahead, upMs - awakeMs);
  return Math.floor(awakeMs + ahead);
}

class Worker {
  session = 0n; // incarnation; 0 = not asking
  newest = null; // the assignment obeyed; null = not a member
  coordinator = -1; // the highest coordinator epoch seen
  held = new Map(); // "role task" -> { key, task, role, stopping, ready, stop, done }
  leaseMs = 0; // until then our tasks are ours; it counts from the older of the next two
  heardMs = 0; // when the newest acknowledged event was sent
  readMs = 0; // by when all that was written to us has been read
  firstMs = 0; // of this session's first join
  sentMs = 0;
  joinAtMs = 0;
  attempts = 0;
  beating = false; // a heartbeat is on its way
  owesReport = false;
  leaving = false;
  sending = Promise.resolve();

  constructor(member, write, ended) { Object.assign(this, { member, write, ended }); }

  // ---- what is read

  hear(a) {
    if (this.fenced()) return;
    const mine = a.incarnation === this.session || (a.fault && a.incarnation === 0n);
    if (!mine || a.coordinator_epoch < this.coordinator) return;
    this.coordinator = a.coordinator_epoch;
    if (a.fault) return this.hearFault(a);
    if (this.newest === null || a.revision > this.newest.revision) {
      // A process that slept while it joined may read an answer to what it asked before.
      if (this.newest === null) this.heardMs = this.firstMs;
      this.newest = a;
      this.renew();
      if (this.leaving || this.fenced()) return;
      this.settle();
    }
    if (a.report) this.report();
  }

  hearFault({ fault, message }) {
    console.error(`${fault}: ${message}`);
    const member = this.newest !== null;
    if (["MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED"].includes(fault)) return; // asks again
    const lost = ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"].includes(fault);
    if (member && fault !== "FENCED_INSTANCE_ID") this.lose(fault);
    else if (!lost) this.stopAll().then(() => process.exit(1));
  }

  letGo() { if (this.newest) this.lose("let go by the coordinator"); }
  caughtUp(atMs) {
    this.readMs = Math.max(this.readMs, atMs);
    this.renew();
  }

  // ---- the lease: 1 % is kept for clocks that run apart, a tenth, at most 3 s, for stopping

  renew() {
    if (!this.newest) return;
    const timeout = this.newest.session_timeout_ms;
    this.leaseMs = Math.min(this.heardMs, this.readMs) + 0.99 * timeout - Math.min(3000, timeout / 10);
  }

  fenced() {
    const over = this.newest !== null && bootMs() >= this.leaseMs;
    if (over) this.lose("the lease ran out");
    return over;
  }

  lose(why) { // everything, and return as somebody else
    console.error(`lost everything: ${why}`);
    const incarnation = this.session;
    Object.assign(this, { newest: null, session: 0n, leaseMs: 0, attempts: 0, beating: false, owesReport: false });
    this.stopAll().then(() => {
      this.send("Leave", { incarnation });
      if (this.leaving) this.sending.then(this.ended);
      else this.begin();
    });
  }

  // ---- what is written

  begin() {
    this.session = randomBytes(8).readBigUInt64LE() >> 1n || 1n;
    this.firstMs = this.readMs = bootMs(); // nothing is written to a session before its first join
    this.join();
  }

  join() { // with empty hands; it can wait for a learner before it gives up a task
    this.joinAtMs = bootMs() + Math.min(1000 * 2 ** this.attempts++, 5000);
    this.send("Join", { incarnation: this.session, capacity: 1, make_before_break: true });
  }

  tick() {
    if (this.fenced()) return;
    const now = bootMs();
    if (this.newest === null) {
      if (this.session && !this.leaving && now >= this.joinAtMs) this.join();
    } else if (!this.beating && now >= this.sentMs + this.newest.heartbeat_interval_ms) {
      this.beating = true;
      const digest = [...this.held.values()].reduce((sum, h) =>
        sum + digestOf(h.task, ROLES.indexOf(h.role) + (this.givenUp(h) ? 5 : 1)), 0n);
      this.send("Heartbeat", { epoch: this.newest.epoch, digest: BigInt.asUintN(64, digest) });
    }
  }

  report() {
    const tasks = (fit) => [...this.held.values()].filter(fit).map((h) => h.task);
    const [units, [active, standby, learner, ready, releasing]] = writeSets(
      ...ROLES.map((role) => tasks((h) => h.role === role)), tasks((h) => h.ready), tasks((h) => this.givenUp(h)));
    const { epoch, revision } = this.newest;
    const holding = { units, active, standby, learner, ready, releasing };
    const extras = [{ name: "coordinator_epoch", value: bytesOf("u64", BigInt(this.coordinator)) }];
    this.send("Report", { incarnation: this.session, epoch, revision, ...holding, extras });
  }

  send(schema, fields) { // one after the other: the order is part of the talk
    const [session, atMs] = [this.session, (this.sentMs = bootMs())];
    const value = write(schema, { member: this.member, ...fields });
    const sent = this.sending.then(() => this.write(value)).then(() => true, (error) =>
      console.error(`not written: ${error.message}`));
    this.sending = sent.then((ok) => {
      if (session !== this.session) return;
      if (schema === "Heartbeat") this.beating = false;
      if (ok && schema !== "Leave" && this.newest) this.heardMs = Math.max(this.heardMs, atMs);
      this.renew();
    });
  }

  // ---- what is held

  wanted() {
    return new Map(ROLES.flatMap((role) =>
      this.newest[role].map((task) => [`${role} ${nameOf(task)}`, { task, role }])));
  }

  givenUp(held) { return held.stopping && !this.wanted().has(held.key); }

  settle() {
    const wanted = this.wanted();
    for (const held of this.held.values())
      if (!wanted.has(held.key) && !held.stopping) {
        this.owesReport = true;
        this.stop(held);
      }
    const names = new Set([...this.held.values()].map((h) => nameOf(h.task)));
    for (const [key, { task, role }] of wanted) // in another role it must stop first
      if (!names.has(nameOf(task))) this.start(key, task, role);
    if (this.owesReport && ![...this.held.values()].some((h) => h.stopping)) {
      this.owesReport = false;
      this.report();
    }
  }

  start(key, task, role) {
    const [given, ending] = [this.newest, new AbortController()];
    const ready = role === "learner"; // nothing to restore here
    const held = { key, task, role, ready, stopping: false, stop: () => ending.abort() };
    this.held.set(key, held);
    this.say("start", held, given);
    const mayRun = () => given.incarnation === this.session && bootMs() < this.leaseMs;
    held.done = run(task, role, given, ending.signal, mayRun).finally(() => {
      this.say("stop", held, given);
      if (this.held.get(key) === held && !ending.signal.aborted) this.lose(`${nameOf(task)} ended by itself`);
    });
    if (ready) this.report();
  }

  stop(held) {
    Object.assign(held, { stopping: true, ready: false }).stop();
    held.done.then(() => {
      if (this.held.get(held.key) !== held) return; // lost meanwhile
      this.held.delete(held.key);
      if (this.leaving) this.leave();
      else if (!this.fenced()) this.settle(); // something may have waited for its other role to stop
    });
  }

  async stopAll() {
    const all = [...this.held.values()];
    this.held.clear();
    for (const held of all) held.stop();
    await Promise.all(all.map((held) => held.done));
  }

  leave() { // once all has stopped
    this.leaving = true;
    for (const held of this.held.values()) if (!held.stopping) this.stop(held);
    if (this.held.size || !this.session) return;
    this.send("Leave", { incarnation: this.session });
    [this.newest, this.session] = [null, 0n];
    this.sending.then(this.ended);
  }

  say(event, { task, role }, { incarnation, generation, epoch }) {
    const line = { event, task: nameOf(task), role, member: this.member, incarnation: String(incarnation) };
    console.log(JSON.stringify({ ...line, generation, epoch, at_ms: Date.now(), boottime_ms: bootMs() }));
  }
}

// --------------------------------------------------------------------------------- Kafka

async function patiently(what, call) {
  for (;;)
    try {
      return await call();
    } catch (error) {
      console.error(`${what}: ${error.message}`);
      await sleep(500);
    }
}

// The partition of a key, and where it ends (-1n) or begins (-2n).
const find = (kafka, topic, key, timestamp) => patiently(`finding ${topic}`, async () => {
  const { topics } = await kafka.metadata({ topics: [topic] });
  const partition = partitionOf(key, topics.get(topic).partitionsCount);
  const found = await kafka.listOffsets({ topics: [topic], partitions: { [topic]: [partition] }, timestamp });
  return [partition, found.get(topic)[partition]];
});

// Follows a partition from an offset on. After each answer that left nothing behind `reached` is told
// the moment of the question; it ends this with true.
async function follow(kafka, topic, partition, offset, take, reached) {
  kafka.topics.track(topic);
  for (let ended = false; !ended; )
    await patiently(`reading ${topic}-${partition}`, async () => {
      const askedMs = bootMs();
      const { topics } = await kafka.metadata({ topics: [topic] });
      const { id, partitions } = topics.get(topic);
      const where = { partition, currentLeaderEpoch: -1, lastFetchedEpoch: -1, partitionMaxBytes: 8 << 20 };
      const wanted = [{ topicId: id, partitions: [{ ...where, fetchOffset: offset }] }];
      const node = partitions[partition].leader;
      const answer = await kafka.fetch({ node, maxWaitTime: 500, minBytes: 1, topics: wanted });
      const { records, highWatermark } = answer.responses[0].partitions[0];
      for (const batch of records ?? []) {
        for (const record of batch.attributes & 0x20 ? [] : batch.records) // 0x20: markers
          if (batch.firstOffset + BigInt(record.offsetDelta) >= offset) take(record);
        offset = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n;
      }
      if (offset >= highWatermark) ended = reached(askedMs);
    });
}

async function main(group, servers, member = randomBytes(16).toString("base64url")) {
  const { Consumer, Producer } = await import("@platformatic/kafka");
  const options = { clientId: `muster-${member}`, bootstrapBrokers: servers.split(",") };
  const kafka = new Consumer({ ...options, groupId: "unused" });
  const partitioner = (_, key) => murmur2(key) & 0x7fffffff; // the library's own default differs
  const producer = new Producer({ ...options, idempotent: true, acks: -1, partitioner, retries: 1000, retryDelay: 200 });
  const write = (value) =>
    producer.send({ messages: [{ topic: `${PREFIX}.membership`, key: Buffer.from(group), value }] });
  let ended = false;
  const worker = new Worker(member, write, () => (ended = true));
  const [mine, names, joiner] = [`${group}|${member}`, new Map(), new Joiner()];

  async function readNames() { // the group's dictionaries, by version
    const [topic, key, joiner] = [`${PREFIX}.groups`, `${group}||names`, new Joiner()];
    const take = (record) => {
      const whole = wholeKey(String(record.key)) === key && joiner.feed(String(record.key), record.value);
      if (!whole) return;
      const { version, units } = readDictionary(whole);
      names.set(version, units);
    };
    await follow(kafka, topic, ...(await find(kafka, topic, key, -2n)), take, () => true);
  }
  async function hear(from, value) {
    const whole = joiner.feed(from, value);
    if (whole === null) return worker.letGo();
    if (!whole) return;
    const { dictionary } = read("MemberAssignment", whole);
    if (dictionary !== null && !names.has(dictionary)) await readNames();
    worker.hear(readAssignment(whole, names));
  }
  let heard = Promise.resolve(); // records are heard in order, also when names must be read first
  function take({ key, value }) {
    if (key !== null && wholeKey(String(key)) === mine)
      heard = heard.then(() => hear(String(key), value)).catch((error) => console.error(`a record cannot be read: ${error.message}`));
  }
  function reached(atMs) {
    heard = heard.then(() => worker.caughtUp(atMs));
    return ended;
  }

  for (const start = bootMs(); bootMs() < start + 20; ); // sees its hundredths turn
  const topic = `${PREFIX}.assignments`;
  const [partition, end] = await find(kafka, topic, mine, -1n); // stand at the end, then join
  const followed = follow(kafka, topic, partition, end, take, reached);
  worker.begin();
  const ticking = setInterval(() => worker.tick(), 100);
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.leave());
  await followed;
  clearInterval(ticking);
  await Promise.all([producer.close(), kafka.close(true)]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.length >= 4) await main(...process.argv.slice(2));
  else console.error("usage: node worker.js GROUP HOST:PORT [MEMBER]");
}
