"""Rows that a Spark worker sends: the same as PySpark sends, in fewer Arrow batches."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.serializers import read_int
from pyspark.sql.pandas.serializers import (
    TransformWithStateInPySparkRowInitStateSerializer,
    TransformWithStateInPySparkRowSerializer,
)
from pyspark.sql.types import Row

from muster.streams import worker_output
from muster.streams.sink import OUTPUT, OutputRow

OURS = worker_output._dump_stream
THEIRS = TransformWithStateInPySparkRowSerializer.dump_stream


def row(number: int, value: bytes | None = b"v") -> Row:
    """A row of the sink."""
    headers = [("since", b"1"), ("part", b"2")] if number % 2 else None
    return OutputRow("muster.groups", f"k{number}".encode(), value, headers, number % 3 or None)


def sent(calls: list[list[Row]], dump: object) -> list[pa.RecordBatch]:
    """The Arrow batches that a worker sends for the output of these calls."""
    stream = io.BytesIO()
    serializer = TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=10_000)
    packed: Iterator[worker_output.Call] = ([(iter(rows), OUTPUT)] for rows in calls)
    dump(serializer, packed, stream)
    stream.seek(0)
    read_int(stream)  # the sign that a stream begins
    return list(pa.ipc.open_stream(stream))


CALLS = [[], [row(1)], [row(2), row(3, None)], [], [row(4, b"")], []]


@pytest.mark.parametrize("calls", [[[]], [[], []], CALLS, [CALLS[2]]], ids=len)
def test_the_rows_are_those_that_pyspark_sends(calls: list[list[Row]]) -> None:
    """Values, order and types are the same; there is one batch instead of one for each call."""
    ours, theirs = sent(calls, OURS), sent(calls, THEIRS)
    assert pa.Table.from_batches(ours) == pa.Table.from_batches(theirs)
    assert (len(ours), len(theirs)) == (1, len(calls))


def test_many_rows_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends at so many rows or bytes, so a worker keeps few rows in memory."""
    monkeypatch.setattr(worker_output, "ROWS", 3)
    monkeypatch.setattr(worker_output, "BYTES", 100)
    small = sent([[row(1), row(2)], [row(3), row(4)], [row(5), row(6)], []], OURS)
    assert [batch.num_rows for batch in small] == [3, 3]
    large = sent([[row(1, b"x" * 200), row(2)]], OURS)
    assert [batch.num_rows for batch in large] == [1, 1]


def test_rows_do_not_wait_for_the_calls_of_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have waited long enough reach the JVM before the next call begins."""
    monkeypatch.setattr(worker_output, "WAIT_S", 0.0)
    jvm = io.BytesIO()
    stream = io.BufferedWriter(jvm, 1 << 16)  # type: ignore[type-var]  # BytesIO is raw enough
    arrived: list[int] = []

    def calls() -> Iterator[worker_output.Call]:
        for number in range(3):
            arrived.append(jvm.getvalue().count(b"muster.groups"))
            yield [(iter([row(number)]), OUTPUT)]

    serializer = TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=10_000)
    OURS(serializer, calls(), stream)
    assert arrived == [0, 1, 2]


def test_each_call_is_over_before_the_next_begins() -> None:
    """The operator's calls share state, as one key after another is set in the state store."""
    story: list[str] = []

    def output(number: int) -> Iterator[Row]:
        story.append(f"begins {number}")
        yield row(number)
        story.append(f"ends {number}")

    def calls() -> Iterator[worker_output.Call]:
        for number in range(3):
            story.append(f"called {number}")
            yield [(output(number), OUTPUT)]

    assert len(list(worker_output.batches(calls()))) == 1
    assert story == [f"{what} {n}" for n in range(3) for what in ("called", "begins", "ends")]


def test_both_serializers_of_the_operator_send_in_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a batch in which groups are read back."""
    monkeypatch.setattr(TransformWithStateInPySparkRowSerializer, "dump_stream", THEIRS)
    worker_output.install()
    for kind in (
        TransformWithStateInPySparkRowSerializer,
        TransformWithStateInPySparkRowInitStateSerializer,
    ):
        assert kind.dump_stream is OURS
