"""The states of a member's session, as data.

Which inputs a state takes, and which states they lead to, is the table of `session.py`. What a
fault of the coordinator asks of a session is in `fault_responses`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from muster.worker.session_messages import Notice

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
