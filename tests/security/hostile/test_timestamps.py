"""The job refuses topics whose timestamps the writers choose, and says why."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.kafka.brokers import Topics

from muster.protocol.topics import TopicKind
from muster.streams import input_topic_settings
from muster.streams.errors import WrongTopics
from muster.streams.source import input_topics


def test_it_names_the_command_that_mends_it() -> None:
    """The error has the command that fixes each wrong topic."""
    text = input_topic_settings.message("kafka:9092", ["muster.config", "muster.lag"])
    assert text.count("kafka-configs.sh --bootstrap-server kafka:9092 --alter") == 2
    assert "--entity-name muster.lag --add-config message.timestamp.type=LogAppendTime" in text


@pytest.mark.broker
def test_writers_do_not_choose_the_time(topics: Topics) -> None:
    """Topics as muster creates them pass; a topic with CreateTime is refused by name."""
    inputs = input_topics([topics.prefix])
    input_topic_settings.check(topics.clients, inputs)
    lag = topics.name(TopicKind.LAG)
    entry = ConfigEntry(
        input_topic_settings.TIMESTAMPS[0],
        "CreateTime",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, lag, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": topics.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    with pytest.raises(WrongTopics, match=f"^{lag}: message.timestamp.type"):
        input_topic_settings.check(topics.clients, inputs)
