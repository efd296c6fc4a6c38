"""Drives a group with events and returns whole records, in a compact notation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from muster.assignor import registry
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    Leave,
    Mark,
    Origin,
    Report,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import (
    Fault,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
    WakeUp,
)
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskSet, Unit
from muster.state import invariants
from muster.state.group import Group
from muster.state.machine import Step, advance

GROUP = GroupId("g")
AT_ONCE = {"initial.rebalance.delay.ms": 0}
"""A starting group is placed in the batch of its first member's join."""


@dataclass
class Story:
    """One group; `at` moves the log's clock, and other events are written at that time.

    A plain tick says what the newest wake-up said, as the clock's does.
    """

    group: Group = field(default_factory=lambda: Group.new(GROUP))
    now_ms: int = 1_000_000
    offset: int = 0
    epoch: int = 1
    lookup: Any = registry.get
    published: Mark | None = None

    def at(self, ms: int) -> Story:
        """Set the time of later events, in milliseconds from the beginning."""
        self.now_ms = 1_000_000 + ms
        return self

    def take(self, *events: Event) -> Step:
        """Take one batch; check that the laws hold and that the same batch again does nothing."""
        placed = []
        for event in events:
            self.offset += 1
            topic = "config" if isinstance(event, GroupConfig | GroupDeleted) else "membership"
            is_plain = isinstance(event, Tick) and event.published is None
            said = {"published": self.published} if is_plain else {}
            origin = Origin(topic, 0, self.offset, event.origin.at_ms or self.now_ms)
            placed.append(replace(event, origin=origin, **said))
        step = advance(self.group, placed, coordinator_epoch=self.epoch, assignors=self.lookup)
        invariants.check(step.group)
        again = advance(step.group, placed, coordinator_epoch=self.epoch, assignors=self.lookup)
        assert again.records == ()
        self.group = step.group
        for record in step.records:
            if isinstance(record, WakeUp):
                self.published = record.published
        return step

    def records(self, *events: Event) -> dict[str, str]:
        """Each member's record: "0_0 0_1 | 0_2 | - @2" is active, standby, learner, epoch.

        Of an answer and the tombstone behind it, which takes it back, the answer.
        """
        lines: dict[str, str] = {}
        faults = {fault.value for fault in Fault}
        for record in self.take(*events).records:
            if not isinstance(record, MemberAssignment | MemberGone):
                continue
            if isinstance(record, MemberAssignment) or lines.get(record.member) not in faults:
                lines[record.member] = short(record)
        return lines


def short(record: MemberAssignment | MemberGone) -> str:
    """A member's record as one line."""
    if isinstance(record, MemberGone):
        return "gone"
    if record.fault is not None:
        return record.fault.value
    sets = (record.active, record.standby, record.learner)
    held = " | ".join(" ".join(map(str, tasks)) or "-" for tasks in sets)
    return f"{held} @{record.epoch}" + (" report" if record.report else "")


def config(*units: Unit, assignor: str = "sticky", **values: object) -> GroupConfig:
    """A config; settings by name with underscores. A start is placed at once unless they say so."""
    named = AT_ONCE | {key.replace("_", "."): value for key, value in values.items()}
    settings = parse_settings(named, assignor)
    return GroupConfig(group=GROUP, assignor=assignor, settings=settings, tasks=units)


def join(member: str, incarnation: int = 1, **more: Any) -> Join:
    """A join."""
    return Join(group=GROUP, member=MemberId(member), incarnation=incarnation, **more)


def report(member: str, revision: int, *active: str, epoch: int = 1, **more: Any) -> Report:
    """A report; `incarnation` is 1 unless given."""
    sets = ("standby", "learner", "ready", "releasing")
    given = {role: TaskSet.of(more.pop(role, ())) for role in sets}
    return Report(
        group=GROUP,
        member=MemberId(member),
        incarnation=more.pop("incarnation", 1),
        epoch=epoch,
        revision=revision,
        holding=Holding(active=TaskSet.of(active), **given),
        **more,
    )


def beat(member: str, digest: int, epoch: int = 1) -> Heartbeat:
    """A heartbeat."""
    return Heartbeat(group=GROUP, member=MemberId(member), epoch=epoch, digest=digest)


def leave(member: str, incarnation: int = 1, *, temporary: bool = False) -> Leave:
    """A leave."""
    return Leave(group=GROUP, member=MemberId(member), incarnation=incarnation, temporary=temporary)


def tick() -> Tick:
    """A tick."""
    return Tick(group=GROUP)


def since(ms: int, event: Event) -> Event:
    """The event with its own time, for a batch with several times."""
    return replace(event, origin=Origin("", 0, -1, 1_000_000 + ms))


def snapshot(step: Step) -> GroupSnapshot:
    """The snapshot that a step published."""
    snapshots: list[Record] = [r for r in step.records if isinstance(r, GroupSnapshot)]
    assert len(snapshots) == 1
    assert isinstance(snapshots[0], GroupSnapshot)
    return snapshots[0]
