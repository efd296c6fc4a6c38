"""What `muster doctor` has read of a job, its groups and their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.cli.ages import span
from muster.cli.holdups import Holdup
from muster.protocol.ids import GroupId
from muster.protocol.records import CoordinatorClaim, GroupSnapshot, Rejected

GRACE_MS = 30_000
"""A wake-up may be this late before something is wrong: start-ups and backlogs take a while."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim to be the coordinator, as Kafka has it."""

    offset: int
    at_ms: int
    record: CoordinatorClaim


@dataclass(frozen=True, slots=True)
class Heard:
    """What the newest minutes of ``<prefix>.membership`` have of a group.

    Attributes:
        event_ms: newest record of members.
        tick_ms: newest tick of a clock; 0 = none.
        unanswered_ms: oldest join since the group's newest snapshot; 0 = none.
        joined: the members that have joined since then.
    """

    event_ms: int = 0
    tick_ms: int = 0
    unanswered_ms: int = 0
    joined: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. Times are epoch milliseconds.

    Attributes:
        now_ms: when it was read, by this machine's clock.
        claims: oldest first.
        groups: newest snapshot and its record's time.
        writes: (time, coordinator epoch) of every snapshot that is still there and `is_news`.
        wakeups: when groups want to be woken.
        heard: newest records of members, by group.
        rejected: dead letters and their times.
        published_ms: when the coordinator wrote anything for the last time; 0 = never.
        read_ms: when all of it had been read, which may take long; 0 = at `now_ms`.
        holdups: members that owe releases, by group.
    """

    now_ms: int
    claims: Sequence[Claim] = ()
    groups: Mapping[GroupId, tuple[GroupSnapshot, int]] = field(default_factory=dict)
    writes: Sequence[tuple[int, int]] = ()
    wakeups: Mapping[GroupId, int] = field(default_factory=dict)
    heard: Mapping[GroupId, Heard] = field(default_factory=dict)
    rejected: Sequence[tuple[int, Rejected]] = ()
    published_ms: int = 0
    read_ms: int = 0
    holdups: Mapping[GroupId, tuple[Holdup, ...]] = field(default_factory=dict)

    def ago(self, at_ms: int) -> str:
        """How long before the reading that was."""
        return span(self.now_ms - at_ms)


def who(claim: Claim) -> str:
    """Whose claim it is."""
    return f"job {claim.record.job} on {claim.record.host}"
