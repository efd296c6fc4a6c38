// Session keys: signs the member's events, so that no other client can forge them [GRAMMAR 10].
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { check } from "./wire.js";

const ALGORITHMS = { HmacSHA256: [1, "sha256"], HmacSHA384: [2, "sha384"], HmacSHA512: [3, "sha512"] };

// A file of keys, read again for every event.
export class Keyring {
  #problem = "";

  constructor(path) {
    this.path = path;
    this.keys = readKeys(path);
  }

  // The header of a record that a member of a group writes.
  sign(group, topic, key, value) {
    let problem = "";
    try {
      this.keys = readKeys(this.path);
    } catch (error) {
      problem = error.message;
    }
    if (problem && problem !== this.#problem) console.error(`the keys read before stay in force: ${problem}`);
    this.#problem = problem;
    const nowMs = Date.now();
    const signingKey = signer(this.keys, group, nowMs);
    check(signingKey, `no key of ${this.path} signs for a member of group ${group} now`);
    return signature(signingKey, topic, key, value, nowMs);
  }
}

function readKeys(path) {
  try {
    const { keys } = JSON.parse(readFileSync(path, "utf8"));
    for (const { id, algorithm = "HmacSHA256" } of keys)
      check(algorithm in ALGORITHMS, `key ${id}: no algorithm ${algorithm}`);
    return keys;
  } catch (error) { // its message would quote the file
    const problem = error instanceof SyntaxError ? "it is not JSON" : error.message;
    throw new Error(`${path} is no readable keyring: ${problem}`);
  }
}

// The newest key that signs for a member of a group; undefined = there is none.
export function signer(keys, group, nowMs) {
  const names = (pattern) => pattern === group || (pattern.endsWith("*") && group.startsWith(pattern.slice(0, -1)));
  const fits = ({ from_ms = 0, until_ms = null, groups = ["*"], callers = ["member"] }) =>
    from_ms <= nowMs && nowMs <= (until_ms ?? Infinity) && callers.includes("member") && groups.some(names);
  const isNewer = (one, other) => (one.from_ms ?? 0) - (other.from_ms ?? 0) || (one.id > other.id ? 1 : -1);
  return keys.filter(fits).sort(isNewer).at(-1);
}

// The header of a record; a value of null is a tombstone.
export function signature({ id, algorithm = "HmacSHA256", secret }, topic, key, value, signedMs) {
  const [number, hash] = ALGORITHMS[algorithm];
  const at = Buffer.alloc(8);
  at.writeBigUInt64BE(BigInt(signedMs));
  const head = Buffer.concat([Buffer.from([1, number]), at, Buffer.from([id.length]), Buffer.from(id)]);
  const measured = (bytes) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return Buffer.concat([length, bytes]);
  };
  const mac = createHmac(hash, Buffer.from(secret, "base64")).update("muster");
  mac.update(measured(Buffer.from(topic))).update(measured(key)).update(head);
  mac.update(value === null ? Buffer.from([0]) : Buffer.concat([Buffer.from([1]), value]));
  return Buffer.concat([head, mac.digest()]);
}
