// The encoding of values [GRAMMAR 3, 4]: read and written by schema.

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
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export const schemaOf = (value) => Object.keys(SCHEMAS).find((name) => value.toString("hex", 0, 10) === SCHEMAS[name][0]);
export const check = (good, problem) => { if (!good) throw new Error(problem); };

export class Reader {
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
}

export function read(schema, value) {
  check(schemaOf(value) === schema, `not a ${schema}`);
  const reader = new Reader(value, 10);
  const row = reader.value(schema);
  reader.end();
  return row;
}

// Missing fields are zero, empty or null: eight bytes 00 for u64, one for the others.
export const write = (schema, row) => Buffer.concat([Buffer.from(SCHEMAS[schema][0], "hex"), bytesOf(schema, row)]);

export function bytesOf(type, value) {
  if (value === undefined) return Buffer.alloc(type === "u64" ? 8 : 1);
  if (type in FIELDS) return Buffer.concat(FIELDS[type].map(([name, of]) => bytesOf(of, value[name])));
  switch (type[0] === "[" ? "[" : type) {
    case "boolean": return Buffer.from([value ? 1 : 0]);
    case "u64": return Buffer.from(value.toString(16).padStart(16, "0"), "hex").reverse();
    case "bytes": return Buffer.concat([long(value.length), value]);
    case "string": return bytesOf("bytes", Buffer.from(value));
    case "[": { // one block with all items, and an empty one
      const items = value.map((item) => bytesOf(type.slice(1, -1), item));
      return Buffer.concat([...(items.length ? [long(items.length)] : []), ...items, long(0)]);
    }
    default: return long(value);
  }
}

const long = (value) => Buffer.from(varint(value < 0 ? -2n * BigInt(value) - 1n : 2n * BigInt(value)));

export function varint(value) {
  const out = [];
  let rest = BigInt(value);
  for (; rest >= 0x80n; rest >>= 7n) out.push(Number(rest & 0x7fn) | 0x80);
  return [...out, Number(rest)];
}
