"""Keeps the histories of all groups in bounded memory, and notifies listeners of changes.

One thread writes (`reader.py`); pages read in other threads. Stored values never change, so a page
takes a reference under the lock and uses it without the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from muster.console.history import History, make_room
from muster.kafka.reader import Row
from muster.kafka.writer import Place
from muster.protocol.codec import decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, parse_key
from muster.protocol.records import GroupGone, GroupSnapshot, Rejected
from muster.protocol.split_records import Joiner
from muster.protocol.topics import TopicKind, kind_of
from muster.published.config_changes import group_of
from muster.published.snapshots import is_deleted
from muster.published.unapplied_configs import (
    Change,
    Unapplied,
    change_in,
    not_followed,
    refusal_in,
)

HELD_BYTES_MAX = 256 * 1024 * 1024
"""Most bytes of records that are kept of all groups together."""
SHADOWED = "kafka:"
"""The prefix under which Kafka's own groups are kept (`kafka_groups.py`); no topic has a colon."""
LETTERS_MAX = 500
"""Most dead letters kept of each prefix."""
LETTER_BYTES_MAX = 16 * 1024
"""Longer values of dead letters are cut."""


class GroupKey(NamedTuple):
    """A group of one topic prefix."""

    prefix: str
    group: str


class Letter(NamedTuple):
    """A dead letter, and when it was written (epoch ms)."""

    at_ms: int
    record: Rejected


Listener: TypeAlias = Callable[[GroupKey], None]


