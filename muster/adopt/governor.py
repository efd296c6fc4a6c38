"""The governor of one group: keeps the leader's seat, and answers what the coordinator decided.

`take` takes one thing that happened: an answer of Kafka's broker, a record of muster's topics, news
of topics and connectors; None = time has passed. It asks and tells through `model.Line`,
`model.Topics` and `model.World`, and never waits. `runner.py` gives it a thread and a queue.

    JOINING     JoinGroup is sent; the broker answers when all members have joined
    LOOKING     another member leads: who is there?
    EVICTING    LeaveGroup is sent for all members
    DECIDING    the members are known; the coordinator is to decide, for at most the answer timeout
    ANSWERING   SyncGroup is sent; as the leader, with an answer for each member
    LEADING     heartbeats, until the group rebalances or the coordinator decides otherwise
    FOLLOWING   a member without partitions, until the seat falls free (`--wait`)
    WATCHING    not a member; looks whether a governor is in the group: it stands by (`--stand-by`),
                its session had ended, or a client removed it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kafka.errors as errors

from muster.adopt import decide, requests, said, writing
from muster.adopt.answers import Answer, answers
from muster.adopt.bridge import Bridge
from muster.adopt.model import (
    Answered,
    Configured,
    Happening,
    Jobs,
    Line,
    Message,
    News,
    Options,
    Round,
    Seat,
    State,
    Stop,
    Topics,
    Watched,
    World,
    error_of,
)
from muster.adopt.returning import LetGo, name_of
from muster.adopt.said import Kind, Said
from muster.adopt.writing import ConnectLeader
from muster.errors import BadInput
from muster.kafka.access import Refused
from muster.kafka.writer import Place
from muster.protocol.errors import MusterError
from muster.protocol.events import Join
from muster.protocol.records import GroupSnapshot, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet, Unit
from muster.state.causes import count_of
from muster.worker.messages import Acknowledged, Failed, Send

log = logging.getLogger("muster.adopt")

RETRY_MS: Final = 250
"""Before a request is sent again that no broker answered."""
LOOK_MS: Final = 1_000
"""How often a stand-by looks for the governor before it."""
JOIN_MS: Final = 900_000
"""How long a JoinGroup may take: members may process for `max.poll.interval.ms` before."""
FAREWELL_MS: Final = 5_000


class Governor:
    """Governs one group: `begin` once, then `take` whatever happens, until its state is ENDED.

    Args:
        options: how.
        line: to the group's coordinator in Kafka.
        topics: muster's.
        world: what else it asks.
        post: hands a happening to the caller of `take`, from any thread.
        clock: milliseconds that never step.

    Attributes:
        state: see the module.
        failure: why it ended by itself; None = it runs, was stopped, or was removed by an operator.
    """

    def __init__(
        self,
        options: Options,
        line: Line,
        topics: Topics,
        world: World,
        post: Callable[[Happening], None],
        clock: Callable[[], int],
    ) -> None:
        self.failure: MusterError | None = None
        self.state = State.NEW
        self._options = options
        self._line = line
        self._topics = topics
        self._world = world
        self._post = post
        self._clock = clock
        self._offers = said.offers(options.kind, options.protocols)
        self._bridge = Bridge(options.group, options.pins)
        self._config = options.config
        self._configured: Place | None = options.configured  # None = one is being written
        self._jobs: Jobs | None = None
        self._snapshot: GroupSnapshot | None = None
        self._member = ""
        self._generation = -1
        self._protocol = ""
        self._leader = ""
        self._said: list[Said] = []
        self._given: dict[str, Answer] = {}
        self._here = False  # the answers under way were decided without the coordinator
        self._answered_units: tuple[Unit, ...] = ()
        self._declared_ms = 0
        self._connect_leader: ConnectLeader | None = None
        self._asked = 0  # number of the newest request
        self._due_ms: int | None = None  # when the state needs something to be done
        self._joined_ms = 0
        self._asked_ms = 0
        self._heard_ms = 0  # when the newest request was sent that Kafka answered
        self._let_go = LetGo()
        self._missing = 0  # members that were let go and are not back
        self._removed = False  # a client removed us, and it is not known yet who did

    def begin(self) -> None:
        """Take the seat, or watch who has it."""
        if self._options.seat is Seat.STAND_BY:
            self._watch(self._clock())
        else:
            self._join_group()

    def due_ms(self) -> int | None:
        """When `take` is to be called at the latest; None = only when something happens."""
        due = [at for at in (self._due_ms, self._bridge.deadline_ms()) if at is not None]
        return min(due, default=None)

    def take(self, happening: Happening | None) -> None:
        """Take one thing that happened; None = time has passed."""
        try:
            self._take(happening)
        except MusterError as error:
            self._end(error)

    def _take(self, happening: Happening | None) -> None:
        now = self._clock()
        match happening:
            case Answered(number, message):
                if number == self._asked:
                    self._on_answer(message, now)
            case Jobs():
                self._on_jobs(happening, now)
            case Watched(governed):
                self._on_watched(governed, now)
            case Stop():
                self._leave_group()
            case None:
                pass
            case _:
                self._on_news(happening, now)
        self._send(self._bridge.tick(now))
        for notice in self._bridge.notices:
            self._tell(notice)
        self._bridge.notices.clear()
        if self._due_ms is not None and now >= self._due_ms:
            self._on_due(now)

    def _on_news(self, news: News, now: int) -> None:
        match news:
            case GroupSnapshot():
                self._on_snapshot(news, now)
            case Configured(place):
                self._configured = place
                if place is None:  # it is written again with the next news of the tasks
                    self._declared_ms, self._config = now, replace(self._config, tasks=())
            case MemberAssignment() | MemberGone():
                self._send(self._bridge.read(news, now))
            case Acknowledged():
                self._send(self._bridge.acknowledged(news.sent, now))
            case Failed():
                self._send(self._bridge.failed(news.sent, now))

    def _on_due(self, now: int) -> None:
        match self.state:
            case State.WATCHING:
                self._due_ms = None
                self._world.watch()
            case State.JOINING | State.LOOKING | State.EVICTING:
                self._join_group()
            case State.DECIDING:
                self._answer(now)
            case State.ANSWERING:
                self._join_group()
            case State.LEADING | State.FOLLOWING:
                self._beat()
            case State.LEAVING:
                self._end(None)
            case _:
                self._due_ms = None

    def _to(self, state: State, due_ms: int | None) -> None:
        self.state, self._due_ms = state, due_ms

    def _send(self, sends: Sequence[Send]) -> None:
        if sends:
            self._topics.send(self._options.group, sends)

    # --------------------------------------------------------------------------- Kafka's broker

    def _ask(self, request: Message, timeout_ms: int | None = None) -> None:
        self._asked, self._asked_ms = self._asked + 1, self._clock()
        number = self._asked

        def done(message: Message | Exception) -> None:
            self._post(Answered(number, message))

        self._line.ask(request, done, timeout_ms or self._options.session_timeout_ms)

    def _join_group(self) -> None:
        self._to(State.JOINING, None)
        self._ask(requests.join(self._options, self._member, self._offers), JOIN_MS)

    def _beat(self) -> None:
        self._due_ms = None
        self._ask(requests.beat(self._options, self._member, self._generation))

    def _leave_group(self) -> None:
        if self.state in (State.WATCHING, State.NEW) or not self._member:
            self._end(None)
            return
        self._send(self._bridge.leave_all(self._clock()))
        self._to(State.LEAVING, self._clock() + FAREWELL_MS)
        self._ask(requests.leave(self._options, {self._member: self._options.instance_id}))

    def _on_answer(self, message: Message | Exception, now: int) -> None:
        error = error_of(message)
        if self.state is State.LEAVING:
            self._end(None)
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
            if self.state is State.LEADING and self._is_overdue(now):
                self._join_group()

    def _on_error(self, error: Exception, message: Message | Exception, now: int) -> None:
        match error:
            case errors.MemberIdRequiredError():
                self._member = message.member_id  # type: ignore[union-attr]
                self._join_group()
            case errors.GroupAuthorizationFailedError():
                raise Refused(
                    f"Kafka does not let this login lead group {self._options.group!r}; it needs"
                    " READ on the group (muster topics create --acls --governor-principal)"
                )
            case errors.InconsistentGroupProtocolError():
                raise BadInput(
                    f"the members of {self._options.group!r} have no protocol in common with"
                    f" {', '.join(name for name, _ in self._offers)}; --protocol NAME adds the"
                    " name of their assignor"
                )
            case errors.FencedInstanceIdError():
                raise BadInput(
                    f"another governor has joined {self._options.group!r} as"
                    f" {self._options.instance_id!r}; give each its own --instance-id"
                )
            case errors.UnknownMemberIdError():
                self._on_unknown(now)
            case errors.RebalanceInProgressError() | errors.IllegalGenerationError():
                self._join_group()
            case errors.GroupMaxSizeReachedError() | errors.InvalidSessionTimeoutError():
                raise BadInput(
                    f"Kafka does not admit a governor to {self._options.group!r}: {error}"
                )
            case _:
                # The coordinator moved or loads, or no broker answers: find it, and ask again.
                self._line.lost()
                pause = RETRY_MS if self.state is not State.ANSWERING else 0
                self._to(self.state, now + pause)

    def _on_unknown(self, now: int) -> None:
        """Kafka does not count us any more: our session has ended, or a client removed us.

        Another governor may have the seat now: then it keeps it.
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
        self._bridge.falls_silent()
        self._tell("stands by: takes the leader's seat when no governor is in the group")
        self._to(State.WATCHING, due_ms)

    def _tell(self, text: str) -> None:
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
        """A client removed us: another governor that is in the group now, or an operator."""
        self._removed = False
        if governed:
            self._watch(now + LOOK_MS)
        else:
            self._tell("removed from the group: handed back")
            self._send(self._bridge.leave_all(now))
            self._end(None)

    def _on_joined(self, answer: Message, now: int) -> None:
        self._member, self._generation = answer.member_id, answer.generation_id
        self._protocol, self._leader = answer.protocol_name or "", answer.leader
        self._heard_ms, self._joined_ms = self._asked_ms, now
        if answer.leader != answer.member_id:
            # Another member leads. Members that wait for its answer would not hear for a session
            # that they were let go: first everybody gets the answer.
            self._to(State.ANSWERING, None)
            self._said, self._given = [], {}
            self._sync({})
        elif answer.skip_assignment:
            self._join_group()  # we are back within our session: ask everybody, to know all
        else:
            self._on_members(answer.members, now)

    def _look(self) -> None:
        self._to(State.LOOKING, None)
        self._ask(requests.look(self._options))

    def _evict(self, answer: Message, now: int) -> None:
        """Let all members leave; they join again by themselves.

        The broker chooses who leads next. If only the leader left, another member would be next in
        most groups, and would give on what the one before may still work on.
        """
        there = [each.member_id for each in answer.groups[0].members]
        others = [each for each in there if each != self._member]
        rivals = [name for each in others if said.is_governor(name := name_of(each))]
        if min(rivals, default=self._options.instance_id) < self._options.instance_id:
            self._yield(now)
            return
        self._let_go.add([each for each in others if not said.is_governor(name_of(each))], now)
        self._tell("lets all members leave, to take the leader's seat")
        self._to(State.EVICTING, None)
        self._ask(requests.leave(self._options, dict.fromkeys(others)))

    def _yield(self, now: int) -> None:
        """Another governor takes the seat at the same time: leave, and watch it."""
        leave = requests.leave(self._options, {self._member: self._options.instance_id})
        self._line.ask(leave, lambda _: None, self._options.session_timeout_ms)
        self._member = ""
        self._watch(now + LOOK_MS)

    def _on_members(self, rows: Sequence[Any], now: int) -> None:
        others = [row for row in rows if row.member_id != self._member]
        self._said = said.read_all(self._options.kind, others, self._options.group)
        topics = sorted({topic for member in self._said for topic in member.topics or ()})
        if self._options.kind is Kind.CONSUMER:
            self._world.needs(topics)
        self._declare(now)
        if self._still_missing(now):
            self._answer_with({m.name: m.owned for m in self._said}, now, here=False)
            return
        self._send(self._bridge.joined(self._said, self._snapshot, now))
        self._to(State.DECIDING, now + self._options.answer_timeout_ms)
        self._decide(now)

    def _still_missing(self, now: int) -> int:
        """How many members that were let go to take the seat have not joined again."""
        self._missing = self._let_go.missing([member.id for member in self._said], now)
        return self._missing

    # ------------------------------------------------------------------------- what is decided

    def _on_jobs(self, jobs: Jobs, now: int) -> None:
        self._jobs = jobs
        self._declare(now)
        self._on_decision(now)

    def _declare(self, now: int) -> None:
        """Write the group's configuration if its tasks are others now."""
        if self._jobs is None:
            return
        weights = self._options.weights
        old = {unit.name: unit for unit in self._config.tasks}
        units = tuple(
            decide.weighed(unit, weights, old.get(unit.name)) for unit in self._jobs.units
        )
        if self._options.kind is Kind.CONSUMER:
            # A topic that no present member reads stays while it may come back with one of them.
            there = {topic for member in self._said for topic in member.topics or ()}
            units = tuple(unit for unit in units if unit.name in there)
            if not there:
                return
        if units != self._config.tasks:
            self._config = replace(self._config, tasks=units)
            self._declared_ms, self._configured = now, None
            self._topics.configure(self._config)

    def _on_snapshot(self, snapshot: GroupSnapshot, now: int) -> None:
        self._snapshot = snapshot
        mine = self._configured
        read = {(topic, number): offset for topic, number, offset in snapshot.through}
        if mine is not None and read.get((mine.topic, mine.partition), -1) >= mine.offset:
            # The operator may have configured it since: what we write next must not undo that.
            self._config = replace(
                self._config,
                assignor=snapshot.assignor,
                settings=snapshot.settings,
                tasks=snapshot.tasks,
            )
        self._on_decision(now)

    def _on_decision(self, now: int) -> None:
        if self.state is State.DECIDING:
            self._decide(now)
        elif self.state is State.LEADING and self._said and not self._missing:
            target = self._target()
            if target is None:
                return
            if self._differs(answers(self._said, target)):
                self._join_group()
            else:
                self._send(self._bridge.keeps(self._given, now))

    def _is_overdue(self, now: int) -> bool:
        """Whether a round is to begin that no decision asks for.

        Members that were let go have had their time to return; or there are other tasks for a
        while, and no coordinator says whose they are.
        """
        if self._missing:
            return not self._still_missing(now)
        is_new = self._answered_units != self._config.tasks and bool(self._said)
        return (
            is_new
            and self._knows_jobs()
            and now - self._declared_ms > self._options.answer_timeout_ms
        )

    def _differs(self, wanted: Mapping[str, Answer]) -> bool:
        return {name: answer.assigned for name, answer in wanted.items()} != {
            name: answer.assigned for name, answer in self._given.items()
        }

    def _target(self) -> dict[str, TaskSet] | None:
        is_connect = self._options.kind is Kind.CONNECT
        if not self._knows_jobs():
            return None
        holds = self._bridge.holds() if is_connect else None
        return decide.target_of(self._snapshot, self._bridge.members, self._config, holds)

    def _knows_jobs(self) -> bool:
        """Whether it is known what there is to assign: of Connect, all that the workers know."""
        newest = max((member.config_offset for member in self._said), default=-1)
        return self._jobs is not None and self._jobs.offset >= newest

    def _decide(self, now: int) -> None:
        """Answer if the coordinator has decided."""
        target = self._target() if self._said else {}
        if target is not None:
            self._answer_with(target, now, here=False)

    def _answer(self, now: int) -> None:
        """The coordinator took too long: decide here."""
        if not self._knows_jobs():  # what runs now goes on
            self._answer_with({m.name: m.owned for m in self._said}, now, here=False)
            self._answered_units = ()
            return
        joins = [self._join_event(member) for member in self._said]
        holds = self._bridge.holds()
        if not any(holds.values()):  # eager members say nothing: they had what they were given last
            holds = {name: answer.assigned for name, answer in self._given.items()}
        target = decide.decided_here(self._snapshot, self._config, joins, holds)
        self._answer_with(target, now, here=True)

    def _join_event(self, member: Said) -> Join:
        return replace(
            self._bridge.profile(member.name), incarnation=self._bridge.members[member.name]
        )

    def _answer_with(self, target: Mapping[str, TaskSet], now: int, *, here: bool) -> None:
        self._given, self._here = answers(self._said, target), here
        self._answered_units = self._config.tasks
        self._send(self._bridge.keeps(self._given, now))
        self._to(State.ANSWERING, None)
        self._sync(self._written())
        self._note_round(now)

    def _written(self) -> dict[str, bytes]:
        """Member id in Kafka → the bytes of its answer, our own among them."""
        if self._options.kind is Kind.CONSUMER:
            return writing.consumers(self._said, self._given, self._member)
        offset = self._jobs.offset if self._jobs is not None else -1
        self._connect_leader = writing.leader_of(self._said, self._connect_leader, offset)
        return writing.workers(
            self._said, self._given, self._member, self._protocol, self._connect_leader
        )

    def _sync(self, rows: Mapping[str, bytes]) -> None:
        options, member, protocol = self._options, self._member, self._protocol
        self._ask(requests.sync(options, member, self._generation, protocol, rows))

    def _on_synced(self, now: int) -> None:
        self._heard_ms = self._asked_ms
        if self._leader != self._member:
            if self._options.seat is Seat.WAIT:
                self._bridge.falls_silent()
                self._tell("is in the group; waits until the leader's seat falls free")
                self._to(State.FOLLOWING, now + self._options.beat_ms)
            else:
                self._look()
            return
        self._to(State.LEADING, now + self._options.beat_ms)
        self._send(self._bridge.answered(self._given, now))
        if self._here:
            self._send(self._bridge.tell(now))
        self._on_decision(now)

    def _note_round(self, now: int) -> None:
        found = Round(
            generation=self._generation,
            protocol=self._protocol,
            members=len(self._said),
            starts=sum(len(answer.added) for answer in self._given.values()),
            stops=sum(len(answer.revoked) for answer in self._given.values()),
            decided_ms=now - self._joined_ms,
            by_coordinator=not self._here,
        )
        log.info(
            "round %d (%s): %s; %s to start, %d to stop; decided in %d ms: %s",
            found.generation,
            found.protocol,
            count_of(found.members, "member"),
            count_of(found.starts, "task"),
            found.stops,
            found.decided_ms,
            self._why(),
            extra={"group": self._options.group},
        )
        self._world.played(found)

    def _why(self) -> str:
        if self._missing:
            return f"waits for {count_of(self._missing, 'member')} to come back; passes no task on"
        if self._said and not self._knows_jobs():
            return "the group's tasks are not known yet; nothing changes"
        if self._here:
            return "no coordinator answered in time; decided here, told to the log"
        return self._snapshot.cause if self._snapshot is not None and self._said else "no members"

    def _end(self, failure: MusterError | None) -> None:
        self.failure = failure
        self._to(State.ENDED, None)
