"""What a session does about each fault that the coordinator answers with, as data.

A fault is a refusal, or says that the coordinator does not know the session any more. The session
asks again, drops everything and joins anew, or ends for good.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from muster.protocol.records import Fault


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
