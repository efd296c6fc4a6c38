"""Topics as Kafka's metadata has them, of names that no topic can have."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Node, TopicCollection

from muster.discovery.topics import topics


class Admin:
    """An admin client of a cluster with the topic `orders`; `error` is that of all others."""

    def __init__(self, error: int, partitions: Sequence[object] = ()) -> None:
        self.error, self.partitions = error, list(partitions)
        self.asked: list[str] = []

    def describe_topics(self, wanted: TopicCollection, request_timeout: int) -> dict[str, Future]:
        """As confluent-kafka's."""
        self.asked = list(wanted.topic_names)
        answers: dict[str, Future] = {name: Future() for name in self.asked}
        for name, answer in answers.items():
            if name == "orders":
                answer.set_result(SimpleNamespace(partitions=self.partitions, topic_id="id"))
            else:
                answer.set_exception(KafkaException(KafkaError(self.error)))
        return answers


@pytest.mark.parametrize("name", ["", "bad topic!", ".", "..", "a" * 250, "nul\0", "línea", "a\n"])
def test_a_name_that_no_topic_can_have(name):
    """It is not asked for: librdkafka would refuse the whole request for some of them."""
    admin = Admin(KafkaError.TOPIC_EXCEPTION)
    assert list(topics(admin, [name, "orders"])) == ["orders"]
    assert admin.asked == ["orders"]


def test_a_name_that_kafka_calls_invalid():
    """No topic has it; the others are found."""
    assert list(topics(Admin(KafkaError.TOPIC_EXCEPTION), ["odd", "orders"])) == ["orders"]


def test_a_replica_on_a_stopped_broker():
    """Kafka does not say its address or rack; the topic says of which partitions."""
    there, gone = Node(1, "b1", 9092, "r1"), Node(2, None, 0, None)
    rows = [(0, [there, gone]), (1, [there])]
    partitions = [
        SimpleNamespace(id=number, leader=there, replicas=replicas) for number, replicas in rows
    ]
    [found] = topics(Admin(KafkaError.TOPIC_EXCEPTION, partitions), ["orders"]).values()
    assert (found.replica_racks, found.away) == ((("r1",), ("r1",)), frozenset({0}))


def test_kafka_does_not_answer():
    """Then nothing is known."""
    with pytest.raises(KafkaException):
        topics(Admin(KafkaError.REQUEST_TIMED_OUT), ["odd", "orders"])
