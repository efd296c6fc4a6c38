"""A session of the worker with a clock, and the coordinator's records made easy."""

from __future__ import annotations

from muster.protocol.digest import Holding
from muster.protocol.events import Join
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.worker.exchange import (
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
from muster.worker.session import Session
from muster.worker.states import State

GROUP, MEMBER = GroupId("g"), MemberId("m")
JOIN = Join(group=GROUP, member=MEMBER, incarnation=0, rack="r1")
GONE = Read(MemberGone(group=GROUP, member=MEMBER))
SESSION_MS, BEAT_MS = 10_000, 1_000


class Talk:
    """A session with a clock, and the coordinator's records made easy."""

    def __init__(self, join: Join = JOIN) -> None:
        self.session = Session(join, seed=1)
        self.now_ms = 1_000_000
        self.revision = 0

    def give(self, given: Input) -> list[Action]:
        """One step at the present time."""
        return list(self.session.step(given, self.now_ms))

    def record(self, *active: str, **more) -> MemberAssignment:
        """The next record to the present incarnation."""
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
        """Kafka acknowledges everything that was sent; the reader has read all until now."""
        self.give(CaughtUp(self.now_ms))
        return self.acknowledge_only(actions)

    def acknowledge_only(self, actions: list[Action]) -> list[Action]:
        """Kafka acknowledges everything that was sent; nothing is known of the reader."""
        return [a for s in actions if isinstance(s, Send) for a in self.give(Acknowledged(s))]

    def later(self, ms: int) -> list[Action]:
        """Time passes; the clock is looked at."""
        self.now_ms += ms
        return self.give(ClockMoved())

    def joining(self) -> Talk:
        """Bring it to JOINING, its join acknowledged."""
        self.acknowledge(self.give(Begin()))
        return self

    def member(self, *active: str, **more) -> Talk:
        """Bring it to MEMBER, holding tasks."""
        self.joining().read(*active, **more)
        return self

    @property
    def holding(self) -> Holding:
        """What it holds."""
        return self.session.holding


def sent(actions: list[Action]) -> list[object]:
    """The events among actions."""
    return [a.event for a in actions if isinstance(a, Send)]


def kinds(actions: list[Action]) -> list[str]:
    """What actions are, events by their own name."""
    return [type(a.event if isinstance(a, Send) else a).__name__ for a in actions]


def in_state(state: State) -> Talk:
    """A talk brought to a state, holding 0_0 where a state can hold."""
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
