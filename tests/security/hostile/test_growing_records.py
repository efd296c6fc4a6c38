"""A small compressed record that inflates to very much reaches no reader: the broker refuses it.

On a topic that takes compressed records, one of 300 kB that inflates to 300 MB ended the job, and
ended it again at each start.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from structlog.testing import capture_logs
from support.kafka.brokers import Topics
from support.streams.operator import config, join
from support.suite.waiting import until

from muster.protocol.topics import INPUTS, TopicKind
from muster.streams import input_topic_settings
from muster.streams.source import input_topics

pytestmark = pytest.mark.broker

BYTES = 20_000_000
"""It compresses to less than a tenth of what a topic takes."""


def refusal(topics: Topics, kind: TopicKind, codec: str) -> KafkaError | None:
    """What the broker says to a compressed record of `BYTES`."""
    told = {"compression.type": codec, "message.max.bytes": 2 * BYTES, "linger.ms": 0}
    producer = Producer(topics.clients.producer(told))
    answers: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        answers.append(error)

    producer.produce(topics.name(kind), bytes(BYTES), b"g", on_delivery=delivered)
    assert producer.flush(120) == 0
    return answers[0]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_record_that_grows_is_refused(topics: Topics, codec: str) -> None:
    """On each topic that members write to; ordinary events are taken as before."""
    for kind in (*INPUTS, TopicKind.HEARTBEATS):
        error = refusal(topics, kind, codec)
        assert error is not None
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        assert topics.end(kind) == 0
    topics.write(TopicKind.CONFIG, config())
    topics.write(TopicKind.MEMBERSHIP, join())


def test_the_job_warns_of_topics_that_take_such_records(topics: Topics) -> None:
    """Topics of older versions: the log names them, with the command that mends them."""
    inputs = input_topics([topics.prefix])
    heartbeats = topics.name(TopicKind.HEARTBEATS)
    with capture_logs() as logs:
        input_topic_settings.check(topics.clients, inputs, [heartbeats, "no.such.topic"])
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []
    name, _ = input_topic_settings.COMPRESSION
    entry = ConfigEntry(name, "producer", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, heartbeats, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": topics.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)

    def warnings() -> list[MutableMapping[str, Any]]:
        with capture_logs() as logs:
            input_topic_settings.check(topics.clients, inputs, [heartbeats])
        return [entry for entry in logs if entry["log_level"] == "warning"]

    # A broker answers with the old setting until it has read the change from its log.
    until(warnings, "the broker has the new setting")
    (warning,) = warnings()
    assert warning["topics"] == [heartbeats]
    assert (
        f"--entity-name {heartbeats} --add-config compression.type=uncompressed"
        in (warning["mend"])
    )
