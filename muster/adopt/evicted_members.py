"""Counts the members that a governor evicted to take the leader's seat and that are not back. Pure.

An evicted member goes on with its tasks until the answer to its next heartbeat. Until then no other
member may get these tasks. The governor cannot ask which they are, so while an evicted member is
missing, the governor gives no member a task that it does not run already.

Kafka gives a member that joins again a new id: `NAME-UUID`, NAME being its instance id or its
`client.id`. Members that share a NAME are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

RETURN_MS: Final = 15_000
"""How long an evicted member may take to join again; by default it sends a heartbeat every 3 s."""
_UUID: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def name_of(member_id: str) -> str:
    """A member id of Kafka without its UUID."""
    return _UUID.sub("", member_id)


class EvictedMembers:
    """The members that were evicted since the governor last took the seat."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._until_ms = 0

    def add(self, members: Iterable[str], now_ms: int) -> None:
        """Add members that are evicted now, by their ids; each may have been evicted before."""
        self._names |= Counter(map(name_of, members))
        self._until_ms = now_ms + RETURN_MS

    def missing(self, members: Iterable[str], now_ms: int) -> int:
        """How many evicted members are not among these members' ids; 0 after `RETURN_MS`."""
        if now_ms >= self._until_ms:
            self._names.clear()
        count = (self._names - Counter(map(name_of, members))).total()
        if not count:
            self._names.clear()  # a member that leaves from now on was not evicted
        return count
