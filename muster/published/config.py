"""The newest configuration of a group on ``<prefix>.config``."""

from __future__ import annotations

from collections.abc import Collection

from muster.kafka.reader import Row, read
from muster.kafka.settings import ClientSettings
from muster.protocol.codec import decode
from muster.protocol.events import GroupConfig, GroupDeleted, Origin
from muster.protocol.keys import key_of
from muster.protocol.topics import TopicKind, topic_name


def currents(
    settings: ClientSettings, prefix: str, groups: Collection[str]
) -> dict[str, GroupConfig]:
    """The newest configuration of each of these groups that has one; reads the topic once.

    Raises:
        DecodeError: a newest record is not readable by this version.
    """
    topic = topic_name(TopicKind.CONFIG, prefix)
    keys = {key_of(group): group for group in groups}
    newest: dict[bytes, Row] = {}
    for row in read(settings, topic):
        if row.key in keys and row.at_ms >= newest.get(row.key, row).at_ms:
            newest[row.key] = row
    configs = ((keys[key], _decoded(row)) for key, row in newest.items())
    return {group: config for group, config in configs if config is not None}


def current(settings: ClientSettings, prefix: str, group: str) -> GroupConfig | None:
    """The newest configuration of a group; None if it has none or was deleted.

    Raises:
        DecodeError: the newest record is not readable by this version.
    """
    topic, key = topic_name(TopicKind.CONFIG, prefix), key_of(group)
    rows = [row for row in read(settings, topic, key=key) if row.key == key]
    if not rows:
        return None
    return _decoded(max(rows, key=lambda row: row.at_ms))  # added partitions: a key may be in two


def _decoded(row: Row) -> GroupConfig | None:
    origin = Origin(row.topic, row.partition, row.offset, row.at_ms)
    event = decode(TopicKind.CONFIG, row.key, row.value, origin)
    if isinstance(event, GroupDeleted):
        return None
    assert isinstance(event, GroupConfig)
    return event
