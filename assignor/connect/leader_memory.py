"""What Connect's leader remembers between two rounds, as JSON.

Sets of jobs are runs of numbers per unit, so that "all jobs" costs two numbers per connector.
Deleted jobs drop out when the memory is read; the group takes them from their workers without
asking the assignor. A leader whose memory cannot be read starts without one, like a new leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np

from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import Connector, TaskTable

KIND = "connect-1"
Runs: TypeAlias = dict[str, list[int]]


@dataclass(slots=True)
class Memory:
    """The leader's state; changed during a round, then stored.

    Attributes:
        previous: bool[T], jobs believed deployed; lost jobs stay in it until they are placed again.
        revocation: bool[T], jobs that the last round asked to stop.
        members: workers of the last round.
        revoked_before: whether the last round stopped jobs for balance.
        successive: number of such rounds in a row, the exponent of the back-off.
        scheduled_ms: when the delay ends, in time of the group's clock; 0 = none runs.
        delay_ms: the delay reported to the workers.
        candidates: workers that came back without jobs during the delay, in order.
        reached: None = the last round made a plan. If it made none (S3-F11): whether the last plan
            was the newest complete generation then (S3-F09).
        planned: job -> worker that a weighed move is meant for (`muster.assignor.connect.weights`).
    """

    previous: BoolArray
    revocation: BoolArray
    members: tuple[str, ...] = ()
    revoked_before: bool = False
    successive: int = 0
    scheduled_ms: int = 0
    delay_ms: int = 0
    candidates: tuple[str, ...] = ()
    reached: bool | None = None
    planned: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, remembered: Mapping[str, object] | None, tasks: TaskTable) -> Memory:
        """Read a stored memory; without one of this kind, the memory of a new leader."""
        nothing = np.zeros(len(tasks), dtype=np.bool_)
        if not remembered or remembered.get("kind") != KIND:
            return cls(nothing, nothing.copy())
        try:
            return cls(
                previous=_marked(remembered["previous"], tasks),
                revocation=_marked(remembered["revocation"], tasks),
                members=tuple(cast("list[str]", remembered["members"])),
                revoked_before=bool(remembered["revoked_before"]),
                successive=int(cast("int", remembered["successive"])),
                scheduled_ms=int(cast("int", remembered["scheduled_ms"])),
                delay_ms=int(cast("int", remembered["delay_ms"])),
                candidates=tuple(cast("list[str]", remembered["candidates"])),
                reached=cast("bool | None", remembered.get("reached")),
                planned=dict(cast("dict[str, str]", remembered["planned"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls(nothing, nothing.copy())

    def as_json(self, tasks: TaskTable) -> dict[str, object]:
        """The JSON that `of` reads."""
        return {
            "kind": KIND,
            "previous": _runs(self.previous, tasks),
            "revocation": _runs(self.revocation, tasks),
            "members": list(self.members),
            "revoked_before": self.revoked_before,
            "successive": self.successive,
            "scheduled_ms": self.scheduled_ms,
            "delay_ms": self.delay_ms,
            "candidates": list(self.candidates),
            "planned": self.planned,
            **({} if self.reached is None else {"reached": self.reached}),
        }

    def has_reached(self, view: GroupView) -> bool:
        """Whether the last plan is the newest complete generation."""
        whole = view.whole_generation  # whether the last round's is complete, planned or not
        return whole if self.reached is None else not whole and self.reached


def _runs(marked: BoolArray, tasks: TaskTable) -> dict[str, Runs]:
    """Per unit the first and last number of each run; connectors and subtopologies separately."""
    runs: dict[str, Runs] = {"connectors": {}, "subtopologies": {}}
    index = np.flatnonzero(marked)
    if len(index) == 0:
        return runs
    unit, number = tasks.unit_of[index], tasks.number_of[index]
    cut = np.flatnonzero((np.diff(index) > 1) | (np.diff(unit) > 0))
    first = np.concatenate(([0], cut + 1))
    last = np.concatenate((cut, [len(index) - 1]))
    for unit_index, low, high in zip(
        unit[first].tolist(), number[first].tolist(), number[last].tolist(), strict=True
    ):
        unit_of_run = tasks.units[int(unit_index)]
        side = "connectors" if isinstance(unit_of_run, Connector) else "subtopologies"
        runs[side].setdefault(unit_of_run.name, []).extend((low, high))
    return runs


def _marked(runs: object, tasks: TaskTable) -> BoolArray:
    sides = cast("dict[str, Runs]", runs)
    step = np.zeros(len(tasks) + 1, dtype=np.int32)
    for unit_index, unit in enumerate(tasks.units):
        connector = isinstance(unit, Connector)
        numbers = sides["connectors" if connector else "subtopologies"].get(unit.name, ())
        start, end = int(tasks.start[unit_index]), int(tasks.start[unit_index + 1])
        for low, high in zip(numbers[::2], numbers[1::2], strict=True):
            if start + low + connector < end:
                step[start + low + connector] += 1
                step[min(start + high + connector + 1, end)] -= 1
    marked: BoolArray = np.cumsum(step[:-1]) > 0
    return marked
