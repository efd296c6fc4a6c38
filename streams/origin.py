"""Which topics a checkpoint is of: Kafka's ids of them, in a file beside Spark's.

A checkpoint holds offsets, and offsets mean something in one topic only. With the topics of another
cluster, or topics that were deleted and made anew under their old names, a query that goes on from
there passes over what is written until the old offsets are reached, and looks well all the while.
Kafka gives every topic an id when it is made, so the two can be told apart; the name cannot.

A checkpoint without the file (written before there was one) is taken at its word, and gets it.
Brokers older than 2.8 have no ids: then nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from muster.clients import ClientSettings
from muster.logs import KAFKA
from muster.streams import beside
from muster.streams.errors import KafkaUnreachable, OtherTopics

FILE = "muster-topics.json"
ASK_TIMEOUT_S = 30.0
NONE = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker without ids says."""


def check(
    spark: SparkSession,
    checkpoint: str,
    clients: ClientSettings,
    topics: Iterable[str],
    *,
    is_new: bool,
) -> None:
    """See that the checkpoint is of these topics, or make it theirs.

    Args:
        spark: whose file systems are used: the checkpoint may be anywhere.
        checkpoint: its folder or URL.
        clients: how to reach Kafka.
        topics: the input topics.
        is_new: nothing was committed in it yet, so it has no owner.

    Raises:
        OtherTopics: it is of others.
        KafkaUnreachable: Kafka did not say what its topics' ids are.
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
    """Topics whose ids are known and differ."""
    return sorted(topic for topic in then.keys() & now.keys() if then[topic] != now[topic])


def ids(clients: ClientSettings, topics: Iterable[str]) -> dict[str, str]:
    """Topic → id, of those that have one.

    Raises:
        KafkaUnreachable: Kafka did not say.
    """
    admin = AdminClient(clients.librdkafka(), logger=KAFKA)
    asked = admin.describe_topics(TopicCollection([*topics]), request_timeout=ASK_TIMEOUT_S)
    try:
        found = {name: str(future.result().topic_id) for name, future in asked.items()}
    except KafkaException as error:
        raise KafkaUnreachable(f"the topics do not say who they are: {error}") from error
    return {name: id_ for name, id_ in found.items() if id_ != NONE}
