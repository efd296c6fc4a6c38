"""A standby coordinator rehearses its query: a takeover finds everything loaded and compiled.

It runs the coordinator's query twice, as a start without a checkpoint does: once with groups to
load and once without. The rehearsal reads the last record of each input partition into a checkpoint
of its own, which is deleted. The groups' records are computed and dropped. One record goes through
the sink: the sign of life that says that this process stands by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import Row

from muster.protocol.codec import Encoded
from muster.protocol.topics import TopicKind, topic_name
from muster.streams import query, read_back, sink, source
from muster.streams.batch.group_batch import Publisher
from muster.streams.checkpoint.files import place
from muster.streams.job_settings import JobConfig
from muster.streams.processor import GroupProcessor
from muster.streams.sink import OutputRow

FOLDER = "muster-rehearsal"
GROUPS = 10
"""Groups that are loaded: enough to run the code."""


class Rehearser(GroupProcessor):
    """The operator, whose output is replaced by one record, `sign`; more as `GroupProcessor`."""

    def __init__(self, topic: str, sign: Encoded, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]  # passed on unchanged
        self._topic = topic
        self._sign = sign

    def handleInputRows(
        self, key: tuple[bytes], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Process the rows of a lane and drop the result."""
        for _ in super().handleInputRows(key, rows, timerValues):
            pass
        yield OutputRow(self._topic, self._sign.key, self._sign.value, None, None)


def rehearse(
    spark: SparkSession,
    config: JobConfig,
    job: str,
    sign: Encoded,
    partitions: Mapping[str, int],
    is_over: Callable[[], bool],
) -> None:
    """Run the query and drop what it computes, until `is_over`; `sign` is written each time.

    Raises:
        KafkaUnreachable: the topics could not be read.
        QueryFailed: the query ended with an error.
    """
    folder = f"{config.checkpoint}/{FOLDER}-{job}"
    own = replace(config, checkpoint=folder)
    recovered = read_back.groups(config.clients, config.prefixes)
    sample = replace(recovered, snapshots=recovered.snapshots[:GROUPS])
    publisher = Publisher(0, partitions, config.rebuild_ms, assignors=config.assignors)
    processor = Rehearser(
        *(topic_name(TopicKind.CLOCK, config.prefixes[0]), sign),
        *(dict.fromkeys(config.prefixes, publisher), source.input_topics(config.prefixes)),
        config.writers,
        signing_keys=config.signing_keys,
    )
    try:
        for initial in (read_back.initial_state(spark, sample), None):
            frame = query.frame(spark, own, processor, recovered.last, initial)
            start = partial(sink.write, frame, own, once=True)
            query.wait_with_restarts(start(), start, partial(query.await_trial, is_over=is_over))
            if is_over():
                return
            _delete(spark, folder)
    finally:
        _delete(spark, folder)


def _delete(spark: SparkSession, folder: str) -> None:
    path, system = place(spark, folder)
    system.delete(path, True)
