// Writes events, reads records, and checks that the reader keeps up.
import { setTimeout as sleep } from "node:timers/promises";
import { bootMs } from "./clock.js";
import { murmur2, partitionOf, wholeKey } from "./keys.js";
import { Joiner, readAssignment, readDictionary } from "./records.js";
import { Keyring } from "./signing.js";
import { read } from "./wire.js";

const PREFIX = process.env.MUSTER_TOPIC_PREFIX ?? "muster";
const [MEMBERSHIP, ASSIGNMENTS, GROUPS] = ["membership", "assignments", "groups"].map((kind) => `${PREFIX}.${kind}`);

const ANSWER_MS = 10_000; // how long a broker may be silent: the client's own 30 s are too much of a session
const [WRITE_MS, PAUSE_MS] = [200_000, 200]; // how long a record is tried, and the pause between two attempts

// One member's connection.
export class Link {
  #names = new Map(); // the group's dictionaries, by version
  #joiner = new Joiner();
  #heard = Promise.resolve(); // records are handled in order, even if names must be read first
  #unread = false; // the newest record could not be decoded
  #unsure = false; // whether the newest written record is in Kafka
  #closing = false;
  #makers; // how to make a client, and the brokers that it asks in turn

  static async open(group, member, servers) {
    const link = new Link();
    const path = process.env.MUSTER_SIGNING_KEYS;
    Object.assign(link, { group, mine: `${group}|${member}`, keys: path ? new Keyring(path) : null });
    const { Consumer, Producer } = await import("@platformatic/kafka");
    const options = { clientId: `muster-${member}`, requestTimeout: ANSWER_MS };
    const partitioner = (_, key) => murmur2(key) & 0x7fffffff; // the library's own default differs
    const writing = { idempotent: true, acks: -1, partitioner, retries: 2, retryDelay: PAUSE_MS };
    const maker = (Client, more) => {
      const brokers = servers.split(",");
      return { brokers, make: () => new Client({ ...options, ...more, bootstrapBrokers: [...brokers] }) };
    };
    link.#makers = { kafka: maker(Consumer, { groupId: "unused" }), producer: maker(Producer, writing) };
    for (const kind of ["kafka", "producer"]) link[kind] = link.#makers[kind].make();
    [link.partition, link.start] = await link.#find(ASSIGNMENTS, link.mine, -1n); // read from the end, then join
    return link;
  }

  // One value after the other. The client asks the broker that led the partition until it answers, even if another one
  // leads by now. So the client tries a few times only, and each attempt here looks at who leads. All attempts use one
  // sequence number: Kafka keeps one of them. After the last, Kafka may have the record, and the client would give its
  // number to the next one, which Kafka then drops as a repetition. A new producer id has new numbers.
  async write(value) {
    const [key, endMs] = [Buffer.from(this.group), bootMs() + WRITE_MS];
    for (let isUnsure = this.#unsure; ; await sleep(PAUSE_MS)) {
      const { producer } = this;
      try {
        if (isUnsure) await producer.initIdempotentProducer({});
        if (isUnsure) isUnsure = this.#unsure = false;
        const headers = new Map();
        if (this.keys) headers.set(Buffer.from("signature"), this.keys.sign(this.group, MEMBERSHIP, key, value));
        this.#unsure = true;
        await producer.send({ messages: [{ topic: MEMBERSHIP, key, value, headers }] });
        this.#unsure = false;
        return;
      } catch (error) {
        this.#renew("producer", producer, error);
        const mayHelp = error.findBy && !error.findBy("canRetry", false);
        if (!mayHelp || this.#closing || bootMs() >= endMs) throw error;
      }
    }
  }

  // A client asks the first broker that it is connected to, and stays connected to one that is silent, as when its
  // machine is gone. So a new client begins with the next broker.
  #renew(kind, client, error) {
    if (!error.findBy?.("message", "Request timed out") || this[kind] !== client) return;
    const { brokers, make } = this.#makers[kind];
    brokers.push(brokers.shift());
    this[kind] = make();
    for (const [, { socket }] of client.connections) socket?.destroy();
    client.close(true).catch(() => {});
  }

