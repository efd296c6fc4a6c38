"""The facts that `muster doctor` has read about a job, its groups and their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.output import span
from muster.protocol.ids import GroupId
from muster.protocol.records import CoordinatorClaim, GroupSnapshot, Rejected
from muster.published.holdups import Holdup
from muster.published.unapplied_configs import Unapplied
from muster.streams.coordinator_signs import Signed

GRACE_MS = 30_000
"""How late an answer or a wake-up may be without a fault: start-ups and backlogs take a while."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job's claim to be the coordinator; its offset is the coordinator epoch."""

    offset: int
    at_ms: int
    record: CoordinatorClaim


@dataclass(frozen=True, slots=True)
class Heard:
    """A group's newest records on ``<prefix>.membership``. Times are epoch ms; 0 = none.

    Attributes:
        event_ms: newest record that is not a tick.
        tick_ms: newest tick of a clock.
        uncovered_ms: oldest tick after the newest one whose clock has read the heartbeats that
            members write apart.
        unanswered_ms: oldest join since the group's newest snapshot.
        joined: the members that have joined since then.
    """

    event_ms: int = 0
    tick_ms: int = 0
    uncovered_ms: int = 0
    unanswered_ms: int = 0
    joined: frozenset[str] = frozenset()


class CanaryAnswer(NamedTuple):
    """The coordinator's newest answer to its own test event (`streams.canary`).

    `epoch` is the coordinator's. `event_ms` and `answer_ms` are the broker's times; `next_ms` is
    when the coordinator wants the next event. All are epoch milliseconds.
    """

    epoch: int
    event_ms: int
    answer_ms: int
    next_ms: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a job and its groups. Times are epoch milliseconds.

    Attributes:
        now_ms: when reading began, by this machine's clock.
        claims: oldest first.
        groups: newest snapshot and its record's time.
        writes: (time, coordinator epoch) of every snapshot in the topic that `is_news` accepts.
        wakeups: when groups want to be woken.
        heard: newest records of members, by group.
        rejected: (time, dead letter).
        published_ms: newest record on the topics groups, clock and rejected; 0 = none.
        read_ms: when reading ended, which may take minutes; 0 = at `now_ms`.
        holdups: members that owe releases, by group.
        canary: the newest answer to the coordinator's own test event; None = it writes none.
        signs: the newest sign of life of each coordinator process.
        unapplied: groups that do not follow their newest configuration.
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
    canary: CanaryAnswer | None = None
    signs: Sequence[Signed] = ()
    unapplied: Mapping[GroupId, Unapplied] = field(default_factory=dict)

    def ago(self, at_ms: int) -> str:
        """The time from `at_ms` to `now_ms`, in words."""
        return span(self.now_ms - at_ms)


def who(claim: Claim) -> str:
    """The job and the host of a claim, in words."""
    return f"job {claim.record.job} on {claim.record.host}"
