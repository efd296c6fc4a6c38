"""What commands say when Kafka refuses a right: who lacks which operation on which resource."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient

from muster.doctor import cluster as doctor_cluster
from muster.doctor.finding import Level
from muster.kafka import access_check, topic_creation
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import failures_named
from muster.kafka.partition_counts import ANY
from muster.protocol.topics import TOPICS

ANN = ClientSettings({"sasl.username": "ann", "sasl.mechanism": "PLAIN"})


def answered(answer: object) -> Future[Any]:
    """A request that was answered; an error is its answer too."""
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def refusal(code: int) -> KafkaException:
    """Kafka's answer with this error."""
    return KafkaException(KafkaError(code))


class FakeAdmin:
    """A client whose login sees no topic of Kafka's list and no ACL."""

    def __init__(self, error: int, operations: list[AclOperation] | None) -> None:
        self._error, self._operations = error, operations

    def list_topics(self, name: str, timeout: float) -> SimpleNamespace:
        """What Kafka says about one topic."""
        topic = SimpleNamespace(error=KafkaError(self._error), partitions={})
        return SimpleNamespace(topics={name: topic})

    def describe_acls(self, *_: object, **__: object) -> Future[Any]:
        """The client's answer when there is no ACL, and also when Kafka refuses to list them."""
        return answered([])

    def describe_cluster(self, **_: object) -> Future[Any]:
        """The operations on the cluster that Kafka lists; None = it may not be described."""
        return answered(SimpleNamespace(authorized_operations=self._operations))

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        """A refusal."""
        return {each: answered(refusal(self._error)) for each in resources}


def admin(error: int, operations: list[AclOperation] | None = None) -> AdminClient:
    """A `FakeAdmin` for code that wants a real one."""
    return cast("AdminClient", FakeAdmin(error, operations))


def test_a_reader_without_the_right_on_groups() -> None:
    """Each reader looks up the coordinator of its consumer group; the message names that right."""
    with pytest.raises(Refused) as raised:  # noqa: SIM117 — the second is what is tested
        with failures_named(ANN, "acme.groups", "READ"):
            raise refusal(KafkaError.GROUP_AUTHORIZATION_FAILED)
    wanted = "User:ann lacks DESCRIBE on Group acme.*, which every reader of these topics needs"
    assert str(raised.value) == wanted


def test_a_login_that_may_not_read_settings_of_topics() -> None:
    """`topics create` names the right to read settings, and not the one to create topics."""
    refuses = admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Refused, match=r"User:ann lacks DESCRIBE_CONFIGS on Topic acme\.membership"):
        topic_creation._checked(ANN, refuses, TOPICS[0], "acme", ANY)


@pytest.mark.parametrize(
    ("error", "what", "action"),
    [
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "this login may not see it, or it does not exist: ",
            "grant DESCRIBE on it, or muster topics create --topic-prefix acme",
        ),
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            "does not exist: ",
            "muster topics create --topic-prefix acme",
        ),
    ],
)
def test_the_doctor_tells_hidden_topics_from_absent_ones(
    error: int, what: str, action: str
) -> None:
    """It does not tell an operator without rights to create topics that are there."""
    found = [*doctor_cluster.topics(admin(error), {}, "acme", 1, "kafka:9092")]
    assert len(found) == len(TOPICS)
    assert [f for f in found if not f.what.startswith(what) or f.action != action] == []
    assert {f.level for f in found} == {Level.FAIL, Level.WARN}


@pytest.mark.parametrize(
    ("operations", "what"),
    [
        (None, "this login may not read them: it lacks DESCRIBE on Cluster kafka-cluster"),
        ([], "this login may not read them: it lacks DESCRIBE on Cluster kafka-cluster"),
        ([AclOperation.DESCRIBE], "there are none: every login is a super user"),
    ],
)
def test_the_doctor_tells_unseen_acls_from_absent_ones(
    monkeypatch: pytest.MonkeyPatch, operations: list[AclOperation] | None, what: str
) -> None:
    """The client reports that there are no ACLs also where Kafka refuses to list them."""
    monkeypatch.setattr(access_check, "check", lambda *_: {})
    sees = admin(KafkaError.NO_ERROR, operations)
    _, acls = doctor_cluster.rights(ANN, sees, "acme")
    assert (acls.subject, acls.level, acls.what) == ("ACLs", Level.SKIPPED, what)