  // Gives the worker what is written to it, until this is closed.
  async follow(worker) {
    const take = ({ key, value }) => {
      if (key === null || wholeKey(String(key)) !== this.mine) return;
      this.#heard = this.#heard.then(() => this.#hear(worker, String(key), value)).catch((error) => {
        // It may revoke tasks: until a newer one is read, not everything is read.
        this.#unread = true;
        console.error(`a record cannot be read: ${error.message}`);
      });
    };
    const reached = (atMs) => { this.#heard = this.#heard.then(() => this.#unread || worker.caughtUp(atMs)); };
    for (let [partition, start] = [this.partition, this.start]; !this.#closing; ) {
      await this.#read(ASSIGNMENTS, this.mine, partition, start, take, reached);
      if (this.#closing) break;
      [partition, start] = (await this.#find(ASSIGNMENTS, this.mine, -2n)) ?? [];
      console.error(`${ASSIGNMENTS} has grown: ours is partition ${partition} now`);
    }
    await Promise.all([this.producer.close(), this.kafka.close(true)]);
  }

  close() { this.#closing = true; }

  async #hear(worker, from, value) {
    const whole = this.#joiner.feed(from, value);
    if (whole === undefined) return;
    if (whole === null) {
      this.#unread = false;
      return worker.letGo();
    }
    const { dictionary } = read("MemberAssignment", whole);
    if (dictionary !== null && !this.#names.has(dictionary)) await this.#readNames(dictionary);
    const assignment = readAssignment(whole, this.#names);
    this.#unread = false;
    worker.hear(assignment);
  }

  // When the topic gets more partitions, dictionaries are not written again: any may have it.
  async #readNames(version) {
    const [key, joiner] = [`${this.group}||names`, new Joiner()];
    const take = (record) => {
      if (wholeKey(String(record.key)) !== key) return;
      try {
        const whole = joiner.feed(String(record.key), record.value);
        if (!whole) return;
        const { version, units } = readDictionary(whole);
        this.#names.set(version, units);
      } catch (error) { // another one may be the right one
        console.error(`a dictionary cannot be read: ${error.message}`);
      }
    };
    const [own, , count] = (await this.#find(GROUPS, key, -2n)) ?? [];
    for (let i = 0; i < count && !this.#names.has(version); i++) {
      const [partition, start] = (await this.#find(GROUPS, key, -2n, (own + i) % count)) ?? [];
      await this.#read(GROUPS, null, partition, start, take, () => true);
    }
  }

  // The partition of a key (or the one given), its end (-1n) or beginning (-2n), and how many there are.
  #find(topic, key, timestamp, given) {
    return this.#patiently(`finding ${topic}`, async () => {
      const { topics } = await this.kafka.metadata({ topics: [topic] });
      const count = topics.get(topic).partitionsCount;
      const partition = given ?? partitionOf(key, count);
      const offsets = await this.kafka.listOffsets({ topics: [topic], partitions: { [topic]: [partition] }, timestamp });
      return [partition, offsets.get(topic)[partition], count];
    });
  }

  // Reads a partition (that of a key if one is given) from an offset on. After each answer that
  // reaches the end, `reached` gets the moment of the request; returning true ends the reading. It
  // also ends when the topic has grown and the key belongs to another partition. Compaction may have
  // taken the last batches below the end: then an answer has none. Those of an open transaction are
  // not given either, but may still come: the stable offset is below the end then.
  async #read(topic, key, partition, offset, take, reached) {
    for (let ended = false; !ended && !this.#closing; )
      await this.#patiently(`reading ${topic}-${partition}`, async () => {
        const askedMs = bootMs();
        this.kafka.topics.track(topic);
        const { topics } = await this.kafka.metadata({ topics: [topic], forceUpdate: true });
        const { id, partitions, partitionsCount } = topics.get(topic);
        if ((ended = key !== null && partitionOf(key, partitionsCount) !== partition)) return;
        const where = { partition, currentLeaderEpoch: -1, lastFetchedEpoch: -1, partitionMaxBytes: 8 << 20 };
        const wanted = [{ topicId: id, partitions: [{ ...where, fetchOffset: offset }] }];
        const node = partitions[partition].leader;
        const asked = this.kafka.fetch({ node, maxWaitTime: 500, minBytes: 1, topics: wanted });
        const answer = await asked.catch(async (error) => {
          if (error.findBy?.("apiId", "OFFSET_OUT_OF_RANGE")) // the topic was made again, or has lost its end
            [, offset] = (await this.#find(topic, key, -2n, partition)) ?? [];
          throw error;
        });
        const { records, highWatermark, lastStableOffset } = answer.responses[0].partitions[0];
        for (const batch of records ?? []) {
          for (const record of batch.attributes & 0x20 ? [] : batch.records) // 0x20: markers
            if (batch.firstOffset + BigInt(record.offsetDelta) >= offset) take(record);
          offset = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n;
        }
        const hasNoMore = !records && lastStableOffset >= highWatermark;
        if (offset >= highWatermark || hasNoMore) ended = reached(askedMs);
      });
  }

  // Asks until there is an answer; undefined once this is closed.
  async #patiently(what, call) {
    while (!this.#closing) {
      const { kafka } = this;
      try {
        return await call();
      } catch (error) {
        console.error(`${what}: ${error.message}`);
        this.#renew("kafka", kafka, error);
        await sleep(500);
      }
    }
  }
}
