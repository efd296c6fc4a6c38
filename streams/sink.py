"""Rows → Kafka: one frame with a topic column, one sink.

A record's partition is left to the producer (murmur2 of the key, as everywhere) but for parts of a
split record, which must live where the whole would. The sink is at least once: a batch that is
replayed writes the same bytes again, and every reader takes the newest of a key.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    Row,
    StringType,
    StructField,
    StructType,
)

from muster.streams.config import JobConfig

QUERY_NAME = "muster"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

OUTPUT = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("partition", IntegerType()),
    ]
)
"""What the Kafka sink takes, in the sink's own column names."""

OutputRow = Row(*OUTPUT.names)
"""Builds one row of `OUTPUT`."""


def write(frame: DataFrame, config: JobConfig, *, once: bool = False) -> StreamingQuery:
    """Start the query.

    Args:
        frame: rows of `OUTPUT`.
        config: the process's settings.
        once: work off what is there now, then end.
    """
    options = {
        "kafka.linger.ms": "0",
        "kafka.acks": "all",
        **config.clients.spark(),
        "checkpointLocation": config.checkpoint,
    }
    writer = frame.writeStream.format("kafka").options(**options).queryName(QUERY_NAME)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0 seconds").start()
