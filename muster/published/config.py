"""The newest configuration of a group on ``<prefix>.config``."""

from __future__ import annotations

from muster.kafka.reader import read
from muster.kafka.settings import ClientSettings
from muster.protocol.codec import decode
from muster.protocol.events import GroupConfig, GroupDeleted, Origin
from muster.protocol.keys import key_of
from muster.protocol.topics import TopicKind, topic_name


def current(settings: ClientSettings, prefix: str, group: str) -> GroupConfig | None:
    """The newest configuration of a group; None if it has none or was deleted.

    Raises:
        DecodeError: the newest record is not readable by this version.
    """
    topic, key = topic_name(TopicKind.CONFIG, prefix), key_of(group)
    rows = [row for row in read(settings, topic, key=key) if row.key == key]
    if not rows:
        return None
    row = max(rows, key=lambda row: row.at_ms)  # added partitions: one key may lie in two
    origin = Origin(topic, row.partition, row.offset, row.at_ms)
    event = decode(TopicKind.CONFIG, row.key, row.value, origin)
    if isinstance(event, GroupDeleted):
        return None
    assert isinstance(event, GroupConfig)
    return event
