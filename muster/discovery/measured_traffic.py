"""Measures the load of partitions: records and bytes a second, and the lag of a group.

The rate of records is the end offset now, less the end offset `SPAN_MS` ago, which Kafka finds by
timestamp. Records that compaction removed count too. The rate of bytes is the rate of records times
the average size of a record in the partition's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, OffsetSpec

from muster.errors import Unreachable
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import QUIET
from muster.kafka.coordinator_request import CoordinatorRequest
from muster.kafka.lasting_admin import LATEST, TIMEOUT_S, answered
from muster.kafka.protocol_client import connected

SPAN_MS = 600_000
Place = tuple[str, int]
"""Topic and partition."""


class Measure(StrEnum):
    """How a partition's load is measured."""

    BYTES = "bytes"
    RECORDS = "records"
    LAG = "lag"


class Load(NamedTuple):
    """The load of a partition.

    Attributes:
        records_s: records written a second, over the last `SPAN_MS`.
        bytes_s: bytes written a second; None = not measured, or not known.
        lag: records that the group has not committed; None = not measured, or no commit.
    """

    records_s: float
    bytes_s: float | None
    lag: int | None
    end: int

    def by(self, measure: Measure) -> float | None:
        """The load by one measure; None = not known."""
        return {
            Measure.BYTES: self.bytes_s,
            Measure.RECORDS: self.records_s,
            Measure.LAG: self.lag,
        }[measure]


def committed(clients: ClientSettings, group: str) -> dict[Place, int]:
    """A group's committed offsets.

    Raises:
        KafkaException: no answer, or no right to describe the group.
    """
    asked = [ConsumerGroupTopicPartitions(group)]

    def send(client: AdminClient) -> Future[ConsumerGroupTopicPartitions]:
        return client.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group]

    request = CoordinatorRequest(clients.librdkafka(QUIET), send)
    rows = request.result(TIMEOUT_S).topic_partitions or ()
    return {(row.topic, row.partition): row.offset for row in rows if row.offset >= 0}


def offsets(admin: AdminClient, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
    """An offset of each partition; those that do not answer are left out.

    Raises:
        KafkaException: no answer to any of them.
    """
    offset_of, failure = answered(admin, places, spec)
    if failure is not None and not offset_of:
        raise failure
    return offset_of


def sizes(clients: ClientSettings, places: Iterable[Place]) -> dict[Place, int]:
    """Bytes in the log of each partition, of the largest replica.

    Raises:
        Refused: the login may not describe the cluster.
        Unreachable: no answer.
    """
    wanted: dict[str, list[int]] = {}
    for topic, number in places:
        wanted.setdefault(topic, []).append(number)
    if not wanted:
        return {}
    size_of: dict[Place, int] = {}
    with connected(clients) as client:
        answers: list[Any] = client.describe_log_dirs(wanted)
    for broker in answers:
        for folder in broker["log_dirs"]:
            for topic in folder["topics"]:
                for part in topic["partitions"]:
                    place = (topic["name"], part["partition_index"])
                    size_of[place] = max(size_of.get(place, 0), part["partition_size"])
    if not size_of:
        raise Refused("no broker reports log sizes: this login needs DESCRIBE on the cluster")
    return size_of


def measured(
    admin: AdminClient,
    places: Iterable[Place],
    now_ms: int,
    *,
    commits: Mapping[Place, int] | None = None,
    log_sizes: Mapping[Place, int] | None = None,
) -> dict[Place, Load]:
    """The load of partitions now (epoch milliseconds); those that do not answer are left out.

    `commits` are the group's committed offsets, without which lags are not measured; `log_sizes`
    are the result of `sizes`, without which bytes are not.

    Raises:
        KafkaException: no answer.
    """
    wanted = list(places)
    ends = offsets(admin, wanted, LATEST)
    begins = offsets(admin, wanted, OffsetSpec.for_timestamp(now_ms - SPAN_MS))
    firsts = ends if log_sizes is None else offsets(admin, wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    loads: dict[Place, Load] = {}
    for place, end in ends.items():
        if place not in begins or place not in firsts:
            continue
        begin = begins[place]  # -1: nothing was written since
        records_s = (end - begin) / (SPAN_MS / 1000) if begin >= 0 else 0.0
        bytes_s: float | None = None
        if log_sizes is not None and place in log_sizes:
            records_in_log = end - firsts[place]
            bytes_s = records_s * log_sizes[place] / records_in_log if records_in_log > 0 else 0.0
        lag = max(end - commits[place], 0) if commits and place in commits else None
        loads[place] = Load(records_s, bytes_s, lag, end)
    return loads


def by_measure(
    clients: ClientSettings,
    admin: AdminClient,
    measure: Measure,
    places: Iterable[Place],
    group: str,
    now_ms: int,
) -> dict[Place, float]:
    """The load of partitions by one measure, of all of them; a lag without a commit is 0.

    A partition that is left out would seem to carry nothing, and its task would get the weight of
    an idle one.

    Raises:
        KafkaException, Unreachable: no answer, or not for every partition.
        Refused: the login may not describe the cluster, which bytes need.
    """
    wanted = list(places)
    commits = committed(clients, group) if measure is Measure.LAG else None
    log_sizes = sizes(clients, wanted) if measure is Measure.BYTES else None
    loads = measured(admin, wanted, now_ms, commits=commits, log_sizes=log_sizes)
    missing = [
        place
        for place in wanted
        if place not in loads or (log_sizes is not None and place not in log_sizes)
    ]
    if missing:
        (topic, number), count = missing[0], len(missing)
        raise Unreachable(f"{count} of {len(wanted)} partitions do not answer, as {topic}-{number}")
    return {place: float(each.by(measure) or 0) for place, each in loads.items()}
