"""Checks at the start that writers of the input topics can choose neither time nor memory.

All deadlines are measured in the timestamps of records. With
``message.timestamp.type=CreateTime`` the senders set them, and one sender whose clock is in the
year 2100 would end every session of its group at once: the job refuses such topics.

Where a topic takes compressed records, the broker limits the compressed bytes only, and one record
can end the job's JVM, again at every restart. The job warns of such topics, because those of older
versions take them.

`muster topics create` makes both right; topics that were created by hand may lack it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from muster.kafka.client_settings import ClientSettings
from muster.logs import KAFKA
from muster.streams.errors import WrongTopics

_log = structlog.get_logger("muster.streams")

TIMESTAMPS = ("message.timestamp.type", "LogAppendTime")
COMPRESSION = ("compression.type", "uncompressed")
"""A topic setting, and the value that it must have."""
ASK_TIMEOUT_S = 30.0


def check(clients: ClientSettings, topics: Sequence[str], others: Sequence[str] = ()) -> None:
    """Check that the broker stamps the records of these topics; warn if it takes compressed ones.

    If the job may not read a topic's settings, the topic is accepted; an operator's `muster doctor`
    checks it. `others` are topics that the query does not read; they are only warned of.

    Raises:
        WrongTopics: the writers stamp the records of some topics.
    """
    settings = dict(_settings(clients, [*topics, *others]))
    inflating = [topic for topic in sorted(settings) if _differs(settings[topic], COMPRESSION)]
    if inflating:
        _log.warning(
            "one record can end the job",
            why="these topics take compressed records, which grow when they are read",
            topics=inflating,
            mend=_commands(clients.bootstrap, inflating, COMPRESSION),
        )
    wrong = [topic for topic in sorted(topics) if _differs(settings.get(topic, {}), TIMESTAMPS)]
    if wrong:
        raise WrongTopics(message(clients.bootstrap, wrong))


def _settings(
    clients: ClientSettings, topics: Sequence[str]
) -> Iterable[tuple[str, Mapping[str, ConfigEntry]]]:
    """The settings of each topic that exists and that the job may describe."""
    client = AdminClient(clients.librdkafka(), logger=KAFKA)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    asked = client.describe_configs(resources, request_timeout=ASK_TIMEOUT_S)
    for resource, future in asked.items():
        try:
            settings: Mapping[str, ConfigEntry] = future.result(ASK_TIMEOUT_S)
        except KafkaException as error:
            _log.debug("settings of a topic cannot be read", topic=resource.name, why=str(error))
        else:
            yield str(resource.name), settings


def _differs(settings: Mapping[str, ConfigEntry], wanted: tuple[str, str]) -> bool:
    name, value = wanted
    return name in settings and settings[name].value != value


def message(bootstrap: str, topics: Sequence[str]) -> str:
    """The error message for topics with `CreateTime`, with the commands that correct them."""
    return (
        f"{', '.join(topics)}: {TIMESTAMPS[0]} is not {TIMESTAMPS[1]}, so members' clocks would"
        f" decide who has expired; mend it: {_commands(bootstrap, topics, TIMESTAMPS)}"
    )


def _commands(bootstrap: str, topics: Sequence[str], setting: tuple[str, str]) -> str:
    return "; ".join(
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {'='.join(setting)}"
        for topic in topics
    )
