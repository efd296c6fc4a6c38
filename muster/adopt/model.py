"""How a group is governed, what there is to assign, and what happens to a governor: values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import kafka.errors as errors

from muster.adopt.said import Kind
from muster.discovery.load import Measure
from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.tasks import Unit
from muster.worker.messages import Acknowledged, Failed, Send

Message: TypeAlias = Any
"""A request or an answer of Kafka's; kafka-python's classes have no types."""

SESSION_MS: Final = 6_000
ANSWER_MS: Final = 1_000
BEAT_MIN_MS: Final = 200
BEAT_MAX_MS: Final = 1_000
BEATS_PER_S: Final = 100
"""Heartbeats that one process sends for all its groups, unless they have more at `BEAT_MAX_MS`."""


def beat_ms(groups: int) -> int:
    """Time between two heartbeats of a group, in ms, when one process governs so many groups."""
    return min(max(BEAT_MIN_MS, groups * 1_000 // BEATS_PER_S), BEAT_MAX_MS)


class State(Enum):
    """Of a governor; see `governor.py`."""

    NEW = "new"
    WATCHING = "watching"
    JOINING = "joining"
    LOOKING = "looking"
    EVICTING = "evicting"
    DECIDING = "deciding"
    ANSWERING = "answering"
    LEADING = "leading"
    FOLLOWING = "following"
    LEAVING = "leaving"
    ENDED = "ended"


class Seat(Enum):
    """How a governor takes the seat of a group that has a leader."""

    TAKE = "take"
    """Let all members leave; they join again, and do not lead."""
    WAIT = "wait"
    """Join, and wait until the seat falls free."""
    STAND_BY = "stand by"
    """Wait until the governor before us is gone, then take it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How one group is governed.

    Attributes:
        group: the group's id, in Kafka and in muster.
        kind: what its members are.
        config: the group's configuration in muster; its tasks are kept up to date.
        configured: where it is in the log.
        instance_id: of the governor, beginning with `SEAT_PREFIX`.
        seat: how the seat is taken.
        pins: member name → connectors and tasks that only it may run.
        weights: topic or connector → load of each of its tasks.
        measure: what each partition's load is measured by; None = it is not measured.
        protocols: further assignor names that members offer.
        session_timeout_ms: after so long without heartbeats Kafka gives the seat to another member.
        answer_timeout_ms: how long the coordinator may take for a decision.
        beat_ms: between two heartbeats; the governor notices a rebalance with the next one.
        is_known: whether muster has had the group before. Its governor then reads the newest record
            before it begins: the members of a governor that was killed keep their incarnations.
    """

    group: GroupId
    kind: Kind
    config: GroupConfig
    configured: Place
    instance_id: str = f"{SEAT_PREFIX}-1"
    seat: Seat = Seat.TAKE
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    measure: Measure | None = None
    protocols: tuple[str, ...] = ()
    session_timeout_ms: int = SESSION_MS
    answer_timeout_ms: int = ANSWER_MS
    beat_ms: int = BEAT_MAX_MS
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Jobs:
    """What there is to assign, as Kafka says now.

    Attributes:
        units: topics or connectors.
        offset: of the Connect cluster's config topic, up to which it was read.
    """

    units: tuple[Unit, ...]
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Answered:
    """The broker has answered the newest request, or has not."""

    number: int
    message: Message | Exception


@dataclass(frozen=True, slots=True)
class Watched:
    """Whether a governor is in the group; None = not known."""

    governed: bool | None


class Stop:
    """Hand the group back."""


@dataclass(frozen=True, slots=True)
class Configured:
    """Kafka has stored a configuration.

    Attributes:
        place: where; None = it was not written.
    """

    place: Place | None


News: TypeAlias = MemberAssignment | MemberGone | GroupSnapshot | Acknowledged | Failed | Configured
"""What muster's topics bring."""
Happening: TypeAlias = News | Jobs | Answered | Watched | Stop


class Line(Protocol):
    """To the group's coordinator in Kafka; see `wire.Line`."""

    def ask(
        self, request: Message, done: Callable[[Message | Exception], None], timeout_ms: int
    ) -> None:
        """Send a request; `done` gets the answer, from any thread."""

    def lost(self) -> None:
        """The broker asked is not the coordinator any more."""


class Topics(Protocol):
    """muster's topics; see `log.Log`."""

    def send(self, group: str, sends: Sequence[Send]) -> None:
        """Write events of a group's members."""

    def configure(self, config: GroupConfig) -> None:
        """Write a group's configuration."""


class World(Protocol):
    """What else a governor asks about its group; the answers come as happenings."""

    def needs(self, topics: Sequence[str]) -> None:
        """The group's members subscribe to these topics: `Jobs` come, now and when they change."""

    def watch(self) -> None:
        """Find out whether another governor is in the group: `Watched` comes."""

    def played(self, done: Round) -> None:
        """A round has been answered."""


@dataclass(slots=True)
class Round:
    """One rebalance, for logs and measurements.

    Attributes:
        generation: Kafka's.
        protocol: the one that the members share.
        members: how many there are.
        starts, stops: how many tasks a member is to start, and to stop.
        decided_ms: from the broker's JoinGroup answer to our SyncGroup.
        by_coordinator: whether the coordinator decided; False = the governor did.
    """

    generation: int
    protocol: str
    members: int
    starts: int
    stops: int
    decided_ms: int
    by_coordinator: bool


def error_of(answer: Message | Exception) -> Exception | None:
    """The error that an answer of Kafka carries; None = it succeeded."""
    if isinstance(answer, Exception):
        return answer
    if getattr(answer, "error_code", 0):
        error: Exception = errors.for_code(answer.error_code)()
        return error
    return None
