"""The least work for Spark: Kafka → Spark → Kafka, with the job's own settings.

`latency.py` runs it beside the coordinator: ``passthrough.py BOOTSTRAP IN OUT DIR [stateful]``.
With ``stateful`` the rows go through an operator like the coordinator's, which copies them and
keeps nothing: no coordinator that is such an operator can answer sooner.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import Row

from muster.streams import sink, spark_session
from muster.streams.job_settings import job_config


class Copier(StatefulProcessor):
    """Copies its rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep nothing."""

    def handleInputRows(
        self, key: tuple[bytes], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Return the rows."""
        return rows

    def close(self) -> None:
        """Do nothing."""


def main(bootstrap: str, source: str, target: str, checkpoint: str, stateful: str = "") -> None:
    """Copy a topic to another until the process is killed."""
    config = job_config(checkpoint=checkpoint, bootstrap=bootstrap)
    spark, _ = spark_session.start(config)
    options = {
        "kafka.fetch.max.wait.ms": "1",
        "subscribe": source,
        "startingOffsets": "earliest",
        **config.clients.spark(),
    }
    rows = spark.readStream.format("kafka").options(**options).load()
    copies = rows.selectExpr(f"'{target}' AS topic", "key", "value")
    if stateful:
        copies = copies.groupBy("key").transformWithState(
            Copier(), outputStructType=copies.schema, outputMode="Append", timeMode="None"
        )
    sink.write(copies, config).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
