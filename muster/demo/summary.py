"""The figures at the end of the demo."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from muster.demo import task_runs
from muster.demo.story import Story
from muster.demo.task_runs import Gap
from muster.protocol.ids import Role


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one demo.

    Attributes:
        moves: actives that went from one member to another.
        placements: actives without an owner that went to a member.
        events: how many events were answered.
        p50_ms, p99_ms: from event to published assignment, broker timestamps; None = no events.
        planned: longest gap of a task between two owners, the first not killed; None = no gap.
        crash: the same, the first owner killed.
        twice: how often two workers ran a task at once.
    """

    generations: int
    moves: int
    placements: int
    events: int
    p50_ms: float | None
    p99_ms: float | None
    planned: Gap | None
    crash: Gap | None
    twice: int
    machine: str

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, one row a line."""
        return [
            ("generations", str(self.generations)),
            ("moves", f"{self.moves} (and {self.placements} placements of tasks no member had)"),
            ("event to published assignment", self._waits()),
            ("longest without an owner, planned", _gap(self.planned)),
            ("longest without an owner, kill -9", _gap(self.crash)),
            ("tasks run by two workers at once", "never" if not self.twice else str(self.twice)),
            ("measured on", self.machine),
        ]

    def _waits(self) -> str:
        if self.p50_ms is None:
            return "no events"
        figures = f"p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms"
        return f"{figures} ({self.events} events, broker timestamps)"


def summary_of(story: Story, since_ms: int, logged: Iterable[dict[str, Any]]) -> Summary:
    """Compute the figures from the story and the workers' log lines.

    Events before `since_ms` are left out, because the query was warming up.
    """
    waits = story.waits_ms(since_ms)
    # Of these figures each is one of the waits.
    ranks = np.percentile(waits, [50, 99], method="inverted_cdf").tolist() if waits else [None] * 2
    p50_ms, p99_ms = ranks
    owned = task_runs.tenures(logged)
    between = task_runs.gaps(owned)
    actives = [
        m for g in story.generations for m in g.moves if m.role is Role.ACTIVE and m.to_member
    ]
    return Summary(
        generations=len(story.generations),
        moves=sum(m.from_member is not None for m in actives),
        placements=sum(m.from_member is None for m in actives),
        events=len(waits),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        planned=next((gap for gap in between if not gap.died), None),
        crash=next((gap for gap in between if gap.died), None),
        twice=len(task_runs.overlaps(owned)),
        machine=machine(),
    )


def machine() -> str:
    """The machine in a few words; the figures depend on it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({platform.system()} {platform.machine()}), one machine"


def _gap(gap: Gap | None) -> str:
    if gap is None:
        return "none"
    ms = gap.length_ns / 1e6
    length = f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
    return f"{length} ({gap.task}, {gap.before} → {gap.after})"
