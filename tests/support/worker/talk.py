"""A worker's session with a clock, and short ways to write the coordinator's records."""

from __future__ import annotations

from muster.protocol.digest import Holding
from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.worker.session import Session
from muster.worker.session_messages import (
    Acknowledged,
    Action,
    Begin,
    CaughtUp,
    ClockMoved,
    Input,
    LeaveAsked,
    Read,
    Send,
)
from muster.worker.session_steps import State

GROUP, MEMBER = GroupId("g"), MemberId("m")
JOIN = Join(group=GROUP, member=MEMBER, incarnation=0, rack="r1")
GONE = Read(MemberGone(group=GROUP, member=MEMBER))
SESSION_MS, BEAT_MS = 10_000, 1_000


class Talk:
    """A session with a clock and a coordinator's record numbers."""

    def __init__(self, join: Join = JOIN) -> None:
        self.session = Session(join, seed=1)
        self.now_ms = 1_000_000
        self.revision = 0

    def give(self, given: Input) -> list[Action]:
        """Give the session an input at the current time."""
        return list(self.session.step(given, self.now_ms))

    def record(self, *active: str, **more) -> MemberAssignment:
        """The next record for the current incarnation."""
        self.revision += 1
        defaults = {
            "incarnation": self.session.incarnation,
            "coordinator_epoch": 3,
            "generation": self.revision,
            "epoch": self.revision,
            "revision": self.revision,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": BEAT_MS,
        }
        sets = {k: TaskSet.of(v) for k, v in more.items() if k in ("standby", "learner")}
        return MemberAssignment(
            group=GROUP, member=MEMBER, active=TaskSet.of(active), **{**defaults, **more, **sets}
        )

    def read(self, *active: str, **more) -> list[Action]:
        """Read the next record."""
        return self.give(Read(self.record(*active, **more)))

    def acknowledge(self, actions: list[Action]) -> list[Action]:
        """Kafka acknowledges all sent events, and the reader has caught up."""
        self.give(CaughtUp(self.now_ms))
        return self.acknowledge_only(actions)

    def acknowledge_only(self, actions: list[Action]) -> list[Action]:
        """Kafka acknowledges all sent events; the reader has not caught up."""
        return [a for s in actions if isinstance(s, Send) for a in self.give(Acknowledged(s))]

    def later(self, ms: int) -> list[Action]:
        """Let time pass; give a `ClockMoved`."""
        self.now_ms += ms
        return self.give(ClockMoved())

    def joining(self) -> Talk:
        """Bring the session to JOINING, with its join acknowledged."""
        self.acknowledge(self.give(Begin()))
        return self

    def member(self, *active: str, **more) -> Talk:
        """Bring the session to MEMBER, with tasks."""
        self.joining().read(*active, **more)
        return self

    @property
    def holding(self) -> Holding:
        """What the session holds."""
        return self.session.holding


def sent(actions: list[Action]) -> list[object]:
    """The events that these actions send."""
    return [a.event for a in actions if isinstance(a, Send)]


def kinds(actions: list[Action]) -> list[str]:
    """Class names of the actions; for a `Send`, that of its event."""
    return [type(a.event if isinstance(a, Send) else a).__name__ for a in actions]


def in_state(state: State) -> Talk:
    """A session in a state, which holds 0_0 if the state allows it."""
    talk = Talk()
    if state is State.NEW:
        return talk
    if state is State.JOINING:
        return talk.joining()
    if state is State.ENDED:
        talk.give(LeaveAsked())
        return talk
    talk.member("0_0", learner=["0_9"])
    if state is State.LOST:
        talk.give(GONE)
    if state is State.LEAVING:
        talk.give(LeaveAsked())
    return talk
