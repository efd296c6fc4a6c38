"""How the Node worker reads and writes, against a Kafka that the test plays.

Needs Node, and no Kafka and no package: a module of the test has the name of Kafka's client.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from muster.protocol.codec import encode
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Dictionary, MemberAssignment
from muster.protocol.tasks import Subtopology, TaskSet, TaskTable
from muster.protocol.taskset import units_of_table

SOURCE = Path(__file__).parents[2] / "examples" / "js"
GROUP, MEMBER = GroupId("g"), MemberId("m")
ASKED_MAX = 20
AGAIN_AND_AGAIN = 3
"""The exit code of a reader that has asked `ASKED_MAX` times for the same offset."""

CLIENT = """
const END = 5n;
const STABLE = BigInt(process.env.STABLE);
const value = Buffer.from(process.env.RECORD, "hex");
let record = value.length ? { offsetDelta: 0, key: "g|m", value } : null;
const names = { offsetDelta: 0, key: "g||names", value: Buffer.from("no such schema") };
const asked = new Map();

let unanswered = 0;
function ask([first]) {
  if (first !== "silent") return;
  if (++unanswered > ASKED_MAX) process.exit(AGAIN);
  const message = "Request timed out";
  const findBy = (property, its) => ({ message, canRetry: false })[property] === its;
  throw Object.assign(new Error(message), { findBy });
}

