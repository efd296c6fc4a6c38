"""KIP-924's checks of a plug-in's assignment (S1-F07), by printed names.

The order is fixed, so the same assignment always gives the same error: unknown tasks first, then
errors about one task, then about members. In addition to Kafka's released checks, a task that is
active and a copy on one member is an error, as on the KIP's page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.assignor.check import (
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES,
    INVALID_STANDBY_TASK,
    MISSING_PROCESS_ID,
    TWO_ROLES,
    UNKNOWN_PROCESS_ID,
    UNKNOWN_TASK_ID,
)
from muster.assignor.errors import InvalidPlacement


@dataclass(frozen=True, slots=True)
class Claim:
    """What an assignment gives one member, in the order the plug-in listed it."""

    active: Sequence[str] = ()
    copies: Sequence[str] = ()


def first_violation(
    assignment: Mapping[str, Claim],
    members: Iterable[str],
    stateful: Callable[[str], bool | None],
) -> InvalidPlacement | None:
    """Check an assignment, by member; None = it is valid.

    `stateful` says whether a task has state; None = the group has no such task.
    """
    return (
        _unknown_task(assignment, stateful)
        or _about_a_task(assignment, stateful)
        or _about_a_member(assignment, set(members))
    )


def _unknown_task(
    assignment: Mapping[str, Claim], stateful: Callable[[str], bool | None]
) -> InvalidPlacement | None:
    for member, claim in assignment.items():
        for task in (*claim.active, *claim.copies):
            if stateful(task) is None:
                return InvalidPlacement(UNKNOWN_TASK_ID, task, member)
    return None


def _about_a_task(
    assignment: Mapping[str, Claim], stateful: Callable[[str], bool | None]
) -> InvalidPlacement | None:
    owner: dict[str, str] = {}
    for member, claim in assignment.items():
        for task in claim.active:
            if task in owner:
                return InvalidPlacement(ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES, task, member)
            owner[task] = member
    copies = [(member, task) for member, claim in assignment.items() for task in claim.copies]
    for member, task in copies:
        if owner.get(task) == member:
            return InvalidPlacement(TWO_ROLES, task, member)
    for member, task in copies:
        if not stateful(task):
            return InvalidPlacement(INVALID_STANDBY_TASK, task, member)
    return None


def _about_a_member(assignment: Mapping[str, Claim], members: set[str]) -> InvalidPlacement | None:
    for error, wrong in (
        (MISSING_PROCESS_ID, members - set(assignment)),
        (UNKNOWN_PROCESS_ID, set(assignment) - members),
    ):
        if wrong:
            return InvalidPlacement(error, member=min(wrong))
    return None
