"""The input topics carry the broker's time, or the job does not start.

The log decides what happened when (`protocol.topics`): every deadline is measured in the timestamps
of records. On a topic with ``message.timestamp.type=CreateTime`` they are the senders' own, and one
sender with a clock of the year 2100 lets every session of its group end at once. `muster topics
create` makes the topics right; those that were made by hand may not be.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from muster.clients import ClientSettings
from muster.logs import KAFKA
from muster.streams.errors import WrongTopics

_log = structlog.get_logger("muster.streams")

SETTING = "message.timestamp.type"
WANTED = "LogAppendTime"
ASK_TIMEOUT_S = 30.0


def check(clients: ClientSettings, topics: Sequence[str]) -> None:
    """See that the broker stamps what is appended to these topics.

    The job's rights need not include reading settings; then nothing is said, and `muster doctor`,
    run by an operator, tells.

    Raises:
        WrongTopics: some are stamped by their writers.
    """
    client = AdminClient(clients.librdkafka(), logger=KAFKA)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    asked = client.describe_configs(resources, request_timeout=ASK_TIMEOUT_S)
    wrong: list[str] = []
    for resource, future in asked.items():
        try:
            found: dict[str, ConfigEntry] = future.result(ASK_TIMEOUT_S)
        except KafkaException as error:
            _log.debug("settings of a topic cannot be read", topic=resource.name, why=str(error))
            continue
        entry = found.get(SETTING)
        if entry is not None and entry.value != WANTED:
            wrong.append(resource.name)
    if wrong:
        raise WrongTopics(told(clients.bootstrap, sorted(wrong)))


def told(bootstrap: str, topics: Sequence[str]) -> str:
    """What is wrong with these topics, and the commands that mend it."""
    commands = "; ".join(
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {SETTING}={WANTED}"
        for topic in topics
    )
    return (
        f"{', '.join(topics)}: {SETTING} is not {WANTED}, so members' clocks would decide who has"
        f" expired; mend it: {commands}"
    )
