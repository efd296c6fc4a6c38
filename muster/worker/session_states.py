"""The states of a member's session, and what each fault of the coordinator asks of it: data.

Which inputs a state takes, and which states they lead to, is the table of `session.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from muster.protocol.records import Fault
from muster.worker.messages import Notice

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


class Duty(Enum):
    """What a fault asks of a session."""

    IGNORE = "it concerns a session that is over"
    RETRY = "ask again later"
    LOSE = "drop everything and join"
    END = "stop for good"


IN_USE: Final = (Fault.MEMBER_ID_IN_USE, Fault.UNRELEASED_INSTANCE_ID)
"""Refusals that an older session of the same process may cause while it still counts."""

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
