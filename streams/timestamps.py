"""Checks at the start that the input topics carry the broker's time.

All deadlines are measured in the timestamps of records (`protocol.topics`). On a topic with
``message.timestamp.type=CreateTime`` the senders set them, and one sender whose clock is in the
year 2100 would end every session of its group at once. `muster topics create` sets the type;
topics that were created by hand may lack it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from muster.kafka.settings import ClientSettings
from muster.logs import KAFKA
from muster.streams.errors import WrongTopics

_log = structlog.get_logger("muster.streams")

SETTING = "message.timestamp.type"
WANTED = "LogAppendTime"
ASK_TIMEOUT_S = 30.0


def check(clients: ClientSettings, topics: Sequence[str]) -> None:
    """Check that the broker stamps the records of these topics.

    If the job may not read a topic's settings, the topic is accepted; an operator's `muster doctor`
    checks it.

    Raises:
        WrongTopics: the writers stamp the records of some topics.
    """
    client = AdminClient(clients.librdkafka(), logger=KAFKA)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    asked = client.describe_configs(resources, request_timeout=ASK_TIMEOUT_S)
    wrong: list[str] = []
    for resource, future in asked.items():
        try:
            settings: dict[str, ConfigEntry] = future.result(ASK_TIMEOUT_S)
        except KafkaException as error:
            _log.debug("settings of a topic cannot be read", topic=resource.name, why=str(error))
            continue
        entry = settings.get(SETTING)
        if entry is not None and entry.value != WANTED:
            wrong.append(resource.name)
    if wrong:
        raise WrongTopics(message(clients.bootstrap, sorted(wrong)))


def message(bootstrap: str, topics: Sequence[str]) -> str:
    """The error message for these topics, with the commands that correct them."""
    commands = "; ".join(
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {SETTING}={WANTED}"
        for topic in topics
    )
    return (
        f"{', '.join(topics)}: {SETTING} is not {WANTED}, so members' clocks would decide who has"
        f" expired; mend it: {commands}"
    )
