"""What reaches the coordinator: one class per event, frozen, with where it was read.

An event's time is the broker's timestamp of its record (`Origin.at_ms`), never a clock of the
sender: the log decides what happened when (design, idea 1). The group of an event is its record
key and is not repeated in the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from muster.protocol.digest import Holding
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.settings import Settings
from muster.protocol.tasks import Unit


class Origin(NamedTuple):
    """Where an event was read. Rows of a group are used in the order of `sort_key`.

    Attributes:
        topic: full topic name.
        partition: partition number.
        offset: offset within it.
        at_ms: broker timestamp (LogAppendTime), epoch milliseconds.
    """

    topic: str
    partition: int
    offset: int
    at_ms: int

    @property
    def sort_key(self) -> tuple[int, str, int, int]:
        """(broker timestamp, topic, partition, offset): Spark replays rows in another order."""
        return (self.at_ms, self.topic, self.partition, self.offset)


NOWHERE = Origin("", 0, -1, 0)


class Mark(NamedTuple):
    """How far a coordinator has come with a group.

    Attributes:
        coordinator_epoch: the coordinator's.
        taken: records of the group's inputs behind it, or less: a number that grows with each.
    """

    coordinator_epoch: int
    taken: int


class Lag(NamedTuple):
    """How far a member's copy of a task is behind, in offsets."""

    task: Task
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a member says of itself when it joins, and its group keeps.

    Attributes:
        rack: `client.rack`.
        capacity: relative weight (threads), at least 1.
        tags: `client.tag.*`, sorted by key.
        protocols: assignment protocols it speaks, best first.
        topics: subtopologies it may take; None = all.
        static: jobs a Connect worker is pinned to (KIP-987); empty = wildcard.
        config_offset: newest config it has read (Connect); None = not told.
        rebalance_timeout_ms: how long it may need to release; None = the group's.
        make_before_break: whether it can release a task only after the new owner is ready;
            written by members and kept, read by no assignor so far.
    """

    rack: str | None = None
    capacity: int = 1
    tags: tuple[tuple[str, str], ...] = ()
    protocols: tuple[str, ...] = ()
    topics: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    config_offset: int | None = None
    rebalance_timeout_ms: int | None = None
    make_before_break: bool = True


PROFILE = tuple(each.name for each in fields(Profile))
"""The fields of a profile, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Profile):
    """A member says who it is. Idempotent; a rejoin says it again.

    Attributes as in `Profile`, and:
        group: the group joined.
        member: chosen by the member; a fresh one for each process unless the user names it.
        incarnation: random 63-bit number of this process; tells a restarted process of the same
            name from the old one, which may still be running.
        instance_id: static membership (`group.instance.id`); None = dynamic.
        holding: what it holds right now (a first join: nothing, or what it finds on its disk).
        lags: how far its copies are behind.
    """

    group: GroupId
    member: MemberId
    incarnation: int
    instance_id: str | None = None
    holding: Holding = field(default_factory=Holding)
    lags: tuple[Lag, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A member says in full what it holds: after a release, when a learner is ready, when asked.

    Attributes:
        epoch: member epoch of the newest record it acted on.
        revision: revision of that record. A release is acknowledged only by a report whose revision
            is at least that of the record which asked for it, so no late or repeated report
            can acknowledge what its sender had not yet been told.
        holding: everything it holds.
        lags: how far its copies are behind.
        coordinator_epoch: newest its sender had seen: nothing that an older coordinator wrote can
            change the holding any more. None = not told (a worker of an older version).
    """

    group: GroupId
    member: MemberId
    incarnation: int
    epoch: int
    revision: int
    holding: Holding
    lags: tuple[Lag, ...] = ()
    coordinator_epoch: int | None = None
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member is alive and holds what the digest says. The event that comes by the million.

    Attributes:
        epoch: member epoch of the newest record it acted on.
        digest: `Holding.digest`, unsigned 64 bit.
    """

    group: GroupId
    member: MemberId
    epoch: int
    digest: int
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member has stopped all its tasks and goes.

    Attributes:
        incarnation: the process that goes; another process of the same name is not affected.
        temporary: a member that will return, by its instance id if it has one (member epoch -2),
            else by its member id: its tasks wait for it, a session at most.
    """

    group: GroupId
    member: MemberId
    incarnation: int
    temporary: bool = False
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator wants a member empty: it gives its tasks away and gets no new ones.

    Attributes:
        on: False takes it back.
    """

    group: GroupId
    member: MemberId
    on: bool = True
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """How far copies of tasks are behind, from the member or any exporter (`muster.lag`)."""

    group: GroupId
    member: MemberId
    lags: tuple[Lag, ...]
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """What a group is configured to be (`muster.config`, compacted: the newest is the whole).

    Attributes:
        assignor: name, or ``module:Class`` of a plug-in.
        settings: read by `parse_settings`.
        tasks: the group's tasks; empty = not declared yet (state Not Ready).
    """

    group: GroupId
    assignor: str
    settings: Settings
    tasks: tuple[Unit, ...]
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """A tombstone on `muster.config`: the group is to be dead."""

    group: GroupId
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A clock said that a group may have a deadline; its broker timestamp is what counts.

    Attributes:
        published: what the newest wake-up said of the group's records, if the clock has read one.
    """

    group: GroupId
    published: Mark | None = None
    origin: Origin = NOWHERE


Event: TypeAlias = (
    Join | Report | Heartbeat | Leave | Drain | LagReport | GroupConfig | GroupDeleted | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An event in a member's name that was not believed (`protocol.signing`); no client writes one.

    It is no sign of life. But its writer may be the member itself, with a key that is no
    longer accepted, and may count on having been heard: the record is in Kafka. So a member that
    falls silent after it is told to stop before its tasks go to others.
    """

    group: GroupId
    member: MemberId
    origin: Origin = NOWHERE


Taken: TypeAlias = Event | Refused
"""What a group takes in."""
