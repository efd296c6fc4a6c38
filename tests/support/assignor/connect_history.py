"""Random lives of a Connect group, round by round, for comparing two leaders.

A `History` makes rounds up: workers join, leave and bounce, connectors come, go and change size,
records get lost, workers claim what others run, time passes. The test asks both leaders, compares,
and tells the history what the workers got.

Tasks that are not configured any more never get as far as an assignor of ours: the coordinator has
them stopped whatever happens. Kafka's leader takes care of them, but not if it has forgotten them
or its order to stop them gets lost; such rounds, where Kafka keeps zombies, are left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORKERS = "ABCDEFGHIJ"
CONNECTORS = "pqrstu"
"""One letter each: Java's hash order of these names is their sorted order."""
DELAYS_MS = (300_000, 300_000, 60_000, 1, 0)


@dataclass
class Round:
    """The input of a leader in one round.

    Attributes:
        cause: what happened, for the story of a failure.
        problem: as `muster assign` reads it; `active` in the order reported.
        delivered: whether the leader got its own answer of the last round.
        new_leader: whether the leader of now remembers nothing.
        mismatch: whether the workers have read a newer config than the leader can get hold of.
    """

    cause: str
    problem: dict[str, Any]
    delivered: bool
    new_leader: bool
    mismatch: bool = False


@dataclass
class History:
    """A group's life from a seed; `faults` adds lost records, claims and new leaders."""

    seed: int
    faults: bool
    connectors: dict[str, int] = field(default_factory=dict)
    reports: dict[str, list[str]] = field(default_factory=dict)
    now_ms: int = 1_000_000
    delay_ms: int = 0
    _delivered: bool = True
    _new_leader: bool = False
    _mismatch: bool = False
    _unreached: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.rng = random.Random(f"connect/{self.seed}/{self.faults}")
        self.max_delay_ms = self.rng.choice(DELAYS_MS)
        for number in range(self.rng.randint(1, 4)):
            self.connectors[CONNECTORS[number]] = self.rng.randint(0, 6)
        for worker in WORKERS[: self.rng.randint(1, 4)]:
            self.reports[worker] = []

    def next(self) -> Round:
        """The next round, with or without an event."""
        cause = "; ".join(self._happen() for _ in range(self.rng.choice((0, 1, 1, 1, 2))))
        forgotten = self._new_leader or self._mismatch
        self._mismatch = self.faults and self.rng.random() < 0.06
        if forgotten or self._mismatch or self._unreached or not self._delivered:
            for worker in self.reports:
                self.reports[worker] = [t for t in self.reports[worker] if t in self._configured()]
        self._draw_faults()
        round_ = Round(
            cause or "again", self._problem(), self._delivered, self._new_leader, self._mismatch
        )
        self._delivered, self._new_leader = True, False
        return round_

    def apply(self, answer: Mapping[str, Any]) -> None:
        """Every worker that gets its assignment carries it out; it will report in this order."""
        self.delay_ms = answer["delay_ms"]
        for worker, held in answer["members"].items():
            if worker not in self._unreached:
                self.reports[worker] = list(held["report"])
        if self.faults and self.rng.random() < 0.08:
            self._delivered = False
        if self.faults and self.rng.random() < 0.05:
            self._new_leader = True

    def _problem(self) -> dict[str, Any]:
        return {
            "assignor": "cooperative",
            "config": {"scheduled.rebalance.max.delay.ms": self.max_delay_ms},
            "tasks": [{"connector": c, "tasks": n} for c, n in sorted(self.connectors.items())],
            "members": [{"id": w, "active": list(r)} for w, r in sorted(self.reports.items())],
            "now_ms": self.now_ms,
        }

    def _configured(self) -> set[str]:
        tasks = {f"{c}-{n}" for c, size in self.connectors.items() for n in range(size)}
        return tasks | set(self.connectors)

    def _draw_faults(self) -> None:
        unreached = set()
        if self.faults and self.rng.random() < 0.15:
            unreached = {
                worker
                for worker, tasks in self.reports.items()
                if self.rng.random() < 0.5 and self._configured().issuperset(tasks)
            }
        self._unreached = frozenset(unreached)

    def _happen(self) -> str:
        events = [self._join, self._leave, self._wait, self._wait, self._configure]
        if self.faults:
            events += [self._claim, self._bounce]
        return self.rng.choice(events)()

    def _join(self) -> str:
        absent = [w for w in WORKERS if w not in self.reports]
        if not absent:
            return "nothing"
        worker = self.rng.choice(absent)
        self.reports[worker] = []
        return f"{worker} joins"

    def _leave(self) -> str:
        if len(self.reports) < 2:
            return "nothing"
        worker = self.rng.choice(sorted(self.reports))
        del self.reports[worker]
        return f"{worker} leaves"

    def _bounce(self) -> str:
        worker = self.rng.choice(sorted(self.reports))
        self.reports[worker] = []
        return f"{worker} is back, empty"

    def _wait(self) -> str:
        part = self.rng.choice((self.delay_ms, self.delay_ms, self.delay_ms // 2, 1, 500_000))
        self.now_ms += part
        return f"{part} ms pass"

    def _configure(self) -> str:
        name = self.rng.choice(CONNECTORS)
        if name in self.connectors and self.rng.random() < 0.4:
            del self.connectors[name]
            return f"{name} is deleted"
        self.connectors[name] = self.rng.randint(0, 8)
        return f"{name} has {self.connectors[name]} tasks"

    def _claim(self) -> str:
        """A worker also reports jobs that another one runs."""
        owners = [w for w in sorted(self.reports) if self.reports[w]]
        if not owners or len(self.reports) < 2:
            return "nothing"
        owner = self.rng.choice(owners)
        claimer = self.rng.choice([w for w in sorted(self.reports) if w != owner])
        taken = self.rng.sample(self.reports[owner], min(2, len(self.reports[owner])))
        new = [t for t in taken if t not in self.reports[claimer]]
        self.reports[claimer] = as_read(new + self.reports[claimer])
        return f"{claimer} claims {new} of {owner}"


def as_read(report: list[str]) -> list[str]:
    """A report in the order the leader reads it.

    On the wire it is grouped by connector: first those whose connector itself runs there, in hash
    order, then the others as they come.
    """
    connectors = sorted(t for t in report if "-" not in t)
    tasks = [t for t in report if "-" in t]
    groups = list(dict.fromkeys([*connectors, *(t.split("-")[0] for t in tasks)]))
    return connectors + [t for group in groups for t in tasks if t.split("-")[0] == group]
