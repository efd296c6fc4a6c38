"""The members of a group: by slot, by id, by instance id, in the order of their ids, as columns.

A group shares its roster with the draft of the next batch. The draft changes a `copy`, which copies
the lists and maps at its first change: a batch in which no member changes copies nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace

from muster.protocol.records import MemberEntry
from muster.state.member_columns import Columns


@dataclass(slots=True, eq=False)
class Roster:
    """The members. Iterating gives them in the order of their ids; `len` is their number.

    Attributes (only the methods below change them):
        by_slot: the member in each slot; None = the slot is free.
        by_id: slot of each member id.
        by_instance: slot of each instance id.
        slots: the members' slots, in the order of their ids.
    """

    by_slot: list[MemberEntry | None] = field(default_factory=list)
    by_id: dict[str, int] = field(default_factory=dict)
    by_instance: dict[str, int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    _columns: Columns | None = None
    _stale: set[int] = field(default_factory=set)
    _is_shared: bool = False
    _free: list[int] | None = None
    """The free slots, descending, computed when the first one is needed."""

    @classmethod
    def of(cls, members: Iterable[MemberEntry]) -> Roster:
        """The roster of these members, each in its slot."""
        ordered = sorted(members, key=lambda member: member.id)
        by_slot: list[MemberEntry | None]
        by_slot = [None] * max((member.slot + 1 for member in ordered), default=0)
        for member in ordered:
            by_slot[member.slot] = member
        return cls(
            by_slot,
            {m.id: m.slot for m in ordered},
            {m.instance_id: m.slot for m in ordered if m.instance_id is not None},
            [member.slot for member in ordered],
        )

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[MemberEntry]:
        return map(self.member, self.slots)

    def member(self, slot: int) -> MemberEntry:
        """The member in a slot, which must be taken."""
        member = self.by_slot[slot]
        assert member is not None, f"slot {slot} is free"
        return member

    @property
    def columns(self) -> Columns:
        """The members' present fields as arrays. They are computed when they are first read."""
        columns = self._columns
        if columns is None or len(columns.id) > len(self.by_slot):
            columns = Columns.of(self.by_slot)
        elif self._stale or len(columns.id) < len(self.by_slot):
            columns = columns.renewed(self.by_slot, sorted(self._stale))
        self._columns = columns
        self._stale.clear()
        return columns

    def copy(self) -> Roster:
        """A roster that can be changed without a change to this one."""
        return replace(self, _stale=set(self._stale), _is_shared=True, _free=None)

    @property
    def is_changed(self) -> bool:
        """Whether this copy has been changed."""
        return not self._is_shared

    # ------------------------------------------------------------------------------- changes

    def put(self, member: MemberEntry) -> None:
        """Replace the entry of the member in this slot, who keeps its ids."""
        self._own()
        self.by_slot[member.slot] = member
        self._stale.add(member.slot)

    def add(self, member: MemberEntry) -> None:
        """Add a member in its slot, which must be free."""
        self.put(member)
        self.by_id[member.id] = member.slot
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.slot
        self.slots.insert(self._place(member.id), member.slot)

    def remove(self, slot: int) -> MemberEntry:
        """Remove a member and return its entry."""
        self._own()
        member = self.member(slot)
        self.slots.pop(self._place(member.id))
        del self.by_id[member.id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        self.by_slot[slot] = None
        self._stale.add(slot)
        return member

    def rename(self, member: MemberEntry) -> None:
        """Give the member's slot to another process, with the same or another member id."""
        self._own()
        old_entry = self.member(member.slot)
        if old_entry.id != member.id:
            self.slots.pop(self._place(old_entry.id))
            del self.by_id[old_entry.id]
            self.by_id[member.id] = member.slot
            self.slots.insert(self._place(member.id), member.slot)
        self.put(member)

    def free_slot(self, freed: Set[int]) -> int:
        """The lowest free slot that is not among `freed`; a new one if there is none.

        Slots that are freed after the first call are not given: the next `copy` gives them.
        """
        if self._free is None:
            slots = range(len(self.by_slot) - 1, -1, -1)
            self._free = [s for s in slots if self.by_slot[s] is None and s not in freed]
        if self._free:
            return self._free.pop()
        self._own()
        self.by_slot.append(None)
        return len(self.by_slot) - 1

    def _place(self, member: str) -> int:
        return bisect_left(self.slots, member, key=lambda slot: self.member(slot).id)

    def _own(self) -> None:
        if self._is_shared:
            self.by_slot, self.slots = list(self.by_slot), list(self.slots)
            self.by_id, self.by_instance = dict(self.by_id), dict(self.by_instance)
            self._is_shared = False
