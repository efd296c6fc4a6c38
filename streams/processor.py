"""The stateful operator: Spark calls it once for each group in a batch.

It has no timer and none of the protocol's rules; those are in `state/`.

A call turns bytes into events (`inbox`), runs `advance`, and turns the records into bytes
(`outbox`); `runner` says in which process. The state store holds two values for each group
(`stored_values`): ``liveness``, which changes in nearly every batch, and ``snapshot``, the
published record, which is read only when this process does not have the group in memory.

The groups in memory are a module variable, because Spark unpickles the processor for every batch
while the Python process lives on. The operator uses a group in memory only if the store still has
the liveness that it wrote with it: another attempt of the task may have changed the store since.

A bad row never raises: the exception would end the query, and every restart would read the same
row again. Errors of the state store do raise: Spark retries the task.
"""

from __future__ import annotations

import functools
import gc
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import Row

from muster.output import wall_ms
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.records import Record
from muster.schemas import WriterSchema
from muster.signing.followed_key_file import KeyFile
from muster.state.group import Group
from muster.streams import state_calls, worker_input
from muster.streams.batch import (
    byte_limits,
    canary_answer,
    outbox,
    quarantine,
    waiting_rows,
    work_limits,
)
from muster.streams.batch.asides import Asides
from muster.streams.batch.child_process import limit_memory
from muster.streams.batch.group_batch import BatchResult, Publisher, Rows
from muster.streams.batch.inbox import (
    config_order,
    is_found,
    may_get_old_rows,
    old_row_check,
    read_refused,
    signature_check,
)
from muster.streams.batch.letter_limits import GROUP_QUOTED_BYTES_MAX
from muster.streams.batch.runner import BatchRunner
from muster.streams.batch.stored_values import Stored
from muster.streams.operator_envelope import values
from muster.streams.source import REFUSED, split_lane

CACHE_GROUPS_MAX = 10_000
"""Groups that one Python process keeps in memory; it drops the least recently used first."""

LIVENESS_AHEAD_BYTES_MAX = 1 << 18
"""A liveness of at most so many bytes is read together with those of other groups."""

BATCH_ID = "streaming.sql.batchId"
"""Spark's property with the number of the batch that a task works on."""


class _Kept(NamedTuple):
    """A group in memory, and the values that were stored with it."""

    stored: Stored
    group: Group


_cache: OrderedDict[bytes, _Kept] = OrderedDict()
_key_file = functools.cache(KeyFile)
"""One for each Python process, so that its keys stay in force when the file cannot be read later.
If the first read of the file fails, the query ends, because no signature could be checked."""
_asides = functools.cache(Asides)
_batches = functools.cache(functools.partial(Asides, running_max=1))
"""One of each for each Python process: what is computed aside, placements and large group batches,
outlives the batch that asked for it."""
_settled = threading.Event()
"""Set once this Python process has run a batch."""


