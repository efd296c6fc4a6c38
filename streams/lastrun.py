"""A file beside the checkpoint that says how the last run of the job ended.

A job that stops on a signal or a later claim ends *in order* and writes that down. A job that was
killed, or that ended because its query failed, leaves the note of its start. If it also left a
batch unfinished, a group's rows in that batch may have ended it: the batch is *suspect*, and when
it is repeated, each group batch in it runs in a child process (`processor`).
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from muster.streams import beside

RUN_FILE = "muster-run.json"
_ENDED = "ended_in_order"


def suspect_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Number of the suspect batch; None = the last run ended in order or left none unfinished."""
    if beside.read(spark, checkpoint, RUN_FILE).get(_ENDED) is not False:
        return None
    begun = beside.newest_number(spark, f"{checkpoint}/offsets")
    done = beside.newest_number(spark, f"{checkpoint}/commits")
    return begun if begun is not None and begun != done else None


def begins(spark: SparkSession, checkpoint: str) -> None:
    """Note that a run begins."""
    beside.write(spark, checkpoint, RUN_FILE, {_ENDED: False})


def ended(spark: SparkSession, checkpoint: str) -> None:
    """Note that the run ended in order."""
    beside.write(spark, checkpoint, RUN_FILE, {_ENDED: True})
