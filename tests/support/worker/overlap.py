"""Checks the logs of workers: no task may have two owners at the same time.

A worker logs one JSON line when it starts a task, before it touches anything, and one when the task
has stopped, after it has touched the last::

    {"at_ns": 12, "what": "start", "task": "0_3", "member": "W1", "pid": 7, "epoch": 4,
     "generation": 4}

or as ``muster worker --log`` and the examples in other languages write them (``docs/worker.md``),
where the incarnation stands for the process. ``at_ns`` is CLOCK_BOOTTIME, which all processes of a
machine share. A worker that is killed logs nothing more; the process that killed it logs ``died``
for it, once the process is gone. A task that never stopped is still running.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.worker import locks

FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Tenure:
    """The time that one owner runs one task.

    Attributes:
        task, member, pid, epoch, generation: who had what, by which assignment.
        start_ns, stop_ns: from when to when; `FOREVER` while it runs.
    """

    task: str
    member: str
    pid: int
    epoch: int
    generation: int
    start_ns: int
    stop_ns: int


def now_ns() -> int:
    """The time on the clock of the logs."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines of all logs in a folder, without a last line that a kill cut off."""
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield _plain(json.loads(line))


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    """A line of either format, converted to the first one."""
    if "event" not in line:
        return line
    kept = {name: line[name] for name in ("task", "member", "epoch", "generation")}
    at_ns = line["boottime_ms"] * 1_000_000
    return {"at_ns": at_ns, "what": line["event"], "pid": int(line["incarnation"]), **kept}


def tenures(logged: Iterable[dict[str, Any]]) -> list[Tenure]:
    """Which member ran which task and when, sorted by task and start.

    Raises:
        AssertionError: a log that contradicts itself: a task started twice, or stopped unstarted.
    """
    running: dict[tuple[int, str], dict[str, Any]] = {}
    done: list[Tenure] = []

    def end(key: tuple[int, str], at_ns: int) -> None:
        line = running.pop(key)
        done.append(_tenure(line, at_ns))

    for line in sorted(logged, key=lambda line: line["at_ns"]):
        if line["what"] == "died":
            for key in [key for key in running if key[0] == line["pid"]]:
                end(key, line["at_ns"])
            continue
        key = (line["pid"], line["task"])
        if line["what"] == "start":
            assert key not in running, f"started twice by one worker: {line}"
            running[key] = line
        else:
            assert key in running, f"stopped but never started: {line}"
            end(key, line["at_ns"])
    done += [_tenure(line, FOREVER) for line in running.values()]
    return sorted(done, key=lambda t: (t.task, t.start_ns))


def _tenure(line: dict[str, Any], stop_ns: int) -> Tenure:
    return Tenure(
        task=line["task"],
        member=line["member"],
        pid=line["pid"],
        epoch=line["epoch"],
        generation=line["generation"],
        start_ns=line["at_ns"],
        stop_ns=stop_ns,
    )


def overlaps(ran: Iterable[Tenure]) -> list[tuple[Tenure, Tenure]]:
    """Pairs of tenures of one task that ran at the same time."""
    wrong: list[tuple[Tenure, Tenure]] = []
    longest: dict[str, Tenure] = {}
    for tenure in sorted(ran, key=lambda t: (t.task, t.start_ns)):
        before = longest.get(tenure.task)
        if before is not None and tenure.start_ns < before.stop_ns:
            wrong.append((before, tenure))
        if before is None or tenure.stop_ns > before.stop_ns:
            longest[tenure.task] = tenure
    return wrong


def unlike_locks(ran: Iterable[Tenure]) -> str:
    """How the history of a task is not that of a lock with fencing tokens; empty = each one is."""
    by_task: dict[str, list[locks.Operation]] = {}
    for number, t in enumerate(ran):
        token = (t.generation, t.epoch)
        stop_ms = locks.NEVER if t.stop_ns == FOREVER else t.stop_ns / 1e6
        hold = locks.held(number, t.member, token, t.start_ns / 1e6, stop_ms)
        by_task.setdefault(t.task, []).extend(hold)
    for task, operations in by_task.items():
        if wrong := locks.unexplained(operations):
            return f"{task} is no lock with fencing tokens: {'; '.join(map(str, wrong))}"
    return ""


def check(folder: Path) -> list[Tenure]:
    """Fail if a task had two owners at once, or was no lock; otherwise return all tenures.

    Raises:
        AssertionError: it names task and owners.
    """
    ran = tenures(lines(folder))
    wrong = overlaps(ran)
    assert not wrong, "two owners at once:\n" + "\n".join(f"  {a}\n  {b}" for a, b in wrong)
    assert not (no_lock := unlike_locks(ran)), no_lock
    return ran
