"""Sources of moves from members that left the placement, with the reason why they left it.

An assignor sees only members it may place on. To it, the task of a member that left, expired, was
fenced or has drained long enough has no owner. Kept for one batch: a later move has no source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from muster.assignor.model import Reason
from muster.assignor.reason_arrays import told_of
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.tasks import IntArray, TaskTable
from muster.state.ownership import NO_MEMBER, Codes, no_codes, slot_of, task_of, union


class Departed:
    """What the members had that left the placement in this batch."""

    __slots__ = ("_had", "_members")

    def __init__(self) -> None:
        self._members: dict[int, tuple[str, str]] = {}
        self._had = defaultdict[Role, Codes](no_codes)

    def note(self, slot: int, member: str, why: str) -> None:
        """Note a member that left the placement; `why` completes "<member id> …"."""
        self._members[slot] = (member, f"{member} {why}")

    def had(self, role: Role, pairs: Codes) -> None:
        """Note what members had, before or after `note` names them."""
        if len(pairs):
            self._had[role] = union(self._had[role], pairs)

    def tasks_had(self, role: Role) -> IntArray:
        """The tasks that `had` was called with."""
        return task_of(self._had[role])

    def carry(self, renumbered: Callable[[Codes], Codes]) -> None:
        """Renumber the tasks after a change of the table."""
        for role, pairs in self._had.items():
            self._had[role] = renumbered(pairs)

    def moves(
        self, table: TaskTable, members: tuple[str, ...], reasons: Iterable[Reason]
    ) -> tuple[Move, ...]:
        """An assignor's reasons as moves with task and member ids.

        Args:
            table: the group's tasks.
            members: ids of the members that the assignor saw, in its order.
            reasons: the assignor's.
        """
        left: dict[tuple[Role, int], list[int]] = {}
        for role, pairs in self._had.items():
            for task, slot in zip(task_of(pairs).tolist(), slot_of(pairs).tolist(), strict=True):
                if slot in self._members:
                    left.setdefault((role, task), []).append(slot)

        def named(member: int) -> str | None:
            return None if member == NO_MEMBER else members[member]

        reasons = list(reasons)
        tasks = table.printed(np.array([reason.task for reason in reasons], dtype=np.intp))
        moves: list[Move] = []
        for task, reason in zip(tasks, reasons, strict=True):
            source, text = named(reason.source), reason.text
            slots = left.get((reason.role, reason.task)) if source is None else None
            if slots:
                source, gone = self._members[slots.pop(0)]
                text = told_of(gone, text)
            moves.append(
                Move(
                    task=task,
                    role=reason.role,
                    from_member=source,
                    to_member=named(reason.destination),
                    reason=text,
                )
            )
        return tuple(moves)
