"""Rows → Kafka: one data frame with a topic column, one sink.

The producer chooses a record's partition by the murmur2 hash of the key. Only the parts of a split
record name their partition, which is that of the whole record. The sink writes at least once: a
replayed batch writes the same bytes again, and every reader takes the newest record of a key.
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

from muster.streams.job_settings import JobConfig

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
"""The columns of the Kafka sink, under the sink's own names."""

OutputRow = Row(*OUTPUT.names)
"""Builds one row of `OUTPUT`."""


def write(frame: DataFrame, config: JobConfig, *, once: bool = False) -> StreamingQuery:
    """Start the query.

    Args:
        frame: rows of `OUTPUT`.
        config: the job's settings.
        once: process the rows that are there now, then end.
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
