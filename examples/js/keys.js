// Record keys and the partitions they belong to [GRAMMAR 2]; the digest of the holding [7].

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
