"""Which groups do not follow their newest configuration, and why.

A group's snapshot says how far the coordinator has read for it. If the newest record of the group
on ``<prefix>.config`` lies beyond, the coordinator has refused it and written a dead letter, or it
has not answered it yet: it does not run, a child process computes the large configuration, or very
many groups got one at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from muster.kafka.access_check import NoTopics, Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.kafka.writer import Place
from muster.output import ago
from muster.protocol.ids import GroupId
from muster.protocol.keys import dead_letter_key
from muster.protocol.records import GroupSnapshot, Rejected
from muster.protocol.topics import TopicKind, topic_name
from muster.published.config_changes import newest_rows
from muster.published.coordinator_last_seen import ANSWER_MS
from muster.published.dead_letters_of_events import letter_of
from muster.published.snapshots import is_deleted
from muster.state.printable import cut

REFUSAL_CHARS_MAX = 300
CLOCKS_APART_MS = 3_600_000
"""How far the coordinator's clock, which stamps dead letters, may be behind the broker's."""


class Change(NamedTuple):
    """A record on the config topic.

    Attributes:
        place: where it is.
        at_ms: when it was written, epoch milliseconds.
        is_deletion: whether it deletes the group.
    """

    place: Place
    at_ms: int
    is_deletion: bool


class Unapplied(NamedTuple):
    """The newest change of a group's configuration, which the group does not follow.

    Attributes:
        group: the group.
        partition, offset: where the change is on the config topic.
        at_ms: when it was written, epoch milliseconds.
        refusal: the message of its dead letter; empty = there is none.
        is_first: the group is not published yet, or it was deleted.
    """

    group: GroupId
    partition: int
    offset: int
    at_ms: int
    refusal: str
    is_first: bool = False

    def what(self, now_ms: int) -> str:
        """What happened to which change, without the group's name."""
        what = "its configuration" if self.is_first else "the newest change of its configuration"
        state = f"was refused: {self.refusal}" if self.refusal else "is not applied yet"
        return f"{what}, {ago(now_ms, self.at_ms)}, {state}"

    def text(self, now_ms: int) -> str:
        """What an operator needs to know, in one paragraph."""
        what = f"{self.group}: {self.what(now_ms)}. "
        if self.refusal:
            return what + (
                "There is no group yet" if self.is_first else "The group follows the one before"
            )
        return (
            f"{what}A configuration of thousands of units takes the coordinator some seconds, and "
            "so do those of a thousand groups; if this goes on, see: muster doctor"
        )

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "at_ms": self.at_ms,
            "refusal": self.refusal or None,
        }


def change_in(row: Row) -> Change:
    """What a record of the config topic changes; a tombstone deletes its group."""
    return Change(Place(row.topic, row.partition, row.offset), row.at_ms, row.value is None)


def refusal_in(letter: Rejected) -> tuple[Place, str]:
    """The place of the event that a dead letter is about, and its message."""
    origin = letter.origin
    refusal = cut(letter.message, REFUSAL_CHARS_MAX)
    return Place(origin.topic, origin.partition, origin.offset), refusal


def not_followed(
    changes: Mapping[GroupId, Change],
    snapshots: Mapping[GroupId, GroupSnapshot],
    refusals: Mapping[Place, str],
    now_ms: int,
) -> dict[GroupId, Unapplied]:
    """Those of these changes that their groups do not follow.

    A change that is younger than `ANSWER_MS`, and not refused, counts as applied. A quarantined
    group is left out, because its quarantine says why.

    Args:
        changes: the newest change of each group.
        snapshots: the newest snapshot of each group that is published.
        refusals: messages of dead letters, by the place of the event.
        now_ms: epoch milliseconds.
    """
    return {
        group: Unapplied(
            *(group, change.place.partition, change.place.offset, change.at_ms),
            refusals.get(change.place, ""),
            is_first=_is_missing(snapshots.get(group)),
        )
        for group, change in changes.items()
        if _is_beyond(change, snapshots.get(group))
        and (change.place in refusals or now_ms - change.at_ms > ANSWER_MS)
    }


def _is_missing(snapshot: GroupSnapshot | None) -> bool:
    return snapshot is None or is_deleted(snapshot)


def _is_beyond(change: Change, snapshot: GroupSnapshot | None) -> bool:
    """Whether the coordinator had not taken in the change when it published the snapshot."""
    if change.is_deletion and _is_missing(snapshot):
        return False
    if snapshot is None:
        return True
    if snapshot.quarantine is not None:
        return False
    read_to = {(topic, partition): offset for topic, partition, offset in snapshot.through}
    return change.place.offset > read_to.get(change.place[:2], -1)


def unapplied(
    settings: ClientSettings,
    prefix: str,
    groups: Collection[str] | None,
    snapshots: Mapping[GroupId, GroupSnapshot],
    now_ms: int,
) -> dict[GroupId, Unapplied]:
    """Those of these groups that do not follow their newest configuration, as `not_followed`.

    If this login may not read the configurations, there are none.

    Args:
        settings: of the Kafka clients.
        prefix: topic prefix.
        groups: which groups; None = all.
        snapshots: the newest snapshot of each group that is published.
        now_ms: epoch milliseconds.

    Raises:
        Unreachable: no answer.
    """
    aside = {group for group, each in snapshots.items() if each.quarantine is not None}
    groups = None if groups is None else set(groups) - aside
    if groups is not None and not groups:
        return {}
    try:
        rows = newest_rows(settings, prefix, groups)
    except (Refused, NoTopics):
        return {}
    changes = {group: change_in(row) for group, row in rows.items()}
    beyond = {g: change for g, change in changes.items() if _is_beyond(change, snapshots.get(g))}
    return not_followed(beyond, snapshots, _refusals(settings, prefix, beyond.values()), now_ms)


def _refusals(
    settings: ClientSettings, prefix: str, changes: Collection[Change]
) -> Mapping[Place, str]:
    """The refusals of these changes, of which there is a dead letter that this login may read."""
    if not changes:
        return {}
    keys = {dead_letter_key(*change.place) for change in changes}
    topic = topic_name(TopicKind.REJECTED, prefix)
    since_ms = min(change.at_ms for change in changes) - CLOCKS_APART_MS
    try:
        letters = [
            letter_of(row) for row in read(settings, topic, since_ms=since_ms) if row.key in keys
        ]
    except (Refused, NoTopics):
        return {}
    return dict(refusal_in(letter) for letter in letters if letter is not None)
