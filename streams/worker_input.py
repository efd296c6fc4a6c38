"""How the rows of a batch reach the operator: in chunks, and lanes with few bytes first.

PySpark builds a row and its key from Arrow one by one, which costs a group with few rows as much
as reading a value from the state store. `install` replaces that step: a chunk of rows is converted
at once, and `state_calls` learns which lanes follow.

Spark sorts the rows of a batch by lane. Of the lanes that arrive together, those with few bytes
come first, so that a group with one small event does not wait for another group's large ones
(`worker_output` sends its answer at once). The order follows from the rows alone: a batch that is
repeated processes its lanes in the same order.

The replaced method is PySpark's own, so muster asks for one exact version of PySpark, and
`tests/streams/test_worker_input.py` compares what the two methods read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, TypeAlias

from pyspark.sql.pandas.serializers import (
    ArrowStreamSerializer,
    TransformWithStateInPySparkRowSerializer,
)
from pyspark.sql.streaming.stateful_processor_util import (
    TransformWithStateInPandasFuncMode as Mode,
)

from muster.streams.state_calls import ahead

if TYPE_CHECKING:
    import pyarrow

ROWS = 256
"""Rows of a chunk. Few, because a row may have a megabyte."""

ROW_BYTES = 100
"""What each row counts beside its bytes: a small event costs more than its bytes say."""

Entry: TypeAlias = "tuple[bytes, bytes]"
"""A row: its lane, and its entry, packed as `source` says."""


def install() -> None:
    """Read rows in this way in this process, and in those forked from it."""
    setattr(TransformWithStateInPySparkRowSerializer, "load_stream", _load_stream)  # noqa: B010  mypy


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
    for batch in batches:
        order = _order(batch)
        for start in range(0, batch.num_rows, ROWS):
            part = batch.slice(start, ROWS) if order is None else batch.take(order[start:][:ROWS])
            lanes, entries = (column.to_pylist() for column in part.columns)
            ahead.lanes = deque(dict.fromkeys(lanes))
            yield from zip(lanes, entries, strict=True)


def _order(batch: pyarrow.RecordBatch) -> pyarrow.Array | None:
    """The numbers of the rows, those of lanes with few bytes first; None = as they are.

    The first and the last lane keep their places: they may have rows in the Arrow batch before or
    in the next one.
    """
    if batch.num_rows < 4:  # fewer rows than two lanes between the first and the last
        return None
    # Not at the top: pyarrow starts threads, and the process that is forked may have none.
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lanes, entries = batch.columns
    is_other = pc.not_equal(lanes.slice(1), lanes.slice(0, len(lanes) - 1))
    starts = np.concatenate(([0], 1 + np.flatnonzero(is_other)))  # the first row of each lane
    counted = pc.binary_length(entries).to_numpy().astype(np.int64) + ROW_BYTES
    sizes = np.add.reduceat(counted, starts)
    sizes[0], sizes[-1] = 0, sizes.sum()
    if (sizes[:-1] <= sizes[1:]).all():
        return None
    rows_of_each = np.diff(np.append(starts, batch.num_rows))
    return pa.array(np.argsort(np.repeat(sizes, rows_of_each), kind="stable"))
