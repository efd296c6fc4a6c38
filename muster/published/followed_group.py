"""Follows the published record of one group, for commands that wait for what happens to it."""

from __future__ import annotations

from typing import Self

from muster.kafka.client_settings import ClientSettings
from muster.kafka.compacted import WholeRows
from muster.kafka.reader import Follower
from muster.protocol.keys import key_of
from muster.protocol.records import GroupGone, GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.published.snapshots import Published, existing, published_in, skipped


class FollowedGroup:
    """The newest record of a group. Reads each record of ``<prefix>.groups`` once.

    Close it, or use it in a ``with`` block.
    """

    def __init__(self, settings: ClientSettings, prefix: str, group: str) -> None:
        self._asked = (settings, prefix, group)
        topic = topic_name(TopicKind.GROUPS, prefix)
        self._follower = Follower(settings, topic, key=key_of(group))
        self._whole = WholeRows(skipped)
        self._newest: dict[int, Published] = {}  # by partition

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.close()

    def newest(self, wait_s: float = 0.0) -> GroupSnapshot | GroupGone | None:
        """The newest record, with all that was published since the last call; None = none yet.

        If nothing was, wait up to `wait_s` for a record of any group. Within a partition the last
        record wins, whatever the clock said that stamped it. If partitions were added to the topic,
        the group's records are in two of them, and the later timestamp wins.

        Raises:
            Unreachable, Refused, NoTopics: the topic cannot be read.
        """
        for row in map(self._whole.feed, self._follower.new(wait_s)):
            if row is not None and (published := published_in(row)) is not None:
                self._newest[row.partition] = published
        newest = max(self._newest.values(), key=lambda each: each.at_ms, default=None)
        return None if newest is None else newest.record

    def snapshot(self, wait_s: float = 0.0) -> GroupSnapshot:
        """`newest`, of a group that exists.

        Raises:
            NotFound: there is no such group, or it was deleted.
            Unreachable, Refused, NoTopics: the topic cannot be read.
        """
        return existing(*self._asked, self.newest(wait_s))
