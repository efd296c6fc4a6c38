"""The workers in Go and for Node react to records as `protocol/vectors/talk.json` says.

Needs no Kafka, and no package beside the languages' own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_KAFKA = ("session.go", "work.go", "tasks.go", "wire.go", "keys.go", "talk_test.go")
COMMANDS = {
    "go": ["go", "test", "-vet=off", "-count=1", *WITHOUT_KAFKA],
    "js": ["node", "talk.js", str(ROOT / "protocol" / "vectors")],
}

ENDS = """
import { bootMs } from "./clock.js";
import { Worker } from "./session.js";

const sent = [];
const worker = new Worker("W1", WORK);
worker.send = (schema) => {
  sent.push(schema);
  if (schema === "Join" && sent.length > 1) console.log(`sent ${sent.join(" ")}`);
};
worker.begin();
worker.joinsMs = [[bootMs(), bootMs()]];
worker.hear({
  incarnation: worker.session, coordinator_epoch: 1, generation: 1, epoch: 1, revision: 1,
  active: [{ label: "0_", number: 0 }], standby: [], learner: [], report: false, fault: "",
  session_timeout_ms: SESSION_MS, heartbeat_interval_ms: 3_000, message: "",
});
"""
"""A worker whose work ends by itself; it prints what it has sent when it joins again."""
SHORTENS = """
import { bootMs } from "./clock.js";
import { Worker } from "./session.js";

const sent = [];
const worker = new Worker("W1", async () => {});
worker.send = (schema) => sent.push(schema);
worker.begin();
const hear = (revision, session_timeout_ms) => worker.hear({
  incarnation: worker.session, coordinator_epoch: 1, generation: 1, epoch: 1, revision,
  active: [], standby: [], learner: [], report: false, fault: "",
  session_timeout_ms, heartbeat_interval_ms: 20_000, message: "",
});
hear(1, 60_000);
worker.heardMs = worker.readMs = bootMs() - 19_000;
hear(2, 2_000);
const left = [worker.leaseMs - worker.toldMs];
worker.count(worker.toldMs + 1_980, worker.toldMs + 1_980);
left.push(worker.heardMs < worker.toldMs);
hear(3, 60_000);
left.push(worker.leaseMs - worker.heardMs, worker.mustTell());
console.log(JSON.stringify([sent, left]));
"""
"""A worker whose events had the rhythm of a long session reads that it is shorter now."""
LEAVES = """
import { Worker } from "./session.js";

const [sent, ends] = [[], new Map()];
const work = ({ number }) => new Promise((end) => ends.set(number, end));
const worker = new Worker("W1", work, null, () => {});
worker.send = (schema, fields) => sent.push([schema, fields.revision ?? 0]);
worker.sentMs = Infinity; // no heartbeat is due
worker.begin();
const hear = (revision, numbers, report = false) => worker.hear({
  incarnation: worker.session, coordinator_epoch: revision, generation: 1, epoch: 1, revision,
  active: numbers.map((number) => ({ label: "0_", number })), standby: [], learner: [],
  report, fault: "",
  session_timeout_ms: 60_000, heartbeat_interval_ms: 60_000, message: "",
});
const end = async (number) => {
  ends.get(number)();
  const isHeld = () => [...worker.held.values()].some(({ task }) => task.number === number);
  while (isHeld()) await new Promise(setImmediate);
};
hear(1, [0, 1, 2]);
await new Promise(setImmediate);
hear(2, [0]);
worker.leave();
await end(0);
const isDue = [worker.reportMs > 0];
await end(1);
isDue.push(worker.reportMs > 0);
while (worker.reportMs) worker.tick();
hear(3, [0, 1], true);
await end(2);
console.log(JSON.stringify([isDue, sent, worker.coordinator]));
"""
"""A worker that leaves, of three tasks of which two had been revoked before."""
FAILS = """
import { bootMs } from "./clock.js";
import { Worker } from "./session.js";

