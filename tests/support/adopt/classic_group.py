"""Kafka's side of a classic group in simulated time: its coordinator, and consumers of it.

The coordinator follows Kafka's rules for JoinGroup, SyncGroup, Heartbeat and LeaveGroup, as far as
consumers and a governor use them. Consumers are eager or cooperative; as leaders they assign round
robin. `Violation` is raised when two members of a group own one partition.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from muster.adopt import sync_answers
from muster.adopt.join_metadata import is_governor
from muster.protocol.ids import Task

NONE, ILLEGAL_GENERATION, INCONSISTENT, UNKNOWN_MEMBER, REBALANCING, FENCED = 0, 22, 23, 25, 27, 82
GROUP_ID_NOT_FOUND = 69
REBALANCES = ("Preparing", "Completing")
NETWORK_MS = 3
REBALANCE_MS = 60_000
UNANSWERED_MS = 10_000


class Violation(AssertionError):
    """Two members of the group own one partition."""


class Time:
    """Simulated milliseconds, and what is to happen when."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def after(self, span_ms: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._due, (self.now_ms + span_ms, next(self._number), action))

    def run(self, span_ms: int) -> None:
        """Let time pass."""
        until = self.now_ms + span_ms
        while self._due and self._due[0][0] <= until:
            self.now_ms, _, action = heapq.heappop(self._due)
            action()
        self.now_ms = until


@dataclass
class Member:
    """A member as the coordinator sees it; `joins` and `syncs` wait for an answer."""

    id: str
    instance_id: str | None
    session_ms: int
    protocols: dict[str, bytes]
    heard_ms: int
    joins: Callable[[Any], None] | None = None
    syncs: Callable[[Any], None] | None = None
    assignment: bytes = b""


