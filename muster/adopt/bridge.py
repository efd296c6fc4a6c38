"""Speaks for the members of a group that Kafka coordinates, in events of muster. Pure.

Every member gets a session with the coordinator of its own (`muster.worker.session`): it joins when
the member joins Kafka's group, reports what the member runs, sends its heartbeats while Kafka's
group shows it, and leaves when Kafka's group lets it go. Nothing is started or stopped here. A task
that the coordinator wants released counts as released as soon as the member does not run it in
Kafka's group: an owner under the cooperative protocol joins again without it; under an eager
protocol no member runs anything while the group rebalances.

The lease of such a session means nothing to the member: Kafka's session decides what it may run.
When the lease ends, muster has not heard of the member for a while; it then joins anew and says
what it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.adopt.answers import Answer
from muster.adopt.said import Said
from muster.protocol.client_tags import GOVERNED
from muster.protocol.digest import fnv1a64
from muster.protocol.events import Join, Leave
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.settings import CONNECT_PROTOCOLS
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.messages import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Failed,
    Input,
    LeaveAsked,
    Lose,
    Notice,
    Read,
    Release,
    Released,
    Send,
)
from muster.worker.session import Session
from muster.worker.states import State

_SEED_BITS: Final = (1 << 62) - 1


@dataclass(slots=True)
class _Spoken:
    """A member that the bridge speaks for.

    Attributes:
        session: with the coordinator.
        holds: what it runs in Kafka's group, as far as known.
        told: what its join says that it runs.
        owes: what the coordinator wants back and the member still runs, by role.
    """

    session: Session
    holds: TaskSet
    told: TaskSet
    owes: dict[Role, TaskSet] = field(default_factory=dict)


class Bridge:
    """The members of one group.

    Args:
        group: the group's id, in Kafka and in muster.
        pins: member name → connectors and tasks that only it may run.
    """

    def __init__(self, group: GroupId, pins: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.group = group
        self.notices: list[str] = []
        self._pins = pins or {}
        self._members: dict[str, _Spoken] = {}
        self._ended = 0

    @property
    def members(self) -> dict[str, int]:
        """Name → incarnation of every member that the bridge speaks for."""
        return {name: each.session.incarnation for name, each in self._members.items()}

    def profile(self, name: str) -> Join:
        """What a member says of itself."""
        return self._members[name].session.profile

    def holds(self) -> dict[str, TaskSet]:
        """What each member runs in Kafka's group, as far as known."""
        return {name: each.holds for name, each in self._members.items()}

    # ------------------------------------------------------------------------- Kafka's group

    def joined(
        self, said: Sequence[Said], snapshot: GroupSnapshot | None, now_ms: int
    ) -> list[Send]:
        """Kafka's group has gathered: these are its members now, and what they said.

        Args:
            said: all members.
            snapshot: the newest of the group; a member that it has keeps its incarnation.
            now_ms: by the clock of sessions.
        """
        present = {member.name: member for member in said}
        sends = self._bury(snapshot, present, now_ms)
        for name in [name for name in self._members if name not in present]:
            sends += self._leave(name, now_ms)
        for name, member in present.items():
            spoken = self._members.get(name)
            join = self._join_of(member)
            if spoken is None or self._profile(spoken) != self._profile_of(join):
                known = spoken.session.incarnation if spoken else _known(snapshot, name)
                sends += self._begin(join, member.owned, known, now_ms)
            else:
                sends += self._now_holds(name, member.owned, now_ms)
        return sends

    def _bury(
        self, snapshot: GroupSnapshot | None, present: Mapping[str, Said], now_ms: int
    ) -> list[Send]:
        """Members that an earlier governor spoke for and that are gone leave."""
        entries = snapshot.members if snapshot is not None else ()
        gone = [m for m in entries if GOVERNED in m.tags and m.id not in present]
        return [
            Send(Leave(group=self.group, member=m.id, incarnation=m.incarnation), 0, now_ms)
            for m in gone
            if m.id not in self._members
        ]

    def answered(self, given: Mapping[str, Answer], now_ms: int) -> list[Send]:
        """Kafka has taken the answers: what is revoked runs until its owner joins again."""
        sends: list[Send] = []
        for name, answer in given.items():
            if name in self._members:
                sends += self._now_holds(name, answer.assigned | answer.revoked, now_ms)
        return sends

    def keeps(self, given: Mapping[str, Answer], now_ms: int) -> list[Send]:
        """The target gives members tasks back that an earlier one took from them.

        The coordinator grants such a task anew when it was released. To its member in Kafka's group
        nothing happens.
        """
        sends: list[Send] = []
        for name, answer in given.items():
            each = self._members.get(name)
            back = each.owes.get(Role.ACTIVE, EMPTY) & answer.assigned if each else EMPTY
            if each is not None and back:
                each.owes[Role.ACTIVE] -= back
                sends += self._step(name, Released(Role.ACTIVE, back), now_ms)
        return sends

    def tell(self, now_ms: int) -> list[Send]:
        """Tell the log what was decided without the coordinator.

        A member that runs something else than the coordinator gave it leaves, and joins with what
        it runs. Leaves go first, so that nothing that is claimed has another owner.
        """
        astray = [
            name
            for name, each in self._members.items()
            if each.holds != (each.told if (r := each.session.record) is None else r.active)
        ]
        leaves: list[Send] = []
        joins: list[Send] = []
        for name in astray:
            each = self._members[name]
            join, holds = each.session.profile, each.holds
            if each.session.state in (State.MEMBER, State.JOINING):
                leaves += self._leave(name, now_ms)
            joins += self._begin(join, holds, None, now_ms)
        return [*leaves, *joins]

    def leave_all(self, now_ms: int) -> list[Send]:
        """The group is handed back: every member leaves muster's group."""
        return [send for name in list(self._members) for send in self._leave(name, now_ms)]

    def falls_silent(self) -> None:
        """Speak for no member any more, and write nothing: another governor may speak for them.

        The sessions of those for which none speaks end.
        """
        self._members.clear()

    # -------------------------------------------------------------------------- muster's log

    def read(self, record: MemberAssignment | MemberGone, now_ms: int) -> list[Send]:
        """A record of a member was read."""
        return self._step(record.member, Read(record), now_ms)

    def acknowledged(self, sent: Send, now_ms: int) -> list[Send]:
        """Kafka has stored an event."""
        name = sent.event.member
        sends = self._step(name, Acknowledged(sent), now_ms)
        return [*sends, *self._step(name, CaughtUp(sent.sent_ms), now_ms)]

    def failed(self, sent: Send, now_ms: int) -> list[Send]:
        """An event was not written."""
        return self._step(sent.event.member, Failed(sent), now_ms)

    def tick(self, now_ms: int) -> list[Send]:
        """Time has passed."""
        return [s for name in list(self._members) for s in self._step(name, ClockMoved(), now_ms)]

    def deadline_ms(self) -> int | None:
        """When a session needs a `tick` at the latest; None = never."""
        due = [each.session.deadline_ms for each in self._members.values()]
        return min((at for at in due if at is not None), default=None)

    # ---------------------------------------------------------------------------- one member

    def _join_of(self, member: Said) -> Join:
        pinned = self._pins.get(member.name, ())
        return Join(
            group=self.group,
            member=MemberId(member.name),
            incarnation=0,
            rack=member.rack,
            tags=(GOVERNED,),
            topics=member.topics,
            static=tuple(sorted(pinned)),
            protocols=CONNECT_PROTOCOLS if member.topics is None else (),
        )

    @staticmethod
    def _profile_of(join: Join) -> tuple[object, ...]:
        return (join.rack, join.topics, join.static)

    def _profile(self, spoken: _Spoken) -> tuple[object, ...]:
        return self._profile_of(spoken.session.profile)

    def _begin(
        self, join: Join, holds: TaskSet, incarnation: int | None, now_ms: int
    ) -> list[Send]:
        """Speak for a member from now on, or speak anew."""
        self._ended += 1
        seed = (fnv1a64(f"{self.group}\0{join.member}") + self._ended * now_ms) & _SEED_BITS
        session = Session(join, seed)
        if incarnation is not None:
            session.incarnation = incarnation
        session.claim(holds)
        self._members[join.member] = _Spoken(session, holds, told=holds)
        return self._step(join.member, Begin(), now_ms)

    def _leave(self, name: str, now_ms: int) -> list[Send]:
        each = self._members[name]
        each.holds = EMPTY
        sends = self._step(name, LeaveAsked(), now_ms)
        del self._members[name]
        return sends

    def _now_holds(self, name: str, holds: TaskSet, now_ms: int) -> list[Send]:
        each = self._members[name]
        each.holds = holds
        return self._settle(name, now_ms)

    def _settle(self, name: str, now_ms: int) -> list[Send]:
        """Report the tasks that the coordinator wants back and the member does not run."""
        each = self._members[name]
        sends: list[Send] = []
        for role, owed in list(each.owes.items()):
            stopped = owed - each.holds if role is Role.ACTIVE else owed
            if stopped:
                each.owes[role] = owed - stopped
                sends += self._step(name, Released(role, stopped), now_ms)
        return sends

    def _step(self, name: str, given: Input, now_ms: int) -> list[Send]:
        each = self._members.get(name)
        if each is None:
            return []
        return self._perform(name, each.session.step(given, now_ms), now_ms)

    def _perform(self, name: str, actions: Iterable[Action], now_ms: int) -> list[Send]:
        each = self._members[name]
        sends: list[Send] = []
        for action in actions:
            match action:
                case Send():
                    sends.append(action)
                case Release(role, tasks):
                    each.owes[role] = each.owes.get(role, EMPTY) | tasks
                case Lose(reason):
                    self.notices.append(f"{name}: joins muster's group anew: {reason}")
                    each.owes.clear()
                    each.session.claim(each.holds)
                    each.told = each.holds
                    sends += self._step(name, AllStopped(), now_ms)
                case Notice(text):
                    self.notices.append(f"{name}: {text}")
                case End(fault, message) if fault is not None:
                    self.notices.append(f"{name}: {fault.value}: {message}")
                case _:
                    pass  # takes and leases: Kafka's session decides what the member runs
        return [*sends, *self._settle(name, now_ms)] if each.owes else sends


def _known(snapshot: GroupSnapshot | None, name: str) -> int | None:
    """The incarnation under which the group knows a member; None = it does not."""
    members = snapshot.members if snapshot is not None else ()
    return next((m.incarnation for m in members if m.id == name and not m.away), None)
