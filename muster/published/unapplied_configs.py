"""Which groups do not follow their newest configuration, and why.

A group's snapshot says how far the coordinator has read for it. If the newest record of the group
on ``<prefix>.config`` lies beyond, the coordinator has refused it and written a dead letter, or it
has not answered it yet: it does not run, a child process computes the large configuration, or very
many groups got one at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from muster.kafka.access_check import NoTopics, Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.output import ago
from muster.protocol.ids import GroupId
from muster.protocol.keys import dead_letter_key
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name
from muster.published.config_changes import is_deletion, newest_rows
from muster.published.coordinator_last_seen import ANSWER_MS
from muster.published.dead_letters_of_events import letter_of
from muster.state.printable import cut

REFUSAL_CHARS_MAX = 300
CLOCKS_APART_MS = 3_600_000
"""How far the coordinator's clock, which stamps dead letters, may be behind the broker's."""


class Unapplied(NamedTuple):
    """The newest change of a group's configuration, which the group does not follow.

    Attributes:
        group: the group.
        partition, offset: where the change is on the config topic.
        at_ms: when it was written, epoch milliseconds.
        refusal: the message of its dead letter; empty = there is none.
        is_first: the group is not published yet.
    """

    group: GroupId
    partition: int
    offset: int
    at_ms: int
    refusal: str
    is_first: bool = False

    def text(self, now_ms: int) -> str:
        """What an operator needs to know, in one paragraph."""
        what = "its configuration" if self.is_first else "the newest change of its configuration"
        change = f"{self.group}: {what}, {ago(now_ms, self.at_ms)},"
        if self.refusal:
            state = "There is no group yet" if self.is_first else "The group follows the one before"
            return f"{change} was refused: {self.refusal}. {state}"
        return (
            f"{change} is not applied yet. A configuration of thousands of units takes the "
            "coordinator some seconds, and so do those of a thousand groups; if this goes on, see: "
            "muster doctor"
        )

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "at_ms": self.at_ms,
            "refusal": self.refusal or None,
        }


def unapplied(
    settings: ClientSettings,
    prefix: str,
    groups: Mapping[GroupId, GroupSnapshot] | Mapping[str, None],
    now_ms: int,
) -> dict[str, Unapplied]:
    """Those of these groups that do not follow their newest configuration.

    A configuration that is younger than `ANSWER_MS`, and not refused, counts as applied.
    A quarantined group is left out, because its quarantine says why. So is every group if this
    login may not read the configurations.

    Args:
        settings: of the Kafka clients.
        prefix: topic prefix.
        groups: their newest snapshots; None = the group is not published.
        now_ms: epoch milliseconds.

    Raises:
        Unreachable: no answer.
    """
    asked: dict[str, GroupSnapshot | None] = {
        group: each for group, each in groups.items() if each is None or each.quarantine is None
    }
    if not asked:
        return {}
    try:
        rows = newest_rows(settings, prefix, asked)
    except (Refused, NoTopics):
        return {}
    beyond: dict[str, Row] = {}
    for group, row in rows.items():
        snapshot = asked[group]
        if not is_deletion(row) if snapshot is None else _is_beyond(row, snapshot):
            beyond[group] = row
    refusals = _refusals(settings, prefix, beyond)
    return {
        group: Unapplied(
            *(GroupId(group), row.partition, row.offset, row.at_ms),
            refusals.get(group, ""),
            is_first=asked[group] is None,
        )
        for group, row in beyond.items()
        if group in refusals or now_ms - row.at_ms > ANSWER_MS
    }


def _is_beyond(row: Row, snapshot: GroupSnapshot) -> bool:
    """Whether the coordinator had not taken in the record when it published the snapshot."""
    read_to = {(topic, partition): offset for topic, partition, offset in snapshot.through}
    return row.offset > read_to.get((row.topic, row.partition), -1)


def _refusals(settings: ClientSettings, prefix: str, rows: Mapping[str, Row]) -> Mapping[str, str]:
    """Group → the message of its record's dead letter, if there is one that this login may read."""
    if not rows:
        return {}
    groups = {
        dead_letter_key(row.topic, row.partition, row.offset): group for group, row in rows.items()
    }
    topic = topic_name(TopicKind.REJECTED, prefix)
    refusals: dict[str, str] = {}
    try:
        since_ms = min(row.at_ms for row in rows.values()) - CLOCKS_APART_MS
        for each in read(settings, topic, since_ms=since_ms):
            group = groups.get(each.key or b"")
            letter = None if group is None else letter_of(each)
            if group is not None and letter is not None:
                refusals[group] = cut(letter.message, REFUSAL_CHARS_MAX)
    except (Refused, NoTopics):
        return {}
    return refusals
