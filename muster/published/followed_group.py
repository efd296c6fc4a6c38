"""Follows what is published about one group, for commands that wait for it."""

from __future__ import annotations

from typing import Self

from muster.kafka.client_settings import ClientSettings
from muster.kafka.compacted import WholeRows, is_late
from muster.kafka.reader import Follower, Row
from muster.protocol.keys import key_of
from muster.protocol.records import GroupGone, GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.published.existing_group import existing
from muster.published.snapshots import Published, published_in, skipped


class FollowedGroup:
    """The newest record of a group. Reads each record of ``<prefix>.groups`` once.

    Close it, or use it in a ``with`` block.
    """

    def __init__(self, settings: ClientSettings, prefix: str, group: str) -> None:
        self._asked = (settings, prefix, group)
        topic = topic_name(TopicKind.GROUPS, prefix)
        self._follower = Follower(settings, topic, key=key_of(group))
        self._whole = WholeRows(skipped)
        self._newest: dict[int, tuple[Row, Published]] = {}  # by partition

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.close()

    def newest(self, wait_s: float = 0.0) -> GroupSnapshot | GroupGone | None:
        """The newest record, with what was published since the last call; None = none yet.

        If nothing was, wait up to `wait_s` for a record of any group. Within a partition the last
        record wins, whatever the clock said that stamped it, unless a superseded coordinator wrote
        it. If partitions were added to the topic, the group's records are in two of them, and the
        later timestamp wins. Of very much that was published, the next calls take the rest.

        Raises:
            Unreachable, Refused, NoTopics: the topic cannot be read.
        """
        for row in map(self._whole.feed, self._follower.new(wait_s)):
            if row is None or (published := published_in(row)) is None:
                continue
            before = self._newest.get(row.partition)
            if before is None or not is_late(row, before[0]):
                self._newest[row.partition] = (row, published)
        newest = [published for _, published in self._newest.values()]
        return max(newest, key=lambda each: each.at_ms).record if newest else None

    def snapshot(self, wait_s: float = 0.0) -> GroupSnapshot:
        """`newest`, of a group that exists.

        Raises:
            NotFound: there is no such group, or it was deleted.
            Unreachable, Refused, NoTopics: the topic cannot be read.
        """
        return existing(*self._asked, self.newest(wait_s))
