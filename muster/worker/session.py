"""The member's half of the talk with the coordinator, as a pure machine.

It decides when to join, what to report, how often to say that it is alive, which tasks to take and
to give up, and when the lease on them is over. It knows no Kafka, no thread, no callback and no
clock: time is passed in, what must happen comes out (`exchange.py`). States and what they do with
each input are the tables of `states.py`.

Theory of operation. Every record from the coordinator is the member's whole assignment. What is
held beyond it is released; a `Report` says what has stopped, soon after the first task has and at
once when all have, so no task waits for the slowest to get to its next owner. What the record adds
is held from now on. Heartbeats carry a digest of the holding, so a lost record heals by itself.

Exclusive ownership. The coordinator gives a member's tasks away when it has heard nothing for the
session timeout, or when it was not obeyed for the rebalance timeout; the lease (`lease.py`) ends
earlier, because it needs both: Kafka has heard us, and we have read Kafka. Every step looks at the
lease before anything else, so a process that slept wakes up into losing its tasks.

A session that lost its tasks never speaks again: the member returns under a new *incarnation*, so
nothing that was written to the old one, however late or often it is read, can give it a task. If
the coordinator may still count the old one, a `Leave` for it goes first: true, for all has stopped.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.digest import Holding
from muster.protocol.events import Join, LagReport, Leave, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.worker.chance import JOIN_PAUSE_MS, join_pause_ms, mixed63
from muster.worker.exchange import (
    Acknowledged,
    Action,
    Assigned,
    Begin,
    CaughtUp,
    End,
    Failed,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    MemberEvent,
    Notice,
    Read,
    Ready,
    Released,
    Restored,
    Send,
    Take,
    Wanted,
)
from muster.worker.hands import Hands
from muster.worker.lease import Proof, lease_until_ms, stop_ms
from muster.worker.letters import Letters
from muster.worker.states import FAULTS, IN_USE, TABLE, UNANSWERED, Duty, State

ANYONE: Final = 0
"""Incarnation of a fault that answers an event which named none (a heartbeat)."""
LET_GO = "the coordinator let this member go"
GATHER_MS: Final = 50
"""From the first task that has stopped to the report: a hundred quick stops are one event."""


class Session:
    """One member's talk with the coordinator; feed it with `step`, obey what comes back.

    Attributes:
        state: where it stands.
        record: the assignment in force; None before the first and after a loss.
        incarnation: the number this session speaks under.
    """

    def __init__(self, join: Join, seed: int) -> None:
        """Prepare to join.

        Args:
            join: what the member says of itself; its incarnation, holding and lags are filled in.
            seed: random 63-bit number of this process; incarnations are drawn from it.
        """
        self.state = State.NEW
        self.record: MemberAssignment | None = None
        self.incarnation = mixed63(seed)
        self._letters = Letters(join)
        self._draw = seed
        self._previous: int | None = None  # an older session the coordinator may still count
        self._seen = (-1, -1)  # newest (coordinator epoch, revision)
        self._hands = Hands()
        self._owes_report = self._report_failed = False  # tasks are being released; one got lost
        self._report_ms: int | None = None  # when those that have stopped by then are reported
        self._proof = Proof()
        self._last_sent_ms = 0
        self._beat_in_flight: Send | None = None
        self._attempt = self._retry_ms = 0
        self._leave_first = False  # the lost session may still count: say Leave for it
        self._ending: End | None = None  # what to do once a lost session has stopped
        self._temporary = False

    # ------------------------------------------------------------------------------- the one door

    def step(self, given: Input, now_ms: int) -> tuple[Action, ...]:
        """Take one input; answer with what is to be done, in order."""
        actions: list[Action] = []
        # What Kafka acknowledged before a freeze still counts, so it is taken in first.
        if not isinstance(given, Acknowledged) and self._lease_is_over(now_ms):
            actions += self._lose(self._proof.complaint, True)
        handler = TABLE[self.state].get(type(given))
        if handler is not None:
            actions += getattr(self, handler)(given, now_ms)
        return tuple(actions)

    @property
    def lease_ms(self) -> int | None:
        """When the lease ends; None while there is none."""
        if self.record is None or self._proof.since_ms is None:
            return None
        return lease_until_ms(self._proof.since_ms, self.record.session_timeout_ms)

    @property
    def deadline_ms(self) -> int | None:
        """When the next `ClockMoved` is wanted at the latest; None = never."""
        if self.state is State.JOINING:
            return self._retry_ms
        lease = self.lease_ms
        if self.state not in (State.MEMBER, State.LEAVING) or lease is None:
            return None
        due = [lease]
        if self._report_ms is not None:
            due.append(self._report_ms)
        if self._beat_in_flight is None:
            due.append(self._beat_due_ms())
        return min(due)

    @property
    def holding(self) -> Holding:
        """Everything held right now, what is being given up marked."""
        return self._hands.holding(self.record)

    # ------------------------------------------------------------------------------------ joining

    def _join(self, _: Input, now_ms: int) -> list[Action]:
        self.state = State.JOINING
        self._attempt = 0
        self._proof = Proof(now_ms)
        return self._ask(now_ms)

    def _ask(self, now_ms: int) -> list[Action]:
        self._attempt += 1
        self._retry_ms = now_ms + join_pause_ms(self._attempt, self.incarnation)
        join = self._send(self._letters.join(self.incarnation), now_ms)
        return [join, *UNANSWERED.get(self._attempt, ())]

    def _ask_again(self, _: Input, now_ms: int) -> list[Action]:
        return self._ask(now_ms) if now_ms >= self._retry_ms else []

    def _read_answer(self, given: Read, now_ms: int) -> list[Action]:
        record = given.record
        if isinstance(record, MemberGone) or not self._is_news(record):
            return []
        if record.fault is None:
            return self._admitted(record, now_ms)
        duty = FAULTS[record.fault][0]
        if duty is Duty.END:
            return self._end_with(End(record.fault, record.message))
        if duty is Duty.RETRY:
            return self._refused(record, record.fault, now_ms)
        return []

    def _refused(self, record: MemberAssignment, fault: Fault, now_ms: int) -> list[Action]:
        if self._previous is not None and fault in IN_USE:
            # It is our own older session that stands in the way, and all of it has stopped.
            leave = self._leave_to_return(self._previous, now_ms)
            self._previous = None
            return [leave, *self._ask(now_ms)]
        self._retry_ms = max(self._retry_ms, now_ms + JOIN_PAUSE_MS // 2)
        return [Notice(f"{fault.value}: {record.message or 'not admitted yet'}; asking again")]

    def _admitted(self, record: MemberAssignment, now_ms: int) -> list[Action]:
        self.state = State.MEMBER
        self._previous = None
        self._proof.admit(record.session_timeout_ms)
        return self._obey(record, now_ms)

    # ----------------------------------------------------------------------------- as a member

    def _read_record(self, given: Read, now_ms: int) -> list[Action]:
        record = given.record
        if isinstance(record, MemberGone):
            return self._lose(LET_GO, False)
        if self._is_news(record):
            if record.fault is not None:
                return self._hear_fault(record, record.fault)
            return self._obey(record, now_ms)
        if record.incarnation != self.incarnation or record.coordinator_epoch < self._seen[0]:
            return []
        # A coordinator that lost its checkpoint asks under the revision it last knew: what it knew
        # is older than what we hold, so only the question counts.
        self._seen = (record.coordinator_epoch, self._seen[1])
        return self._report(now_ms) if record.report else []

    def _hear_fault(self, record: MemberAssignment, fault: Fault) -> list[Action]:
        duty = FAULTS[fault][1]
        if duty is Duty.IGNORE:
            return []
        if duty is Duty.END:
            self._ending = End(fault, record.message)
        still_counted = fault is Fault.FENCED_MEMBER_EPOCH  # one that is unknown is not
        return self._lose(f"{fault.value}: {record.message}", still_counted)

    def _is_news(self, record: MemberAssignment) -> bool:
        if record.coordinator_epoch < self._seen[0]:
            return False
        if record.fault is not None:  # answers to strangers are not counted by revision
            return record.incarnation in (self.incarnation, ANYONE)
        return record.incarnation == self.incarnation and record.revision > self._seen[1]

    def _obey(self, record: MemberAssignment, now_ms: int) -> list[Action]:
        self.record = record
        self._seen = (record.coordinator_epoch, record.revision)
        if self._lease_is_over(now_ms):
            return self._lose("the lease ran out before the assignment was read", True)
        releases = self._hands.give_up(record)
        self._owes_report |= bool(releases)
        actions = [Assigned(record), *self._lease(), *releases, *self._take(record)]
        return [*actions, *self._report(now_ms)] if record.report else actions

    def _drop(self, given: Released, now_ms: int) -> list[Action]:
        assert self.record is not None
        self._hands.drop(given.role, given.tasks)
        if self.state is State.LEAVING:
            return self._leave_if_empty(now_ms)
        return [*self._take(self.record), *self._report_release(now_ms)]

    def _take(self, record: MemberAssignment) -> list[Take | Wanted]:
        takes = self._hands.take(record)
        for take in takes:  # what was said of an active's lag was that of a copy
            if isinstance(take, Take) and take.role is Role.ACTIVE:
                self._letters.forget_lags(take.tasks)
        return takes

    def _mark_ready(self, given: Ready, now_ms: int) -> list[Action]:
        return self._report(now_ms) if self._hands.mark_ready(given.tasks) else []

    def _report_release(self, now_ms: int) -> list[Action]:
        if not self._owes_report:
            return []
        if not self._hands.stopping:
            return self._report(now_ms)
        if self._report_ms is None:
            self._report_ms = now_ms + GATHER_MS
        return []

    def _report(self, now_ms: int) -> list[Action]:
        assert self.record is not None
        self._report_failed = False
        self._owes_report = self._owes_report and self._hands.stopping
        self._report_ms = None
        report = self._letters.report(self.record, self.holding, self.incarnation, self._seen[0])
        return [self._send(report, now_ms)]

    # ------------------------------------------------------------------------ alive, and the lease

    def _beat(self, _: Input, now_ms: int) -> list[Action]:
        if self._report_ms is not None and now_ms >= self._report_ms:
            return self._report(now_ms)
        # One in flight is enough: a second would wait behind it, and prove nothing sooner.
        if self._beat_in_flight is not None or now_ms < self._beat_due_ms():
            return []
        assert self.record is not None
        if self._report_failed:
            return self._report(now_ms)
        beat = self._letters.heartbeat(self.record, self.holding)
        self._beat_in_flight = self._send(beat, now_ms)
        return [self._beat_in_flight]

    def _beat_due_ms(self) -> int:
        assert self.record is not None
        return self._last_sent_ms + self.record.heartbeat_interval_ms

    def _extend(self, given: Acknowledged, now_ms: int) -> list[Action]:
        sent = given.sent
        if sent.incarnation != self.incarnation or isinstance(sent.event, Leave | LagReport):
            return []
        if sent is self._beat_in_flight:
            self._beat_in_flight = None
        until = self.lease_ms
        self._proof.acknowledge(sent.sent_ms)
        return self._lease() if self.lease_ms != until else []

    def _note_reading(self, given: CaughtUp, now_ms: int) -> list[Action]:
        until = self.lease_ms
        self._proof.catch_up(given.at_ms)
        return self._lease() if self.lease_ms != until else []

    def _lease(self) -> list[Action]:
        if (until := self.lease_ms) is None or self.record is None:
            return []
        return [Lease(until, stop_ms(self.record.session_timeout_ms))]

    def _lease_is_over(self, now_ms: int) -> bool:
        return (until := self.lease_ms) is not None and now_ms >= until

    def _send_again(self, given: Failed, now_ms: int) -> list[Action]:
        if given.sent.incarnation != self.incarnation:
            return []
        if given.sent is self._beat_in_flight:
            self._beat_in_flight = None
        # Again when a heartbeat is due, in its place: what fails at once must not go round.
        self._report_failed |= isinstance(given.sent.event, Report)
        return []

    # -------------------------------------------------------------------------------------- losing

    def _lose(self, reason: str, leave_first: bool) -> list[Action]:
        if self.state is State.LEAVING and self._ending is None:
            self._ending = End(None, "left")
        self.state = State.LOST
        self.record = None
        self._leave_first = leave_first
        self._hands = Hands()
        self._letters.forget_all_lags()
        self._owes_report = self._report_failed = False
        self._report_ms = None
        self._beat_in_flight = None
        return [Lose(reason)]

    def _return(self, _: Input, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if self._ending is not None:
            if self._leave_first:
                actions.append(self._leave_of(self.incarnation, self._temporary, now_ms))
            return [*actions, *self._end_with(self._ending)]
        if self._leave_first:
            actions.append(self._leave_to_return(self.incarnation, now_ms))
        self._previous = None if self._leave_first else self.incarnation
        self._draw += 1
        self.incarnation = mixed63(self._draw)
        self._seen = (self._seen[0], -1)
        return [*actions, *self._join(Begin(), now_ms)]

    # ------------------------------------------------------------------------------------- leaving

    def _begin_leaving(self, given: LeaveAsked, now_ms: int) -> list[Action]:
        assert self.record is not None
        self.state = State.LEAVING
        self._temporary = given.temporary
        releases = self._hands.give_up(self.record, everything=True)
        return [*releases, *self._leave_if_empty(now_ms)]

    def _leave_if_empty(self, now_ms: int) -> list[Action]:
        return self._leave(LeaveAsked(self._temporary), now_ms) if self._hands.empty else []

    def _leave(self, given: LeaveAsked, now_ms: int) -> list[Action]:
        leave = self._leave_of(self.incarnation, given.temporary, now_ms)
        return [leave, *self._end(given, now_ms)]

    def _leave_to_return(self, incarnation: int, now_ms: int) -> Send:
        # Its tasks wait for it: it joins with the next word.
        return self._leave_of(incarnation, True, now_ms)

    def _leave_of(self, incarnation: int, temporary: bool, now_ms: int) -> Send:
        leave = self._letters.leave(incarnation, temporary)
        return self._send(leave, now_ms)

    def _leave_when_stopped(self, given: LeaveAsked, now_ms: int) -> list[Action]:
        self._temporary = given.temporary
        self._ending = self._ending or End(None, "left")
        return []

    def _read_while_leaving(self, given: Read, now_ms: int) -> list[Action]:
        record = given.record
        if isinstance(record, MemberGone):
            return self._lose(LET_GO, False)
        if record.fault is None or not self._is_news(record):
            return []
        return self._hear_fault(record, record.fault)

    def _end(self, _: Input, now_ms: int) -> list[Action]:
        return self._end_with(End(None, "left"))

    def _end_with(self, end: End) -> list[Action]:
        self.state, self.record = State.ENDED, None
        return [end]

    # ---------------------------------------------------------------------------------------- lags

    def _note_lags(self, given: Restored, now_ms: int) -> list[Action]:
        self._letters.note_lags(given.lags)
        return []

    def _tell_lags(self, given: Restored, now_ms: int) -> list[Action]:
        self._note_lags(given, now_ms)
        told = self._letters.lag_reports(given.lags)
        return [Send(each, self.incarnation, now_ms) for each in told]

    def _send(self, event: MemberEvent, now_ms: int) -> Send:
        self._last_sent_ms = now_ms
        return Send(event, self.incarnation, now_ms)
