"""The drains that outlive their member, found by member id and by instance id.

A batch may remove thousands of drained members, so each look-up and change costs the same, however
many drains are kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from muster.protocol.records import KeptDrain
from muster.state.group import Member

KEPT_MS = 7 * 24 * 3_600_000
"""How long the drain of a member that has gone is kept, in ms of the group clock."""
KEPT_MAX = 1_000
"""The drains of at most this many members that have gone are kept."""


class KeptDrains:
    """The kept drains of a group; at most one for each member id, and one for each instance id."""

    __slots__ = ("_all", "_by_instance", "_by_member", "_gone")

    def __init__(self, drains: tuple[KeptDrain, ...]) -> None:
        self._all: tuple[KeptDrain, ...] | None = drains
        self._by_member: dict[str, KeptDrain] | None = None
        self._by_instance: dict[str | None, KeptDrain] = {}
        self._gone: list[tuple[int, str]] = []  # (gone_ms, member), ascending

    def all(self) -> tuple[KeptDrain, ...]:
        """All kept drains, by member id."""
        if self._all is None:
            self._all = tuple(sorted(self._members().values(), key=attrgetter("member")))
        return self._all

    def has(self, member: str) -> bool:
        """Whether a drain is kept for this member id."""
        return member in self._members()

    def of(self, member: Member, now_ms: int) -> KeptDrain | None:
        """The drain of a member, by its id or instance id, that is not over at this time."""
        found = [drain for drain in self._each_of(member) if not _is_over(drain.gone_ms, now_ms)]
        return min(found, key=attrgetter("member"), default=None)

    def keep(self, drain: KeptDrain) -> None:
        """Keep a drain; none may be kept for its member id or instance id."""
        self._members()[drain.member] = drain
        if drain.instance_id is not None:
            self._by_instance[drain.instance_id] = drain
        if drain.gone_ms is not None:
            insort(self._gone, (drain.gone_ms, drain.member))
        self._all = None

    def drop_of(self, member: Member) -> None:
        """Drop the drains of a member, by its id and by its instance id."""
        for drain in self._each_of(member):
            self.drop(drain.member)

    def drop(self, member: str) -> None:
        """Drop the drain of a member id, which must be kept."""
        drain = self._members().pop(member)
        if drain.instance_id is not None:
            del self._by_instance[drain.instance_id]
        if drain.gone_ms is not None:
            del self._gone[bisect_left(self._gone, (drain.gone_ms, member))]
        self._all = None

    def drop_old(self, now_ms: int) -> None:
        """Drop the drains that are over at this time, and the oldest ones if there are too many."""
        self._members()
        while self._gone and (len(self._gone) > KEPT_MAX or _is_over(self._gone[0][0], now_ms)):
            self.drop(self._gone[0][1])

    def _each_of(self, member: Member) -> list[KeptDrain]:
        of_member = self._members().get(member.id)
        of_instance = self._by_instance.get(member.instance_id)
        found = [drain for drain in (of_member, of_instance) if drain is not None]
        return found[:1] if of_member is of_instance else found

    def _members(self) -> dict[str, KeptDrain]:
        """Member id → its drain. Most batches read no drain, so it is made when it is needed."""
        if self._by_member is None:
            drains = self._all or ()
            self._by_member = {drain.member: drain for drain in drains}
            of_instances = (drain for drain in drains if drain.instance_id is not None)
            self._by_instance = {drain.instance_id: drain for drain in of_instances}
            self._gone = sorted((d.gone_ms, d.member) for d in drains if d.gone_ms is not None)
        return self._by_member


def _is_over(gone_ms: int | None, now_ms: int) -> bool:
    return gone_ms is not None and now_ms - gone_ms >= KEPT_MS
