"""Groups for the console without Kafka: the real coordinator's function, simulated members.

`Stage` plays a group step by step, and writes its records into a store as the reader would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from muster.console.history import History
from muster.console.store import Store
from muster.documents.scenario import parse_scenario
from muster.protocol.codec import encode
from muster.protocol.events import Event
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.simulation.scenario_player import BEGINNING_MS, SimulatedGroup
from muster.state.machine import Step

PREFIX = "muster"
Publish = Callable[[GroupSnapshot, int, bytes], None]


@dataclass(slots=True)
class PublishingWorld(SimulatedGroup):
    """A simulated world that hands over every snapshot with its time and its bytes."""

    publish: Publish = lambda record, at_ms, value: None
    name: str = "g"
    shift_ms: int = 0

    def _advance(self, batch: list[Event]) -> Step:
        step = SimulatedGroup._advance(self, batch)
        for record in step.records:
            if isinstance(record, GroupSnapshot):
                named = shifted(replace(record, group=GroupId(self.name)), self.shift_ms)
                at_ms = BEGINNING_MS + self.now_ms + self.shift_ms
                self.publish(named, at_ms, encode(named).value or b"")
        return step


def shifted(record: GroupSnapshot, by_ms: int) -> GroupSnapshot:
    """The record with all its times moved."""

    def moved(at_ms: int | None) -> int | None:
        return None if at_ms is None else at_ms + by_ms

    members = tuple(
        replace(m, joined_ms=m.joined_ms + by_ms, deadline_ms=moved(m.deadline_ms))
        for m in record.members
    )
    return replace(
        record,
        members=members,
        clock_ms=record.clock_ms + by_ms,
        generation_ms=record.generation_ms + by_ms,
        next_ms=moved(record.next_ms),
        followup_ms=moved(record.followup_ms),
        delay_until_ms=moved(record.delay_until_ms),
    )


def scenario(
    tasks: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    *,
    until_ms: int = 600_000,
    **group: Any,
) -> dict[str, Any]:
    """A scenario as JSON values (docs/formats.md); a group starts at once unless told otherwise."""
    config = {"initial.rebalance.delay.ms": 0, **group.pop("config", {})}
    return {
        "group": {"assignor": "sticky", "tasks": list(tasks), "config": config, **group},
        "events": list(events),
        "until_ms": until_ms,
    }


def play(store: Store, life: Mapping[str, Any], *, name: str = "g", shift_ms: int = 0) -> None:
    """Play a scenario to its end; its records are in the store as ``name``.

    Args:
        store: where they go.
        life: the scenario.
        name: the group's id.
        shift_ms: added to all times, so that they lie near the present.
    """
    for record, at_ms in _records(json.dumps(life)):
        named = shifted(replace(record, group=GroupId(name)), shift_ms)
        store.take(PREFIX, named, at_ms + shift_ms, encode(named).value or b"")


@cache
def _records(life: str) -> tuple[tuple[GroupSnapshot, int], ...]:
    """The records of a scenario (JSON) with their times; many tests play the same one."""
    made: list[tuple[GroupSnapshot, int]] = []
    world = PublishingWorld(publish=lambda record, at_ms, _: made.append((record, at_ms)))
    world.play(parse_scenario(json.loads(life)))
    return tuple(made)


def with_records_within(history: History) -> History:
    """The same history with further records within its generations."""
    made = History(history.group)
    for moment in history.moments:
        record = history.snapshot(moment)
        for later_ms in range(4):
            again = replace(record, clock_ms=record.clock_ms + later_ms)
            made.take(again, moment.at_ms + later_ms, encode(again).value or b"")
    return made


def fleet_of(count: int, **more: Any) -> list[dict[str, Any]]:
    """Joins of W1 … Wn at millisecond 0, in three racks."""
    return [
        {"at_ms": 0, "join": {"id": f"W{n}", "rack": f"r{n % 3}", "heartbeat_ms": 3_000, **more}}
        for n in range(1, count + 1)
    ]


def demo_life(**more: Any) -> dict[str, Any]:
    """Three members share twelve tasks; W4 joins, W2 is drained, W3 is killed."""
    events = [
        *fleet_of(3),
        {"at_ms": 10_000, "join": {"id": "W4", "rack": "r1", "heartbeat_ms": 3_000}},
        {"at_ms": 20_000, "drain": "W2"},
        {"at_ms": 30_000, "crash": "W3"},
    ]
    tasks = [{"subtopology": "0", "partitions": 12}]
    return scenario(tasks, events, until_ms=120_000, **more)