export class Producer {
  connections = new Map();
  #id = 0;
  #number = 0;
  #kept = new Set();
  async close() {}
  async initIdempotentProducer() {
    [this.#id, this.#number] = [this.#id + 1, 0];
  }
  #refused = 0;
  constructor({ retries, bootstrapBrokers }) {
    Object.assign(this, { retries, brokers: bootstrapBrokers });
  }
  async send({ messages: [{ value }] }) {
    ask(this.brokers);
    if (process.env.LED_BY_ANOTHER && !this.#refused++) {
      if (this.retries > 2) await new Promise(() => {}); // it asks the broker that is gone
      const findBy = (property, good) => property === "canRetry" && good;
      throw Object.assign(new Error("Connection refused"), { findBy });
    }
    const mark = `${this.#id} ${this.#number}`;
    if (!this.#kept.has(mark)) console.log(String(value));
    this.#kept.add(mark);
    const isLost = this.#kept.size === 1 && !this.#refused && !unanswered;
    if (isLost) throw new Error("Request timed out");
    this.#number++;
  }
}

export class Consumer {
  connections = new Map();
  constructor({ bootstrapBrokers }) {
    this.brokers = bootstrapBrokers;
  }
  topics = { track() {} };
  async close() {}
  async metadata({ topics: [id] }) {
    ask(this.brokers);
    return { topics: new Map([[id, { id, partitionsCount: 1, partitions: [{ leader: 0 }] }]]) };
  }
  async listOffsets({ topics: [topic], timestamp }) {
    return new Map([[topic, [timestamp === -1n ? BigInt(process.env.LISTED) : 3n]]]);
  }
  async fetch({ topics: [{ topicId, partitions: [{ fetchOffset }] }] }) {
    const place = `${topicId} ${fetchOffset}`;
    asked.set(place, (asked.get(place) ?? 0) + 1);
    if (asked.get(place) > ASKED_MAX) process.exit(AGAIN);
    if (fetchOffset > END) {
      const findBy = (property, id) => property === "apiId" && id === "OFFSET_OUT_OF_RANGE";
      throw Object.assign(new Error("out of range"), { findBy });
    }
    await new Promise((resolve) => setTimeout(resolve, 1));
    const answer = { highWatermark: END, lastStableOffset: STABLE };
    if (topicId === "muster.assignments" && record !== null) {
      answer.records = [{ attributes: 0, firstOffset: 3n, lastOffsetDelta: 0, records: [record] }];
      record = null;
    }
    if (topicId === "muster.groups" && fetchOffset === 3n && process.env.GARBLED) {
      answer.records = [{ attributes: 0, firstOffset: 3n, lastOffsetDelta: 0, records: [names] }];
    }
    return { responses: [{ partitions: [answer] }] };
  }
}
"""
"""Partitions whose offsets from 3, or from 4 if there is a record, up to 5 have no batch.

The answer to the first record that is written is lost, or no broker is there to take it. As in
Kafka, a sequence number that comes again under one producer id is acknowledged and not kept; what
is kept is printed. As in the client, a record that failed does not use its number up, and the first
broker is asked; one named `silent` does not answer.
"""

WORKER = """
import { Link } from "./kafka.js";

const link = await Link.open("g", "m", "localhost:9092");
const say = (text) => { console.log(text); link.close(); };
console.error = say;
await link.follow({ caughtUp: () => say("caught up"), hear: () => say("heard"), letGo: () => {} });
"""


SAYS_ALL = WORKER.replace("console.error = say", "console.error = console.log")
WRITER = """
import { Link } from "./kafka.js";

const link = await Link.open("g", "m", "localhost:9092");
for (const text of ["a", "b", "c"]) await link.write(Buffer.from(text)).catch(() => {});
"""
BESIDE_A_SILENT_BROKER = WRITER.replace("localhost", "silent,localhost")


def run(
    folder: Path,
    *,
    stable: int = 5,
    record: bytes = b"",
    listed: int = 3,
    program: str = WORKER,
    garbled: bool = False,
    led_by_another: bool = False,
) -> tuple[int, list[str]]:
    """Run a program; the exit code and what was said. The worker reads until something is said."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    for file in SOURCE.glob("*.js"):
        shutil.copy(file, folder)
    package = folder / "node_modules" / "@platformatic" / "kafka"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"type": "module", "main": "client.js"}')
    client = CLIENT.replace("ASKED_MAX", str(ASKED_MAX)).replace("AGAIN", str(AGAIN_AND_AGAIN))
    (package / "client.js").write_text(client)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "read.js").write_text(program)
    done = subprocess.run(
        ["node", "read.js"],
        cwd=folder,
        env={"PATH": str(Path(shutil.which("node") or "").parent)}
        | {"STABLE": str(stable), "RECORD": record.hex(), "LISTED": str(listed)}
        | {"GARBLED": "1" if garbled else "", "LED_BY_ANOTHER": "1" if led_by_another else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_last_offsets_without_a_batch_are_read(tmp_path: Path) -> None:
    """An answer without a batch below the end means that nothing more comes: all is read."""
    code, said = run(tmp_path, stable=5)
    assert (code, set(said)) == (0, {"caught up"})


def with_dictionary() -> bytes:
    """An assignment whose units are in a dictionary."""
    units = units_of_table(TaskTable((Subtopology("orders" * 90, 3),)))
    assignment = MemberAssignment(
        group=GROUP,
        member=MEMBER,
        incarnation=1,
        coordinator_epoch=1,
        generation=1,
        epoch=1,
        revision=1,
        active=TaskSet.of([f"{'orders' * 90}_1"]),
        dictionary=Dictionary(group=GROUP, units=units),
        session_timeout_ms=10_000,
        heartbeat_interval_ms=1_000,
    )
    value = encode(assignment).value
    assert value is not None
    return value


def test_a_dictionary_is_looked_for_up_to_the_end(tmp_path: Path) -> None:
    """The search ends where the last offsets of its partition have no batch, and says so."""
    code, said = run(tmp_path, record=with_dictionary())
    assert code == 0
    assert said[0].startswith("a record cannot be read: no dictionary ")


def test_a_dictionary_that_cannot_be_read(tmp_path: Path) -> None:
    """The search goes on behind it."""
    _, said = run(tmp_path, record=with_dictionary(), program=SAYS_ALL, garbled=True)
    assert said[0] == "a dictionary cannot be read: not a Dictionary"
    assert said[1].startswith("a record cannot be read: no dictionary ")


def test_the_records_of_an_open_transaction_may_still_come(tmp_path: Path) -> None:
    """The broker holds back what is behind an open transaction: it does not count as read."""
    assert run(tmp_path, stable=4) == (AGAIN_AND_AGAIN, [])


def test_an_offset_that_is_gone(tmp_path: Path) -> None:
    """A partition that has lost its end, or was made again, is read from its beginning."""
    code, said = run(tmp_path, listed=9, program=SAYS_ALL)
    assert (code, said[0]) == (0, "reading muster.assignments-0: out of range")
    assert set(said[1:]) == {"caught up"}


def test_a_record_after_one_that_failed(tmp_path: Path) -> None:
    """It is kept, although Kafka has the one before it, which only its answer did not reach."""
    assert run(tmp_path, program=WRITER) == (0, ["a", "b", "c"])


def test_a_record_for_a_broker_that_is_gone(tmp_path: Path) -> None:
    """Another broker leads the partition: the worker looks again, and no record is lost."""
    said = run(tmp_path, program=WRITER, led_by_another=True)
    assert said == (0, ["a", "b", "c"])


def test_a_silent_broker(tmp_path: Path) -> None:
    """The worker asks the next one: it finds its partition, and writes but the first record."""
    program = "console.error = () => {};" + BESIDE_A_SILENT_BROKER
    assert run(tmp_path, program=program) == (0, ["b", "c"])
