"""Converts a group that Kafka coordinates to a snapshot of muster's, so that muster can plan it.

A topic is a unit, each of its partitions a task (`orders_0`), a consumer a member; a Streams
application's subtopologies and a Connect cluster's connectors are units of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from muster.discovery.measured_traffic import Load, Measure, Place
from muster.discovery.topics import Topic
from muster.errors import BadInput
from muster.kafka.groups import Kind, Member
from muster.protocol.ids import GroupId, MemberId, member_fault
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry
from muster.protocol.settings import CONNECT_ASSIGNORS, parse_settings
from muster.protocol.tasks import Connector, RackLists, Subtopology, TaskTable, Unit
from muster.shadow.group_reader import ShadowedGroup

ASSIGNORS: Mapping[Kind, str] = {
    Kind.CLASSIC: "sticky",
    Kind.CONSUMER: "sticky",
    Kind.STREAMS: "high-availability",
    Kind.CONNECT: "cooperative",
}
"""The assignor that muster plans with by default."""
PROTOCOLS = ("eager", "compatible", "sessioned")
"""Connect's protocols; the index is the version in a worker's metadata."""
RACKS = "rack.aware.assignment.strategy"


class HeldTasks(NamedTuple):
    """A member's tasks: printed ids by role."""

    active: frozenset[str]
    standby: frozenset[str] = frozenset()
    learner: frozenset[str] = frozenset()


