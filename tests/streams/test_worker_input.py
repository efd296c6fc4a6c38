"""Rows that a Spark worker reads: the same as PySpark reads, converted in chunks."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import TransformWithStateInPySparkRowSerializer
from support.streams.operator import INPUT
from support.streams.packed_rows import pack

from muster.protocol.events import Origin
from muster.streams import state_calls, worker_input
from muster.streams.batch.group_batch import Publisher
from muster.streams.processor import GroupProcessor

THEIRS = TransformWithStateInPySparkRowSerializer.load_stream


def row(lane: bytes, size: int = 10, at_ms: int = 0, kind: str = "lag") -> tuple[bytes, bytes]:
    """A row whose record has so many bytes."""
    return lane, pack(Origin(f"muster.{kind}", 0, 1, at_ms), b"v" * size, INPUT)


ROWS = [row(lane, size) for size, lane in enumerate((b"a", b"a", b"b", b"c", b"c", b"c", b"d"))]


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


def order_of(rows: list[tuple[bytes, bytes]], *sizes: int) -> bytes:
    """The lanes in the order in which the worker calls the operator; no row is lost."""
    calls = read(worker_input._load_stream, *sizes, of=rows)
    assert sorted(calls, key=str) == sorted(read(THEIRS, *sizes, of=rows), key=str)
    return b"".join(key[0] for _, key, _ in calls if key is not None)


SIZED = [
    row(b"a", 9_000),
    row(b"b", 10_000),
    row(b"b", 10_000),
    row(b"c", 5_000),
    row(b"d", 100),
    row(b"e", 100),
    row(b"e", 100),
    row(b"f", 10),
    row(b"g", 3_000),
]


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ((9,), b"defgcab"),
        ((4, 5), b"cabdefg"),
        ((1, 8), b"adefgcb"),
        # A lane with rows in the next Arrow batch comes last, one with rows before it first.
        ((2, 7), b"abdefgc"),
        ((6, 3), b"dcabefg"),
        ((2, 4, 3), b"abdcefg"),
    ],
    ids=str,
)
def test_lanes_with_few_bytes_come_first(
    sizes: tuple[int, ...], order: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each Arrow batch, wherever Spark has sorted them."""
    monkeypatch.setattr(worker_input, "ROWS", chunk)
    assert order_of(SIZED, *sizes) == order


def test_small_lanes_come_in_the_order_of_their_oldest_rows() -> None:
    """Their bytes do not matter. Large lanes of about the same size are ordered by age, too."""
    rows = [
        row(b"a", 10, at_ms=7),
        row(b"b", 10, at_ms=9),
        row(b"b", 900, at_ms=2),
        row(b"c", 2_000, at_ms=3),
        row(b"d", 9_000, at_ms=6),
        row(b"e", 10_000, at_ms=5),
        row(b"f", 40_000, at_ms=1),
    ]
    assert order_of(rows, 7) == b"bcaedf"


def test_a_lane_of_three_arrow_batches_stays_one() -> None:
    """Its rows follow one another."""
    rows = [row(b"a"), *[row(b"b", 2_000 * size) for size in range(6)], row(b"c")]
    assert order_of(rows, 2, 3, 2, 1) == b"abc"


def test_lanes_with_configs_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small and old they are; a worker knows them when the operator has arrived."""
    monkeypatch.setattr(worker_input, "_config_topics", [])
    publisher = Publisher(7, dict.fromkeys(INPUT, 1), 600_000)
    pickle.loads(pickle.dumps(GroupProcessor({"muster": publisher}, INPUT)))
    rows = [
        row(b"a", kind="config", at_ms=1),
        row(b"b", 9_000, kind="membership", at_ms=2),
        row(b"c", kind="membership", at_ms=3),
        row(b"c", kind="config", at_ms=0),
        row(b"d", kind="lag", at_ms=4),
        row(b"e", 9_000, kind="config", at_ms=0),
        row(b"f", kind="membership", at_ms=3),
    ]
    assert order_of(rows, 7) == b"fdbcae"


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