class GroupProcessor(BatchRunner, StatefulProcessor):
    """Runs `advance` for every group. Spark pickles it into the query, so it holds plain values.

    Args:
        publishers: prefix → what its group batches need.
        topics: the input topics, ascending.
        writers: schemas of other writers.
        signing_keys: file of the keyring, read where the operator runs; None = nothing is signed.
        group_cpu_s: CPU time that one group batch may take, in seconds.
        python_bytes_max: address space that a Python process may take beyond its first size.
        suspect_batch: number of the batch whose group batches run in children; None = of none.
        careful_until_ms: until when all group batches run in children (see `crash_loop`).
        canary_ms: see `canary_answer.answer`.
    """

    def __init__(
        self,
        publishers: Mapping[str, Publisher],
        topics: Sequence[str],
        writers: tuple[WriterSchema, ...] = (),
        *,
        signing_keys: str | None = None,
        group_cpu_s: float = 60.0,
        python_bytes_max: int = 4 << 30,
        suspect_batch: int | None = None,
        careful_until_ms: int = 0,
        canary_ms: int = 0,
    ) -> None:
        is_signed = signing_keys is not None
        super().__init__(publishers, topics, writers, is_signed=is_signed, group_cpu_s=group_cpu_s)
        self._canary_ms = canary_ms
        self._signing_keys = signing_keys
        self._python_bytes_max = python_bytes_max
        self._suspect_batch = None if suspect_batch is None else str(suspect_batch)
        self._careful_until_ms = careful_until_ms

    def __setstate__(self, values: dict[str, Any]) -> None:
        """Tell the worker which topics have configs: it reads the first rows before `init`."""
        self.__dict__ |= values
        worker_input.put_last(self._config_topics)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the two values and limit the memory of the process."""
        self._liveness, self._snapshot = values(handle)
        self._new_groups = 0  # without a config, in this batch
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        is_repeated = batch is not None and batch == self._suspect_batch
        placements = batches = None
        if context is not None:  # a worker process of Spark, which has no other work
            limit_memory(self._python_bytes_max)
            placements, batches = _asides(self._group_cpu_s), _batches(self._group_cpu_s)
        is_suspect = is_repeated or wall_ms() < self._careful_until_ms
        self._begin_batch(placements, batches, is_suspect=is_suspect)
        state_calls.ahead.first = self._ask_ahead

    def handleInitialState(
        self, key: tuple[bytes], initialState: Row, timerValues: TimerValues
    ) -> None:
        """Store a group read back after a lost checkpoint; only a quarantined one has liveness."""
        if initialState.quarantined:
            self._liveness.update((quarantine.READ_BACK,))
        self._snapshot.update((bytes(initialState.snapshot),))

    def handleInputRows(
        self, key: tuple[bytes], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Process all rows of one lane in this batch."""
        lane = bytes(key[0])
        prefix = split_lane(lane)[0]
        is_canary = canary_answer.is_of(lane, prefix)
        if is_canary or lane.endswith(REFUSED):
            share = self._share((row[1] for row in rows), GROUP_QUOTED_BYTES_MAX)
            entries = sorted(share.entries + share.beyond)
            if is_canary:
                return self._answer(prefix, entries)
            refused = read_refused(lane, entries, self._topics)
            if refused is not None:
                return iter(self._letters(refused, is_shared=True))
        was, group = self._load(lane)
        waiting = waiting_rows.of(lane, was, self._packing)
        stored = was if waiting is None else waiting.before
        is_old = old_row_check(lane, self._topics, stored, group)
        left_out: list[bytes] = []
        earlier = [] if waiting is None else waiting.later
        packed: Iterator[bytes] = itertools.chain(earlier, (row[1] for row in rows))
        if may_get_old_rows(stored, group):
            packed = self._new_rows(packed, is_old, left_out)
        keyring = None if self._signing_keys is None else _key_file(self._signing_keys).current()
        entries, beyond, configs = self._share(
            *(packed, byte_limits.bytes_max(stored.snapshot)),
            signature_check(lane, self._topics, keyring, stored.replay_guard),
            is_old,
        )
        refusals: list[Row] = []
        if beyond:
            why = "the group's large events exceed what one batch accepts"
            refusals += self._refused(lane, beyond, DeadLetter.TOO_MUCH_AT_ONCE, why)
        asks_at_once = left_out and group is None and not self._is_suspect
        if waiting is None:
            if not entries and not asks_at_once:  # the group took in all of them before
                return iter(refusals)
            if stored.snapshot is None and not self._has_config(entries):
                self._new_groups += 1
                if self._new_groups > work_limits.NEW_GROUPS_MAX:
                    why = "too many new groups without a config came before this event in the batch"
                    refusals += self._refused(lane, entries, DeadLetter.TOO_MANY_GROUPS, why)
                    return iter(refusals)
        have_waited = waiting is not None
        taken = self._taken(
            Rows(lane, entries, keyring, stored, group, configs, have_waited), waiting
        )
        self._store(lane, was, taken)
        return iter(refusals + taken.rows)

    def _share(
        self,
        rows: Iterator[bytes],
        bytes_max: int,
        may_count: Callable[[bytes], bool] = lambda entry: True,
        is_old: Callable[[bytes], bool] = lambda entry: False,
    ) -> byte_limits.Share:
        """The rows of a lane, and the beginnings of those beyond its group's share."""
        signed = self._signing_keys is not None
        return byte_limits.of(
            rows,
            bytes_max,
            self._is_config,
            may_count=may_count,
            is_found=functools.partial(is_found, signed=signed),
            is_old=is_old,
            order=functools.partial(config_order, signed=signed),
        )

    def _new_rows(
        self, rows: Iterator[bytes], is_old: Callable[[bytes], bool], left_out: list[bytes]
    ) -> Iterator[bytes]:
        """The rows that the group has not taken in before; `left_out` gets one of the others.

        Such a row, unless it is a config, makes a group that was read back ask its members at once.
        It is in memory then: a backlog of old rows does not read it from the state store each time.
        """
        for row in rows:
            if not is_old(row):
                yield row
            elif not (left_out or self._is_config(row)):
                left_out.append(row)

    def _answer(self, prefix: str, entries: Sequence[bytes]) -> Iterator[Row]:
        """The rows that answer the canary's ticks; nothing of them is stored."""
        publisher, signed = self._publishers[prefix], self._signing_keys is not None
        wake_up, rejected = canary_answer.answer(
            entries, self._topics, publisher.epoch, self._canary_ms, signed=signed
        )
        records: list[Record] = [] if wake_up is None else [wake_up]
        records += self._letter_budget.admitted(prefix, rejected)
        return iter(outbox.rows(prefix, records, publisher.partitions))

    def _forget_groups(self) -> None:
        _cache.clear()

    def close(self) -> None:
        """End the batch."""
        if not _settled.is_set():
            _settled.set()
            # PySpark collects garbage after every task, and the next event waits for it: 15 ms
            # to look through loaded modules, half of the worker's time. `freeze` exempts them.
            gc.collect()
            gc.freeze()

    def _ask_ahead(self, lane: bytes) -> state_calls.Question | None:
        """The first question about a lane; None = a large value is not read ahead."""
        if lane.endswith(REFUSED):
            return None
        cached = _cache.get(lane)
        size = 0 if cached is None else len(cached.stored.liveness or b"")
        return _first_question(cached) if size <= LIVENESS_AHEAD_BYTES_MAX else None

    def _load(self, lane: bytes) -> tuple[Stored, Group | None]:
        """The stored values of a group, and the group if it is in memory and still up to date."""
        cached = _cache.get(lane)
        answer = self._answer_of(_first_question(cached))
        if cached is None:
            if answer is None:
                return Stored(), None
            return Stored(_read(self._liveness), _read(self._snapshot)), None
        if answer is not None and cached.stored.liveness == answer:
            _cache.move_to_end(lane)
            return cached
        return Stored(answer, _read(self._snapshot)), None

    def _answer_of(self, question: state_calls.Question) -> bytes | None:
        """The value; None = there is none. It is empty if only its existence is asked."""
        state = self._liveness if question.name == "liveness" else self._snapshot
        if question.whole:
            return _read(state)
        return b"" if state.exists() else None

    def _store(self, lane: bytes, before: Stored, taken: BatchResult) -> None:
        """Write the values that changed, and keep the group in memory."""
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


def _first_question(cached: _Kept | None) -> state_calls.Question:
    """What the state store is asked first about a group, which may be in memory."""
    if cached is None:
        return state_calls.Question("snapshot", whole=False)
    return state_calls.Question("liveness")


def _read(state: ValueState) -> bytes | None:
    row = state.get()
    return None if row is None else bytes(row[0])
