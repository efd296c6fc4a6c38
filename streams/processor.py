"""The stateful operator: one call for each group and batch. No rule and no timer of its own.

Bytes → events (`inbox`) → `advance` → records → bytes (`outbox`), between two values in the state
store for each group:

``liveness``  small, read and written in every batch that has rows of the group: a tag of the
              snapshot, whether the group is parked, and who was heard when.
``snapshot``  the group's published record, written only when it changed and read only when this
              process does not have the group in memory.

Groups in memory are kept by module, because Spark unpickles the processor anew for every batch
while the Python process lives on. A group is trusted only if the liveness it was left with,
snapshot tag included, is the one in the store: another attempt of the task, another query or
another executor may have been there since.

Nothing a row holds makes the operator raise, for that would end the query, and every restart would
meet the same row. A group for which `advance` fails is *parked*: its events of the batch become
dead letters, the first of them with the story, its stored state stays what it was, and the next
batch tries anew. Errors of the state store itself do raise: they are Spark's to retry.
"""

from __future__ import annotations

import functools
import gc
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, Row, StructField, StructType

from muster.keyring import KeyFile
from muster.schemas import WriterSchema, schemas_of
from muster.state.group import Group
from muster.streams import outbox, turn
from muster.streams.inbox import (
    Inbox,
    Limits,
    failed,
    is_config,
    open_lane,
    refused_lane,
    turned_away,
)
from muster.streams.letters import Post
from muster.streams.source import split_lane
from muster.streams.turn import Publisher, Stored, Turn

CACHE_GROUPS_MAX = 10_000
"""Groups one Python process keeps in memory; the least recently used go first."""

NEW_GROUPS_MAX = 1_000
"""Groups without a config that are met for the first time in a batch, for each task of Spark's."""

_VALUE = StructType([StructField("value", BinaryType())])


class _Kept(NamedTuple):
    """A group in memory, and what was stored of it then."""

    stored: Stored
    group: Group


_cache: OrderedDict[bytes, _Kept] = OrderedDict()
_key_file = functools.cache(KeyFile)
"""One for each Python process, so that a file that cannot be read later leaves its keys in force.
One that cannot be read at first ends the query: nothing would tell friend from foe."""
_settled = threading.Event()
"""Set once this Python process has run a batch."""


