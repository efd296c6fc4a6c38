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
const ROLES = { active: 1, standby: 2, learner: 3 };

// ------------------------------------------------------------------------------- the work

// Ends soon after `signal` is aborted, and asks `mayRun` before it touches anything. `given` carries
// the fencing token for the outside world: generation and epoch.
async function run(task, role, given, signal, mayRun) {
  while (!signal.aborted && mayRun()) await sleep(50, null, { signal }).catch(() => {});
}

// ------------------------------------------------------------------------------ bytes [3]

const FRAMES = {
  Join: "c3013b834dd00c1483f0", Report: "c301cd5c45241620def1", Heartbeat: "c30184d7c1ae25d0c22b",
  Leave: "c301b6ed0ef0d77c19a9", MemberAssignment: "c30183a7063d7eeccdd7",
  Dictionary: "c301ed277f4d4d8871a9", Packed: "c3011d988ce4a267a731", Part: "c3013d34d0b96921618b",
};
const TASKS_MAX = 4_194_304; // no set has more [5]
const VALUE_MAX = 64 << 20;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function check(good, problem) {
  if (!good) throw new Error(problem);
}

const schemaOf = (value) =>
  Object.keys(FRAMES).find((name) => value.subarray(0, 10).toString("hex") === FRAMES[name]);

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }
  static body(value, schema, fields) {
    check(schemaOf(value) === schema, `not a ${schema}`);
    const reader = new Reader(value);
    reader.at = 10;
    const read = fields(reader);
    reader.end();
    return read;
  }
  end() {
    check(this.at === this.data.length, `${this.data.length - this.at} bytes left over`);
  }
  take(count) {
    check(count <= this.data.length - this.at, `${count} bytes wanted at byte ${this.at}`);
    this.at += count;
    return this.data.subarray(this.at - count, this.at);
  }
  byte() { return this.take(1)[0]; }
  unsigned(bytesMax) {
    let value = 0n;
    for (let i = 0; i < bytesMax; i++) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << BigInt(7 * i);
      if (byte < 0x80) return value;
    }
    throw new Error(`no number at byte ${this.at}`);
  }
  varint() { return Number(this.unsigned(5)); }
  long() {
    const value = this.unsigned(10);
    return Number(BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n)));
  }
  size() {
    const size = this.long();
    check(size >= 0 && size <= this.data.length, `a length of ${size}`);
    return size;
  }
  bytes() { return this.take(this.size()); }
  text() { return utf8.decode(this.bytes()); }
  u64() { return this.take(8).readBigUInt64LE(); }
  bool() { return this.byte() !== 0; }
  list(item) {
    const items = [];
    for (let count; (count = this.long()) !== 0; ) {
      if (count < 0) this.long();
      check(Math.abs(count) <= this.data.length, `a list of ${count}`);
      for (let i = Math.abs(count); i > 0; i--) items.push(item());
    }
    return items;
  }
  extras() { this.list(() => [this.text(), this.bytes()]); }
  units() {
    return this.list(() => {
      const unit = { label: this.text(), size: this.long() };
      check(unit.label && unit.size >= 0 && unit.size < 2 ** 31, `unit ${unit.label} of ${unit.size}`);
      return unit;
    });
  }

  // ---- task sets [5]

  segment(size) {
    const form = this.byte();
    let found;
    switch (form & 0x7f) {
      case 0: found = []; break;
      case 1: found = this.runs(size); break;
      case 2: found = this.gaps(); break;
      case 3: found = this.triplets(size); break;
      case 4: {
        check(size <= 8 * (this.data.length - this.at), `a bitmap of ${size} cut short`);
        const bit = this.bits();
        found = Array.from({ length: size }, (_, at) => at).filter(bit);
        break;
      }
      default: throw new Error(`form ${form}`);
    }
    check(!found.length || found.at(-1) < size, `position ${found.at(-1)} of ${size}`);
    if (form < 0x80) return found;
    check(size <= TASKS_MAX, `all but some of ${size}`);
    const listed = new Set(found);
    return Array.from({ length: size }, (_, at) => at).filter((at) => !listed.has(at));
  }
  runs(size) {
    const [n, k, m, found] = [this.varint(), this.byte(), this.byte(), []];
    const bit = this.bits();
    const [skips, lengths] = [this.rice(bit, n, k), this.rice(bit, n, m)];
    let at = 0;
    skips.forEach((skip, i) => {
      at += skip + (i > 0);
      const end = at + lengths[i] + 1;
      check(end <= size && found.length + end - at <= TASKS_MAX, `a range up to ${end} of ${size}`);
      while (at < end) found.push(at++);
    });
    return found;
  }
  gaps() {
    const n = this.varint();
    check(n >= 1, "no gaps");
    const found = [this.varint()];
    if (n > 1) {
      const [base, k] = [this.varint(), this.byte()];
      for (const gap of this.rice(this.bits(), n - 1, k)) found.push(found.at(-1) + 1 + base + gap);
    }
    return found;
  }
  triplets(size) {
    const count = Math.ceil(size / 3);
    check(count <= 4 * (this.data.length - this.at), `${count} triplets cut short`);
    const bit = this.bits();
    const classes = Array.from({ length: count }, () => bit() | (bit() << 1));
    const symbols = classes.map((c) => (c ? 2 * c - 1 + bit() : 0)).map((s) => (s === 6 ? s + bit() : s));
    const members = [[], [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]];
    return symbols.flatMap((symbol, i) => members[symbol].map((j) => 3 * i + j));
  }
  bits() {
    let [byte, left] = [0, 0];
    return () => {
      if (left === 0) [byte, left] = [this.byte(), 8];
      left--;
      const bit = byte & 1;
      byte >>= 1;
      return bit;
    };
  }
  rice(bit, n, k) {
    check(n <= TASKS_MAX && k <= 32 && (k === 32 || n <= 8 * this.data.length), `${n} of Rice ${k}`);
    if (k === 32) return new Array(n).fill(0);
    const high = Array.from({ length: n }, () => {
      let ones = 0;
      while (!bit()) ones++;
      return ones;
    });
    return high.map((value) => {
      for (let i = 0, weight = 2 ** k, low = 1; i < k; i++, low *= 2) {
        if (i === 0) value *= weight;
        value += bit() * low;
      }
      return value;
    });
  }
}

