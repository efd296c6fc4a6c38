// Tasks, and sets of tasks [GRAMMAR 5]: all forms can be read; gaps are written.
import { deflateSync } from "node:zlib";
import { check, Reader, varint } from "./wire.js";

export const ROLES = ["active", "standby", "learner"]; // in digests 1, 2, 3
const TASKS_MAX = 4_194_304; // the most that a set can have

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
    const positions = segment(reader, together.reduce((sum, { size }) => sum + size, 0));
    check(tasks.length + positions.length <= TASKS_MAX, `more than ${TASKS_MAX} tasks`);
    for (const position of positions) {
      while (position >= start + together[unit].size) start += together[unit++].size;
      const { label } = together[unit];
      tasks.push({ label, number: position - start - first(label) });
    }
  }
  reader.end();
  return tasks;
}

// Ascending positions below a size.
function segment(reader, size) {
  const [form, bit, positions] = [reader.byte(), bits(reader), []];
  const put = (at) => {
    check(at < size && positions.push(at) <= TASKS_MAX, `position ${at} of ${size}`);
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
    const [n, k, m] = [reader.varint(), reader.byte(), reader.byte()];
    check(n >= 1, "no runs");
    const [skips, lengths] = [rice(n, k), rice(n, m)];
    for (let i = 0, at = 0; i < n; i++, at++) {
      at += skips[i];
      for (let left = lengths[i]; left >= 0; left--) put(at++);
    }
  } else if ((form & 0x7f) === 2) { // gaps
    let [n, at] = [reader.varint(), put(reader.varint())];
    check(n >= 1, "no gaps");
    const [base, k] = n > 1 ? [reader.varint(), reader.byte()] : [0, 32];
    for (const gap of rice(n - 1, k)) at = put(at + 1 + base + gap);
  } else if ((form & 0x7f) === 3) { // triplets
    const classes = [];
    for (let i = 0; i < size; i += 3) classes.push(bit() | (bit() << 1));
    const symbols = classes.map((c) => (c ? 2 * c - 1 + bit() : 0)).map((s) => (s === 6 ? s + bit() : s));
    const members = [[], [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]];
    symbols.forEach((symbol, i) => members[symbol].forEach((j) => put(3 * i + j)));
  } else if ((form & 0x7f) === 4) for (let at = 0; at < size; at++) bit() && put(at); // bitmap
  else check((form & 0x7f) === 0, `form ${form}`); // nothing
  if (form < 0x80) return positions;
  check(size <= TASKS_MAX, `all but some of ${size}`);
  const listed = new Set(positions);
  return Array.from({ length: size }, (_, at) => at).filter((at) => !listed.has(at));
}

function bits(reader) {
  let [byte, left] = [0, 0];
  return () => {
    [byte, left] = left ? [byte >> 1, left - 1] : [reader.byte(), 7];
    return byte & 1;
  };
}

const MANY_UNITS = 1 << 16; // characters; labels that take more are deflated

// The units of some sets, or the extra "units" if there are very many [GRAMMAR 5].
export function namesOf(units) {
  const lines = units.map(({ label, size }) => `${label}\0${size}\n`).join("");
  if (lines.length <= MANY_UNITS) return { units, extras: [] };
  return { units: [], extras: [{ name: "units", value: deflateSync(lines) }] };
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
