"""Writes the muster events of the members of a group that Kafka coordinates. Pure.

`MemberSessions` keeps one session with muster's coordinator (`muster.worker.session`) for each
member of Kafka's group. The session joins when the member joins Kafka's group, reports what the
member runs, sends heartbeats while the member is in Kafka's group, and leaves when the member
leaves that group. `MemberSessions` starts and stops no task. When the coordinator wants a task
released, `MemberSessions` reports it as released once the member does not run it in Kafka's group:
under the cooperative protocol its owner joins again without it; under an eager protocol no member
runs anything during a rebalance.

The session's lease does not bind the member: Kafka's session decides what the member may run. When
the lease ends, the session joins muster's group again and reports what the member runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.adopt.join_metadata import KafkaMember
from muster.adopt.owned_and_free_tasks import Answer
from muster.protocol.client_tags import GOVERNED
from muster.protocol.digest import fnv1a64
from muster.protocol.events import Join, Leave
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.settings import CONNECT_ASSIGNORS, CONNECT_PROTOCOLS
from muster.protocol.tasks import EMPTY, TaskSet
from muster.worker.session import Session
from muster.worker.session_messages import (
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
from muster.worker.session_steps import State

_SEED_BITS: Final = (1 << 62) - 1


@dataclass(slots=True)
class _GovernedMember:
    """A member of Kafka's group and its session.

    Attributes:
        session: the member's session with muster's coordinator.
        holds: tasks that the member runs in Kafka's group, as far as known.
        joined_with: tasks that the session's join said the member runs.
        pending_release: tasks by role that the coordinator wants back and the member still runs.
    """

    session: Session
    holds: TaskSet
    joined_with: TaskSet
    pending_release: dict[Role, TaskSet] = field(default_factory=dict)


class MemberSessions:
    """The sessions of all members of one group; `pins` as in `model.Options`."""

    def __init__(self, group: GroupId, pins: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.group = group
        self.notices: list[str] = []
        self._pins = pins or {}
        self._members: dict[str, _GovernedMember] = {}
        self._ended = 0

    @property
    def members(self) -> dict[str, int]:
        """Name → incarnation of every member."""
        return {name: each.session.incarnation for name, each in self._members.items()}

    def profile(self, name: str) -> Join:
        """The join that describes a member."""
        return self._members[name].session.profile

    def holds(self) -> dict[str, TaskSet]:
        """What each member runs in Kafka's group, as far as known."""
        return {name: each.holds for name, each in self._members.items()}

    # ------------------------------------------------------------------------- Kafka's group

    def joined(
        self, members: Sequence[KafkaMember], snapshot: GroupSnapshot | None, now_ms: int
    ) -> list[Send]:
        """Take all members of a new rebalance; those in the snapshot keep their incarnations.

        `now_ms` is the time on the sessions' clock, which is not the wall clock.
        """
        present = {member.name: member for member in members}
        sends = self._leave_departed(snapshot, present, now_ms)
        for name in [name for name in self._members if name not in present]:
            sends += self._leave(name, now_ms)
        for name, member in present.items():
            governed = self._members.get(name)
            join = self._join_of(member)
            if governed is None or _profile(governed.session.profile) != _profile(join):
                known = governed.session.incarnation if governed else _known(snapshot, name)
                sends += self._begin(join, member.owned, known, now_ms)
            else:
                sends += self._now_holds(name, member.owned, now_ms)
        return sends

    def _leave_departed(
        self, snapshot: GroupSnapshot | None, present: Mapping[str, KafkaMember], now_ms: int
    ) -> list[Send]:
        """Write a leave for each departed member that only an earlier governor had a session of."""
        entries = snapshot.members if snapshot is not None else ()
        gone = [m for m in entries if GOVERNED in m.tags and m.id not in present]
        return [
            Send(Leave(group=self.group, member=m.id, incarnation=m.incarnation), 0, now_ms)
            for m in gone
            if m.id not in self._members
        ]

    def answered(self, answers: Mapping[str, Answer], now_ms: int) -> list[Send]:
        """Kafka has accepted the answers. A revoked task runs until its owner joins again."""
        sends: list[Send] = []
        for name, answer in answers.items():
            if name in self._members:
                sends += self._now_holds(name, answer.assigned | answer.revoked, now_ms)
        return sends

    def cancel_revocations(self, answers: Mapping[str, Answer], now_ms: int) -> list[Send]:
        """Report as released what an earlier target revoked and this one assigns again.

        The coordinator then grants such a task to its member again. In Kafka's group the member
        runs it all the time.
        """
        sends: list[Send] = []
        for name, answer in answers.items():
            each = self._members.get(name)
            back = each.pending_release.get(Role.ACTIVE, EMPTY) & answer.assigned if each else EMPTY
            if each is not None and back:
                each.pending_release[Role.ACTIVE] -= back
                sends += self._step(name, Released(Role.ACTIVE, back), now_ms)
        return sends

    def write_local_decision(self, now_ms: int, assignor: str) -> list[Send]:
        """Write to muster's log what the governor decided without the coordinator.

        A session whose member runs other tasks than the coordinator assigned leaves, and joins
        with the tasks that the member runs. All leaves come before the joins, so that no task
        that a join names has another owner.

        With Connect's assignors, if all would leave, one stays, and joins again with the
        incarnation that it has: a group that is empty for a moment forgets for which lost worker
        its jobs wait. Other assignors would give the one that stays the tasks of those that have
        left, if a coordinator reads the leaves before the joins.
        """
        assigned = {
            name: each.joined_with if (record := each.session.record) is None else record.active
            for name, each in self._members.items()
        }
        differing = [name for name, each in self._members.items() if each.holds != assigned[name]]
        is_in_group = {
            name: each.session.state in (State.MEMBER, State.JOINING)
            for name, each in self._members.items()
        }
        stays, staying = None, self._members.keys() - set(differing)
        if assignor in CONNECT_ASSIGNORS and not any(is_in_group[name] for name in staying):
            stays = self._one_to_stay({n: assigned[n] for n in differing if is_in_group[n]})
        leaves: list[Send] = []
        joins: list[Send] = []
        for name in differing:
            each = self._members[name]
            join, holds = each.session.profile, each.holds
            if is_in_group[name] and name != stays:
                leaves += self._leave(name, now_ms)
            incarnation = each.session.incarnation if name == stays else None
            joins += self._begin(join, holds, incarnation, now_ms)
        return [*leaves, *joins]

    def _one_to_stay(self, assigned: Mapping[str, TaskSet]) -> str | None:
        """A member of whose assigned tasks no other member runs one; None = there is none."""
        for name, tasks in assigned.items():
            others = (each.holds for other, each in self._members.items() if other != name)
            if not any(tasks & holds for holds in others):
                return name
        return None

    def leave_all(self, now_ms: int) -> list[Send]:
        """Let every session leave muster's group, because the group is handed back."""
        return [send for name in list(self._members) for send in self._leave(name, now_ms)]

    def forget_members(self) -> None:
        """Drop all sessions and write nothing: another governor may keep sessions of the members.

        A member without such a session expires in muster's group.
        """
        self._members.clear()

    # -------------------------------------------------------------------------- muster's log

    def read(self, record: MemberAssignment | MemberGone, now_ms: int) -> list[Send]:
        """Take a record of a member that the governor has read."""
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

    def _join_of(self, member: KafkaMember) -> Join:
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

    def _begin(
        self, join: Join, holds: TaskSet, incarnation: int | None, now_ms: int
    ) -> list[Send]:
        """Start a session of a member, in place of the one that it may have."""
        self._ended += 1
        seed = (fnv1a64(f"{self.group}\0{join.member}") + self._ended * now_ms) & _SEED_BITS
        session = Session(join, seed)
        if incarnation is not None:
            session.incarnation = incarnation
        session.note_running(holds)
        self._members[join.member] = _GovernedMember(session, holds, joined_with=holds)
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
        for role, owed in list(each.pending_release.items()):
            stopped = owed - each.holds if role is Role.ACTIVE else owed
            if stopped:
                each.pending_release[role] = owed - stopped
                sends += self._step(name, Released(role, stopped), now_ms)
        return sends

    def _step(self, name: str, session_input: Input, now_ms: int) -> list[Send]:
        each = self._members.get(name)
        if each is None:
            return []
        return self._perform(name, each.session.step(session_input, now_ms), now_ms)

    def _perform(self, name: str, actions: Iterable[Action], now_ms: int) -> list[Send]:
        each = self._members[name]
        sends: list[Send] = []
        for action in actions:
            match action:
                case Send():
                    sends.append(action)
                case Release(role, tasks):
                    each.pending_release[role] = each.pending_release.get(role, EMPTY) | tasks
                case Lose(reason):
                    self.notices.append(f"{name}: joins muster's group anew: {reason}")
                    each.pending_release.clear()
                    each.session.note_running(each.holds)
                    each.joined_with = each.holds
                    sends += self._step(name, AllStopped(), now_ms)
                case Notice(text):
                    self.notices.append(f"{name}: {text}")
                case End(fault, message) if fault is not None:
                    self.notices.append(f"{name}: {fault.value}: {message}")
                case _:
                    pass  # `Take` and `Lease`: Kafka's session decides what the member runs
        return [*sends, *self._settle(name, now_ms)] if each.pending_release else sends


def _profile(join: Join) -> tuple[object, ...]:
    """What of a member makes a new session when it changes."""
    return join.rack, join.topics, join.static


def _known(snapshot: GroupSnapshot | None, name: str) -> int | None:
    """The member's incarnation in the snapshot; None = the snapshot does not have the member."""
    members = snapshot.members if snapshot is not None else ()
    return next((m.incarnation for m in members if m.id == name and not m.away), None)
