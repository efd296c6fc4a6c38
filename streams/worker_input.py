"""How the rows of a batch reach the operator: in chunks, and lanes with little work first.

PySpark builds a row and its key from Arrow one by one, which costs a group with few rows as much
as reading a value from the state store. `install` replaces that step: a chunk of rows is converted
at once, and `state_calls` learns which lanes follow.

Spark sorts the rows of a batch by lane. The worker processes the lanes that arrive together in
another order, so that a group with few events does not wait until a group with many is done
(`worker_output` sends its answers at once):

1. those without a config, because a config may place all tasks of its group;
2. of both kinds those with few bytes: up to `SMALL_BYTES`, then by powers of two;
3. among equals the lane with the oldest row, because it has waited longest.

The order follows from the rows alone, so a batch that is repeated has the same order.

The replaced method is PySpark's own, so muster asks for one exact version of PySpark, and
`tests/streams/test_worker_input.py` compares what the two methods read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import IO, TYPE_CHECKING, TypeAlias

from pyspark.sql.pandas.serializers import (
    ArrowStreamSerializer,
    TransformWithStateInPySparkRowSerializer,
)
from pyspark.sql.streaming.stateful_processor_util import (
    TransformWithStateInPandasFuncMode as Mode,
)

from muster.streams.source import TOPIC_AT
from muster.streams.state_calls import ahead

if TYPE_CHECKING:
    import pyarrow

ROWS = 256
"""Rows of a chunk. Few, because a row may have a megabyte."""

ROW_BYTES = 100
"""What each row counts beside its bytes: a small event costs more than its bytes say."""

SMALL_BYTES = 1 << 12
"""Lanes of at most so many bytes are alike: their work is mostly that of any group."""

CONFIGS_LATER = 64
"""Is added to the rank of a lane with a config; without it a rank is a power of two, below this."""

_config_topics: list[bytes] = []
"""The topics of configs, as a packed row has them (`source`)."""

Entry: TypeAlias = "tuple[bytes, bytes]"
"""A row: its lane, and its entry, packed as `source` says."""


def install() -> None:
    """Read rows in this way in this process, and in those forked from it."""
    setattr(TransformWithStateInPySparkRowSerializer, "load_stream", _load_stream)  # noqa: B010  mypy


def put_last(config_topics: Collection[int]) -> None:
    """Say which input topics, by number, have configs; a worker is told before it reads rows."""
    _config_topics[:] = (bytes((number,)) for number in config_topics)


def _load_stream(
    serializer: TransformWithStateInPySparkRowSerializer, stream: IO[bytes]
) -> Iterator[tuple[Mode, tuple[bytes] | None, Iterator[Entry] | None]]:
    batches = ArrowStreamSerializer.load_stream(serializer, stream)
    for lane, rows in groupby(_entries(batches), key=itemgetter(0)):
        yield Mode.PROCESS_DATA, (lane,), rows
    yield Mode.PROCESS_TIMER, None, None
    yield Mode.COMPLETE, None, None


def _entries(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Entry]:
    """All rows; rows of one lane follow one another, in order."""
    filled = (batch for batch in batches if batch.num_rows)
    was: bytes | None = None  # the last lane of the Arrow batch before
    for batch, after in pairwise(chain(filled, (None,))):
        first, last = (batch.column(0)[at].as_py() for at in (0, -1))
        goes_on = after is not None and after.column(0)[0].as_py() == last
        order = None
        if first != last:  # rows are sorted, so there is more than one lane
            order = _order(batch, keeps_first=first == was, keeps_last=goes_on)
        was = last
        for start in range(0, batch.num_rows, ROWS):
            part = batch.slice(start, ROWS) if order is None else batch.take(order[start:][:ROWS])
            lanes, entries = (column.to_pylist() for column in part.columns)
            ahead.lanes = deque(dict.fromkeys(lanes))
            yield from zip(lanes, entries, strict=True)


def _order(
    batch: pyarrow.RecordBatch, *, keeps_first: bool, keeps_last: bool
) -> pyarrow.Array | None:
    """The numbers of the rows, those of lanes with little work first; None = as they are.

    Args:
        batch: rows of two lanes or more.
        keeps_first: the first lane has rows in the Arrow batch before, so it comes first.
        keeps_last: the last lane has rows in the next Arrow batch, so it comes last.
    """
    # Not at the top: pyarrow starts threads, and the process that is forked may have none.
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lanes, entries = batch.columns
    is_other = pc.not_equal(lanes.slice(1), lanes.slice(0, len(lanes) - 1))
    starts = np.concatenate(([0], 1 + np.flatnonzero(is_other)))  # the first row of each lane
    bytes_of_rows = pc.binary_length(entries).to_numpy().astype(np.int64) + ROW_BYTES
    bytes_of_lanes = np.add.reduceat(bytes_of_rows, starts)
    rank = np.frexp(np.maximum(bytes_of_lanes, SMALL_BYTES) - 1)[1]
    topics = pc.binary_slice(entries, TOPIC_AT, TOPIC_AT + 1)
    is_config = pc.is_in(topics, pa.array(_config_topics, topics.type))
    has_config = np.logical_or.reduceat(is_config.to_numpy(zero_copy_only=False), starts)
    rank += CONFIGS_LATER * has_config
    if keeps_first:
        rank[0] = -1
    if keeps_last:
        rank[-1] = 2 * CONFIGS_LATER + 1
    times = pc.binary_slice(entries, 0, TOPIC_AT).cast(pa.binary(TOPIC_AT))
    at_ms = np.frombuffer(times.buffers()[1], ">i8")
    ordered = np.lexsort((np.minimum.reduceat(at_ms, starts), rank))
    if (ordered == np.arange(len(ordered))).all():
        return None
    places = np.empty_like(ordered)
    places[ordered] = np.arange(len(ordered))
    rows_of_each = np.diff(np.append(starts, batch.num_rows))
    return pa.array(np.argsort(np.repeat(places, rows_of_each), kind="stable"))