class GroupProcessor(StatefulProcessor):
    """Runs `advance` for every group. Pickled into the query; holds plain values only.

    Args:
        epochs: prefix → coordinator epoch.
        partitions: topic → number of partitions.
        topics: the input topics, ascending.
        rebuild_ms: age at which a group's snapshot is published again.
        writers: schemas of other writers.
        wary_until_ms: prefix → see `Publisher`.
        signing_keys: file of the keyring, read where the operator runs; None = nothing is signed.
        check_share: see `Publisher`.
        assignors: see `Publisher`.
        group_bytes_max: see `Publisher`.
        group_tasks_max: see `Publisher`.
    """

    def __init__(
        self,
        epochs: Mapping[str, int],
        partitions: Mapping[str, int],
        topics: Sequence[str],
        rebuild_ms: int,
        writers: tuple[WriterSchema, ...] = (),
        wary_until_ms: Mapping[str, int] = MappingProxyType({}),
        *,
        signing_keys: str | None = None,
        check_share: float = 0.0,
        assignors: frozenset[str] = frozenset(),
        group_bytes_max: int = 32 << 20,
        group_tasks_max: int = 1 << 18,
    ) -> None:
        self._signing_keys = signing_keys
        self._writers = writers
        self._partitions = dict(partitions)
        self._topics = tuple(topics)
        self._publishers = {
            prefix: Publisher(
                epoch,
                self._partitions,
                rebuild_ms,
                wary_until_ms.get(prefix, 0),
                check_share,
                assignors,
                group_bytes_max,
                group_tasks_max,
            )
            for prefix, epoch in epochs.items()
        }

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the two values."""
        self._liveness = handle.getValueState("liveness", _VALUE)
        self._snapshot = handle.getValueState("snapshot", _VALUE)
        self._post = Post()
        self._new_groups = 0

    def handleInitialState(
        self, key: tuple[bytes], initialState: Row, timerValues: TimerValues
    ) -> None:
        """A group read back after the checkpoint was lost: a snapshot without liveness."""
        self._snapshot.update((initialState.snapshot,))

    def handleInputRows(
        self, key: tuple[bytes], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """All rows of one lane in this batch."""
        lane = bytes(key[0])
        entries = sorted(row[1] for row in rows)
        refused = refused_lane(lane, entries, self._topics)
        if refused is not None:
            return self._letters(refused)
        keyring = None if self._signing_keys is None else _key_file(self._signing_keys).current()
        stored, group = self._load(lane)
        if stored.snapshot is None and self._is_one_too_many(entries):
            return self._letters(turned_away(lane, entries, self._topics, keyring is not None))
        schemas, counted = schemas_of(self._writers), turn.counted(stored)
        publisher = self._publishers[split_lane(lane)[0]]
        try:
            limits = Limits(publisher.group_tasks_max, turn.tasks_of(group, stored))
            inbox = open_lane(lane, entries, self._topics, schemas, keyring, counted, limits)
        except Exception:
            # A bug of ours, and the same rows would come again at every start.
            story = traceback.format_exc()
            return self._letters(failed(lane, entries, self._topics, keyring is not None, story))
        if inbox.group is None or not inbox.events:
            return self._letters(inbox)
        taken = turn.take(group, stored, inbox, publisher, self._post)
        self._store(lane, stored, taken)
        return iter(taken.rows)

    def _letters(self, inbox: Inbox) -> Iterator[Row]:
        """Rows of what is refused, and nothing else."""
        letters = self._post.admitted(inbox.prefix, inbox.rejected)
        return iter(outbox.rows(inbox.prefix, letters, self._partitions))

    def _is_one_too_many(self, entries: Sequence[bytes]) -> bool:
        """Whether these rows of a group that is new are refused, for there are so many such.

        A group of which nothing is stored costs ten times as much as one that is known. A client
        that may write to `membership` can name a million; those that an operator configures are all
        taken.
        """
        if any(is_config(entry, self._topics) for entry in entries):
            return False
        self._new_groups += 1
        return self._new_groups > NEW_GROUPS_MAX

    def close(self) -> None:
        """The batch is done."""
        if not _settled.is_set():
            _settled.set()
            # PySpark collects garbage after every task, and the next event waits for it: 15 ms
            # to look through modules that are here to stay, half of all the worker does.
            gc.collect()
            gc.freeze()

    def _load(self, lane: bytes) -> tuple[Stored, Group | None]:
        """What is stored of a group, and the group when it is in memory and still the same."""
        kept = _cache.get(lane)
        if kept is None:
            snapshot = _read(self._snapshot)
            # A look into the store is a fifth of what a new group costs.
            return (Stored() if snapshot is None else Stored(_read(self._liveness), snapshot)), None
        liveness = _read(self._liveness)
        if liveness is not None and kept.stored.liveness == liveness:
            _cache.move_to_end(lane)
            return kept
        return Stored(liveness, _read(self._snapshot)), None

    def _store(self, lane: bytes, before: Stored, taken: Turn) -> None:
        """Write what changed; remember the group."""
        after = taken.stored
        for state, was, now in (
            (self._liveness, before.liveness, after.liveness),
            (self._snapshot, before.snapshot, after.snapshot),
        ):
            if now is None and was is not None:
                state.clear()
            elif now is not None and now is not was and now != was:
                state.update((now,))
        if taken.group is None:
            _cache.pop(lane, None)
            return
        _cache[lane] = _Kept(after, taken.group)
        while len(_cache) > CACHE_GROUPS_MAX:
            _cache.popitem(last=False)


def _read(state: ValueState) -> bytes | None:
    found = state.get()
    return None if found is None else bytes(found[0])
