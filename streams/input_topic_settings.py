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

from collections.abc import Mapping, Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from muster.kafka import access_check
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

    A topic whose settings the job may not read is accepted, with a warning. `others` are topics
    that the query does not read; they are only warned of.

    Raises:
        WrongTopics: the writers stamp the records of some topics.
    """
    settings, hidden = _settings(clients, [*topics, *others])
    if hidden:
        _log.warning(
            "settings of topics are not checked",
            why="the job lacks DESCRIBE_CONFIGS on them; senders may choose the time of their"
            " records, and one compressed record may end the job",
            topics=hidden,
            grant=[
                f"{access_check.create_command(prefix)} --acls --job-principal User:NAME"
                for prefix in dict.fromkeys(topic.rpartition(".")[0] for topic in hidden)
            ],
        )
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
) -> tuple[dict[str, Mapping[str, ConfigEntry]], list[str]]:
    """The settings of each topic that exists, and the topics whose settings are not shown."""
    client = AdminClient(clients.librdkafka(), logger=KAFKA)
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    asked = client.describe_configs(resources, request_timeout=ASK_TIMEOUT_S)
    settings: dict[str, Mapping[str, ConfigEntry]] = {}
    hidden: list[str] = []
    for resource, future in asked.items():
        try:
            settings[str(resource.name)] = future.result(ASK_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                hidden.append(str(resource.name))
            else:
                _log.debug(
                    "settings of a topic cannot be read", topic=resource.name, why=str(error)
                )
    return settings, sorted(hidden)


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