def names_of(members: Iterable[Member]) -> dict[str, str]:
    """Member id in Kafka → a unique name that is valid as a member id of muster."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for member in members:
        name = member.name if member_fault(member.name) is None else member.id
        if name in taken or member_fault(name) is not None:
            name = f"member-{len(names) + 1}"
        taken.add(name)
        names[member.id] = name
    return names


def held_tasks(member: Member) -> HeldTasks:
    """The tasks that a member has now."""
    if member.streams is not None:
        each = member.streams
        return HeldTasks(*(_tasks(pairs) for pairs in (each.active, each.standby, each.warmup)))
    if member.connect is not None:
        jobs = member.connect.holds()
        return HeldTasks(frozenset(name if task < 0 else f"{name}-{task}" for name, task in jobs))
    return HeldTasks(frozenset(f"{part.topic}_{part.number}" for part in member.assigned))


def _tasks(pairs: Iterable[tuple[str, int]]) -> frozenset[str]:
    return frozenset(f"{unit}_{number}" for unit, number in pairs)


def units(shadowed: ShadowedGroup, measure: Measure | None) -> tuple[Unit, ...]:
    """The group's units; `measure` weighs partitions, None = all weigh 1.

    Raises:
        BadInput: the measure is not known of any of the group's partitions, or the group's tasks
            are not partitions.
    """
    kind, group = shadowed.description.kind, shadowed.description.group
    if measure is not None and kind in (Kind.CONNECT, Kind.STREAMS):
        raise BadInput(
            f"--weight {measure}: unknown for group {group!r}: loads are those of partitions, not "
            f"of the tasks of a {kind} group"
        )
    if kind is Kind.CONNECT:
        return _connectors(shadowed)
    if kind is Kind.STREAMS:
        return _subtopologies(shadowed)
    known = [each.by(measure) for each in shadowed.loads.values()] if measure is not None else [0]
    if shadowed.topics and all(value is None for value in known):
        raise BadInput(f"--weight {measure}: unknown for group {group!r}")
    return tuple(
        Subtopology(
            name=topic.name,
            partitions=topic.partitions,
            source_racks=_racks([topic], topic.partitions),
            weights=None if measure is None else _weights(topic, shadowed.loads, measure),
        )
        for topic in shadowed.topics.values()
    )


def _weights(topic: Topic, loads: Mapping[Place, Load], measure: Measure) -> tuple[float, ...]:
    loads_of_partitions = (loads.get((topic.name, number)) for number in range(topic.partitions))
    return tuple(round((each and each.by(measure)) or 0, 3) for each in loads_of_partitions)


def _racks(read: list[Topic], partitions: int) -> RackLists | None:
    """Per partition, per topic the racks of the replicas; None unless all of them are known."""
    if not read or not all(topic.has_racks for topic in read):
        return None
    return tuple(
        tuple(topic.replica_racks[number] for topic in read if number < topic.partitions)
        for number in range(partitions)
    )


def _subtopologies(shadowed: ShadowedGroup) -> tuple[Unit, ...]:
    rows = []
    for unit in shadowed.description.subtopologies:
        read = [shadowed.topics[name] for name in unit.sources if name in shadowed.topics]
        count = max((topic.partitions for topic in read), default=0)
        rows.append(
            Subtopology(unit.name, count, bool(unit.changelogs), source_racks=_racks(read, count))
        )
    return tuple(rows)


def _connectors(shadowed: ShadowedGroup) -> tuple[Unit, ...]:
    counts = dict(shadowed.connectors or {})
    for member in shadowed.description.members:
        if member.connect is not None:
            for name, task in member.connect.holds():
                counts[name] = max(counts.get(name, 0), task + 1)
    return tuple(Connector(name, tasks) for name, tasks in sorted(counts.items()))


def to_snapshot(
    shadowed: ShadowedGroup,
    *,
    measure: Measure | None = None,
    assignor: str | None = None,
) -> GroupSnapshot:
    """The group as muster would publish it if it coordinated it.

    Raises:
        BadInput: the group is of a kind that muster cannot plan for, or the measure is not known.
    """
    described = shadowed.description
    if described.kind not in ASSIGNORS:
        raise BadInput(f"group {described.group!r} is not one of consumers, Streams or Connect")
    name = assignor or ASSIGNORS[described.kind]
    table = TaskTable(units(shadowed, measure))
    ids = names_of(described.members)
    members = sorted(described.members, key=lambda member: ids[member.id])
    holder = np.full(len(table), -1, dtype=np.int32)
    pairs: dict[str, list[tuple[int, int]]] = {"standby": [], "learner": []}
    for slot, member in enumerate(members):
        has = held_tasks(member)
        for text in has.active:
            index = table.index(text)
            if index is not None:
                holder[index] = slot
        for role in pairs:
            indexes = (table.index(text) for text in getattr(has, role))
            pairs[role] += [(index, slot) for index in indexes if index is not None]
    rows = {
        role: np.array(sorted(copies), dtype=np.int32).reshape(-1, 2)
        for role, copies in pairs.items()
    }
    return GroupSnapshot(
        group=GroupId(described.group),
        coordinator_epoch=0,
        generation=1,
        target_generation=1,
        state=GroupState.STABLE if members else GroupState.EMPTY,
        assignor=name,
        settings=parse_settings(_settings(shadowed, name), name),
        tasks=table.units,
        members=tuple(
            _entry(slot, ids[member.id], member, described.kind)
            for slot, member in enumerate(members)
        ),
        target=holder,
        holder=holder,
        revoking=np.zeros(len(table), dtype=np.bool_),
        destination=holder,
        target_standby=rows["standby"],
        target_learner=rows["learner"],
        standby=rows["standby"],
        learner=rows["learner"],
        clock_ms=shadowed.at_ms,
        generation_ms=shadowed.at_ms,
    )


def _settings(shadowed: ShadowedGroup, assignor: str) -> dict[str, object]:
    """Settings of the plan: it is rack-aware if members and brokers both name racks."""
    members_name_racks = any(member.rack for member in shadowed.description.members)
    brokers_name_racks = any(topic.has_racks for topic in shadowed.topics.values())
    if members_name_racks and brokers_name_racks and assignor not in CONNECT_ASSIGNORS:
        return {RACKS: "min_traffic"}
    return {}


def _entry(slot: int, name: str, member: Member, kind: Kind) -> MemberEntry:
    topics = member.topics if kind in (Kind.CLASSIC, Kind.CONSUMER) else None
    protocols: tuple[str, ...] = ()
    if member.connect is not None:
        protocols = tuple(reversed(PROTOCOLS[: member.connect.version + 1]))
    return MemberEntry(
        id=MemberId(name),
        slot=slot,
        incarnation=0,
        instance_id=member.instance_id,
        rack=member.rack,
        topics=topics,
        protocols=protocols,
        tags=tuple(sorted(member.streams.tags.items())) if member.streams else (),
        epoch=1,
        revision=1,
    )
