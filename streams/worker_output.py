"""How rows travel from a Spark worker to the JVM: those of many lanes together.

PySpark sends the output of each call of the operator as an Arrow batch of its own, also when the
call has no output. To make and to read one takes 0.05 ms each. `install` replaces that step: the
rows of all calls are sent in Arrow batches of `ROWS` rows. No row waits much longer than `WAIT_S`
for the calls after it, so the answers to one group do not wait for the work of others.

The replaced method is PySpark's own, so muster asks for one exact version of PySpark, and
`tests/streams/test_worker_output.py` compares what the two methods send.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.pandas.serializers import (
    ArrowStreamUDFSerializer,
    TransformWithStateInPySparkRowSerializer,
)
from pyspark.sql.types import Row, StructType

if TYPE_CHECKING:
    import pyarrow

ROWS = 500
"""Rows that are sent together..."""
BYTES = 1 << 20
"""...unless their values have so many bytes before..."""
WAIT_S = 0.02
"""...or a call ends when the first of them has waited so long."""

Call: TypeAlias = "list[tuple[Iterator[Row], StructType]]"
"""The output of one call of the operator, and the type of its rows, as PySpark passes them."""


def install() -> None:
    """Send the output of this process, and of those forked from it, in this way."""
    setattr(TransformWithStateInPySparkRowSerializer, "dump_stream", _dump_stream)  # noqa: B010  mypy


def _dump_stream(
    serializer: ArrowStreamUDFSerializer, calls: Iterable[Call], stream: IO[bytes]
) -> Any:  # noqa: ANN401  # what PySpark's own returns
    return ArrowStreamUDFSerializer.dump_stream(serializer, _flushed(calls, stream), stream)  # type: ignore[no-untyped-call]  # Spark's own


def _flushed(calls: Iterable[Call], stream: IO[bytes]) -> Iterator[tuple[pyarrow.RecordBatch]]:
    for batch in batches(calls):
        yield batch
        stream.flush()  # the serializer has written it to the stream's buffer


def batches(calls: Iterable[Call]) -> Iterator[tuple[pyarrow.RecordBatch]]:
    """The rows of the calls as Arrow batches; there is at least one if there is a call.

    Each call begins when the one before has ended, as without this.
    """
    rows: list[Row] = []
    size = 0
    kind: StructType | None = None
    has_sent = False
    first_s = 0.0
    for ((output, kind),) in calls:
        for row in output:
            if not rows:
                first_s = time.monotonic()
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(rows) >= ROWS or size >= BYTES:
                yield (_batch(rows, kind),)
                rows, size, has_sent = [], 0, True
        if rows and time.monotonic() - first_s >= WAIT_S:
            yield (_batch(rows, kind),)
            rows, size, has_sent = [], 0, True
    if kind is not None and (rows or not has_sent):
        yield (_batch(rows, kind),)


def _batch(rows: list[Row], kind: StructType) -> pyarrow.RecordBatch:
    # Not at the top: pyarrow starts threads, and the process that is forked may have none.
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    fields = list(to_arrow_type(kind, timezone="UTC", prefers_large_types=False))
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
