"""Reads from the workers' logs which worker ran which task when.

A worker writes one JSON line when it starts a task and one when the task has stopped::

    {"at_ns": 12, "what": "start", "task": "0_3", "member": "W1"}

``at_ns`` is a monotonic clock that all processes of the machine share. The process that kills a
worker writes ``died`` for it. The logs answer two questions: did two workers ever run a task at
once, and how long did a task have no owner?
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tenure:
    """One owner's time with one task; `stop_ns` is None while it runs.

    `died`: it ended because the worker was killed.
    """

    task: str
    member: str
    start_ns: int
    stop_ns: int | None
    died: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a task had no owner; `died`: the owner before was killed."""

    task: str
    before: str
    after: str
    length_ns: int
    died: bool


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every ``*.jsonl`` in a folder; a line that a kill cut off is skipped."""
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def tenures(logged: Iterable[dict[str, Any]]) -> list[Tenure]:
    """All tenures, sorted by task and start."""
    running: dict[tuple[str, str], int] = {}
    done: list[Tenure] = []
    for line in sorted(logged, key=lambda line: int(line["at_ns"])):
        member, at_ns = line["member"], line["at_ns"]
        if line["what"] == "start":
            running[member, line["task"]] = at_ns
            continue
        died = line["what"] == "died"
        ended = [k for k in running if k[0] == member and (died or k[1] == line["task"])]
        done += [Tenure(k[1], member, running.pop(k), at_ns, died) for k in ended]
    done += [Tenure(task, member, at_ns, None) for (member, task), at_ns in running.items()]
    return sorted(done, key=lambda t: (t.task, t.start_ns))


def owners(history: Iterable[Tenure]) -> dict[str, str]:
    """Task -> the worker that runs it now."""
    return {t.task: t.member for t in history if t.stop_ns is None}


def gaps(history: Iterable[Tenure]) -> list[Gap]:
    """Every time in which a task had no owner between two owners, longest first."""
    last: dict[str, Tenure] = {}
    between: list[Gap] = []
    for tenure in history:
        before = last.get(tenure.task)
        if before is not None and before.stop_ns is not None and before.stop_ns < tenure.start_ns:
            length = tenure.start_ns - before.stop_ns
            between.append(Gap(tenure.task, before.member, tenure.member, length, before.died))
        last[tenure.task] = tenure
    return sorted(between, key=lambda gap: -gap.length_ns)


def overlaps(history: Iterable[Tenure]) -> list[tuple[Tenure, Tenure]]:
    """Pairs of tenures of one task that ran at the same time; there must be none."""
    wrong: list[tuple[Tenure, Tenure]] = []
    longest: dict[str, Tenure] = {}
    for tenure in history:
        before = longest.get(tenure.task)
        if before is not None and (before.stop_ns is None or tenure.start_ns < before.stop_ns):
            wrong.append((before, tenure))
        ends_later = before is None or (
            before.stop_ns is not None
            and (tenure.stop_ns is None or tenure.stop_ns > before.stop_ns)
        )
        if ends_later:
            longest[tenure.task] = tenure
    return wrong
