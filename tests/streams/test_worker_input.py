"""Rows that a Spark worker reads: the same as PySpark reads, converted in chunks."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import TransformWithStateInPySparkRowSerializer

from muster.streams import state_calls, worker_input

THEIRS = TransformWithStateInPySparkRowSerializer.load_stream
ROWS = [
    (b"a", b"1"),
    (b"a", b"2"),
    (b"b", b"3"),
    (b"c", b""),
    (b"c", b"5"),
    (b"c", b"6"),
    (b"d", b"7"),
]


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lanes of another task."""
    monkeypatch.setattr(worker_input, "ahead", state_calls.Ahead())


def stream(*sizes: int, of: list[tuple[bytes, bytes]] = ROWS) -> io.BytesIO:
    """The rows as the JVM sends them, in Arrow batches of these sizes."""
    schema = pa.schema([("lane", pa.binary()), ("entry", pa.binary())])
    buffer, rest = io.BytesIO(), list(of)
    with pa.ipc.new_stream(buffer, schema) as writer:
        for size in sizes:
            lanes, entries = zip(*rest[:size], strict=True) if size else ((), ())
            writer.write_batch(pa.record_batch([list(lanes), list(entries)], schema=schema))
            del rest[:size]
    assert not rest
    buffer.seek(0)
    return buffer


def read(
    load: Any, *sizes: int, of: list[tuple[bytes, bytes]] = ROWS
) -> list[tuple[object, object, list[tuple[bytes, ...]]]]:
    """The calls that a worker makes of the rows."""
    serializer = TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=10_000)
    serializer.key_offsets = [0]
    calls = load(serializer, stream(*sizes, of=of))
    return [(mode, key, [tuple(row) for row in rows or ()]) for mode, key, rows in calls]


@pytest.mark.parametrize("chunk", [1, 2, 256])
@pytest.mark.parametrize("sizes", [(7,), (4, 3), (0, 1, 6)], ids=str)
def test_the_rows_are_those_that_pyspark_reads(
    sizes: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and rows are the same, wherever a batch or a chunk ends."""
    monkeypatch.setattr(worker_input, "ROWS", chunk)
    ours, theirs = read(worker_input._load_stream, *sizes), read(THEIRS, *sizes)
    assert sorted(ours, key=str) == sorted(theirs, key=str)
    assert ours[-2:] == theirs[-2:]  # the signs that the rows are over


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("sizes", [(9,), (4, 5), (1, 8)], ids=str)
def test_lanes_with_few_bytes_come_first(
    sizes: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each Arrow batch, but for its first and its last lane, which may go on in others."""
    monkeypatch.setattr(worker_input, "ROWS", chunk)
    rows = [
        (b"a", b"1" * 900),
        (b"b", b"2" * 500),
        (b"b", b"3" * 500),
        (b"c", b"4" * 800),
        (b"d", b"5" * 10),
        (b"e", b"6" * 10),
        (b"e", b"7" * 10),
        (b"f", b"8" * 10),
        (b"g", b"9" * 10),
    ]
    calls = read(worker_input._load_stream, *sizes, of=rows)
    order = b"".join(key[0] for _, key, _ in calls if key is not None)
    assert order == {9: b"adfecbg", 4: b"abcdfeg", 1: b"abdfecg"}[sizes[0]]
    assert sorted(calls, key=str) == sorted(read(THEIRS, *sizes, of=rows), key=str)


def test_the_lanes_that_come_next_are_known() -> None:
    """Each once, in order, when the first of their rows is read."""
    serializer = TransformWithStateInPySparkRowSerializer(arrow_max_records_per_batch=10_000)
    calls = worker_input._load_stream(serializer, stream(4, 3))
    seen = []
    for _, key, rows in calls:
        seen.append((key, list(worker_input.ahead.lanes)))
        list(rows or ())
    first, second = [b"a", b"b", b"c"], [b"c", b"d"]
    assert seen[:4] == [((b"a",), first), ((b"b",), first), ((b"c",), first), ((b"d",), second)]


def test_a_worker_reads_in_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """`install` replaces the method that a worker's serializer has."""
    monkeypatch.setattr(TransformWithStateInPySparkRowSerializer, "load_stream", THEIRS)
    worker_input.install()
    assert TransformWithStateInPySparkRowSerializer.load_stream is worker_input._load_stream