// A task is its unit's label and its number, -1 for a connector itself.
const first = (label) => (label.endsWith("-") ? 1 : 0);
const nameOf = (task) => (task.number < 0 ? task.label.slice(0, -1) : task.label + task.number);

export function readSet(data, units) {
  if (!data.length) return [];
  const reader = new Reader(data);
  const codec = reader.byte();
  check(codec === 1 || codec === 2, `set codec ${codec}`);
  const tasks = [];
  const put = ({ label }, position) => tasks.push({ label, number: position - first(label) });
  if (codec === 2) for (const unit of units) reader.segment(unit.size).forEach((p) => put(unit, p));
  else {
    let [unit, start] = [0, 0];
    for (const position of reader.segment(units.reduce((sum, { size }) => sum + size, 0))) {
      while (position >= start + units[unit].size) start += units[unit++].size;
      put(units[unit], position - start);
    }
  }
  reader.end();
  return tasks;
}

// The units of some sets, and each set in form 2: gaps, codec 1, Rice 0 over base 0 as whole bits.
export function writeSets(...sets) {
  const sizes = {};
  for (const { label, number } of sets.flat())
    sizes[label] = Math.max(sizes[label] ?? 0, number + first(label) + 1);
  const units = Object.keys(sizes).sort().map((label) => ({ label, size: sizes[label] }));
  const starts = {};
  units.reduce((start, { label, size }) => ((starts[label] = start), start + size), 0);
  return [units, sets.map((set) => {
    const positions = set.map(({ label, number }) => starts[label] + number + first(label));
    return gapsOf(positions.sort((a, b) => a - b));
  })];
}

function gapsOf(positions) {
  const n = positions.length;
  if (n === 0) return Buffer.alloc(0);
  const out = [1, 2, ...varint(n), ...varint(positions[0])];
  if (n === 1) return Buffer.from(out);
  const gaps = positions.slice(1).map((position, i) => position - positions[i] - 1);
  const k = Math.max(0, Math.floor(Math.log2((positions[n - 1] - positions[0]) / (n - 1))) - 1);
  const bits = gaps.flatMap((gap) => [...new Array(gap >> k).fill(0), 1]);
  for (const gap of gaps) for (let i = 0; i < k; i++) bits.push((gap >> i) & 1);
  const packed = new Array(Math.ceil(bits.length / 8)).fill(0);
  bits.forEach((bit, i) => (packed[i >> 3] |= bit << (i & 7)));
  return Buffer.from([...out, 0, k, ...packed]);
}

