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

REJECTS = """
import { bootMs } from "./clock.js";
import { Worker } from "./session.js";

const sent = [];
const worker = new Worker("W1", async () => { throw new Error("no such table"); });
worker.send = (schema) => {
  sent.push(schema);
  if (schema === "Join" && sent.length > 1) console.log(`sent ${sent.join(" ")}`);
};
worker.begin();
worker.joinsMs = [[bootMs(), bootMs()]];
worker.hear({
  incarnation: worker.session, coordinator_epoch: 1, generation: 1, epoch: 1, revision: 1,
  active: [{ label: "0_", number: 0 }], standby: [], learner: [], report: false, fault: "",
  session_timeout_ms: 45_000, heartbeat_interval_ms: 3_000, message: "",
});
"""
"""A worker whose work rejects; it prints what it has sent when it joins again."""


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


def test_work_that_rejects_on_node() -> None:
    """The error is logged; the task has stopped, so everything is lost, left and joined again."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", REJECTS],
        cwd=ROOT / "examples" / "js",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()[:-1]]
    assert events == ["start", "stop"]
    assert done.stdout.splitlines()[-1] == "sent Join Leave Join"
    assert "0_0 failed: Error: no such table" in done.stderr
    assert "lost everything: 0_0 ended by itself" in done.stderr
