"""The newest configuration of a group on ``<prefix>.config``, and changes at the same moment.

Kafka cannot write a record only if another one is the newest. So a command reads the configuration,
writes the changed one, and reads again: if another change came in between, one replaced the other.

Any client with WRITE on the topic can put a record there that the coordinator refuses for its
signature. A command that signs must not begin its change with such a record, or the forger's
settings would count. It begins with what the group follows, as its published snapshot says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.kafka.writer import Place
from muster.protocol.codec import decode
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.declared_and_found_tasks import declared
from muster.protocol.errors import DecodeError
from muster.protocol.events import GroupConfig, GroupDeleted, Origin
from muster.protocol.ids import GroupId
from muster.protocol.keyring import Caller, Keyring
from muster.protocol.keys import key_of, parse_key
from muster.protocol.records import GroupSnapshot
from muster.protocol.rows import settings_row
from muster.protocol.signature_check import Verdict, Verifier
from muster.protocol.topics import TopicKind, topic_name
from muster.published.snapshots import history, newest
from muster.signing.followed_key_file import KeyFile
from muster.state.printable import cut

AUTHOR_CHARS_MAX = 120
ADVICE = "see muster config show, and set again what should hold"


class Known(NamedTuple):
    """What a change of a group's configuration begins with.

    Attributes:
        config: the group's configuration, if any.
        ends: the offset of the group's newest record in each partition.
        note: why the newest record is not the configuration; empty = it is.
    """

    config: GroupConfig | None
    ends: Mapping[int, int]
    note: str = ""


def current(settings: ClientSettings, prefix: str, group: str) -> GroupConfig | None:
    """The newest configuration of a group; None if it has none or was deleted.

    Raises:
        DecodeError: the newest record is not readable by this version.
    """
    return known(settings, prefix, group).config


def known(settings: ClientSettings, prefix: str, group: str, keys: KeyFile | None = None) -> Known:
    """`current`, and what `replaced` needs.

    `keys` are those that the change is signed with; without keys the newest record counts.

    Raises:
        DecodeError: the newest record is not readable by this version.
    """
    return known_of_all(settings, prefix, [group], keys)[group]


def known_of_all(
    settings: ClientSettings,
    prefix: str,
    groups: Collection[str],
    keys: KeyFile | None = None,
) -> dict[str, Known]:
    """`known` of each of these groups; reads the topic once.

    Raises:
        DecodeError: a newest record is not readable by this version.
    """
    return {
        group: _known(settings, prefix, group, rows, keys)
        for group, rows in _rows(settings, prefix, groups).items()
    }


def _known(
    settings: ClientSettings, prefix: str, group: str, rows: Sequence[Row], keys: KeyFile | None
) -> Known:
    ends = {row.partition: row.offset for row in rows}
    row = _newest_row(rows)
    verdict = None if row is None or keys is None else _verdict(row, group, keys.current())
    if row is None or verdict is None:
        return Known(None if row is None else _decoded(row), ends)
    snapshot = newest(history(settings, prefix, group)).get(GroupId(group))
    if snapshot is None and verdict.reason is DeadLetter.UNKNOWN_KEY:
        return Known(_decoded(row), ends)  # another operator's key, of a group that begins now
    note = (
        f"{group}: the newest record on {row.topic} (partition {row.partition}, offset "
        f"{row.offset}) is not used: {verdict.message}. The change begins with "
        + ("nothing" if snapshot is None else "what the group follows")
    )
    return Known(None if snapshot is None else _followed(snapshot), ends, note)


def _verdict(row: Row, group: str, keyring: Keyring) -> Verdict | None:
    verifier = Verifier(keyring, group, row.topic, row.key or b"")
    return verifier.verdict(Caller.OPERATOR, row.value, row.signature, row.at_ms)


def _followed(snapshot: GroupSnapshot) -> GroupConfig:
    """The configuration that a group follows; found topics are no tasks of its own."""
    return GroupConfig(
        group=snapshot.group,
        assignor=snapshot.assignor,
        settings=snapshot.settings,
        tasks=declared(snapshot.tasks, snapshot.found),
        sources=snapshot.sources,
    )


def replaced(
    settings: ClientSettings,
    prefix: str,
    before: Known,
    written: GroupConfig | GroupDeleted,
    place: Place,
) -> str:
    """What was lost because another change of the group came at the same moment; empty = nothing.

    `before` was read before the change; `written` is at `place`.

    Raises:
        DecodeError: another change is not readable by this version.
    """
    return replaced_of_all(settings, prefix, {written.group: before}, [(written, place)])


def replaced_of_all(
    settings: ClientSettings,
    prefix: str,
    before: Mapping[str, Known],
    written: Sequence[tuple[GroupConfig | GroupDeleted, Place]],
    apart_from: Collection[str] = (),
) -> str:
    """`replaced` of changes of several groups; reads the topic once.

    `apart_from` names what no one has lost: settings, ``assignor``, ``tasks`` or ``topics``.

    Raises:
        DecodeError: another change is not readable by this version.
    """
    rows = _rows(settings, prefix, [event.group for event, _ in written])
    said = [
        _replaced(rows[event.group], before[event.group], event, place, apart_from)
        for event, place in written
    ]
    conflicts = "; ".join(filter(None, said))
    return f"{conflicts}; {ADVICE}" if conflicts else ""


def _replaced(
    rows: Iterable[Row],
    before: Known,
    written: GroupConfig | GroupDeleted,
    place: Place,
    apart_from: Collection[str],
) -> str:
    said = []
    ours = written if isinstance(written, GroupConfig) else None
    for row in rows:
        here = (row.partition, row.offset)
        if row.offset <= before.ends.get(row.partition, -1) or here == place[1:]:
            continue
        theirs = _decoded(row)
        who = f" by {cut(row.by.decode(errors='replace'), AUTHOR_CHARS_MAX)}" if row.by else ""
        if row.partition == place.partition and row.offset > place.offset:
            lost, what = _lost(before.config, ours, theirs, apart_from), "replaced this one"
        else:
            lost, what = _lost(before.config, theirs, ours, apart_from), "was replaced by this one"
        if lost:
            said.append(f"another change{who} came at the same moment and {what}: {lost}")
    return f"{written.group}: {'; '.join(said)}" if said else ""


def _lost(
    base: GroupConfig | None,
    made: GroupConfig | None,
    final: GroupConfig | None,
    apart_from: Collection[str],
) -> str:
    """What `made` changed in `base` and `final` does not have."""
    if made is None:
        return "" if base is None or final is None else "the group's deletion"
    if final is None:
        return "its whole configuration; the group is deleted"
    was, wanted, there = _texts(base), _texts(made), _texts(final)
    return ", ".join(
        _said(name, wanted)
        for name in sorted((was.keys() | wanted.keys()) - {*apart_from})
        if wanted.get(name) != was.get(name) and there.get(name) != wanted.get(name)
    )


def _said(name: str, wanted: Mapping[str, object]) -> str:
    if name in ("tasks", "topics"):
        return f"its {name}"
    return f"{name}={wanted[name]}" if name in wanted else f"the default of {name}"


def _texts(config: GroupConfig | None) -> dict[str, object]:
    if config is None:
        return {}
    tuned = settings_row(config.settings, config.assignor)
    return tuned | {"assignor": config.assignor, "tasks": config.tasks, "topics": config.sources}


def newest_rows(
    settings: ClientSettings, prefix: str, groups: Collection[str] | None
) -> dict[GroupId, Row]:
    """The newest record of each of these groups that has one; None = of every group.

    Reads the topic once.

    Raises:
        Unreachable, Refused, NoTopics: the topic cannot be read.
    """
    last: dict[GroupId, dict[int, Row]] = {}
    for group, row in _each_row(settings, prefix, groups):
        last.setdefault(group, {})[row.partition] = row
    newest_of = {group: _newest_row(rows.values()) for group, rows in last.items()}
    return {group: row for group, row in newest_of.items() if row is not None}


def _rows(settings: ClientSettings, prefix: str, groups: Collection[str]) -> dict[str, list[Row]]:
    """The records of each of these groups, oldest first within a partition."""
    rows: dict[str, list[Row]] = {group: [] for group in groups}
    for group, row in _each_row(settings, prefix, groups):
        rows[group].append(row)
    return rows


def _each_row(
    settings: ClientSettings, prefix: str, groups: Collection[str] | None
) -> Iterator[tuple[GroupId, Row]]:
    """Each record of these groups, None = of all, with its group."""
    wanted = None if groups is None else frozenset(groups)
    only = key_of(next(iter(wanted))) if wanted is not None and len(wanted) == 1 else None
    for row in read(settings, topic_name(TopicKind.CONFIG, prefix), key=only):
        group = group_of(row.key)
        if group is not None and (wanted is None or group in wanted):
            yield group, row


def group_of(key: bytes | None) -> GroupId | None:
    """The group whose configuration has this record key; None = it is no such key."""
    try:
        group = parse_key(key).group
    except DecodeError:
        return None
    return group if key_of(group) == key else None


def _newest_row(rows: Iterable[Row]) -> Row | None:
    """The newest of one group's rows, oldest first within a partition.

    After partitions were added to the topic a key may be in two; times tell which is newer.
    """
    last = {row.partition: row for row in rows}
    return max(last.values(), key=lambda row: row.at_ms) if last else None


def _decoded(row: Row) -> GroupConfig | None:
    origin = Origin(row.topic, row.partition, row.offset, row.at_ms)
    event = decode(TopicKind.CONFIG, row.key, row.value, origin)
    if isinstance(event, GroupDeleted):
        return None
    assert isinstance(event, GroupConfig)
    return event
