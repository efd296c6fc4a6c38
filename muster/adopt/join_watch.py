"""Whether a JoinGroup of the governor can still be answered. Pure.

Kafka answers it when all members have joined: after minutes, if one of them is slow. A connection
that ended without a word is as silent as that, and so is a frozen broker. So while the governor
waits, it asks the group's present coordinator over another connection who the members are.
"""

from __future__ import annotations

from typing import Final

import kafka.errors as errors

from muster.adopt.evicted_members import name_of
from muster.adopt.model import Message, Options, error_of

PREPARING: Final = "PreparingRebalance"
_LOOKS: Final = 3
"""Looks at the members within a session. A new coordinator begins the session anew, and a governor
that joins again within it keeps its seat."""


def pause_ms(options: Options) -> int:
    """Time between two looks. The first one comes a session after the JoinGroup.

    Until then a group seldom still waits, and Kafka does not count the governor out before.
    """
    return options.session_timeout_ms // _LOOKS


def is_waiting(seen: Message | Exception) -> bool:
    """Whether the group waits for members to join; Kafka then ends no session of those that did.

    `seen`: the answer to `requests.look`.
    """
    return error_of(seen) is None and seen.groups[0].group_state == PREPARING  # type: ignore[union-attr]


def why_unanswered(
    seen: Message | Exception, options: Options, member_id: str, *, has_moved: bool
) -> str:
    """Why no answer to the JoinGroup will come; empty = it may come, or Kafka did not say.

    Args:
        seen: the answer to `requests.look`.
        options: of the governor.
        member_id: the id that the JoinGroup was sent with; empty = Kafka makes a new one.
        has_moved: whether the JoinGroup waits at another broker than the one that gave the answer.
    """
    error = error_of(seen)
    if error is None:
        error = error_of(seen.groups[0])  # type: ignore[union-attr]
    if error is not None and not isinstance(error, errors.GroupIdNotFoundError):
        return ""
    if has_moved:
        return "Kafka has another coordinator for the group now"
    ids = [each.member_id for each in seen.groups[0].members]  # type: ignore[union-attr]
    is_there = member_id in ids if member_id else options.instance_id in map(name_of, ids)
    return "" if is_there else "Kafka does not count the governor among the members any more"
