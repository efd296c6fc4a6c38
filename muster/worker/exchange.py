"""What goes into a member's session and what comes out, as values.

`Session.step` takes one input and answers with actions, in the order they are to be done. Neither
knows Kafka, threads or callbacks: the shell (`kafka.py`, `worker.py`) turns the world into inputs
and actions into the world. Times are milliseconds of the caller's boot-time clock (`clock.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from muster.protocol.events import Heartbeat, Join, Lag, LagReport, Leave, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet

# ---------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Begin:
    """The reader stands at the end of the member's partition: join."""


@dataclass(frozen=True, slots=True)
class Read:
    """A record of this member was read."""

    record: MemberAssignment | MemberGone


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Kafka has an event for good."""

    sent: Send


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything that stood in the member's partition at a moment has been read and given here.

    Attributes:
        at_ms: that moment: before the broker was asked where the partition ends.
    """

    at_ms: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Kafka did not take an event, and no client is trying any more."""

    sent: Send


@dataclass(frozen=True, slots=True)
class Released:
    """Tasks have stopped, as a `Release` asked: all that it named, or some of them."""

    role: Role
    tasks: TaskSet


@dataclass(frozen=True, slots=True)
class AllStopped:
    """Everything a `Lose` named has stopped."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Copies, learners or standbys, have caught up."""

    tasks: TaskSet


@dataclass(frozen=True, slots=True)
class Restored:
    """How far copies are behind, newest figures."""

    lags: tuple[Lag, ...]


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The process wants out.

    Attributes:
        temporary: it will return under the same name; its tasks wait for it.
    """

    temporary: bool = False


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """Nothing happened but time."""


Input: TypeAlias = (
    Begin
    | Read
    | Acknowledged
    | CaughtUp
    | Failed
    | Released
    | AllStopped
    | Ready
    | Restored
    | LeaveAsked
    | ClockMoved
)

# --------------------------------------------------------------------------------------- actions

MemberEvent: TypeAlias = Join | Report | Heartbeat | Leave | LagReport


@dataclass(frozen=True, slots=True)
class Send:
    """Write an event.

    Attributes:
        event: what to write; the shell knows the topic of its class.
        incarnation: the session it speaks for. An acknowledgement that comes after a newer
            session began proves nothing for that one.
        sent_ms: when it was decided, before it left: the lease counts from here.
    """

    event: MemberEvent
    incarnation: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class Take:
    """Start tasks.

    Attributes:
        role: what to do with them.
        record: the assignment that gave them; its generation and epoch are fencing tokens.
    """

    role: Role
    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Copies that are held and are to become active here as soon as they have caught up."""

    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Stop tasks, then say `Released`."""

    role: Role
    tasks: TaskSet
    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A newer assignment is in force (with or without tasks that change)."""

    record: MemberAssignment = field(repr=False)


@dataclass(frozen=True, slots=True)
class Lease:
    """Active tasks may run until this moment.

    Attributes:
        until_ms: from then on they are being stopped.
        stop_ms: how long after it everything must have stopped at the latest.
    """

    until_ms: int
    stop_ms: int


@dataclass(frozen=True, slots=True)
class Lose:
    """Nothing is ours any more: stop everything at once, then say `AllStopped`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know; the session goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The session is over and will not begin again.

    Attributes:
        fault: why the coordinator ended it; None = we left.
        message: one line for a person.
    """

    fault: Fault | None
    message: str


Action: TypeAlias = Send | Take | Wanted | Release | Assigned | Lease | Lose | Notice | End