function varint(value) {
  const out = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 0x80n) return [...out, Number(rest)];
    out.push(Number(rest & 0x7fn) | 0x80);
  }
}

const long = (value) => Buffer.from(varint(value < 0 ? -2n * BigInt(value) - 1n : 2n * BigInt(value)));
const bytes = (value) => Buffer.concat([long(value.length), value]);
const text = (value) => bytes(Buffer.from(value));
const zeros = (count) => Buffer.alloc(count);
const valueOf = (schema, ...fields) => Buffer.concat([Buffer.from(FRAMES[schema], "hex"), ...fields]);
function u64(value) {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(value);
  return out;
}

// What a member writes. This one has no instance id, rack or tags, capacity 1, and joins with empty
// hands; it can wait for a learner before it gives up a task.
export const joinOf = (member, incarnation) =>
  valueOf("Join", text(member), u64(incarnation), zeros(2), long(1), zeros(13), Buffer.from([1]), zeros(1));
export const heartbeatOf = (member, epoch, digest) =>
  valueOf("Heartbeat", text(member), long(epoch), u64(digest));
export const leaveOf = (member, incarnation) =>
  valueOf("Leave", text(member), u64(incarnation), zeros(2));
export function reportOf(member, incarnation, epoch, revision, ...sets) {
  const [units, values] = writeSets(...sets); // active, standby, learner, ready, releasing
  const refs = units.flatMap(({ label, size }) => [text(label), long(size)]);
  const head = [text(member), u64(incarnation), long(epoch), long(revision)];
  const list = units.length ? [long(units.length), ...refs, zeros(1)] : [zeros(1)];
  return valueOf("Report", ...head, ...list, ...values.map(bytes), zeros(2));
}

export function readAssignment(value, names) {
  return Reader.body(value, "MemberAssignment", (r) => {
    const a = { incarnation: r.u64(), coordinatorEpoch: r.long(), generation: r.long() };
    Object.assign(a, { epoch: r.long(), revision: r.long() });
    const version = r.long() ? r.u64() : null;
    const listed = r.units();
    const sets = [r.bytes(), r.bytes(), r.bytes()];
    Object.assign(a, { report: r.bool(), fault: r.text(), sessionTimeoutMs: r.long() });
    Object.assign(a, { heartbeatIntervalMs: r.long(), message: r.text() });
    r.extras();
    const units = version === null ? listed : names.get(version);
    if (!units) throw Object.assign(new Error(`no dictionary ${version}`), { dictionary: version });
    [a.active, a.standby, a.learner] = sets.map((set) => readSet(set, units));
    return a;
  });
}

