"""The member's half of the protocol with the coordinator, as a pure state machine.

It decides when to join, report and send heartbeats, which tasks to take and release, and when the
lease on them ends. It has no Kafka, threads, callbacks or clock: `step` gets an input and the time,
and returns actions (`session_messages.py`). `TABLE` below has every input of every state and where
it leads; the methods it names are in `session_steps.py`.

Theory of operation. Every record from the coordinator is the member's whole assignment. The member
takes what the record adds when it reads the record, and releases what it holds beyond it. A
`Report` follows soon after the first task has stopped, and at once after the last, so no task waits
for the slowest. Heartbeats carry a digest of the holding; if it is not the expected one, the
coordinator publishes the record again.

Exclusive ownership. The coordinator gives a member's tasks away when no event of the member has
arrived for the session timeout, or when the member was fenced, because it did not release tasks
within the rebalance timeout. The lease (`lease.py`) ends before either, also when the group changes
the timeout. Every step checks the lease
first, so a process that was suspended loses its tasks before it does anything else.

A session that lost its tasks sends nothing more. The member joins again under a new incarnation
number and ignores records addressed to the old one, so a late record cannot grant it a task. If the
coordinator may still count the old incarnation, a `Leave` for it goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from muster.worker.session_messages import (
    Acknowledged,
    Action,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Failed,
    Input,
    LagsKnown,
    LeaveAsked,
    Read,
    Ready,
    Released,
)
from muster.worker.session_steps import State, Steps

_Input = TypeVar("_Input", bound=Input)


@dataclass(frozen=True, slots=True)
class Rule:
    """What one state does with one kind of input.

    Attributes:
        handler: the method that takes the input and the time, and returns actions.
        leads_to: states the session may be in afterwards, besides the one it was in.
    """

    handler: Callable[[Steps, Any, int], list[Action]]
    leads_to: frozenset[State]


Rules: TypeAlias = dict[type, Rule]


def on(
    kind: type[_Input], handler: Callable[[Steps, _Input, int], list[Action]], *leads_to: State
) -> Rules:
    """One row of `TABLE`. mypy checks that the handler takes this kind of input."""
    return {kind: Rule(handler, frozenset(leads_to))}


TABLE: Final[dict[State, Rules]] = {
    State.NEW: {
        **on(Begin, Steps._join, State.JOINING),
        **on(LagsKnown, Steps._note_lags),
        **on(LeaveAsked, Steps._end, State.ENDED),
    },
    State.JOINING: {
        # LOST: the lease that the answer would begin is over already.
        **on(Read, Steps._read_answer, State.MEMBER, State.LOST, State.ENDED),
        **on(Acknowledged, Steps._extend),
        **on(CaughtUp, Steps._note_reading),
        **on(LagsKnown, Steps._note_lags),
        **on(LeaveAsked, Steps._leave, State.ENDED),
        **on(ClockMoved, Steps._ask_again),
    },
    State.MEMBER: {
        **on(Read, Steps._read_record, State.LOST),
        **on(Acknowledged, Steps._extend),
        **on(CaughtUp, Steps._note_reading),
        **on(Failed, Steps._note_failure),
        **on(Released, Steps._drop),
        **on(Ready, Steps._mark_ready),
        **on(LagsKnown, Steps._report_lags),
        **on(LeaveAsked, Steps._begin_leaving, State.LEAVING, State.ENDED),
        **on(ClockMoved, Steps._beat),
    },
    State.LOST: {
        **on(AllStopped, Steps._return, State.JOINING, State.ENDED),
        **on(LagsKnown, Steps._note_lags),
        **on(LeaveAsked, Steps._leave_when_stopped),
    },
    State.LEAVING: {
        **on(Read, Steps._read_while_leaving, State.LOST),
        **on(Acknowledged, Steps._extend),
        **on(CaughtUp, Steps._note_reading),
        **on(Failed, Steps._note_failure),
        **on(Released, Steps._drop, State.ENDED),
        **on(ClockMoved, Steps._beat),
    },
    State.ENDED: {},
}
"""State -> kind of input -> what the session does. An input that is not listed changes nothing.

One move is not an answer to an input: when the lease has ended, any input but `Acknowledged` first
moves MEMBER or LEAVING to LOST.
"""


class Session(Steps):
    """One member's session with the coordinator: give it inputs, perform the actions it returns.

    Attributes:
        state: its state.
        record: the assignment in force; None before the first and after a loss.
        incarnation: the number this session has in events and records.
    """

    def step(self, session_input: Input, now_ms: int) -> tuple[Action, ...]:
        """Take one input; return what to do, in order."""
        actions: list[Action] = []
        # What Kafka acknowledged before the process was frozen still counts: it is taken in first.
        if not isinstance(session_input, Acknowledged) and self._lease_is_over(now_ms):
            actions += self._lose(self._proof.complaint, True)
        before = self.state
        rule = TABLE[before].get(type(session_input))
        if rule is not None:
            actions += rule.handler(self, session_input, now_ms)
            assert self.state is before or self.state in rule.leads_to, (
                before,
                session_input,
                self.state,
            )
        return tuple(actions)

    @property
    def deadline_ms(self) -> int | None:
        """When the session needs a `ClockMoved` at the latest; None = never."""
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
