"""What a session does with each input: the methods that the table of `session.py` names.

`session.py` explains the rules as a whole. Only these methods change the session's state.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from muster.protocol.digest import MASK, Holding
from muster.protocol.events import Join, LagReport, Leave, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.worker.fault_responses import FAULTS, IN_USE, Duty
from muster.worker.holdings import Holdings, tasks_by_role
from muster.worker.joins_and_reports import EventBuilder
from muster.worker.lease import Proof, Timeout, stop_ms
from muster.worker.session_messages import (
    Acknowledged,
    Action,
    AllStopped,
    Assigned,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Failed,
    Input,
    LagsKnown,
    Lease,
    LeaveAsked,
    Lose,
    MemberEvent,
    Notice,
    Read,
    Ready,
    Released,
    Send,
    Take,
    Wanted,
)

ANYONE: Final = 0
"""Incarnation in a fault that answers an event without one (a heartbeat)."""
REMOVED = "the coordinator removed this member"
GATHER_MS: Final = 50
"""From the first stopped task to the report: a hundred tasks that stop quickly are one event."""
JOIN_PAUSE_MS: Final = 1_000
JOIN_PAUSE_MAX_MS: Final = 5_000
"""Shorter than a usual session timeout: a member that is not admitted yet stays known by asking."""
UNANSWERED: Final = 4
"""After so many unanswered joins, some seconds' worth, the log says `NO_ANSWER`."""
NO_ANSWER: Final = Notice(
    "no coordinator has answered yet; still trying (muster doctor says whether one runs)"
)


class State(Enum):
    """The state of a session."""

    NEW = "new"
    """Waits until the reader is at the end of its partition."""
    JOINING = "joining"
    """Sends joins until the first record for its incarnation admits it or refuses it for good."""
    MEMBER = "member"
    """Holds what it is assigned, until the lease ends, a fault arrives, or the user closes it."""
    LOST = "lost"
    """Waits until every task has stopped. Then joins again, or ends."""
    LEAVING = "leaving"
    """Waits until every task is released. Then sends a leave and ends."""
    ENDED = "ended"
    """Takes no input any more."""


