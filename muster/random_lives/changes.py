"""Changes of a random group: what operators do to it after its first events.

A setting, the assignor, the tasks or their weights change, some of them to and fro. Drains are
undone, all members are drained or end and return, and members come back with other properties.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from muster.protocol.settings import CONNECT_ASSIGNORS, STREAMS_ASSIGNORS

if TYPE_CHECKING:
    from muster.random_lives.random_scenario import Life

SHARE = 0.6
"""How many lives have changes."""
CHANGES_MAX = 6
SPACINGS_MS = (0, 0, 200, 3_000, 30_000, 120_000, 700_000)
"""Choices for the time between two changes."""
SETTINGS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("num.standby.replicas", (0, 1, 2)),
    ("max.warmup.replicas", (1, 2, 100)),
    ("acceptable.recovery.lag", (0, 10_000, 100_000)),
    ("probing.rebalance.interval.ms", (60_000, 600_000)),
    ("scale.down.timeout.ms", (1_000, 60_000, 3_600_000)),
    ("session.timeout.ms", (45_000, 60_000, 300_000)),
    ("rebalance.timeout.ms", (10_000, 300_000)),
    ("assignment.interval.ms", (0, 5_000)),
    ("group.max.size", (2, 100)),
)
Row = dict[str, Any]


class Changes:
    """Adds changes to a life."""

    def __init__(self, life: Life, rng: Random) -> None:
        self.life, self.rng = life, rng
        self.drained: list[str] = []

    def add(self) -> None:
        """Add some changes, one after the other, with more ordinary events between them."""
        steps: tuple[Callable[[], None], ...] = (
            self._set,
            self._set,
            self._set_back,
            self._choose_assignor,
            self._shrink,
            self._make_anew,
            self._weigh,
            self._drain_all,
            self._undrain,
            self._all_end_and_return,
            self._become_another,
        )
        for _ in range(self.rng.randint(2, CHANGES_MAX)):
            self._wait()
            self.rng.choice(steps)()
            if self.rng.random() < 0.4:
                self._wait()
                self.life.add_random_event()

    def _wait(self) -> None:
        self.life.at_ms += self.rng.choice(SPACINGS_MS)

    # -------------------------------------------------------------------------- settings

    def _set(self) -> None:
        key, values = self.rng.choice(SETTINGS)
        self.life.event(config={key: self.rng.choice(values)})

    def _set_back(self) -> None:
        """A setting is changed and, a moment later, changed again."""
        key, values = self.rng.choice(SETTINGS)
        for value in self.rng.sample(values, 2):
            self.life.event(config={key: value})
            self._wait()

    def _choose_assignor(self) -> None:
        connect = self.life.connect_assignor is not None
        names = CONNECT_ASSIGNORS if connect else STREAMS_ASSIGNORS
        self.life.event(assignor=self.rng.choice(sorted(names)))

    # ----------------------------------------------------------------------------- tasks

    def _shrink(self) -> None:
        """A unit loses tasks; sometimes it gets them back."""
        before = self.life.latest_tasks()
        rows = [dict(row) for row in before]
        row = self.rng.choice(rows)
        size = "tasks" if "connector" in row else "partitions"
        row[size] = self.rng.randint(1, max(1, row[size]))
        for key in ("source_racks", "changelog_racks"):
            if key in row:
                row[key] = row[key][: row[size]]
        self.life.event(tasks=rows)
        if self.rng.random() < 0.4:
            self._wait()
            self.life.event(tasks=before)

    def _make_anew(self) -> None:
        """A unit is deleted and declared again."""
        before = self.life.latest_tasks()
        gone = self.rng.randrange(len(before))
        self.life.event(tasks=[row for nth, row in enumerate(before) if nth != gone])
        self._wait()
        self.life.event(tasks=before)

    def _weigh(self) -> None:
        rows = [dict(row) for row in self.life.latest_tasks()]
        self.rng.choice(rows)["weight"] = self.rng.randint(1, 5)
        self.life.event(tasks=rows)

    # --------------------------------------------------------------------------- members

    def _drain_all(self) -> None:
        for name in self.life.present:
            self.life.event(drain=name)
            self.drained.append(name)
        self._wait()
        if self.rng.random() < 0.6:
            while self.drained:
                self._undrain()

    def _undrain(self) -> None:
        if not self.drained and self.life.present:
            name = self.rng.choice(self.life.present)
            self.life.event(drain=name)
            self.drained.append(name)
            self._wait()
        if self.drained:
            name = self.drained.pop(self.rng.randrange(len(self.drained)))
            self.life.event(undrain=name)

    def _all_end_and_return(self) -> None:
        names = list(self.life.present)
        for name in names:
            self.life.event(**{self.rng.choice(("leave", "crash")): name})
        self._wait()
        for name in names:
            self.life.event(**{"return": name})

    def _become_another(self) -> None:
        """A process starts under a member's id with other properties, as if it had no disk."""
        if not self.life.present:
            return
        name = self.rng.choice(self.life.present)
        row: Row = self.life.member_row(name)
        row["capacity"] = self.rng.choice((1, 2, 3))
        row["instance_id"] = self.rng.choice((f"i-{name}", f"other-{name}"))
        if self.rng.random() < 0.5:
            del row["instance_id"]
        if self.rng.random() < 0.7:
            self.life.event(**{self.rng.choice(("leave", "crash")): name})
            self._wait()
        self.life.event(join=row)
