"""What to write about a group's sources, given what Kafka has now. Pure.

The newest record is the baseline, so any number of processes come to the same answer:

- A topic that has vanished keeps its tasks for a grace time, because metadata may be incomplete for
  a moment.
- A topic with another id was deleted and created again. One record drops its tasks and the next one
  has them again, so that their members stop and restart them.
- While a broker is away, as in a restart, the partitions on it keep its rack.

The tasks' weights are in `measured_weights`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.discovery.measured_weights import Loads, weighed
from muster.discovery.topics import Topic
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import RackLists, Subtopology

GRACE_MS: Final = 60_000
"""How long a topic that has vanished keeps its tasks, unless a setting says otherwise."""


@dataclass(slots=True)
class Memory:
    """What a process remembers of a source: since when each topic has been missing."""

    missing_since_ms: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What was read for a source: its topics that exist, and their loads if they were measured.

    `now_ms` is when: milliseconds of a clock that never steps.
    """

    topics: Mapping[str, Topic]
    loads: Loads | None
    now_ms: int


def find(
    source: Source, before: Found | None, look: Look, memory: Memory, grace_ms: int
) -> tuple[Found, list[str]]:
    """What is found for a source, and what is wrong with it in words.

    `before` is the newest record of the source, `look` what Kafka has now; `memory` is updated. A
    topic that has vanished stays for `grace_ms`.
    """
    known = dict(before.ids) if before is not None else {}
    ids: dict[str, str] = {}
    topics: dict[str, Topic] = {}
    for name, topic in sorted(look.topics.items()):
        if known.get(name, topic.id) == topic.id:
            topics[name], ids[name] = topic, topic.id
        # else it was created again: this record drops it, the next one has it
    waiting = vanished(known, look.topics, memory, look.now_ms, grace_ms)
    ids |= {name: known[name] for name in waiting}
    old = {unit.name: unit for unit in before.units} if before is not None else {}
    if source.co_partitioned:
        units, faults = _together(source, topics, waiting, old)
    else:
        units = [_unit(source, name, [topic], old.get(name)) for name, topic in topics.items()]
        units += [old[name] for name in waiting if name in old]
        faults = []
    # Weights are relative to all of the source's partitions; those of a waiting topic are unknown.
    measured = weighed(source, units, old, None if waiting else look.loads)
    return Found(
        source, tuple(sorted(measured, key=lambda unit: unit.name)), tuple(sorted(ids.items()))
    ), faults


def vanished(
    known: Collection[str], there: Collection[str], memory: Memory, now_ms: int, grace_ms: int
) -> list[str]:
    """Topics that were known and are not there now, and whose grace time runs; sorted.

    `memory` is updated.
    """
    for name in there:
        memory.missing_since_ms.pop(name, None)
    waiting = []
    for name in sorted(set(known) - set(there)):
        since_ms = memory.missing_since_ms.setdefault(name, now_ms)
        if now_ms - since_ms < grace_ms:
            waiting.append(name)
    return waiting


def _together(
    source: Source,
    topics: Mapping[str, Topic],
    waiting: Sequence[str],
    old: Mapping[str, Subtopology],
) -> tuple[list[Subtopology], list[str]]:
    """The unit of co-partitioned topics; while they do not fit, what was found before."""
    missing = [name for name in source.topics if name not in topics and name not in waiting]
    sizes = {name: topic.partitions for name, topic in topics.items()}
    if waiting:
        return [*old.values()], []
    if missing or not topics:
        fault = f"co-partitioned topics do not exist: {', '.join(missing) or source.pattern}"
        return [], [fault]
    if len(set(sizes.values())) > 1:
        counted = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        return [*old.values()], [f"co-partitioned topics need as many partitions each: {counted}"]
    return [_unit(source, source.unit, [*topics.values()], old.get(source.unit))], []


def _unit(
    source: Source, name: str, topics: Sequence[Topic], before: Subtopology | None
) -> Subtopology:
    return Subtopology(
        name=name,
        partitions=topics[0].partitions,
        stateful=source.stateful,
        weight=source.weight,
        source_racks=racks(source, topics, before),
    )


def racks(source: Source, topics: Sequence[Topic], before: Subtopology | None) -> RackLists | None:
    """Per partition and topic, the racks that are near it; None unless all are known.

    `before` is the unit that was found last.
    """
    known = before.source_racks if before is not None else None
    rows = []
    for number in range(topics[0].partitions):
        row = []
        for place, topic in enumerate(topics):
            leader = topic.leader_racks[number]
            near = (leader,) if source.racks == "leader" and leader else topic.replica_racks[number]
            if number in topic.away and known is not None:
                near = _near_before(near, known, number, place)
            if not near:
                return None
            row.append(near)
        rows.append(tuple(row))
    return tuple(rows)


def _near_before(
    near: tuple[str, ...], known: RackLists, number: int, place: int
) -> tuple[str, ...]:
    """The racks known before, if those of the replicas that are not away are among them."""
    before = known[number] if number < len(known) else ()
    old = before[place] if place < len(before) else ()
    return old if set(near) <= set(old) else near
