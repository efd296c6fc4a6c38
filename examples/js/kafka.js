// Events to Kafka, records from it, and how far the reader is behind.
import { setTimeout as sleep } from "node:timers/promises";
import { bootMs } from "./clock.js";
import { murmur2, partitionOf, wholeKey } from "./keys.js";
import { Joiner, readAssignment, readDictionary } from "./records.js";
import { Keyring } from "./signing.js";
import { read } from "./wire.js";

const PREFIX = process.env.MUSTER_TOPIC_PREFIX ?? "muster";
const LAYOUT_CHECK_MS = Number(process.env.MUSTER_LAYOUT_CHECK_MS ?? 60_000); // has our topic grown?
const [MEMBERSHIP, ASSIGNMENTS, GROUPS] = ["membership", "assignments", "groups"].map((kind) => `${PREFIX}.${kind}`);

// One member's connection.
export class Link {
  #names = new Map(); // the group's dictionaries, by version
  #joiner = new Joiner();
  #heard = Promise.resolve(); // records are heard in order, also when names must be read first
  #closing = false;

  static async open(group, member, servers) {
    const link = new Link();
    const path = process.env.MUSTER_SIGNING_KEYS;
    Object.assign(link, { group, mine: `${group}|${member}`, keys: path ? new Keyring(path) : null });
    const { Consumer, Producer } = await import("@platformatic/kafka");
    const options = { clientId: `muster-${member}`, bootstrapBrokers: servers.split(",") };
    link.kafka = new Consumer({ ...options, groupId: "unused" });
    const partitioner = (_, key) => murmur2(key) & 0x7fffffff; // the library's own default differs
    link.producer = new Producer({ ...options, idempotent: true, acks: -1, partitioner, retries: 1000, retryDelay: 200 });
    [link.partition, link.start] = await link.#find(ASSIGNMENTS, link.mine, -1n); // stand at the end, then join
    return link;
  }

  async write(value) {
    const key = Buffer.from(this.group);
    const headers = new Map();
    if (this.keys) headers.set(Buffer.from("signature"), this.keys.sign(this.group, MEMBERSHIP, key, value));
    await this.producer.send({ messages: [{ topic: MEMBERSHIP, key, value, headers }] });
  }

  // Tells the worker what is written to it, until we are closed.
  async follow(worker) {
    const take = ({ key, value }) => {
      if (key === null || wholeKey(String(key)) !== this.mine) return;
      this.#heard = this.#heard.then(() => this.#hear(worker, String(key), value)).catch((error) =>
        console.error(`a record cannot be read: ${error.message}`));
    };
    const watching = setInterval(() => this.#watchLayout(), LAYOUT_CHECK_MS);
    while (!this.#closing) {
      const { partition, start } = this;
      await this.#read(ASSIGNMENTS, partition, start, take, (atMs) => {
        this.#heard = this.#heard.then(() => worker.caughtUp(atMs));
        return partition !== this.partition;
      });
    }
    clearInterval(watching);
    await Promise.all([this.producer.close(), this.kafka.close(true)]);
  }

  close() { this.#closing = true; }

  async #hear(worker, from, value) {
    const whole = this.#joiner.feed(from, value);
    if (whole === null) return worker.letGo();
    if (!whole) return;
    const { dictionary } = read("MemberAssignment", whole);
    if (dictionary !== null && !this.#names.has(dictionary)) await this.#readNames();
    worker.hear(readAssignment(whole, this.#names));
  }

  async #readNames() {
    const [key, joiner] = [`${this.group}||names`, new Joiner()];
    const take = (record) => {
      const whole = wholeKey(String(record.key)) === key && joiner.feed(String(record.key), record.value);
      if (!whole) return;
      const { version, units } = readDictionary(whole);
      this.#names.set(version, units);
    };
    await this.#read(GROUPS, ...(await this.#find(GROUPS, key, -2n)), take, () => true);
  }

  // Once our key belongs to another partition, because there are more, that one is read from its beginning.
  async #watchLayout() {
    const [partition, start] = (await this.#find(ASSIGNMENTS, this.mine, -2n)) ?? [this.partition];
    if (partition === this.partition) return;
    console.error(`${ASSIGNMENTS} has grown: ours is partition ${partition} now`);
    Object.assign(this, { partition, start });
  }

  // The partition of a key, and where it ends (-1n) or begins (-2n).
  #find(topic, key, timestamp) {
    return this.#patiently(`finding ${topic}`, async () => {
      const { topics } = await this.kafka.metadata({ topics: [topic] });
      const partition = partitionOf(key, topics.get(topic).partitionsCount);
      const found = await this.kafka.listOffsets({ topics: [topic], partitions: { [topic]: [partition] }, timestamp });
      return [partition, found.get(topic)[partition]];
    });
  }

  // Reads a partition from an offset on. After each answer that left nothing behind `reached` is told
  // the moment of the question; it ends this with true.
  async #read(topic, partition, offset, take, reached) {
    this.kafka.topics.track(topic);
    for (let ended = false; !ended && !this.#closing; )
      await this.#patiently(`reading ${topic}-${partition}`, async () => {
        const askedMs = bootMs();
        const { topics } = await this.kafka.metadata({ topics: [topic] });
        const { id, partitions } = topics.get(topic);
        const where = { partition, currentLeaderEpoch: -1, lastFetchedEpoch: -1, partitionMaxBytes: 8 << 20 };
        const wanted = [{ topicId: id, partitions: [{ ...where, fetchOffset: offset }] }];
        const node = partitions[partition].leader;
        const answer = await this.kafka.fetch({ node, maxWaitTime: 500, minBytes: 1, topics: wanted });
        const { records, highWatermark } = answer.responses[0].partitions[0];
        for (const batch of records ?? []) {
          for (const record of batch.attributes & 0x20 ? [] : batch.records) // 0x20: markers
            if (batch.firstOffset + BigInt(record.offsetDelta) >= offset) take(record);
          offset = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n;
        }
        if (offset >= highWatermark) ended = reached(askedMs);
      });
  }

  // Asks until there is an answer; undefined once we are closed.
  async #patiently(what, call) {
    while (!this.#closing)
      try {
        return await call();
      } catch (error) {
        console.error(`${what}: ${error.message}`);
        await sleep(500);
      }
  }
}