class Store:
    """The groups of some prefixes.

    Attributes:
        lock: held while a record is added, and while more than one field is read.
        caught_up: whether all records that the topics had at the start have been read.
        fault: why Kafka cannot be read now; empty = it can.
        skipped: how many records could not be decoded.
        changes: rises with every record that changed something.
        held_bytes: size of the records that are kept.
    """

    def __init__(self, prefixes: Iterable[str], held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.prefixes = tuple(dict.fromkeys(prefixes))
        self.lock = threading.RLock()
        self.caught_up = False
        self.fault = ""
        self.skipped = 0
        self.changes = 0
        self._groups: dict[GroupKey, History] = {}
        self._configs: dict[str, dict[GroupId, Change]] = {prefix: {} for prefix in self.prefixes}
        self._refusals: dict[str, dict[GroupId, tuple[Place, str]]] = {p: {} for p in self.prefixes}
        self._letters = {prefix: deque[Letter](maxlen=LETTERS_MAX) for prefix in self.prefixes}
        self._ends: dict[tuple[str, int], int] = {}
        self._joiners: dict[tuple[str, int], Joiner] = {}
        self._newest: dict[GroupKey, tuple[int, int]] = {}  # partition, at_ms; of tombstones too
        self._listeners: tuple[Listener, ...] = ()
        self._held_bytes_max = held_bytes_max
        self.held_bytes = 0

    # ------------------------------------------------------------------------------ writing

    def read(self, row: Row) -> None:
        """Add one row of a topic; rows that cannot be decoded are counted."""
        for prefix in self.prefixes:
            kind = kind_of(row.topic, prefix)
            if kind is not None:
                try:
                    self._read(prefix, kind, row)
                except DecodeError:
                    self.skipped += 1
                return

    def _read(self, prefix: str, kind: TopicKind, row: Row) -> None:
        if row.key is None:
            return
        if kind is TopicKind.CONFIG:
            self._read_config(prefix, row)
            return
        if kind is TopicKind.REJECTED:
            if self._is_known(row):
                return
            record = decode_record(kind, row.key, row.value)
            if isinstance(record, Rejected):
                self.reject(prefix, record, row.at_ms)
            return
        joiner = self._joiners.setdefault((row.topic, row.partition), Joiner())
        whole = joiner.feed(row.key, row.value)
        if whole is None or whole.key != key_of(parse_key(whole.key).group):
            return  # a part, or the group's dictionary
        if self._is_known(row):
            return
        record = decode_record(kind, whole.key, whole.value)
        if not isinstance(record, GroupSnapshot | GroupGone):
            return
        key = GroupKey(prefix, record.group)
        partition, newest_ms = self._newest.get(key, (row.partition, row.at_ms))
        if partition != row.partition and row.at_ms < newest_ms:
            return  # partitions were added to the topic: this is what was written before
        self._newest[key] = row.partition, row.at_ms
        self.take(prefix, record, row.at_ms, whole.value or b"")

    def _read_config(self, prefix: str, row: Row) -> None:
        group = group_of(row.key)
        if group is None or self._is_known(row):
            return
        configs = self._configs[prefix]
        with self.lock:
            before, change = configs.get(group), change_in(row)
            is_moved = before is not None and before.place.partition != row.partition
            if before is not None and is_moved and row.at_ms < before.at_ms:
                return  # partitions were added to the topic: this is what was written before
            configs[group] = change
            self.changes += 1
        self._notify_listeners(GroupKey(prefix, group))

    def _forget_config(self, prefix: str, group: GroupId) -> None:
        """Drop what is known of a group's configuration, unless it has been configured again."""
        change = self._configs.get(prefix, {}).get(group)
        if change is not None and change.is_deletion:
            del self._configs[prefix][group]
            self._refusals[prefix].pop(group, None)

    def _is_known(self, row: Row) -> bool:
        """Whether a row was taken before: the topics are read again after an error."""
        place = (row.topic, row.partition)
        if 0 <= row.offset <= self._ends.get(place, -1):
            return True
        self._ends[place] = row.offset
        return False

    def take(
        self, prefix: str, record: GroupSnapshot | GroupGone, at_ms: int, value: bytes
    ) -> None:
        """Add a group's next record; `value` are its bytes, empty for a tombstone."""
        key = GroupKey(prefix, record.group)
        with self.lock:
            history = self._groups.get(key)
            if isinstance(record, GroupGone):
                self._forget_config(prefix, record.group)
                if history is not None:
                    del self._groups[key]
                    self.held_bytes -= history.held_bytes  # a page may still read it
            else:
                if history is None:
                    history = History(record.group, is_shadowed=prefix == SHADOWED)
                    self._groups[key] = history
                before = history.held_bytes
                if not history.take(record, at_ms, value):
                    return
                self.held_bytes += history.held_bytes - before
                if self.held_bytes > self._held_bytes_max:
                    self.held_bytes = make_room(self._groups.values(), self._held_bytes_max)
            self.changes += 1
        self._notify_listeners(key)

    def reject(self, prefix: str, record: Rejected, at_ms: int) -> None:
        """Add a dead letter."""
        with self.lock:
            value = record.value[:LETTER_BYTES_MAX]
            whole = record if len(record.value) == len(value) else replace(record, value=value)
            self._letters[prefix].append(Letter(at_ms, whole))
            group = group_of(record.key)
            if group is not None and kind_of(record.origin.topic, prefix) is TopicKind.CONFIG:
                self._refusals[prefix][group] = refusal_in(record)
            self.changes += 1
        self._notify_listeners(GroupKey(prefix, ""))

    def clear(self) -> None:
        """Drop what came from muster's topics, because they were deleted and created again.

        Shadowed groups stay: they come from elsewhere, and only when they change.
        """
        with self.lock:
            self._groups = {key: h for key, h in self._groups.items() if key.prefix == SHADOWED}
            self._joiners.clear()
            self._ends.clear()
            self._newest.clear()
            for prefix in self.prefixes:
                self._letters[prefix].clear()
                self._configs[prefix].clear()
                self._refusals[prefix].clear()
            self.held_bytes = sum(each.held_bytes for each in self._groups.values())
            self.caught_up = False
            self.changes += 1

    # ------------------------------------------------------------------------------ reading

    def histories(self) -> list[tuple[GroupKey, History]]:
        """Every group that was not deleted, by key."""
        with self.lock:
            return sorted(
                (key, each)
                for key, each in self._groups.items()
                if each.newest is not None and not is_deleted(each.newest)
            )

    def history(self, key: GroupKey) -> History | None:
        """One group, also a deleted one; None = there is none."""
        return self._groups.get(key)

    def unapplied(
        self, prefix: str, snapshots: Mapping[GroupId, GroupSnapshot], now_ms: int
    ) -> dict[GroupId, Unapplied]:
        """Which groups do not follow their newest configuration; `snapshots` are the newest.

        Until everything has been read, there are none: a snapshot may be missing.
        """
        if not self.caught_up:
            return {}
        with self.lock:
            refusals = dict(self._refusals[prefix].values())
            return not_followed(self._configs[prefix], snapshots, refusals, now_ms)

    def letters(self, prefix: str) -> list[Letter]:
        """The newest dead letters of a prefix, oldest first."""
        with self.lock:
            return list(self._letters[prefix])

    def listen(self, listener: Listener) -> None:
        """Call `listener` in the writer's thread after each change, from now on.

        `listener` must return at once: a slow page must not slow down the reader.
        """
        self._listeners = (*self._listeners, listener)

    def _notify_listeners(self, key: GroupKey) -> None:
        for listener in self._listeners:
            listener(key)
