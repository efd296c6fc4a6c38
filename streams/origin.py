"""The topics that a checkpoint belongs to: their Kafka ids, in a file beside Spark's files.

A checkpoint holds offsets, and an offset is valid in one topic only. If the topics are those of
another cluster, or were deleted and created again under their old names, a query that continues
from the checkpoint skips every record until the old offsets are reached, and looks healthy. The ids
that Kafka gives to topics when they are created tell such topics apart.

A checkpoint without the file (from before the file existed) is accepted and gets one. Brokers older
than 2.8 have no topic ids: then nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from muster.kafka.settings import ClientSettings
from muster.logs import KAFKA
from muster.streams import beside
from muster.streams.errors import KafkaUnreachable, OtherTopics

FILE = "muster-topics.json"
ASK_TIMEOUT_S = 30.0
NONE = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that a broker without topic ids gives."""


def check(
    spark: SparkSession,
    checkpoint: str,
    clients: ClientSettings,
    topics: Iterable[str],
    *,
    is_new: bool,
) -> None:
    """Check that the checkpoint belongs to these topics; write their ids if it has none yet.

    Args:
        spark: gives access to the checkpoint's file system.
        checkpoint: folder or URL of the checkpoint.
        clients: how to reach Kafka.
        topics: the input topics.
        is_new: nothing was committed in the checkpoint yet, so it belongs to no topics.

    Raises:
        OtherTopics: the checkpoint belongs to other topics.
        KafkaUnreachable: Kafka did not return the topics' ids.
    """
    now = ids(clients, topics)
    then: Mapping[str, str] = {} if is_new else _known(spark, checkpoint)
    other = differing(then, now)
    if other:
        raise OtherTopics(
            f"the checkpoint {checkpoint} is of other topics: {', '.join(other)} made anew, or "
            "another cluster's, since it was written. Give --checkpoint a new folder; the groups "
            "are read back from Kafka. (If the same records are at the same offsets there, as in a "
            f"restored backup, remove {checkpoint}/{FILE} instead)"
        )
    if {**then, **now} != then:
        beside.write(spark, checkpoint, FILE, {**then, **now})


def _known(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    return {topic: str(id_) for topic, id_ in beside.read(spark, checkpoint, FILE).items()}


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics whose ids are known on both sides and differ."""
    return sorted(topic for topic in then.keys() & now.keys() if then[topic] != now[topic])


def ids(clients: ClientSettings, topics: Iterable[str]) -> dict[str, str]:
    """Topic → id; topics without an id are left out.

    Raises:
        KafkaUnreachable: Kafka did not return the ids.
    """
    admin = AdminClient(clients.librdkafka(), logger=KAFKA)
    asked = admin.describe_topics(TopicCollection([*topics]), request_timeout=ASK_TIMEOUT_S)
    try:
        found = {name: str(future.result().topic_id) for name, future in asked.items()}
    except KafkaException as error:
        raise KafkaUnreachable(f"the topics do not say who they are: {error}") from error
    return {name: id_ for name, id_ in found.items() if id_ != NONE}
