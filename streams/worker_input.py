"""How the rows of a batch reach the operator: in chunks, with the lanes that come next.

PySpark builds a row and its key from Arrow one by one, which costs a group with few rows as much
as reading a value from the state store. `install` replaces that step: a chunk of rows is converted
at once, and `state_calls` learns which lanes follow.

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
    """All rows, in order; rows of one lane follow one another."""
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS):
            lanes, entries = (column.slice(start, ROWS).to_pylist() for column in batch.columns)
            ahead.lanes = deque(dict.fromkeys(lanes))
            yield from zip(lanes, entries, strict=True)
