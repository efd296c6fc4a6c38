"""The reader of the Node worker at the end of a partition, against a Kafka that the test plays.

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
const asked = new Map();

export class Producer {
  async close() {}
}

export class Consumer {
  topics = { track() {} };
  async close() {}
  async metadata({ topics: [id] }) {
    return { topics: new Map([[id, { id, partitionsCount: 1, partitions: [{ leader: 0 }] }]]) };
  }
  async listOffsets({ topics: [topic] }) {
    return new Map([[topic, [3n]]]);
  }
  async fetch({ topics: [{ topicId, partitions: [{ fetchOffset }] }] }) {
    const place = `${topicId} ${fetchOffset}`;
    asked.set(place, (asked.get(place) ?? 0) + 1);
    if (asked.get(place) > ASKED_MAX) process.exit(AGAIN);
    await new Promise((resolve) => setTimeout(resolve, 1));
    const answer = { highWatermark: END, lastStableOffset: STABLE };
    if (topicId === "muster.assignments" && record !== null) {
      answer.records = [{ attributes: 0, firstOffset: 3n, lastOffsetDelta: 0, records: [record] }];
      record = null;
    }
    return { responses: [{ partitions: [answer] }] };
  }
}
"""
"""Partitions whose offsets from 3, or from 4 if there is a record, up to 5 have no batch."""

WORKER = """
import { Link } from "./kafka.js";

const link = await Link.open("g", "m", "localhost:9092");
const say = (text) => { console.log(text); link.close(); };
console.error = say;
await link.follow({ caughtUp: () => say("caught up"), hear: () => say("heard"), letGo: () => {} });
"""


def run(folder: Path, *, stable: int, record: bytes = b"") -> tuple[int, list[str]]:
    """Read until something is said; the exit code and what was said."""
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
    (folder / "read.js").write_text(WORKER)
    done = subprocess.run(
        ["node", "read.js"],
        cwd=folder,
        env={"PATH": str(Path(shutil.which("node") or "").parent)}
        | {"STABLE": str(stable), "RECORD": record.hex()},
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


def test_a_dictionary_is_looked_for_up_to_the_end(tmp_path: Path) -> None:
    """The search ends where the last offsets of its partition have no batch, and says so."""
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
    code, said = run(tmp_path, stable=5, record=value)
    assert code == 0
    assert said[0].startswith("a record cannot be read: no dictionary ")


def test_the_records_of_an_open_transaction_may_still_come(tmp_path: Path) -> None:
    """The broker holds back what is behind an open transaction: it does not count as read."""
    assert run(tmp_path, stable=4) == (AGAIN_AND_AGAIN, [])
