"""The figures at the end of the demo."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from muster.demo import task_runs
from muster.demo.story import Story
from muster.demo.task_runs import Gap
from muster.protocol.ids import Role

Rows: TypeAlias = list[tuple[str, str]]


def summary_of(story: Story, since_ms: int, logged: Iterable[dict[str, Any]]) -> Rows:
    """Label and text of each figure, from the story and the workers' log lines.

    Events before `since_ms` are left out of the waits, because the query was warming up.
    """
    owned = task_runs.tenures(logged)
    between = task_runs.gaps(owned)
    planned = next((gap for gap in between if not gap.died), None)
    crash = next((gap for gap in between if gap.died), None)
    actives = [
        m for g in story.generations for m in g.moves if m.role is Role.ACTIVE and m.to_member
    ]
    moves = sum(m.from_member is not None for m in actives)
    placements = f"{len(actives) - moves} placements of tasks no member had"
    return [
        ("generations", str(len(story.generations))),
        ("moves", f"{moves} (and {placements})"),
        ("event to published assignment", _waits(story.waits_ms(since_ms))),
        ("longest without an owner, planned", _gap(planned)),
        ("longest without an owner, kill -9", _gap(crash)),
        ("tasks run by two workers at once", str(len(task_runs.overlaps(owned)) or "never")),
        ("measured on", machine()),
    ]


def machine() -> str:
    """The machine in a few words; the figures depend on it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({platform.system()} {platform.machine()}), one machine"


def _waits(waits_ms: Sequence[int]) -> str:
    if not waits_ms:
        return "no events"
    # Each of these two is one of the waits.
    p50_ms, p99_ms = np.percentile(waits_ms, [50, 99], method="inverted_cdf").tolist()
    figures = f"p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms"
    return f"{figures} ({len(waits_ms)} events, broker timestamps)"


def _gap(gap: Gap | None) -> str:
    if gap is None:
        return "none"
    ms = gap.length_ns / 1e6
    length = f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    return f"{length} ({gap.task}, {gap.before} → {gap.after})"