@dataclass
class Group:
    """The coordinator's record of one group."""

    time: Time
    state: str = "Empty"
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    away: bool = False
    rebalance_until_ms: int = 0
    _ids: int = 0

    def ask(self, request: Any, done: Callable[[Any], None]) -> None:
        """Take a request of kafka-python's; the answer comes over the network."""

        def answer(failure: Exception | None = None, **values: Any) -> None:
            given = failure or SimpleNamespace(**values)
            self.time.after(NETWORK_MS, lambda: done(given))

        if self.away:
            self.time.after(NETWORK_MS, lambda: done(OSError("no broker answers")))
            return
        name = type(request).__name__.partition("_")[0]
        self.time.after(NETWORK_MS, lambda: getattr(self, f"_{name}")(request, answer))

    def restart(self, span_ms: int) -> None:
        """The broker is away for a while; it reads its groups back, every session begins anew."""
        for member in list(self.members.values()):
            for waiting in (member.joins, member.syncs):
                if waiting is not None:
                    waiting(OSError("the connection is closed"))
            member.joins = member.syncs = None
        self.away = True
        self.time.after(span_ms, self._back)

    def _back(self) -> None:
        self.away = False
        for member in self.members.values():
            member.heard_ms = self.time.now_ms
        if self.state != "Empty":
            self.rebalance_until_ms = self.time.now_ms + REBALANCE_MS

    def convert(self) -> None:
        """A member of the consumer protocol joins: the broker assigns from now on (KIP-848).

        Classic members stay, join and sync; none of them leads, and DescribeGroups does not
        know the group. This class gives them no partitions then.
        """
        self.state, self.leader = "Consumer", ""
        self.generation += 1

    # ------------------------------------------------------------------------------ requests

    def _JoinGroupRequest(self, request: Any, answer: Callable[..., None]) -> None:
        protocols = {each.name: bytes(each.metadata) for each in request.protocols}
        member = self._known(request, answer)
        if member is None and request.member_id:
            return
        others = [m for m in self.members.values() if m is not member]
        if others and not set.intersection(*(set(m.protocols) for m in others), set(protocols)):
            answer(error_code=INCONSISTENT)
            return
        if member is None:
            self._ids += 1
            name = request.group_instance_id or request.client_id
            id = f"{name}-{uuid.UUID(int=self._ids)}"
            member = Member(
                id, request.group_instance_id, request.session_timeout_ms, {}, self.time.now_ms
            )
            self.members[id] = member
        same = member.protocols == protocols and member.id != self.leader
        member.protocols, member.heard_ms = protocols, self.time.now_ms
        member.joins = lambda given: _pass_on(given, answer)
        if (self.state == "Stable" and same) or self.state == "Consumer":
            self._answer_join(member)
            return
        if self.state != "Preparing":
            self._prepare()
        self._complete_join()

    def _known(self, request: Any, answer: Callable[..., None]) -> Member | None:
        if not request.member_id:
            for each in list(self.members.values()):
                if each.instance_id is not None and each.instance_id == request.group_instance_id:
                    self._replace(each)
                    return each
            return None
        member = self.members.get(request.member_id)
        if member is None:
            answer(error_code=UNKNOWN_MEMBER)
        return member

    def _replace(self, member: Member) -> None:
        """A static member comes back: the same member under another id."""
        del self.members[member.id]
        was_leader = self.leader == member.id
        self._ids += 1
        member.id = f"{member.instance_id}-{uuid.UUID(int=self._ids)}"
        self.members[member.id] = member
        if was_leader:
            self.leader = member.id

    def _SyncGroupRequest(self, request: Any, answer: Callable[..., None]) -> None:
        member = self.members.get(request.member_id)
        if member is None:
            answer(error_code=UNKNOWN_MEMBER)
        elif request.generation_id != self.generation:
            answer(error_code=ILLEGAL_GENERATION)
        elif self.state == "Preparing":
            answer(error_code=REBALANCING)
        else:
            member.heard_ms = self.time.now_ms
            member.syncs = lambda given: _pass_on(given, answer)
            if self.state == "Completing" and member.id == self.leader:
                given = {a.member_id: bytes(a.assignment) for a in request.assignments}
                for each in self.members.values():
                    each.assignment = given.get(each.id, b"")
                self.state = "Stable"
            self._answer_syncs()

    def _HeartbeatRequest(self, request: Any, answer: Callable[..., None]) -> None:
        member = self.members.get(request.member_id)
        if member is None:
            answer(error_code=UNKNOWN_MEMBER)
            return
        if request.generation_id != self.generation:
            answer(error_code=ILLEGAL_GENERATION)
            return
        member.heard_ms = self.time.now_ms
        answer(error_code=REBALANCING if self.state == "Preparing" else NONE)

    def _LeaveGroupRequest(self, request: Any, answer: Callable[..., None]) -> None:
        rows = []
        for each in request.members:
            instance_id = getattr(each, "group_instance_id", None)
            ids = [
                member.id
                for member in self.members.values()
                if member.id == each.member_id
                or (not each.member_id and instance_id and member.instance_id == instance_id)
            ]
            rows.append(SimpleNamespace(error_code=NONE if ids else UNKNOWN_MEMBER))
            for id in ids:
                self.remove(id)
        answer(error_code=NONE, members=rows)

    def _DescribeGroupsRequest(self, request: Any, answer: Callable[..., None]) -> None:
        is_classic = self.state != "Consumer"
        rows = [SimpleNamespace(member_id=id) for id in self.members if is_classic]
        error_code = NONE if is_classic else GROUP_ID_NOT_FOUND
        state = f"{self.state}Rebalance" if self.state in REBALANCES else self.state
        row = SimpleNamespace(members=rows, error_code=error_code, group_state=state)
        answer(groups=[row])

    # ----------------------------------------------------------------------------- rebalance

    def tick(self) -> None:
        """End sessions and rebalances that are over; call it again and again."""
        now = self.time.now_ms
        if self.away:
            return
        for member in list(self.members.values()):
            waits = member.joins is not None or (member.syncs and self.state == "Completing")
            if not waits and now - member.heard_ms > member.session_ms:
                self.remove(member.id)
        if self.state == "Preparing" and now >= self.rebalance_until_ms:
            for member in list(self.members.values()):
                if member.joins is None:
                    self.remove(member.id)
        if self.state == "Completing" and now >= self.rebalance_until_ms:
            self.remove(self.leader)

    def remove(self, id: str) -> None:
        """A member leaves, or its session ends."""
        member = self.members.pop(id, None)
        if member is None:
            return
        gone = SimpleNamespace(error_code=UNKNOWN_MEMBER)
        joins, syncs = member.joins, member.syncs
        if joins is not None:
            joins(gone)
        if syncs is not None:  # Kafka does not answer; the client gives the request up
            self.time.after(UNANSWERED_MS, lambda: syncs(gone))
        if id == self.leader:
            self.leader = next(iter(self.members), "")
        if not self.members:
            self.state, self.leader = "Empty", ""
            return
        if self.state == "Consumer":
            return
        if self.state != "Preparing":
            self._prepare()
        self._complete_join()

    def _prepare(self) -> None:
        self.state = "Preparing"
        self.rebalance_until_ms = self.time.now_ms + REBALANCE_MS
        for member in self.members.values():
            if member.syncs is not None:
                member.syncs(SimpleNamespace(error_code=REBALANCING))
                member.syncs = None

    def _complete_join(self) -> None:
        if any(member.joins is None for member in self.members.values()):
            return
        self.generation += 1
        self.state = "Completing"
        self.rebalance_until_ms = self.time.now_ms + REBALANCE_MS
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        shared = set.intersection(*(set(m.protocols) for m in self.members.values()))
        votes = [next(n for n in m.protocols if n in shared) for m in self.members.values()]
        self.protocol = max(sorted(set(votes)), key=votes.count)
        for member in list(self.members.values()):
            self._answer_join(member)

    def _answer_join(self, member: Member) -> None:
        rows = [
            SimpleNamespace(
                member_id=m.id,
                group_instance_id=m.instance_id,
                metadata=m.protocols.get(self.protocol, b""),
            )
            for m in self.members.values()
        ]
        joins, member.joins = member.joins, None
        member.heard_ms = self.time.now_ms
        assert joins is not None
        joins(
            SimpleNamespace(
                error_code=NONE,
                generation_id=self.generation,
                protocol_name=self.protocol,
                leader=self.leader,
                member_id=member.id,
                members=rows if member.id == self.leader else [],
                skip_assignment=self.state == "Stable" and member.id == self.leader,
            )
        )

    def _answer_syncs(self) -> None:
        if self.state not in ("Stable", "Consumer"):
            return
        for member in self.members.values():
            if member.syncs is not None:
                member.syncs(SimpleNamespace(error_code=NONE, assignment=member.assignment))
                member.syncs = None


