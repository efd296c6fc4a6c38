"""Creates muster's topics and checks those that exist; an existing topic is never changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicMetadata

from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import RETRY_PAUSE_S, TIMEOUT_S, admin, failures_named
from muster.kafka.partition_counts import ANY, PartitionCounts
from muster.protocol.topics import TOPICS, Topic

BROKER_DEFAULT = -1
REPLICATION_MAX = 10_000
"""Most copies of a topic that the client accepts."""


class Status(StrEnum):
    """The result for a topic."""

    CREATED = "created"
    FOUND = "ok"
    DIFFERS = "differs"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One topic after the command; `differences`: a line for each setting with a wrong value."""

    topic: str
    status: Status
    partitions: int
    differences: tuple[str, ...] = ()


def create(
    settings: ClientSettings,
    prefix: str,
    partitions: PartitionCounts = ANY,
    replication_factor: int = BROKER_DEFAULT,
    more: dict[str, str] | None = None,
) -> list[Outcome]:
    """Create the topics that are missing and check those that exist.

    `partitions` are those of new topics, and what existing ones must have; topics with a fixed
    number of partitions keep it. `more` are settings that win over muster's.

    Raises:
        Refused: the login, or no right to create topics.
        Silent, Unreachable: no answer, or the broker refused (too few brokers, for example).
    """
    access_check.reach(settings, TIMEOUT_S)
    with failures_named(settings, f"{prefix}.*", "CREATE"):
        client = admin(settings)
        existing = client.list_topics(timeout=TIMEOUT_S).topics
        missing = {
            t.name(prefix): NewTopic(
                t.name(prefix),
                partitions.new(t),
                replication_factor,
                config={**t.settings, **(more or {})},
            )
            for t in TOPICS
            if t.name(prefix) not in existing
        }
        created = _create(client, list(missing.values())) if missing else set()
        return [
            Outcome(t.name(prefix), Status.CREATED, missing[t.name(prefix)].num_partitions)
            if t.name(prefix) in created
            else _checked(settings, client, t, prefix, partitions)
            for t in TOPICS
        ]


def _create(client: AdminClient, topics: list[NewTopic]) -> set[str]:
    """Create topics; return the names of those that no other client created meanwhile."""
    created: set[str] = set()
    futures = client.create_topics(topics, request_timeout=TIMEOUT_S)
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S)
            created.add(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    _await_leaders(client, [topic.topic for topic in topics])
    return created


def _await_leaders(client: AdminClient, names: list[str]) -> None:
    """Wait until the topics can be used (all leaders elected); at most `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        known = client.list_topics(timeout=TIMEOUT_S).topics
        if all(n in known and _led(known[n]) for n in names) or time.monotonic() > deadline:
            return
        time.sleep(RETRY_PAUSE_S)


def _led(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(p.leader >= 0 for p in topic.partitions.values())


def _checked(
    settings: ClientSettings,
    client: AdminClient,
    topic: Topic,
    prefix: str,
    partitions: PartitionCounts,
) -> Outcome:
    name = topic.name(prefix)
    resource = ConfigResource(ResourceType.TOPIC, name)
    with failures_named(settings, name, "DESCRIBE_CONFIGS"):
        (future,) = client.describe_configs([resource], request_timeout=TIMEOUT_S).values()
        present = {key: entry.value for key, entry in future.result(TIMEOUT_S).items()}
    count = len(client.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)
    differences = [
        f"{key} is {present.get(key)}, expected {value}"
        for key, value in topic.settings.items()
        if present.get(key) != value
    ]
    if complaint := partitions.complaint(topic, count):
        differences.insert(0, complaint)
    status = Status.DIFFERS if differences else Status.FOUND
    return Outcome(name, status, count, tuple(differences))
