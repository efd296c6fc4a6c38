"""The events that the coordinator reads: one frozen class each, with the place it was read from.

An event's time is the broker's timestamp of its record (`Origin.at_ms`), never the sender's clock.
Its group is the record key; the value does not repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from muster.protocol.digest import Holding
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Unit
from muster.protocol.tick_covers import Cover


class Origin(NamedTuple):
    """Where an event was read. A group's events are absorbed in the order of `sort_key`.

    `at_ms` is the broker's timestamp (LogAppendTime), epoch milliseconds.
    """

    topic: str
    partition: int
    offset: int
    at_ms: int

    @property
    def sort_key(self) -> tuple[int, str, int, int]:
        """(broker timestamp, topic, partition, offset); Spark gives the rows in any order."""
        return (self.at_ms, self.topic, self.partition, self.offset)


NOWHERE = Origin("", 0, -1, 0)


class Mark(NamedTuple):
    """How far a coordinator has read a group's inputs.

    Attributes:
        coordinator_epoch: the coordinator's.
        taken: a number that grows with every record read (`Liveness.taken`).
    """

    coordinator_epoch: int
    taken: int


class Lag(NamedTuple):
    """How far a member's copy of a task is behind, in offsets."""

    task: Task
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A member's description of itself, sent with its join and kept by the group.

    Attributes:
        rack: `client.rack`.
        capacity: relative weight (threads), at least 1.
        tags: `client.tag.*`, sorted by key.
        protocols: assignment protocols it speaks, best first.
        topics: subtopologies it may take; None = all.
        static: jobs a Connect worker is pinned to (KIP-987); empty = wildcard.
        config_offset: offset of the newest config it has read (Connect); None = not given.
        rebalance_timeout_ms: time it may take to release tasks; None = the group's setting.
        make_before_break: whether it can release a task only after the new owner is ready; no
            assignor reads it so far.
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


PROFILE = tuple(attribute.name for attribute in fields(Profile))
"""The fields of a profile, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Profile):
    """A process asks to be a member. Idempotent: a member may send it again.

    Attributes as in `Profile`, and:
        member: member id, chosen by the process; new for each process unless the user sets it.
        incarnation: random 63-bit number of the process; distinguishes a restarted process from
            the old one with the same id, which may still run.
        instance_id: static membership (`group.instance.id`); None = dynamic.
        holding: the tasks it holds now; at the first join usually none.
        lags: how far its copies are behind, state found on its disk included.
        apart: whether it can write its heartbeats to the topic of their own (`covers`).
    """

    group: GroupId
    member: MemberId
    incarnation: int
    instance_id: str | None = None
    holding: Holding = field(default_factory=Holding)
    lags: tuple[Lag, ...] = ()
    apart: bool = False
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a member holds: sent after a release, when a copy has caught up, or when asked.

    Attributes:
        epoch: member epoch of the newest record it acted on.
        revision: revision of that record. A report acknowledges a release only if its revision is
            at least that of the record which asked for it, so a late or repeated report
            acknowledges no release that its sender had not read.
        holding: everything it holds.
        lags: how far its copies are behind.
        coordinator_epoch: the highest its sender has seen; the sender ignores records of older
            coordinators from then on. None = not given (a worker of an older version).
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
    """A member is alive and holds the tasks of the digest. By far the most frequent event.

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
    """A member has stopped all its tasks and leaves.

    Attributes:
        incarnation: of the process that leaves; does not affect another process of the same id.
        temporary: the member will return under its instance id if it has one, else under its
            member id (member epoch -2 in Kafka); its tasks wait for it, at most for a session.
    """

    group: GroupId
    member: MemberId
    incarnation: int
    temporary: bool = False
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator drains a member: it gives its tasks away and gets no new ones.

    `on` False undoes the drain.
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
    """A group's configuration (`muster.config`, compacted: the newest one counts).

    Attributes:
        assignor: name, or ``module:Class`` of a plug-in.
        settings: read by `parse_settings`.
        tasks: the group's tasks; empty = not declared yet (state Not Ready).
        sources: topics of Kafka whose partitions are tasks too, as `TopicsFound` says.
    """

    group: GroupId
    assignor: str
    settings: Settings
    tasks: tuple[Unit, ...]
    sources: tuple[Source, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsFound:
    """What Kafka has for the sources the writer knew (`muster.config`, key ``group||found``)."""

    group: GroupId
    found: tuple[Found, ...]
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """A tombstone on `muster.config`: the group is deleted."""

    group: GroupId
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The clock process moves a group's time to the broker timestamp of this record.

    Attributes:
        published: the mark of the newest wake-up that the clock has read; None = none.
        cover: what the clock has heard of members that heartbeat apart; None = it does not listen.
        refused: the heartbeats in the cover had to be signed, and no clock checks signatures, so
            each counts as a `Refused` event. The reader sets this; it is never written.
    """

    group: GroupId
    published: Mark | None = None
    cover: Cover | None = None
    refused: bool = False
    origin: Origin = NOWHERE


Event: TypeAlias = (
    Join
    | Report
    | Heartbeat
    | Leave
    | Drain
    | LagReport
    | GroupConfig
    | GroupDeleted
    | TopicsFound
    | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Stands for an event whose signature was refused; no client writes one.

    It is not a sign of life. But the member itself may have written it, with a key that has ended,
    and may take Kafka's acknowledgement as a renewal of its session. So if the session ends after a
    refused event, the group fences the member and waits before it grants the tasks to others.
    """

    group: GroupId
    member: MemberId
    origin: Origin = NOWHERE


Taken: TypeAlias = Event | Refused
"""What `state.machine.advance` absorbs."""
