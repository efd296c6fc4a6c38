"""The least work for Spark: Kafka → Spark → Kafka without state, with the job's own settings.

`latency.py` runs it beside the coordinator: ``passthrough.py BOOTSTRAP IN OUT DIR``.
"""

from __future__ import annotations

import sys

from muster.streams import sink, spark_session
from muster.streams.job_settings import job_config


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    """Copy a topic to another until the process is killed."""
    config = job_config(checkpoint=checkpoint, bootstrap=bootstrap)
    spark, _ = spark_session.start(config)
    options = {
        "kafka.fetch.max.wait.ms": "1",
        "subscribe": source,
        "startingOffsets": "earliest",
        **config.clients.spark(),
    }
    frame = spark.readStream.format("kafka").options(**options).load()
    query = sink.write(frame.selectExpr(f"'{target}' AS topic", "key", "value"), config)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
