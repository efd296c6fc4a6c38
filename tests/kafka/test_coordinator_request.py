"""A request to a group's coordinator is sent again when librdkafka forgets it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from support.kafka.brokers import create_topics
from support.suite.waiting import until

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.kafka import access_check, coordinator_request
from muster.kafka.acls import Role
from muster.kafka.client_settings import client_settings
from muster.kafka.coordinator_request import CoordinatorRequest

LIBRDKAFKA_TRIES = 3
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def test_a_forgotten_request_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two are never answered; the third is."""
    monkeypatch.setattr(coordinator_request, "AGAIN_S", 0.0)
    futures: list[Future[str]] = []

    def send(_: AdminClient) -> Future[str]:
        futures.append(Future())
        if len(futures) == 3:
            futures[-1].set_result("an answer")
        return futures[-1]

    assert CoordinatorRequest(NOWHERE, send).result(60) == "an answer"
    assert len(futures) == 3


def test_no_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the time limit, and raises an error of the answer."""
    monkeypatch.setattr(coordinator_request, "LOOK_S", 0.0)
    silent: Future[str] = Future()
    with pytest.raises(KafkaException, match="no answer within 0 s"):
        CoordinatorRequest(NOWHERE, lambda _: silent).result(0)
    refused: Future[str] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        CoordinatorRequest(NOWHERE, lambda _: refused).result(60)


@pytest.mark.broker
def test_the_job_checks_its_rights_on_a_new_cluster() -> None:
    """No group has had a coordinator yet: Kafka says so more often than librdkafka asks."""
    # One node cannot hold three replicas, so Kafka does not create the topic until the test does.
    with EmbeddedKafka(properties={"offsets.topic.replication.factor": "3"}) as broker:
        create_topics(broker.bootstrap_server, "new")
        clients = client_settings(broker.bootstrap_server)
        with ThreadPoolExecutor() as pool:
            checked = pool.submit(access_check.check, clients, Role.JOB, ["new"], timeout_s=40)
            until(
                lambda: broker.log_file.read_text().count("__consumer_offsets") > LIBRDKAFKA_TRIES,
                "Kafka answered every try of librdkafka",
            )
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_server})
            for made in admin.create_topics([NewTopic("__consumer_offsets", 1, 1)]).values():
                made.result(30)
            assert checked.result()