const [sent, pauses] = [[], []];
const worker = new Worker("W1", async () => { throw new Error("no such table"); }, null, () => {});
worker.send = (schema, { incarnation }) => sent.push([schema, incarnation]);
const until = async (is) => { while (!is()) await new Promise(setImmediate); };
const hear = (incarnation) => worker.hear({
  incarnation, coordinator_epoch: 1, generation: 1, epoch: 1, revision: 1,
  active: [{ label: "0_", number: 0 }], standby: [], learner: [], report: false, fault: "",
  session_timeout_ms: 60_000, heartbeat_interval_ms: 60_000, message: "",
});
worker.begin();
const joins = () => sent.filter(([schema]) => schema === "Join").length;
for (let times = 1; times <= 4; times++) {
  const [session, beforeMs] = [worker.session, bootMs()];
  hear(session);
  await until(() => sent.at(-1)[0] !== "Join" || joins() > times);
  if (joins() > times) continue;
  hear(session);
  pauses.push(worker.newest === null && Math.floor((worker.joinAtMs - beforeMs) / 1_000));
  if (times === 4) break;
  worker.joinAtMs = bootMs();
  worker.tick();
}
const failed = sent.at(-1)[1];
worker.leave();
const left = sent.at(-1)[0] === "Leave" && sent.at(-1)[1] === failed;
console.log(JSON.stringify([pauses, sent.map(([schema]) => schema[0]).join(""), left]));
"""
"""A worker whose work fails four times, and which leaves in the pause after that."""
REJECTS = 'async () => { throw new Error("no such table"); }'
NOTICES = "async (task, role, given, signal, mayRun) => { while (mayRun()); }"


@pytest.mark.parametrize("language", COMMANDS)
def test_talks(language: str) -> None:
    """Every script, step by step: what is obeyed, reported and held, and its digest."""
    program, *arguments = COMMANDS[language]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    folder = ROOT / "examples" / language
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _on_node(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program beside the worker for Node; it must end well."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        cwd=ROOT / "examples" / "js",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def _ended(work: str, session_ms: int) -> str:
    """What a worker on Node logs; its task has stopped, and it has left and joined again."""
    done = _on_node(ENDS.replace("WORK", work).replace("SESSION_MS", str(session_ms)))
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()[:-1]]
    assert events == ["start", "stop"]
    assert done.stdout.splitlines()[-1] == "sent Join Leave Join"
    return done.stderr


def test_a_shorter_session_on_node() -> None:
    """It counts from the report on; a report that is acknowledged too late proves nothing."""
    done = _on_node(SHORTENS)
    assert json.loads(done.stdout) == [["Join", "Report"], [1_780, True, 56_400, False]]


def test_a_leave_on_node() -> None:
    """It reports what was revoked before as it stops, answers a question, and obeys no record."""
    done = _on_node(LEAVES)
    events = [["Join", 0], ["Report", 2], ["Report", 2], ["Leave", 0]]
    assert json.loads(done.stdout.splitlines()[-1]) == [[False, True], events, 3]


def test_work_that_rejects_on_node() -> None:
    """The error is logged; the task has stopped, so everything is lost."""
    said = _ended(REJECTS, 45_000)
    assert "0_0 failed: Error: no such table" in said
    assert "lost everything: 0_0 ended by itself" in said


def test_work_that_fails_again_and_again_on_node() -> None:
    """The joins wait, longer each time; a leave meanwhile is that of the session before."""
    done = _on_node(FAILS)
    pauses, sent, left = json.loads(done.stdout.splitlines()[-1])
    assert sent == "JLJLJLJLL"
    assert left
    assert all(pause >= least for pause, least in zip(pauses, (1, 2, 4), strict=True))


def test_work_that_notices_the_end_of_the_lease_on_node() -> None:
    """The log has the cause, although no tick has seen it before."""
    assert "lost everything: the lease ran out" in _ended(NOTICES, 500)
