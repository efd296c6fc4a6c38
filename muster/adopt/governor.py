"""The governor of one group: leads it in Kafka, and answers with what the coordinator decides.

`take` takes one input: a response of Kafka's broker, a record of muster's topics, or new topics and
connectors; None = time has passed. The governor calls `model.CoordinatorConnection`, `model.Topics`
and `model.GovernorCallbacks`, and never waits. `governor_thread.py` runs it on a thread.

    JOINING     JoinGroup is sent; the broker answers when all members have joined. Meanwhile the
                governor looks whether it is still a member (`join_watch.py`)
    LOOKING     another member leads; DescribeGroups is sent to learn who the members are
    EVICTING    LeaveGroup is sent for all other members
    DECIDING    the members are known; waits for the coordinator's decision, for at most the answer
                timeout
    ANSWERING   SyncGroup is sent; as the leader, with an answer for each member
    LEADING     sends heartbeats until the group rebalances or the coordinator decides otherwise
    FOLLOWING   a member without partitions, until Kafka makes it the leader (`--wait`)
    WATCHING    not a member; checks whether another governor is in the group, because it stands by
                (`--stand-by`), its session has ended, or a client removed it
    LEAVING     LeaveGroup is sent for the governor itself
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kafka.errors as errors

from muster.adopt import join_metadata, join_watch, requests, sync_answers, target_choice
from muster.adopt.declared_tasks import DeclaredTasks
from muster.adopt.evicted_members import EvictedMembers, name_of
from muster.adopt.join_metadata import KafkaMember, Kind
from muster.adopt.member_sessions import MemberSessions
from muster.adopt.model import (
    AssignableUnits,
    BrokerResponse,
    Configured,
    CoordinatorConnection,
    Done,
    GovernorCallbacks,
    GovernorInput,
    GovernorPresence,
    MembersSeen,
    Message,
    News,
    Options,
    Round,
    Seat,
    State,
    Stop,
    Topics,
    error_of,
)
from muster.adopt.owned_and_free_tasks import Answer, answers, differ
from muster.adopt.refusals import broker_assigns, refusal
from muster.adopt.sync_answers import ConnectLeader
from muster.protocol.errors import MusterError
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet, Unit
from muster.state.causes import count_of
from muster.worker.session_messages import Acknowledged, Failed, Send

log = logging.getLogger("muster.adopt")

RETRY_MS: Final = 250
"""Pause before a request that no broker answered is sent again."""
LOOK_MS: Final = 1_000
"""How often a standby checks whether another governor is in the group."""
JOIN_MS: Final = 900_000
"""How long a JoinGroup may take: members may process for `max.poll.interval.ms` first."""
FAREWELL_MS: Final = 5_000
"""How long the governor waits for the answer to its own LeaveGroup."""


class Governor:
    """Governs one group: call `begin` once, then `take` with each input until the state is ENDED.

    Args:
        options, connection, topics, callbacks: see `model`.
        post: passes an input to the caller of `take`, from any thread.
        clock: a monotonic clock in milliseconds.

    Attributes:
        state: see the module.
        failure: why it ended by itself; None = it runs, was stopped, or was removed by an operator.
        round: the newest rebalance that it has answered; None = none yet.
    """

    def __init__(
        self,
        options: Options,
        connection: CoordinatorConnection,
        topics: Topics,
        callbacks: GovernorCallbacks,
        post: Callable[[GovernorInput], None],
        clock: Callable[[], int],
    ) -> None:
        self.failure: MusterError | None = None
        self.state = State.NEW
        self.round: Round | None = None
        self._options = options
        self._connection = connection
        self._topics = topics
        self._callbacks = callbacks
        self._post = post
        self._clock = clock
        self._offers = join_metadata.offers(options.kind, options.protocols)
        self._sessions = MemberSessions(options.group, options.pins)
        self._tasks = DeclaredTasks(options)
        self._snapshot: GroupSnapshot | None = None
        self._member = ""
        self._generation = -1
        self._protocol = ""
        self._leader = ""
        self._members: list[KafkaMember] = []
        self._answers: dict[str, Answer] = {}
        self._decided_locally = False  # the answers under way were decided without the coordinator
        self._local = target_choice.LocalDecisions(options.answer_timeout_ms)
        self._answered_units: tuple[Unit, ...] = ()
        self._connect_leader: ConnectLeader | None = None
        self._asked = 0  # number of the newest request
        self._due_ms: int | None = None  # when the state's next action is due
        self._look_ms: int | None = None  # JOINING: when to look whether it is still a member
        self._joined_ms = 0
        self._asked_ms = 0
        self._heard_ms = 0  # when the newest request was sent that Kafka answered
        self._evicted = EvictedMembers()
        self._missing = 0  # members that were evicted and are not back
        self._farewell_ms = 0  # when the governor ends even if Kafka has not let it go
        self._removed = False  # a client removed us; not known yet: a governor or an operator

    def begin(self) -> None:
        """Join the group, or, as a standby, watch it."""
        if self._options.seat is Seat.STAND_BY:
            self._watch(self._clock())
        else:
            self._join_group()

    def due_ms(self) -> int | None:
        """When `take` is to be called at the latest; None = only with the next input."""
        times = (self._due_ms, self._look_ms, self._sessions.deadline_ms())
        return min((at for at in times if at is not None), default=None)

    def take(self, governor_input: GovernorInput | None) -> None:
        """Take one input; None = time has passed."""
        try:
            self._take(governor_input)
        except MusterError as error:
            self._end(error)

    def _take(self, governor_input: GovernorInput | None) -> None:
        now = self._clock()
        match governor_input:
            case BrokerResponse(number, message):
                if number == self._asked:
                    self._on_answer(message, now)
            case MembersSeen(number, message):
                if number == self._asked and self.state is State.JOINING:
                    self._on_members_seen(message, now)
            case AssignableUnits():
                self._on_units(governor_input, now)
            case GovernorPresence(governed):
                self._on_watched(governed, now)
            case Stop():
                self._leave_group()
            case None:
                pass
            case _:
                self._on_news(governor_input, now)
        self._send(self._sessions.tick(now))
        for notice in self._sessions.notices:
            self._log(notice)
        self._sessions.notices.clear()
        if self._look_ms is not None and now >= self._look_ms:
            self._look_for_itself()
        if self._due_ms is not None and now >= self._due_ms:
            self._on_due(now)

    def _on_news(self, news: News, now: int) -> None:
        match news:
            case GroupSnapshot():
                self._on_snapshot(news, now)
            case Configured():
                self._on_configured(news, now)
            case MemberAssignment() | MemberGone():
                self._send(self._sessions.read(news, now))
            case Acknowledged():
                self._send(self._sessions.acknowledged(news.sent, now))
            case Failed():
                self._send(self._sessions.failed(news.sent, now))

    def _on_due(self, now: int) -> None:
        match self.state:
            case State.WATCHING:
                self._due_ms = None
                self._callbacks.look_for_governor()
            case State.JOINING | State.LOOKING | State.EVICTING | State.ANSWERING:
                self._join_group()
            case State.DECIDING:
                self._answer(now)
            case State.LEADING | State.FOLLOWING:
                self._beat()
            case State.LEAVING:
                self._say_farewell() if now < self._farewell_ms else self._give_up()
            case _:
                self._due_ms = None

    def _to(self, state: State, due_ms: int | None) -> None:
        self.state, self._due_ms, self._look_ms = state, due_ms, None

    def _send(self, sends: Sequence[Send]) -> None:
        if sends:
            self._topics.send(self._options.group, sends)

    # --------------------------------------------------------------------------- Kafka's broker

    def _ask(self, request: Message, timeout_ms: int | None = None) -> None:
        done = self._new_request()
        self._connection.ask(request, done, timeout_ms or self._options.session_timeout_ms)

    def _new_request(self) -> Done:
        """Number a request; return what gets its answer. Answers to older requests are ignored."""
        self._asked, self._asked_ms = self._asked + 1, self._clock()
        number = self._asked
        return lambda message: self._post(BrokerResponse(number, message))

    def _join_group(self) -> None:
        self._to(State.JOINING, None)
        self._ask(requests.join(self._options, self._member, self._offers), JOIN_MS)
        self._look_ms = self._asked_ms + self._options.session_timeout_ms

    def _look_for_itself(self) -> None:
        self._look_ms, number = None, self._asked
        self._connection.ask_aside(
            requests.look(self._options),
            lambda message: self._post(MembersSeen(number, message)),
            join_watch.pause_ms(self._options),
        )

    def _on_members_seen(self, seen: Message | Exception, now: int) -> None:
        """Go on waiting for JoinGroup's answer, or join again if none can come."""
        has_moved = self._connection.has_moved()
        why = join_watch.why_unanswered(seen, self._options, self._member, has_moved=has_moved)
        if not why:
            pause_ms = join_watch.pause_ms(self._options)
            self._look_ms = now + pause_ms
            if join_watch.is_waiting(seen):
                self._heard_ms = now - pause_ms  # the look took no longer
            return
        self._log(f"joins again, as its JoinGroup will not be answered: {why}")
        # It may never have arrived. Then Kafka ended our session while the group waited for us.
        self._heard_ms = min(self._heard_ms, self._asked_ms)
        self._connection.drop()
        self._join_group()

    def _beat(self) -> None:
        self._due_ms = None
        self._ask(requests.beat(self._options, self._member, self._generation))

    def _leave_group(self) -> None:
        """Leave, also while Kafka holds our JoinGroup back: it is a member from that request on."""
        is_in_group = bool(self._member) or self.state is State.JOINING
        if self.state in (State.WATCHING, State.NEW) or not is_in_group:
            self._end(None)
            return
        self._send(self._sessions.leave_all(self._clock()))
        self._farewell_ms = self._clock() + FAREWELL_MS
        self._say_farewell()

    def _say_farewell(self) -> None:
        """Send LeaveGroup. Kafka finds a member without id by its instance id (KIP-345)."""
        self._to(State.LEAVING, self._farewell_ms)
        leave = requests.leave(self._options, {self._member: self._options.instance_id})
        self._connection.ask_aside(leave, self._new_request(), FAREWELL_MS)

    def _give_up(self) -> None:
        """End although no broker has let us go: the members go on without us all the same."""
        after = f"after {self._options.session_timeout_ms / 1_000:g} s without the governor"
        self._log(f"no broker has answered: another member leads {after}")
        self._end(None)

    def _on_farewell(self, answer: Message | Exception, now: int) -> None:
        """End if Kafka let us go; ask again if our JoinGroup has not reached it yet."""
        is_absent = error_of(answer) is None and any(
            each.error_code == errors.UnknownMemberIdError.errno
            for each in answer.members  # type: ignore[union-attr]
        )
        if error_of(answer) is not None or (is_absent and not self._member):
            self._to(State.LEAVING, min(now + RETRY_MS, self._farewell_ms))
        else:
            self._end(None)

    def _on_answer(self, message: Message | Exception, now: int) -> None:
        error = error_of(message)
        if self.state is State.LEAVING:
            self._on_farewell(message, now)
        elif error is not None:
            self._on_error(error, message, now)
        elif self.state is State.JOINING:
            self._on_joined(message, now)
        elif self.state is State.LOOKING:
            self._evict(message, now)
        elif self.state is State.EVICTING:
            self._join_group()
        elif self.state is State.ANSWERING:
            self._on_synced(now)
        elif self.state in (State.LEADING, State.FOLLOWING):
            self._heard_ms = self._asked_ms
            self._due_ms = now + self._options.beat_ms
            if self.state is State.LEADING and self._tasks.is_due(now):
                self._declare(now)
            if self.state is State.LEADING and self._is_overdue(now):
                self._join_group()

    def _on_error(self, error: Exception, message: Message | Exception, now: int) -> None:
        refused = refusal(error, self._options, [name for name, _ in self._offers])
        if refused is not None:
            raise refused
        match error:
            case errors.MemberIdRequiredError():
                self._member = message.member_id  # type: ignore[union-attr]
                self._join_group()
            case errors.UnknownMemberIdError():
                self._on_unknown(now)
            case errors.RebalanceInProgressError() | errors.IllegalGenerationError():
                self._join_group()
            case _:
                # Kafka's coordinator moved, is loading, or does not answer: look for it, ask again.
                self._connection.lost()
                pause = RETRY_MS if self.state is not State.ANSWERING else 0
                self._to(self.state, now + pause)

    def _on_unknown(self, now: int) -> None:
        """Kafka does not know our member id: our session has ended, or a client removed us.

        If another governor is in the group now, it keeps the seat.
        """
        lived = now - self._heard_ms < self._options.session_timeout_ms
        self._member = ""
        if self.state in (State.LOOKING, State.EVICTING):
            self._to(State.EVICTING, now)
        elif lived:
            self._removed = True
            self._to(State.WATCHING, now)
        else:
            self._watch(now)

    # ------------------------------------------------------------------------------- the seat

    def _watch(self, due_ms: int) -> None:
        self._sessions.forget_members()
        self._log("stands by: takes the leader's seat when no governor is in the group")
        self._to(State.WATCHING, due_ms)

    def _log(self, text: str) -> None:
        log.info("%s", text, extra={"group": self._options.group})

    def _on_watched(self, governed: bool | None, now: int) -> None:
        if self.state is not State.WATCHING:
            return
        if self._removed and governed is not None:
            self._on_removed(governed, now)
        elif governed is False:
            self._join_group()
        else:
            self._due_ms = now + LOOK_MS

    def _on_removed(self, governed: bool, now: int) -> None:
        """Find out who removed us: a governor that is in the group now, or else an operator."""
        self._removed = False
        if governed:
            self._watch(now + LOOK_MS)
        else:
            self._log("removed from the group: handed back")
            self._send(self._sessions.leave_all(now))
            self._end(None)

    def _on_joined(self, answer: Message, now: int) -> None:
        self._member, self._generation = answer.member_id, answer.generation_id
        self._protocol, self._leader = answer.protocol_name or "", answer.leader
        self._heard_ms, self._joined_ms = self._asked_ms, now
        if not answer.leader:
            self._send(self._sessions.leave_all(now))
            raise broker_assigns(self._options.group)
        if answer.leader != answer.member_id:
            # Another member leads. First all members get its answer: a member that still waits for
            # it learns only after a session timeout that it was evicted.
            self._to(State.ANSWERING, None)
            self._members, self._answers = [], {}
            self._sync({})
        elif answer.skip_assignment:
            self._join_group()  # back within our session: join again to get all members' metadata
        else:
            self._on_members(answer.members, now)

    def _look(self) -> None:
        self._to(State.LOOKING, None)
        self._ask(requests.look(self._options))

    def _evict(self, answer: Message, now: int) -> None:
        """Remove all other members from the group; they join again by themselves.

        The broker chooses the next leader. If only the leader left, in most groups another member
        would lead next, and it would assign tasks that the old leader may still run.
        """
        member_ids = [each.member_id for each in answer.groups[0].members]
        others = [each for each in member_ids if each != self._member]
        members = [each for each in others if not join_metadata.is_governor(name_of(each))]
        rivals = [name_of(each) for each in {*others} - {*members}]
        if min(rivals, default=self._options.instance_id) < self._options.instance_id:
            self._yield(now)
            return
        self._evicted.add(members, now)
        self._log(
            "removes all members from the group to become its leader; they rejoin by themselves"
        )
        self._to(State.EVICTING, None)
        self._ask(requests.leave(self._options, dict.fromkeys(others)))

    def _yield(self, now: int) -> None:
        """Leave and watch, because another governor takes the seat at the same time."""
        leave = requests.leave(self._options, {self._member: self._options.instance_id})
        self._connection.ask(leave, lambda _: None, self._options.session_timeout_ms)
        self._member = ""
        self._watch(now + LOOK_MS)

    def _on_members(self, rows: Sequence[Any], now: int) -> None:
        others = [row for row in rows if row.member_id != self._member]
        self._members = join_metadata.read_all(self._options.kind, others, self._options.group)
        topics = sorted({topic for member in self._members for topic in member.topics or ()})
        if topics:  # without members, what the last ones read is known on
            self._callbacks.watch_partitions(topics)
        self._declare(now)
        if self._still_missing(now):
            self._answer_with({m.name: m.owned for m in self._members}, now, locally=False)
            return
        self._send(self._sessions.joined(self._members, self._snapshot, now))
        self._to(State.DECIDING, now + self._options.answer_timeout_ms)
        self._decide(now)

    def _still_missing(self, now: int) -> int:
        """How many evicted members have not joined again."""
        self._missing = self._evicted.missing([member.id for member in self._members], now)
        return self._missing

    # ------------------------------------------------------------------------- what is decided

    def _on_units(self, units: AssignableUnits, now: int) -> None:
        self._tasks.found(units)
        self._declare(now)
        self._on_decision(now)

    def _declare(self, now: int) -> None:
        """Write the group's configuration if its tasks have changed, or were not written."""
        config = self._tasks.declare(self._members, now)
        if config is not None:
            self._topics.configure(config)

    def _on_configured(self, outcome: Configured, now: int) -> None:
        """Note the outcome. Of a late write, tell the log where the tasks were put meanwhile."""
        was_unwritten = self._tasks.is_unwritten
        self._tasks.written(outcome, now)
        if was_unwritten and not self._tasks.is_unwritten and self._decided_locally:
            self._send(self._sessions.write_local_decision(now, self._tasks.config.assignor))

    def _on_snapshot(self, snapshot: GroupSnapshot, now: int) -> None:
        self._snapshot = snapshot
        self._local.read(snapshot, now)
        self._tasks.read(snapshot)
        self._on_decision(now)

    def _on_decision(self, now: int) -> None:
        if self.state is State.DECIDING:
            self._decide(now)
        elif self.state is State.LEADING and self._members and not self._missing:
            target = self._target(now)
            if target is None:
                return
            if differ(answers(self._members, target), self._answers):
                self._join_group()
            else:
                self._answered_units = self._tasks.config.tasks  # decided, and nothing moves
                self._send(self._sessions.cancel_revocations(self._answers, now))

    def _is_overdue(self, now: int) -> bool:
        """Whether the governor must start a rebalance without a decision of the coordinator.

        That is so when evicted members are back or have had their time, when lost work has waited
        for its worker as long as the governor or the coordinator let it, and when the tasks changed
        and no decision came within the answer timeout.
        """
        if self._missing:
            return not self._still_missing(now)
        if self._decided_locally and self._local.is_due(now):
            return True
        if not self._members or not self._tasks.are_known(self._members):
            return False
        is_new = self._answered_units != self._tasks.config.tasks
        has_waited = now - self._tasks.declared_ms > self._options.answer_timeout_ms
        return (is_new and has_waited) or self._local.is_first_due(now)

    def _target(self, now: int) -> dict[str, TaskSet] | None:
        is_connect = self._options.kind is Kind.CONNECT
        if not self._tasks.are_known(self._members) or self._local.replaces_coordinator(now):
            return None
        holds = self._sessions.holds() if is_connect else None
        return target_choice.target_of(
            self._snapshot, self._sessions.members, self._tasks.config, holds
        )

    def _decide(self, now: int) -> None:
        """Answer if the coordinator has decided."""
        target = self._target(now) if self._members else {}
        if target is not None:
            self._answer_with(target, now, locally=False)

    def _answer(self, now: int) -> None:
        """Decide in the governor, because the coordinator took longer than the answer timeout."""
        if not self._tasks.are_known(self._members):  # every member keeps what it runs
            self._answer_with({m.name: m.owned for m in self._members}, now, locally=False)
            self._answered_units = ()
            return
        incarnations = self._sessions.members
        joins = [
            replace(self._sessions.profile(m.name), incarnation=incarnations[m.name])
            for m in self._members
        ]
        holds = self._sessions.holds()
        if not any(holds.values()):  # eager members report none: they ran the last answers' tasks
            holds = {name: answer.assigned for name, answer in self._answers.items()}
        target = self._local.decide(self._snapshot, self._tasks.config, joins, holds, now)
        self._answer_with(target, now, locally=True)

    def _answer_with(self, target: Mapping[str, TaskSet], now: int, *, locally: bool) -> None:
        self._answers, self._decided_locally = answers(self._members, target), locally
        self._answered_units = self._tasks.config.tasks
        self._send(self._sessions.cancel_revocations(self._answers, now))
        self._to(State.ANSWERING, None)
        self._sync(self._written())
        self._note_round(now)

    def _written(self) -> dict[str, bytes]:
        """Member id in Kafka → its encoded answer; our own included."""
        if self._options.kind is Kind.CONSUMER:
            return sync_answers.consumers(self._members, self._answers, self._member)
        self._connect_leader = sync_answers.leader_of(
            self._members, self._connect_leader, self._tasks.offset
        )
        return sync_answers.workers(
            self._members, self._answers, self._member, self._protocol, self._connect_leader
        )

    def _sync(self, rows: Mapping[str, bytes]) -> None:
        options, member, protocol = self._options, self._member, self._protocol
        self._ask(requests.sync(options, member, self._generation, protocol, rows))

    def _on_synced(self, now: int) -> None:
        self._heard_ms = self._asked_ms
        if self._leader != self._member:
            if self._options.seat is Seat.WAIT:
                self._sessions.forget_members()
                self._log("is in the group; waits until the leader's seat falls free")
                self._to(State.FOLLOWING, now + self._options.beat_ms)
            else:
                self._look()
            return
        self._to(State.LEADING, now + self._options.beat_ms)
        self._send(self._sessions.answered(self._answers, now))
        if self._decided_locally:
            self._send(self._sessions.write_local_decision(now, self._tasks.config.assignor))
        self._on_decision(now)

    def _note_round(self, now: int) -> None:
        decided_ms = now - self._joined_ms
        self.round = Round(self._generation, decided_ms, not self._decided_locally)
        members = count_of(len(self._members), "member")
        starts = count_of(sum(len(answer.added) for answer in self._answers.values()), "task")
        stops = sum(len(answer.revoked) for answer in self._answers.values())
        self._log(
            f"round {self._generation} ({self._protocol}): {members}; {starts} to start, {stops} to"
            f" stop; decided in {decided_ms} ms: {self._why()}"
        )

    def _why(self) -> str:
        if self._missing:
            return f"waits for {count_of(self._missing, 'member')} to come back; moves no task"
        if self._members and not self._tasks.are_known(self._members):
            return "the group's tasks are not known yet; nothing changes"
        if self._decided_locally and self._tasks.is_unwritten:
            return "the group's configuration is not written; the governor decided"
        if self._decided_locally:
            return "no coordinator answered in time; the governor decided"
        return self._snapshot.cause if self._snapshot and self._members else "no members"

    def _end(self, failure: MusterError | None) -> None:
        self.failure = failure
        self._to(State.ENDED, None)
