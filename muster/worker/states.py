"""The states of a member's session, and what each does with each input: tables, no code.

`Session` in `session.py` is the code behind the names.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from muster.protocol.records import Fault
from muster.worker.exchange import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Failed,
    LeaveAsked,
    Notice,
    Read,
    Ready,
    Released,
    Restored,
)

UNANSWERED: Final = {
    4: [Notice("no coordinator has answered yet; asking on (muster doctor says whether one runs)")]
}
"""What is said after so many joins, some seconds, without an answer."""


class State(Enum):
    """Where the session stands."""

    NEW = "new"
    """Waits for the reader to stand at the end of its partition. Leaves when told to begin."""
    JOINING = "joining"
    """Waits for the first record of its incarnation, asking again and again. Leaves with it."""
    MEMBER = "member"
    """Holds what it is assigned. Leaves when the lease ends, a fault comes, or it is to leave."""
    LOST = "lost"
    """Waits until everything has stopped. Then joins anew, or ends."""
    LEAVING = "leaving"
    """Waits until every task is released. Then says so and ends."""
    ENDED = "ended"
    """Waits for nothing."""


TABLE: Final[dict[State, dict[type, str]]] = {
    State.NEW: {
        Begin: "_join",
        Restored: "_note_lags",
        LeaveAsked: "_end",
    },
    State.JOINING: {
        Read: "_read_answer",
        Acknowledged: "_extend",
        CaughtUp: "_note_reading",
        Restored: "_note_lags",
        LeaveAsked: "_leave",
        ClockMoved: "_ask_again",
    },
    State.MEMBER: {
        Read: "_read_record",
        Acknowledged: "_extend",
        CaughtUp: "_note_reading",
        Failed: "_send_again",
        Released: "_drop",
        Ready: "_mark_ready",
        Restored: "_tell_lags",
        LeaveAsked: "_begin_leaving",
        ClockMoved: "_beat",
    },
    State.LOST: {
        AllStopped: "_return",
        Restored: "_note_lags",
        LeaveAsked: "_leave_when_stopped",
    },
    State.LEAVING: {
        Read: "_read_while_leaving",
        Acknowledged: "_extend",
        CaughtUp: "_note_reading",
        Failed: "_send_again",
        Released: "_drop",
        ClockMoved: "_beat",
    },
    State.ENDED: {},
}
"""The method of `Session` for each state and input; what is not listed changes nothing."""


class Duty(Enum):
    """What a fault asks of a session."""

    IGNORE = "it speaks of something that is over"
    RETRY = "ask again later"
    LOSE = "drop everything and join"
    END = "stop for good"


IN_USE: Final = (Fault.MEMBER_ID_IN_USE, Fault.UNRELEASED_INSTANCE_ID)
"""What is said of a process while an older session of its own may still count."""

FAULTS: Final[dict[Fault, tuple[Duty, Duty]]] = {
    # fault: (while joining, while a member)
    Fault.UNKNOWN_MEMBER_ID: (Duty.IGNORE, Duty.LOSE),
    Fault.FENCED_MEMBER_EPOCH: (Duty.IGNORE, Duty.LOSE),
    Fault.FENCED_INSTANCE_ID: (Duty.END, Duty.END),
    Fault.UNRELEASED_INSTANCE_ID: (Duty.RETRY, Duty.IGNORE),
    Fault.MEMBER_ID_IN_USE: (Duty.RETRY, Duty.IGNORE),
    Fault.GROUP_MAX_SIZE_REACHED: (Duty.RETRY, Duty.IGNORE),
    Fault.GROUP_ID_NOT_FOUND: (Duty.RETRY, Duty.LOSE),
    Fault.INVALID_REQUEST: (Duty.END, Duty.LOSE),
}
