"""Sources of moves from members that left the placement, with the reason why they left it.

An assignor sees only members it may place on. To it, the task of a member that left, expired, was
fenced or has drained long enough has no owner. The group keeps this for one batch: a later move of
such a task names no source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from muster.assignor.model import Reason
from muster.assignor.reason_arrays import reason_of_departed
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.ownership import NO_MEMBER, Codes, no_codes, slot_of, task_of, union


class Departed:
    """What the members had that left the placement in this batch."""

    __slots__ = ("_members", "_tasks")

    def __init__(self) -> None:
        self._members: dict[int, tuple[str, str]] = {}
        self._tasks = defaultdict[Role, Codes](no_codes)

    def note(self, slot: int, member: str, departure: str) -> None:
        """Note a member that left the placement; `departure` completes "<member id> …"."""
        self._members[slot] = (member, f"{member} {departure}")

    def note_tasks(self, role: Role, pairs: Codes) -> None:
        """Note what members had, before or after `note` names them."""
        if len(pairs):
            self._tasks[role] = union(self._tasks[role], pairs)

    def tasks(self, role: Role) -> IntArray:
        """The tasks that `note_tasks` was called with."""
        return task_of(self._tasks[role])

    def carry(self, renumbered: Callable[[Codes], Codes]) -> None:
        """Renumber the tasks after a change of the table."""
        for role, pairs in self._tasks.items():
            self._tasks[role] = renumbered(pairs)

    def moves(
        self, table: TaskTable, members: tuple[str, ...], reasons: Iterable[Reason]
    ) -> tuple[Move, ...]:
        """An assignor's reasons as moves; `members`: the ids that it saw, in its order."""
        departed_slots: dict[tuple[Role, int], list[int]] = {}
        for role, pairs in self._tasks.items():
            for task, slot in zip(task_of(pairs).tolist(), slot_of(pairs).tolist(), strict=True):
                if slot in self._members:
                    departed_slots.setdefault((role, task), []).append(slot)

        def member_id(member: int) -> str | None:
            return None if member == NO_MEMBER else members[member]

        reasons = list(reasons)
        tasks = table.printed(np.array([reason.task for reason in reasons], dtype=np.intp))
        moves: list[Move] = []
        for task, reason in zip(tasks, reasons, strict=True):
            from_member, text = member_id(reason.source), reason.text
            slots = departed_slots.get((reason.role, reason.task)) if from_member is None else None
            if slots:
                from_member, departure = self._members[slots.pop(0)]
                text = reason_of_departed(departure, text)
            moves.append(
                Move(
                    task=task,
                    role=reason.role,
                    from_member=from_member,
                    to_member=member_id(reason.destination),
                    reason=text,
                )
            )
        return tuple(moves)
