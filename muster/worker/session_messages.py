"""The inputs of a member's session and the actions it answers with, as values.

`Session.step` takes one input and returns actions, in the order in which the caller performs them.
No input or action refers to Kafka, threads or callbacks: `kafka_link.py` and `worker.py` make the
inputs and perform the actions. Times are milliseconds of the caller's boot-time clock
(`boottime.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from muster.protocol.events import Heartbeat, Join, Lag, LagReport, Leave, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.protocol.topics import TopicKind

# ---------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Begin:
    """The reader is at the end of the member's partition, so the session can join.

    Attributes:
        apart: heartbeats can be written to the topic of their own.
    """

    apart: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A record of this member was read."""

    record: MemberAssignment | MemberGone


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Kafka has acknowledged an event: it is stored."""

    sent: Send


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The session was given every record that the member's partition held at a moment.

    Attributes:
        at_ms: that moment: just before the broker was asked for the partition's end offset.
    """

    at_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An event was not written, and no client retries it."""

    sent: Send


@dataclass(frozen=True, slots=True)
class Released:
    """All or some of the tasks of a `Release` have stopped."""

    role: Role
    tasks: TaskSet


@dataclass(frozen=True, slots=True)
class AllStopped:
    """After a `Lose`, every task has stopped.

    Attributes:
        seed: 63 random bits, drawn now, for the incarnation in which the session joins again. Two
            processes that were restored from one snapshot of a machine have everything else in
            common. None = the session counts on from its seed.
    """

    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """Learners or standbys have caught up with their changelogs."""

    tasks: TaskSet


@dataclass(frozen=True, slots=True)
class LagsKnown:
    """The newest lags of copies, or of actives that still restore."""

    lags: tuple[Lag, ...]


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user closes the worker.

    Attributes:
        temporary: the member will return under the same name; its tasks wait for it.
    """

    temporary: bool = False


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """Time has passed and nothing else happened."""


Input: TypeAlias = (
    Begin
    | Read
    | Acknowledged
    | CaughtUp
    | Failed
    | Released
    | AllStopped
    | Ready
    | LagsKnown
    | LeaveAsked
    | ClockMoved
)

# --------------------------------------------------------------------------------------- actions

MemberEvent: TypeAlias = Join | Report | Heartbeat | Leave | LagReport


@dataclass(frozen=True, slots=True)
class Send:
    """Write an event.

    Attributes:
        event: what to write.
        incarnation: the session that sends it; the acknowledgement proves nothing for a newer one.
        sent_ms: when the session decided to send it: the lease counts from here.
        apart: whether it is a heartbeat for the topic of their own.
    """

    event: MemberEvent
    incarnation: int
    sent_ms: int
    apart: bool = False

    @property
    def kind(self) -> TopicKind:
        """The topic to write the event to."""
        if self.apart:
            return TopicKind.HEARTBEATS
        return TopicKind.LAG if isinstance(self.event, LagReport) else TopicKind.MEMBERSHIP


@dataclass(frozen=True, slots=True)
class Take:
    """Start tasks.

    Attributes:
        role: the role to start them in.
        record: the assignment that grants them; its generation and epoch are fencing tokens.
    """

    role: Role
    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Restore these held copies first: they become active here when they have caught up."""

    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Stop tasks, then answer with `Released`."""

    role: Role
    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A newer assignment is in force, whether or not it changes tasks."""

    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """Active tasks may run until this moment.

    Attributes:
        until_ms: when stopping begins.
        stop_ms: how long stopping may take after it.
    """

    until_ms: int
    stop_ms: int


@dataclass(frozen=True, slots=True)
class Lose:
    """The member holds nothing any more: stop every task at once, then answer `AllStopped`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the log; the session goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The session is over, and no new one follows.

    Attributes:
        fault: why the coordinator ended it; None = the member left.
        message: one line for a person.
    """

    fault: Fault | None
    message: str


Action: TypeAlias = Send | Take | Wanted | Release | Assigned | Lease | Lose | Notice | End