export function readDictionary(value) {
  if (schemaOf(value) === "Packed")
    value = Reader.body(value, "Packed", (r) => {
      const [size, deflated] = [r.long(), r.bytes()];
      check(size >= 0 && size <= 32 * deflated.length, `${size} bytes packed into ${deflated.length}`);
      const inner = inflateSync(deflated, { maxOutputLength: Math.max(1, size) });
      check(inner.length === size, `${inner.length} bytes instead of ${size}`);
      return inner;
    });
  return Reader.body(value, "Dictionary", (r) => {
    const dictionary = { version: r.u64(), units: r.units() };
    r.extras();
    return dictionary;
  });
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
    const part = Reader.body(value, "Part", (r) => (
      { id: r.u64(), index: r.long(), count: r.long(), size: r.long(), slice: r.bytes() }));
    const { id, index, count, size, slice } = part;
    const fits = index >= 0 && index < count && count <= size && size <= VALUE_MAX && slice.length;
    check(fits, `part ${index} of ${count} of ${size} bytes`);
    if (this.#open.get(whole)?.id !== id) this.#open.set(whole, { id, slices: new Map() });
    const { slices } = this.#open.get(whole);
    slices.set(index, slice);
    if (slices.size < count) return undefined;
    this.#open.delete(whole);
    const joined = Buffer.concat(Array.from({ length: count }, (_, i) => slices.get(i)));
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
  if (member === "" && part !== undefined)
    return part.split(".")[0] === "names" ? `${group}||names` : group;
  return part === undefined ? key : `${group}|${member}`;
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
  seen = [-1, -1]; // newest (coordinator epoch, revision)
  held = new Map(); // key -> { task, role, leaving, stop, done }
  ready = new Set();
  heardMs = 0; // when the newest acknowledged event was sent
  readMs = 0; // by when all that was written to us has been read
  leaseMs = 0;
  firstMs = 0;
  sentMs = 0;
  beating = false; // a heartbeat is on its way
  owesReport = false;
  joinAtMs = 0;
  attempts = 0;
  previous = 0n; // an older session that may still be counted
  leaving = false;
  sending = Promise.resolve();

  constructor(group, member, write, ended) {
    Object.assign(this, { group, member, write, ended });
  }

  // ---- what happens

  hear(a) {
    if (this.fenced()) return;
    const mine = a.incarnation === this.session || (a.fault && a.incarnation === 0n);
    const [epoch, revision] = this.seen;
    const same = a.coordinatorEpoch === epoch && a.revision === revision;
    const newer = a.coordinatorEpoch > epoch || (a.coordinatorEpoch === epoch && a.revision > revision);
    if (!mine || !(newer || (a.fault && a.coordinatorEpoch === epoch))) {
      if (mine && same && a.report && this.newest) this.report();
      return;
    }
    if (a.fault) return this.hearFault(a);
    if (this.newest === null) this.heardMs = this.firstMs;
    [this.newest, this.seen] = [a, [a.coordinatorEpoch, a.revision]];
    this.renew();
    if (this.leaving || this.fenced()) return;
    this.settle();
    if (a.report) this.report();
  }

  hearFault({ fault, message }) {
    console.error(`${fault}: ${message}`);
    const member = this.newest !== null;
    switch (fault) {
      case "UNKNOWN_MEMBER_ID": case "FENCED_MEMBER_EPOCH":
        if (member) this.lose(fault, false);
        break;
      case "MEMBER_ID_IN_USE": case "UNRELEASED_INSTANCE_ID": case "GROUP_MAX_SIZE_REACHED":
        if (!member && this.previous) { // our own older session stands in the way
          this.send("Leave", leaveOf(this.member, this.previous));
          [this.previous, this.joinAtMs] = [0n, bootMs()];
        }
        break;
      default:
        if (member && fault !== "FENCED_INSTANCE_ID") this.lose(fault, false);
        else this.stopAll().then(() => process.exit(1));
    }
  }

  letGo() {
    if (this.newest) this.lose("let go by the coordinator", false);
  }

  acknowledged(sent) {
    if (sent.session !== this.session) return;
    if (sent.schema === "Heartbeat") this.beating = false;
    if (sent.ok && sent.schema !== "Leave" && this.newest) this.heardMs = Math.max(this.heardMs, sent.atMs);
    this.renew();
  }

  caughtUp(atMs) {
    this.readMs = Math.max(this.readMs, atMs);
    this.renew();
  }

  tick() {
    if (this.fenced()) return;
    const now = bootMs();
    if (this.newest === null) {
      if (this.session && !this.leaving && now >= this.joinAtMs) this.join();
    } else if (!this.beating && now >= this.sentMs + this.newest.heartbeatIntervalMs) {
      this.beating = true;
      this.send("Heartbeat", heartbeatOf(this.member, this.newest.epoch, this.digest()));
    }
  }

  // ---- the lease: 1 % is kept for clocks that run apart, a tenth, at most 3 s, for stopping

  renew() {
    if (!this.newest) return;
    const timeout = this.newest.sessionTimeoutMs;
    const stop = Math.min(3000, timeout / 10);
    this.leaseMs = Math.min(this.heardMs, this.readMs) + 0.99 * timeout - stop;
  }

  fenced() {
    const over = this.newest !== null && bootMs() >= this.leaseMs;
    if (over) this.lose("the lease ran out", true);
    return over;
  }

  lose(why, leaveFirst) {
    console.error(`lost everything: ${why}`);
    const old = this.session;
    [this.newest, this.session, this.leaseMs] = [null, 0n, 0];
    [this.beating, this.owesReport, this.attempts] = [false, false, 0];
    this.previous = leaveFirst ? 0n : old;
    this.stopAll().then(() => {
      if (leaveFirst) this.send("Leave", leaveOf(this.member, old));
      if (this.leaving) this.sending.then(this.ended);
      else this.begin();
    });
  }

  // ---- what is written

  begin() {
    this.session = randomBytes(8).readBigUInt64LE() >> 1n || 1n;
    this.seen = [this.seen[0], -1];
    this.firstMs = this.readMs = bootMs(); // nothing is written to a session before its first join
    this.join();
  }

  join() {
    this.joinAtMs = bootMs() + Math.min(1000 * 2 ** this.attempts++, 5000);
    this.send("Join", joinOf(this.member, this.session));
  }

  report() {
    const all = [...this.held.values()];
    const of = (role) => all.filter((h) => h.role === role).map((h) => h.task);
    const ready = all.filter((h) => this.ready.has(h.key)).map((h) => h.task);
    const releasing = all.filter((h) => this.givenUp(h)).map((h) => h.task);
    const { epoch, revision } = this.newest;
    const sets = [of("active"), of("standby"), of("learner"), ready, releasing];
    this.send("Report", reportOf(this.member, this.session, epoch, revision, ...sets));
  }

  digest() {
    const digests = [...this.held.values()].map(
      (h) => digestOf(h.task, ROLES[h.role] + (this.givenUp(h) ? 4 : 0)));
    return BigInt.asUintN(64, digests.reduce((sum, digest) => sum + digest, 0n));
  }

  send(schema, value) {
    const sent = { schema, session: this.session, atMs: (this.sentMs = bootMs()), ok: false };
    this.sending = this.sending // one after the other: the order is part of the talk
      .then(() => this.write(this.group, value))
      .then(() => (sent.ok = true), (error) => console.error(`not written: ${error.message}`))
      .then(() => this.acknowledged(sent));
  }

  // ---- what is held

  wanted() {
    const wanted = new Map();
    for (const role of Object.keys(ROLES))
      for (const task of this.newest[role]) wanted.set(`${role} ${nameOf(task)}`, { task, role });
    return wanted;
  }

  givenUp(held) {
    return held.leaving && !this.wanted().has(held.key);
  }

  settle() {
    const wanted = this.wanted();
    for (const held of this.held.values())
      if (!wanted.has(held.key) && !held.leaving) {
        this.owesReport = true;
        this.stop(held);
      }
    const names = new Set([...this.held.values()].map((h) => nameOf(h.task)));
    for (const [key, { task, role }] of wanted) // in another role it must stop first
      if (!names.has(nameOf(task))) this.start(key, task, role);
    if (this.owesReport && ![...this.held.values()].some((h) => h.leaving)) {
      this.owesReport = false;
      this.report();
    }
  }

  start(key, task, role) {
    const [given, ending] = [this.newest, new AbortController()];
    const held = { key, task, role, leaving: false, stop: () => ending.abort() };
    this.held.set(key, held);
    this.say("start", held, given);
    const mayRun = () => given.incarnation === this.session && bootMs() < this.leaseMs;
    held.done = run(task, role, given, ending.signal, mayRun).finally(() => {
      this.say("stop", held, given);
      const ours = this.held.get(key) === held;
      if (ours && !ending.signal.aborted) this.lose(`${nameOf(task)} ended by itself`, true);
    });
    if (role === "learner") { // nothing to restore here
      this.ready.add(key);
      this.report();
    }
  }

  stop(held) {
    held.leaving = true;
    this.ready.delete(held.key);
    held.stop();
    held.done.then(() => {
      if (this.held.get(held.key) !== held) return; // lost meanwhile
      this.held.delete(held.key);
      if (this.leaving) this.leaveIfEmpty();
      else if (!this.fenced()) this.settle(); // something may have waited for its other role to stop
    });
  }

  async stopAll() {
    const all = [...this.held.values()];
    this.held.clear();
    this.ready.clear();
    for (const held of all) held.stop();
    await Promise.all(all.map((held) => held.done));
  }

  leave() {
    this.leaving = true;
    for (const held of this.held.values()) if (!held.leaving) this.stop(held);
    this.leaveIfEmpty();
  }

  leaveIfEmpty() {
    if (this.held.size || !this.session) return;
    this.send("Leave", leaveOf(this.member, this.session));
    [this.newest, this.session] = [null, 0n];
    this.sending.then(this.ended);
  }

  say(event, { task, role }, { incarnation, generation, epoch }) {
    const line = { event, task: nameOf(task), role, member: this.member, incarnation: String(incarnation) };
    const when = { generation, epoch, at_ms: Date.now(), boottime_ms: bootMs() };
    console.log(JSON.stringify({ ...line, ...when }));
  }
}

// --------------------------------------------------------------------------------- Kafka

// Follows one partition from an offset on; after every answer `reached` is told the moment of the
// question when the answer left nothing behind.
async function follow(kafka, topic, partition, offset, take, reached, closing) {
  kafka.topics.track(topic);
  while (!closing.aborted) {
    const askedMs = bootMs();
    try {
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
      if (offset >= highWatermark && (await reached(askedMs)) === false) return;
    } catch (error) {
      console.error(`reading ${topic}-${partition}: ${error.message}`);
      await sleep(500);
    }
  }
}

async function main(group, servers, member = randomBytes(16).toString("base64url")) {
  const { Consumer, Producer } = await import("@platformatic/kafka");
  const options = { clientId: `muster-${member}`, bootstrapBrokers: servers.split(",") };
  const kafka = new Consumer({ ...options, groupId: "unused" });
  const partitioner = (_, key) => murmur2(key) & 0x7fffffff; // the library's own default differs
  const producer = new Producer({ ...options, idempotent: true, acks: -1, partitioner, retries: 1000, retryDelay: 200 });
  const [topic, key, closing] = [`${PREFIX}.assignments`, `${group}|${member}`, new AbortController()];
  const write = (of, value) =>
    producer.send({ messages: [{ topic: `${PREFIX}.membership`, key: Buffer.from(of), value }] });
  const worker = new Worker(group, member, write, () => closing.abort());

  async function find(name, of, timestamp) {
    for (;;)
      try {
        const { topics } = await kafka.metadata({ topics: [name] });
        const partition = partitionOf(of, topics.get(name).partitionsCount);
        const ends = await kafka.listOffsets({ topics: [name], partitions: { [name]: [partition] }, timestamp });
        return [partition, ends.get(name)[partition]];
      } catch (error) {
        console.error(`no topic ${name} yet: ${error.message}`);
        await sleep(1000);
      }
  }

  const names = new Map();
  async function readNames() { // the group's dictionaries, from the beginning to the end
    const [joiner, wanted] = [new Joiner(), `${group}||names`];
    const [partition, start] = await find(`${PREFIX}.groups`, wanted, -2n);
    const take = (record) => {
      if (wholeKey(String(record.key)) !== wanted) return;
      const value = joiner.feed(String(record.key), record.value);
      if (!value) return;
      const { version, units } = readDictionary(value);
      names.set(version, units);
    };
    await follow(kafka, `${PREFIX}.groups`, partition, start, take, () => false, closing.signal);
  }

  const joiner = new Joiner();
  let reading = Promise.resolve(); // records are heard in order, also when names must be read first
  async function decode(value) {
    try {
      return readAssignment(value, names);
    } catch (error) {
      if (error.dictionary === undefined) throw error;
      await readNames();
      return readAssignment(value, names);
    }
  }
  function take(record) {
    if (record.key === null || wholeKey(String(record.key)) !== key) return;
    const [from, value] = [String(record.key), record.value];
    reading = reading.then(async () => {
      const whole = joiner.feed(from, value);
      if (whole === null) worker.letGo();
      else if (whole) worker.hear(await decode(whole));
    }).catch((error) => console.error(`a record cannot be read: ${error.message}`));
  }

  for (const start = bootMs(); bootMs() < start + 20; ); // sees its hundredths turn
  const [partition, end] = await find(topic, key, -1n); // stand at the end, then join
  const caughtUp = (atMs) => { reading = reading.then(() => worker.caughtUp(atMs)); };
  const followed = follow(kafka, topic, partition, end, take, caughtUp, closing.signal);
  worker.begin();
  const ticking = setInterval(() => worker.tick(), 100);
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.leave());
  await followed;
  clearInterval(ticking);
  await Promise.all([producer.close(), kafka.close(true)]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.length < 4) {
    console.error("usage: node worker.js GROUP HOST:PORT [MEMBER]");
    process.exit(2);
  }
  await main(...process.argv.slice(2));
}
