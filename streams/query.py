"""The query without its sink: rows of the source, grouped by lane, through the operator."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from muster.streams import recovery, sink, source
from muster.streams.config import JobConfig
from muster.streams.processor import GroupProcessor


def frame(
    spark: SparkSession,
    config: JobConfig,
    processor: GroupProcessor,
    starting: recovery.Offsets | None = None,
    initial: DataFrame | None = None,
) -> DataFrame:
    """The rows that the sink is to write.

    Args:
        spark: the session.
        config: the job's settings.
        processor: the operator.
        starting: see `source.read`.
        initial: groups to load (`recovery.initial_state`); None = there are none.
    """
    groups = source.read(spark, config, starting).groupBy("lane")
    return groups.transformWithState(
        processor,
        outputStructType=sink.OUTPUT,
        outputMode="Append",
        timeMode="None",
        initialState=None if initial is None else initial.groupBy("lane"),
    )
