"""The newest snapshot of one group that must exist; if it does not, the error says why."""

from __future__ import annotations

from muster.errors import NotFound
from muster.kafka.client_settings import ClientSettings
from muster.output import wall_ms
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone, GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.protocol.unknown_names import there_are
from muster.published.snapshots import history, is_deleted, newest_outlines
from muster.published.unapplied_configs import unapplied


def snapshot_of(settings: ClientSettings, prefix: str, group: str) -> GroupSnapshot:
    """The newest snapshot of one group.

    Raises:
        NotFound: as `missing`.
    """
    last = None
    for published in history(settings, prefix, group):
        last = published.record
    return existing(settings, prefix, group, last)


def existing(
    settings: ClientSettings, prefix: str, group: str, record: GroupSnapshot | GroupGone | None
) -> GroupSnapshot:
    """The newest record of a group, if it is that of a group that exists; None = it has none.

    Raises:
        NotFound: as `missing`.
    """
    if isinstance(record, GroupSnapshot) and not is_deleted(record):
        return record
    raise missing(settings, prefix, group, record)


def missing(
    settings: ClientSettings,
    prefix: str,
    group: str,
    record: GroupSnapshot | GroupGone | None = None,
) -> NotFound:
    """The error for a group that does not exist, of which `record` is the newest one.

    Its configuration was refused or is not applied yet; or the group was deleted; or there never
    was one of this name, and the error names similar ones.
    """
    deleted = {record.group: record} if isinstance(record, GroupSnapshot) else {}
    config = unapplied(settings, prefix, [group], deleted, now_ms := wall_ms()).get(GroupId(group))
    if config is not None:
        return NotFound(config.text(now_ms))
    if isinstance(record, GroupSnapshot):
        return NotFound(
            f"no group {group!r}: {record.cause} (its last generation was {record.generation}; the "
            "next one goes on from there)"
        )
    others = newest_outlines(settings, prefix)
    return NotFound(
        f"no group {group!r} on {topic_name(TopicKind.GROUPS, prefix)}; there are: "
        f"{there_are(group, others)}. A group appears once it is configured or "
        "joined and a coordinator runs (muster doctor)"
    )
