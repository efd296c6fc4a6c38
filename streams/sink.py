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
    """Start the query on rows of `OUTPUT`; `once`: it ends after the rows that are there now."""
    options = {
        # A batch's records go out together when its task flushes the producer, which does not wait
        # for the rest of this time. Without it each record is a request of its own.
        "kafka.linger.ms": "20",
        "kafka.acks": "all",
        **config.clients.spark(),
        "checkpointLocation": config.checkpoint,
    }
    writer = frame.writeStream.format("kafka").options(**options).queryName(QUERY_NAME)
    again = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    return writer.trigger(**again).start()
