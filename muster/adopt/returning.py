"""Members that a governor let go to take the leader's seat, until they have joined again. Pure.

A member that was let go works on with what it had, until its next heartbeat tells it. Whatever it
had must not be given to another member before. The governor cannot ask it what it had, so while
one is missing no member is given anything that it does not run already.

Kafka gives a member that joins again a new id: `NAME-UUID`, NAME being its instance id or its
`client.id`. Members that share a NAME are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

RETURN_MS: Final = 15_000
"""How long a member may take to return. Members send heartbeats every 3 s, unless they are slow."""
_UUID: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def name_of(member_id: str) -> str:
    """A member id of Kafka without what makes it unique."""
    return _UUID.sub("", member_id)


class LetGo:
    """The members that were let go since the seat was taken last."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._until_ms = 0

    def add(self, members: Iterable[str], now_ms: int) -> None:
        """One of these members, or all, are let go now; any of them may have been let go before.

        Args:
            members: ids of all members of Kafka's group.
            now_ms: the time.
        """
        self._names |= Counter(map(name_of, members))
        self._until_ms = now_ms + RETURN_MS

    def missing(self, members: Iterable[str], now_ms: int) -> int:
        """How many are not back; 0 also when they have had their time.

        Args:
            members: ids of all members of Kafka's group.
            now_ms: the time.
        """
        if now_ms >= self._until_ms:
            self._names.clear()
        count = (self._names - Counter(map(name_of, members))).total()
        if not count:
            self._names.clear()  # who leaves from now on was not let go by us
        return count
