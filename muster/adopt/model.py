"""Values of a governor: its options, states, inputs and rounds, and the ports it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import kafka.errors as errors

from muster.adopt.join_metadata import Kind
from muster.discovery.measured_traffic import Measure
from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.tasks import Unit
from muster.worker.session_messages import Acknowledged, Failed, Send

Message: TypeAlias = Any
"""A request or an answer of Kafka's; kafka-python's classes have no types."""
Done: TypeAlias = Callable[[Message | Exception], None]
"""Gets the answer to a request; an exception = no broker answered."""

SESSION_MS: Final = 6_000
ANSWER_MS: Final = 1_000
BEAT_MAX_MS: Final = 1_000


class State(Enum):
    """The state of a governor; see `governor.py`."""

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
    """Remove all other members from the group: they join again, and the governor leads."""
    WAIT = "wait"
    """Join as a follower, and lead once Kafka chooses the governor."""
    STAND_BY = "stand by"
    """Stay outside while another governor is in the group, then take the seat."""


@dataclass(frozen=True, slots=True)
class Options:
    """How one group is governed.

    Attributes:
        group: the group's id, in Kafka and in muster.
        config: the group's configuration in muster; the governor updates its tasks.
        configured: where that configuration is stored.
        instance_id: the governor's instance id; it begins with `SEAT_PREFIX`.
        pins: member name → connectors and tasks that only it may run.
        weights: topic or connector → load of each of its tasks.
        measure: how each partition's load is measured; None = loads are not measured.
        protocols: further assignor names that members offer.
        session_timeout_ms: after this long without heartbeats of the governor, Kafka gives the
            seat to another member.
        answer_timeout_ms: how long the coordinator may take for a decision.
        beat_ms: time between two heartbeats; the governor notices a rebalance with the next one.
        is_known: whether muster has a configuration of the group already. The governor then reads
            the group's newest snapshot first, so that members keep their incarnations after an
            earlier governor was killed.
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
class AssignableUnits:
    """The topics or connectors of a group, as Kafka has them now.

    Of connectors, `offset` says up to where the cluster's config topic was read.
    """

    units: tuple[Unit, ...]
    offset: int = -1


@dataclass(frozen=True, slots=True)
class BrokerResponse:
    """The broker's answer to the request of that number; an exception = no broker answered."""

    number: int
    message: Message | Exception


@dataclass(frozen=True, slots=True)
class GovernorPresence:
    """The result of `look_for_governor`; None = not known."""

    governed: bool | None


@dataclass(frozen=True, slots=True)
class MembersSeen:
    """The group's members while the JoinGroup of that number waits; see `join_watch`."""

    number: int
    message: Message | Exception


class Stop:
    """The user stops the governor: it hands the group back."""


@dataclass(frozen=True, slots=True)
class Configured:
    """Where Kafka stored what `Topics.configure` wrote.

    None = it was not written, and `fault` says why.
    """

    place: Place | None
    fault: str = ""


News: TypeAlias = MemberAssignment | MemberGone | GroupSnapshot | Acknowledged | Failed | Configured
"""Inputs from muster's topics."""
GovernorInput: TypeAlias = (
    News | AssignableUnits | BrokerResponse | MembersSeen | GovernorPresence | Stop
)


class CoordinatorConnection(Protocol):
    """A connection to the group's coordinator in Kafka; see `coordinator_connections`."""

    def ask(self, request: Message, done: Done, timeout_ms: int) -> None:
        """Send a request; `done` gets the answer, from any thread."""

    def ask_aside(self, request: Message, done: Done, timeout_ms: int) -> None:
        """`ask`, but the request does not wait behind others that the broker has not answered.

        It goes to the coordinator that Kafka has now.
        """

    def has_moved(self) -> bool:
        """Whether the newest `ask_aside` found another coordinator than the one `ask` sends to."""

    def lost(self) -> None:
        """Look for the coordinator again before the next request."""

    def drop(self) -> None:
        """Close the connection, over which no answer will come; go on over that of `ask_aside`."""


class Topics(Protocol):
    """muster's topics; see `muster_topics`."""

    def send(self, group: str, sends: Sequence[Send]) -> None:
        """Write events of a group's members; `Acknowledged` or `Failed` follows for each."""

    def configure(self, config: GroupConfig) -> None:
        """Write a group's configuration; `Configured` follows."""


class GovernorCallbacks(Protocol):
    """What a governor asks of the code around it; each answer follows as an input."""

    def watch_partitions(self, topics: Sequence[str]) -> None:
        """Report these topics' partitions as `AssignableUnits`, now and after each change."""

    def look_for_governor(self) -> None:
        """Report as `GovernorPresence` whether another governor is in the group."""


@dataclass(slots=True)
class Round:
    """One rebalance, for measurements.

    Attributes:
        generation: Kafka's generation.
        decided_ms: time from the broker's JoinGroup answer to the governor's SyncGroup.
        by_coordinator: whether the coordinator decided; False = the governor did.
    """

    generation: int
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