class Steps:
    """The data of a session, and a method for each step. Use `Session`, which adds the table."""

    def __init__(self, join: Join, seed: int) -> None:
        """Prepare to join. The incarnation is computed from `seed`, 63 random bits."""
        self.state = State.NEW
        self.record: MemberAssignment | None = None
        self.incarnation = mixed63(seed)
        self._events = EventBuilder(join)
        self._seed = seed
        self._previous: int | None = None  # an older incarnation the coordinator may still count
        self._seen = (-1, -1)  # newest (coordinator epoch, revision)
        self._is_apart = False  # the newest record read says where heartbeats are written
        self._holdings = Holdings()
        self._owes_report = False  # a release is to be reported
        self._report_failed = False  # a report was not written
        self._report_ms: int | None = None  # when the tasks stopped so far are reported
        self._proof = Proof()
        self._timeout = Timeout.of(0)
        self._last_sent_ms = 0
        self._beat_in_flight: Send | None = None
        self._attempt = self._retry_ms = 0
        self._leave_first = False  # the coordinator may still count the lost incarnation
        self._ending: End | None = None  # None = a lost session joins again
        self._temporary = False

    @property
    def lease_ms(self) -> int | None:
        """When the lease ends; None while there is none."""
        if self.record is None or self._proof.since_ms is None:
            return None
        return self._timeout.lease_until_ms(self._proof.since_ms)

    @property
    def profile(self) -> Join:
        """What the member says of itself, as given."""
        return self._events.plain

    @property
    def holding(self) -> Holding:
        """Everything the member holds, with the tasks it is releasing marked."""
        return self._holdings.as_of(self.record)

    def note_running(self, tasks: TaskSet) -> None:
        """Note actives that the member runs before it has joined; its joins then say so.

        Workers start with nothing. `muster adopt` speaks for members whose tasks Kafka gave them.
        """
        assert self.state in (State.NEW, State.JOINING, State.LOST)
        self._holdings = Holdings(tasks)

    # ------------------------------------------------------------------------------------ joining

    def _join(self, session_input: Input, now_ms: int) -> list[Action]:
        if isinstance(session_input, Begin):
            self._events.offer(session_input.apart)
        self.state = State.JOINING
        self._attempt = 0
        self._proof = Proof(now_ms)
        return self._ask(now_ms)

    def _ask(self, now_ms: int) -> list[Action]:
        self._attempt += 1
        self._retry_ms = now_ms + _join_pause_ms(self._attempt, self.incarnation)
        join = self._send(self._events.join(self.incarnation, self.holding), now_ms)
        return [join, NO_ANSWER] if self._attempt == UNANSWERED else [join]

    def _ask_again(self, _: Input, now_ms: int) -> list[Action]:
        return self._ask(now_ms) if now_ms >= self._retry_ms else []

    def _read_answer(self, session_input: Read, now_ms: int) -> list[Action]:
        record = session_input.record
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
            # The older session is this process' own, and all of its tasks have stopped.
            leave = self._leave_of(self._previous, True, now_ms)
            self._previous = None
            return [leave, *self._ask(now_ms)]
        self._retry_ms = max(self._retry_ms, now_ms + JOIN_PAUSE_MS // 2)
        return [Notice(f"{fault.value}: {record.message or 'not admitted yet'}; asking again")]

    def _admitted(self, record: MemberAssignment, now_ms: int) -> list[Action]:
        self.state = State.MEMBER
        self._previous = None
        self._timeout = Timeout.of(record.session_timeout_ms)
        self._proof.admit(self._timeout)
        return self._obey(record, now_ms)

    # ----------------------------------------------------------------------------- as a member

    def _read_record(self, session_input: Read, now_ms: int) -> list[Action]:
        record = session_input.record
        if isinstance(record, MemberGone):
            return self._lose(REMOVED, False)
        if self._is_news(record):
            if record.fault is not None:
                return self._take_fault(record, record.fault)
            return self._obey(record, now_ms)
        # A coordinator that lost its checkpoint asks for a report in a record with the last
        # revision it knew. Such an assignment is older than the holding: only the request counts.
        return self._answer(record, now_ms)

    def _answer(self, record: MemberAssignment, now_ms: int) -> list[Action]:
        """Report if the record asks for it, and obey nothing else of it."""
        if record.incarnation != self.incarnation or record.coordinator_epoch < self._seen[0]:
            return []
        self._seen = (record.coordinator_epoch, self._seen[1])
        self._is_apart = record.apart
        return self._report(now_ms) if record.report else []

    def _take_fault(self, record: MemberAssignment, fault: Fault) -> list[Action]:
        duty = FAULTS[fault][1]
        if duty is Duty.IGNORE:
            return []
        if duty is Duty.END:
            self._ending = End(fault, record.message)
        still_counted = fault is Fault.FENCED_MEMBER_EPOCH  # an unknown member is not counted
        return self._lose(f"{fault.value}: {record.message}", still_counted)

    def _is_news(self, record: MemberAssignment) -> bool:
        if record.coordinator_epoch < self._seen[0]:
            return False
        if record.fault is not None:  # faults have no revision
            return record.incarnation in (self.incarnation, ANYONE)
        return record.incarnation == self.incarnation and record.revision > self._seen[1]

    def _obey(self, record: MemberAssignment, now_ms: int) -> list[Action]:
        assert self._proof.since_ms is not None
        self.record = record
        self._timeout = self._timeout.changed(record.session_timeout_ms, self._proof.since_ms)
        self._is_apart = record.apart
        self._seen = (record.coordinator_epoch, record.revision)
        if self._lease_is_over(now_ms):
            return self._lose("the lease ran out before the assignment was read", True)
        releases = self._holdings.release(record)
        self._owes_report |= bool(releases)
        actions: list[Action] = [Assigned(record), *self._lease(), *releases, *self._take(record)]
        if record.report or self._timeout.awaits_report:
            actions += self._report(now_ms)
        return actions

    def _drop(self, session_input: Released, now_ms: int) -> list[Action]:
        assert self.record is not None
        self._holdings.drop(session_input.role, session_input.tasks)
        if self.state is State.LEAVING:
            if self._holdings.empty:
                return self._leave_if_empty(now_ms)
            # Others wait for what was revoked before; the rest goes to them with the leave.
            was_revoked = session_input.tasks - tasks_by_role(self.record)[session_input.role]
            return self._report_release(now_ms) if was_revoked else []
        return [*self._take(self.record), *self._report_release(now_ms)]

    def _take(self, record: MemberAssignment) -> list[Take | Wanted]:
        takes = self._holdings.take(record)
        for take in takes:
            if isinstance(take, Take) and take.role is Role.ACTIVE:
                # Its lag was that of a copy: reported on, it would look as if it still restored.
                self._events.forget_lags(take.tasks)
        return takes

    def _mark_ready(self, session_input: Ready, now_ms: int) -> list[Action]:
        newly_ready = self._holdings.mark_ready(session_input.tasks)
        if not newly_ready:
            return []
        self._events.end_lags(newly_ready)
        if self._holdings.fell_behind(newly_ready):
            # A worker may report a small lag and then `ready` of each copy, again and again.
            return self._report_soon(now_ms)
        return self._report(now_ms)

    def _report_release(self, now_ms: int) -> list[Action]:
        if not self._owes_report:
            return []
        return self._report_soon(now_ms) if self._holdings.releasing else self._report(now_ms)

    def _report_soon(self, now_ms: int) -> list[Action]:
        if self._report_ms is None:
            self._report_ms = now_ms + GATHER_MS
        return []

    def _report(self, now_ms: int) -> list[Action]:
        assert self.record is not None
        self._report_failed = False
        self._owes_report = self._owes_report and self._holdings.releasing
        self._report_ms = None
        until = self.lease_ms
        self._timeout = self._timeout.reported(now_ms)
        lease = self._lease() if self.lease_ms != until else []
        report = self._events.report(self.record, self.holding, self.incarnation, self._seen[0])
        return [*lease, self._send(report, now_ms)]

    # ----------------------------------------------------------------------- heartbeats and lease

    def _beat(self, _: Input, now_ms: int) -> list[Action]:
        if self._report_ms is not None and now_ms >= self._report_ms:
            return self._report(now_ms)
        # A second heartbeat in flight would wait behind the first and prove nothing sooner.
        if self._beat_in_flight is not None or now_ms < self._beat_due_ms():
            return []
        assert self.record is not None
        if self._report_failed:
            return self._report(now_ms)
        beat = self._events.heartbeat(self.record, self.holding)
        self._beat_in_flight = replace(self._send(beat, now_ms), apart=self._is_apart)
        return [self._beat_in_flight]

    def _beat_due_ms(self) -> int:
        assert self.record is not None
        return self._last_sent_ms + self.record.heartbeat_interval_ms

    def _extend(self, session_input: Acknowledged, now_ms: int) -> list[Action]:
        sent = session_input.sent
        if sent.incarnation != self.incarnation or isinstance(sent.event, Leave | LagReport):
            return []
        if sent is self._beat_in_flight:
            self._beat_in_flight = None
        until = self.lease_ms
        if self.record is None or until is None:
            self._proof.wait(sent.sent_ms, now_ms)
        else:
            self._proof.acknowledge(sent.sent_ms, now_ms, self._timeout)
        return self._lease() if self.lease_ms != until else []

    def _note_reading(self, session_input: CaughtUp, now_ms: int) -> list[Action]:
        until = self.lease_ms
        self._proof.catch_up(session_input.at_ms)
        return self._lease() if self.lease_ms != until else []

    def _lease(self) -> list[Action]:
        if (until := self.lease_ms) is None or self.record is None:
            return []
        return [Lease(until, stop_ms(self.record.session_timeout_ms))]

    def _lease_is_over(self, now_ms: int) -> bool:
        return (until := self.lease_ms) is not None and now_ms >= until

    def _note_failure(self, session_input: Failed, now_ms: int) -> list[Action]:
        if session_input.sent.incarnation != self.incarnation:
            return []
        if session_input.sent is self._beat_in_flight:
            self._beat_in_flight = None
        # A report that failed replaces the next heartbeat. Sent again at once, an event that
        # always fails would be sent without end.
        self._report_failed |= isinstance(session_input.sent.event, Report)
        return []

    # -------------------------------------------------------------------------------------- losing

    def _lose(self, reason: str, leave_first: bool) -> list[Action]:
        if self.state is State.LEAVING and self._ending is None:
            self._ending = End(None, "left")
        self.state = State.LOST
        self.record = None
        self._leave_first = leave_first
        self._holdings = Holdings()
        self._events.forget_all_lags()
        self._owes_report = self._report_failed = False
        self._report_ms = None
        self._beat_in_flight = None
        return [Lose(reason)]

    def _return(self, session_input: AllStopped, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if self._ending is not None:
            if self._leave_first:
                actions.append(self._leave_of(self.incarnation, self._temporary, now_ms))
            return [*actions, *self._end_with(self._ending)]
        if self._leave_first:
            # Temporary, so that its tasks wait for it: the next event is its join.
            actions.append(self._leave_of(self.incarnation, True, now_ms))
        self._previous = None if self._leave_first else self.incarnation
        seed = session_input.seed
        self._seed = self._seed + 1 if seed is None else seed
        self.incarnation = mixed63(self._seed)
        self._seen = (self._seen[0], -1)
        return [*actions, *self._join(ClockMoved(), now_ms)]

    # ------------------------------------------------------------------------------------- leaving

    def _begin_leaving(self, session_input: LeaveAsked, now_ms: int) -> list[Action]:
        assert self.record is not None
        self.state = State.LEAVING
        self._temporary = session_input.temporary
        releases = self._holdings.release(self.record, everything=True)
        return [*releases, *self._leave_if_empty(now_ms)]

    def _leave_if_empty(self, now_ms: int) -> list[Action]:
        return self._leave(LeaveAsked(self._temporary), now_ms) if self._holdings.empty else []

    def _leave(self, session_input: LeaveAsked, now_ms: int) -> list[Action]:
        leave = self._leave_of(self.incarnation, session_input.temporary, now_ms)
        return [leave, *self._end(session_input, now_ms)]

    def _leave_of(self, incarnation: int, temporary: bool, now_ms: int) -> Send:
        leave = self._events.leave(incarnation, temporary)
        return self._send(leave, now_ms)

    def _leave_when_stopped(self, session_input: LeaveAsked, now_ms: int) -> list[Action]:
        self._temporary = session_input.temporary
        self._ending = self._ending or End(None, "left")
        return []

    def _read_while_leaving(self, session_input: Read, now_ms: int) -> list[Action]:
        record = session_input.record
        if isinstance(record, MemberGone):
            return self._lose(REMOVED, False)
        if record.fault is not None:
            return self._take_fault(record, record.fault) if self._is_news(record) else []
        # Everything stops anyway. But a new coordinator moves no task of the group before every
        # member has answered its question.
        return self._answer(record, now_ms)

    def _end(self, _: Input, now_ms: int) -> list[Action]:
        return self._end_with(End(None, "left"))

    def _end_with(self, end: End) -> list[Action]:
        self.state, self.record = State.ENDED, None
        return [end]

    # ---------------------------------------------------------------------------------------- lags

    def _note_lags(self, session_input: LagsKnown, now_ms: int) -> list[Action]:
        self._events.note_lags(session_input.lags)
        return []

    def _report_lags(self, session_input: LagsKnown, now_ms: int) -> list[Action]:
        self._note_lags(session_input, now_ms)
        # The newest word counts: `ready` in a later report would deny this lag.
        self._holdings.mark_behind(TaskSet.of([t for t, n in session_input.lags if n > 0]))
        reports = self._events.lag_reports(session_input.lags)
        return [Send(report, self.incarnation, now_ms) for report in reports]

    def _send(self, event: MemberEvent, now_ms: int) -> Send:
        self._last_sent_ms = now_ms
        return Send(event, self.incarnation, now_ms)


def mixed63(value: int) -> int:
    """SplitMix64's finaliser: spreads a counter over 63 bits. Never 0, which means any member."""
    x = (value * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) & (MASK >> 1)) or 1


def _join_pause_ms(attempt: int, seed: int) -> int:
    """How long to wait for an answer to a join: 1 s, doubling up to 5 s.

    Plus or minus a quarter, so that members that wait for a coordinator do not all ask at once.
    """
    plain = min(JOIN_PAUSE_MS << min(attempt - 1, 8), JOIN_PAUSE_MAX_MS)
    return plain * (75 + mixed63(seed + attempt) % 51) // 100
