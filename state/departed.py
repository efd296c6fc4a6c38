"""Who a move comes from when its member is in the group no more, and what became of that member.

An assignor sees only the members it may place on; a task of one that left, expired, was fenced or
drained for long enough looks to it like one without an owner. People ask where it was. Kept for one
batch: a move that comes later (a delay, an interval) has no source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muster.assignor.model import Reason
from muster.assignor.reasons import told_of
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.tasks import TaskTable
from muster.state.group import NO_MEMBER, Codes, no_codes, slot_of, task_of, union


class Departed:
    """What members had that take no part any more."""

    __slots__ = ("_had", "_members")

    def __init__(self) -> None:
        self._members: dict[int, tuple[str, str]] = {}
        self._had: dict[Role, Codes] = dict.fromkeys(Role, no_codes())

    def note(self, slot: int, member: str, why: str) -> None:
        """A member takes no part any more; `why` is a word of `causes`."""
        self._members[slot] = (member, f"{member} {why}")

    def had(self, role: Role, pairs: Codes) -> None:
        """Members that were or will be noted had these."""
        if len(pairs):
            self._had[role] = union(self._had[role], pairs)

    def carry(self, renumbered: Callable[[Codes], Codes]) -> None:
        """The group's tasks have other numbers from now on."""
        self._had = {role: renumbered(pairs) for role, pairs in self._had.items()}

    def moves(
        self, table: TaskTable, members: tuple[str, ...], reasons: Iterable[Reason]
    ) -> tuple[Move, ...]:
        """An assignor's reasons with names.

        Args:
            table: the group's tasks.
            members: ids of those the assignor saw.
            reasons: its own.
        """
        left: dict[tuple[Role, int], list[int]] = {}
        for role, pairs in self._had.items():
            for task, slot in zip(task_of(pairs).tolist(), slot_of(pairs).tolist(), strict=True):
                if slot in self._members:
                    left.setdefault((role, task), []).append(slot)

        def named(member: int) -> str | None:
            return None if member == NO_MEMBER else members[member]

        found: list[Move] = []
        for reason in reasons:
            source, text = named(reason.source), reason.text
            slots = left.get((reason.role, reason.task)) if source is None else None
            if slots:
                source, gone = self._members[slots.pop(0)]
                text = told_of(gone, text)
            found.append(
                Move(
                    task=str(table.task(reason.task)),
                    role=reason.role,
                    from_member=source,
                    to_member=named(reason.destination),
                    reason=text,
                )
            )
        return tuple(found)
