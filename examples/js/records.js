// What a member reads: its assignment, dictionaries [GRAMMAR 6], and records in parts [4].
import { createHash } from "node:crypto";
import { inflateSync } from "node:zlib";
import { wholeKey } from "./keys.js";
import { readSet, ROLES } from "./tasks.js";
import { check, read, schemaOf } from "./wire.js";

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

// Joins the parts of split records; returns undefined until a record is whole.
export class Joiner {
  #open = new Map();
  feed(key, value) {
    const whole = wholeKey(key);
    if (value === null || schemaOf(value) !== "Part") {
      if (whole !== key) return undefined; // the tombstone of a part
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