class Follower:
    """An ordinary consumer: eager or cooperative.

    Attributes:
        name: its instance id, or a name for the test.
        owned: the partitions it reads.
        alive: whether its process runs.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        topics: dict[str, int],
        *,
        protocols: tuple[str, ...] = ("cooperative-sticky",),
        static: bool = False,
        beat_ms: int = 1_000,
        world: list[Follower] | None = None,
    ) -> None:
        self.name, self.owned, self.alive = name, set[Task](), True
        self.moved = 0
        self._group, self._topics, self._protocols = group, topics, protocols
        self._instance = name if static else None
        self._cooperates = protocols == ("cooperative-sticky",)
        self._beat_ms, self._world = beat_ms, world if world is not None else []
        self._id, self._generation, self._joining = "", -1, False
        self._world.append(self)
        self._join()
        self._later(beat_ms, self._beat)

    def leave(self) -> None:
        """Close in order."""
        self.owned, self.alive = set(), False
        self._group.ask(_of("LeaveGroupRequest", members=[_of("M", member_id=self._id)]), _ignore)

    def kill(self) -> None:
        """The process ends without a leave."""
        self.alive, self.owned = False, set()

    @property
    def is_member(self) -> bool:
        """Whether Kafka's group counts it."""
        return self.alive and self._id in self._group.members

    def _later(self, span_ms: int, action: Callable[[], None]) -> None:
        self._group.time.after(span_ms, lambda: action() if self.alive else None)

    def _join(self) -> None:
        self._joining = True
        if not self._cooperates:
            self.owned = set()
        rows: dict[str, list[int]] = {}
        for task in self.owned:
            rows.setdefault(task.unit, []).append(task.number)
        part = ConsumerProtocolSubscription.TopicPartition
        said = ConsumerProtocolSubscription(
            version=2,
            topics=sorted(self._topics),
            user_data=b"",
            owned_partitions=[part(topic=t, partitions=sorted(n)) for t, n in rows.items()],
            generation_id=self._generation,
        ).encode()
        request = _of(
            "JoinGroupRequest",
            client_id=self.name,
            member_id=self._id,
            group_instance_id=self._instance,
            session_timeout_ms=6_000,
            protocols=[_of("P", name=name, metadata=said) for name in self._protocols],
        )
        self._group.ask(request, lambda answer: self._joined(answer) if self.alive else None)

    def _joined(self, answer: Any) -> None:
        if self._is_unknown(answer):
            return
        assert answer.error_code == NONE, (self.name, answer)
        self._id, self._generation = answer.member_id, answer.generation_id
        rows = self._assign(answer) if answer.leader == self._id else []
        self._group.ask(
            _of(
                "SyncGroupRequest",
                member_id=self._id,
                generation_id=self._generation,
                assignments=rows,
            ),
            lambda given: self._synced(given) if self.alive else None,
        )

    def _assign(self, answer: Any) -> list[Any]:
        """As the leader: round robin; a partition that another owns waits."""
        owner: dict[Task, str] = {}
        ids = []
        for row in answer.members:
            said = ConsumerProtocolSubscription.decode(row.metadata)
            if said.topics:
                ids.append(row.member_id)
            for part in said.owned_partitions or ():
                owner |= {Task(part.topic, n): row.member_id for n in part.partitions}
        tasks = [Task(t, n) for t, size in sorted(self._topics.items()) for n in range(size)]
        given: dict[str, list[Task]] = {id: [] for id in sorted(ids)}
        for number, task in enumerate(tasks):
            wanted = sorted(ids)[number % len(ids)]
            if owner.get(task, wanted) == wanted:
                given[wanted].append(task)
        return [
            _of("A", member_id=i, assignment=sync_answers.consumer(t)) for i, t in given.items()
        ]

    def _synced(self, answer: Any) -> None:
        if self._is_unknown(answer):
            return
        if answer.error_code in (REBALANCING, ILLEGAL_GENERATION):
            self._join()
            return
        self._joining = False
        rows = (
            ConsumerProtocolAssignment.decode(answer.assignment).assigned_partitions
            if answer.assignment
            else []
        )
        assigned = {Task(row.topic, n) for row in rows for n in row.partitions}
        revoked = self.owned - assigned
        self.moved += len(assigned - self.owned)
        self.owned = assigned
        for other in self._world:
            # Kafka's own leaders give on what a member has that was let go; governors do not.
            counts = other.alive and (other.is_member or is_governor(self._group.leader))
            if other is not self and counts and other.owned & assigned:
                raise Violation(f"{self.name} and {other.name}: {other.owned & assigned}")
        if revoked and self._cooperates:
            self._later(1, self._join)

    def _is_unknown(self, answer: Any) -> bool:
        if isinstance(answer, Exception):  # no broker answers: again, with all that it knows
            if self._joining:
                self._later(500, self._join)
            return True
        if answer.error_code == UNKNOWN_MEMBER:
            self.owned, self._id, self._generation = set(), "", -1
            self._join()
            return True
        return False

    def _beat(self) -> None:
        self._later(self._beat_ms, self._beat)
        if not self._joining:
            request = _of("HeartbeatRequest", member_id=self._id, generation_id=self._generation)
            self._group.ask(request, lambda answer: self._beaten(answer) if self.alive else None)

    def _beaten(self, answer: Any) -> None:
        if self._joining or self._is_unknown(answer):
            return
        if answer.error_code in (REBALANCING, ILLEGAL_GENERATION):
            self._join()


def _pass_on(given: Any, answer: Callable[..., None]) -> None:
    if isinstance(given, Exception):
        answer(given)
    else:
        answer(**vars(given))


def _of(kind: str, **values: Any) -> Any:
    return type(kind, (SimpleNamespace,), {})(**values)


def _ignore(_: Any) -> None:
    pass
