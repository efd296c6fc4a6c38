"""Reads topics from Kafka's metadata: partitions, racks of replicas and leaders, topic ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

TIMEOUT_S = 15
_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""Names that a topic can have. Kafka's consumers may subscribe to any others."""
_ABSENT = (
    KafkaError.TOPIC_EXCEPTION,  # no topic can have this name
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic.

    Attributes:
        id: its id; a topic that was deleted and created again has another one.
        replica_racks: per partition the racks of its replicas, sorted; a replica on a broker
            without `broker.rack` counts for none.
        leader_racks: per partition the rack of its leader; None = unknown, or no leader now.
        away: partitions with a replica on a broker that Kafka does not have now, as during its
            restart: the rack of that replica is missing.
    """

    name: str
    id: str
    replica_racks: tuple[tuple[str, ...], ...]
    leader_racks: tuple[str | None, ...]
    away: frozenset[int] = frozenset()

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.replica_racks)

    @property
    def has_racks(self) -> bool:
        """Whether a rack of every partition is known."""
        return all(self.replica_racks)


def topics(admin: AdminClient, names: Iterable[str]) -> dict[str, Topic]:
    """The topics of these names that exist and that this login may describe, by name.

    Raises:
        KafkaException, TimeoutError: no answer.
    """
    wanted = sorted({name for name in names if _NAME.fullmatch(name)})
    if not wanted:
        return {}
    answers = admin.describe_topics(TopicCollection(wanted), request_timeout=TIMEOUT_S)
    topics: dict[str, Topic] = {}
    for name, answer in answers.items():
        try:
            described = answer.result(TIMEOUT_S + 1)
        except KafkaException as error:
            if error.args[0].code() in _ABSENT:
                continue
            raise
        partitions = sorted(described.partitions, key=lambda each: each.id)
        if [each.id for each in partitions] != list(range(len(partitions))):
            continue  # Kafka is still creating it, or adding partitions
        topics[name] = Topic(
            name=name,
            id=str(described.topic_id),
            replica_racks=tuple(
                tuple(sorted({node.rack for node in each.replicas if node.rack}))
                for each in partitions
            ),
            leader_racks=tuple(
                each.leader.rack or None if each.leader is not None else None for each in partitions
            ),
            away=frozenset(
                each.id for each in partitions if not all(node.host for node in each.replicas)
            ),
        )
    return topics


def names(admin: AdminClient) -> list[str]:
    """Names of all topics that this login may describe, sorted, without Kafka's internal ones.

    Raises:
        KafkaException: no answer.
    """
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    usable = (name for name, topic in topics.items() if topic.error is None)
    return sorted(name for name in usable if not name.startswith("__"))
