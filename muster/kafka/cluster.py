"""An admin client for commands, and muster's errors for its failures.

`failures_named` turns a failure of the client into one of muster's errors, with librdkafka's
reason. librdkafka's own log is switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from muster.errors import Unreachable
from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings
from muster.kafka.passing_errors import SILENCE
from muster.kafka.refused_settings import refused

TIMEOUT_S = 15
RETRY_PAUSE_S = 0.1
QUIET = {"log_level": 0}
NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    # The error for a producer that may not write to any topic.
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


@contextmanager
def failures_named(settings: ClientSettings, topic: str = "", doing: str = "") -> Iterator[None]:
    """Turn the client's exceptions into muster's errors.

    If the block uses a single topic, `doing` is the operation on it that it needs, as in ACLs.

    Raises:
        Unreachable: Kafka did not answer, or refused.
        Refused: the principal may not use the topic like that, or no consumer group, which each
            reader of a topic needs.
        BadInput: a client setting that librdkafka does not accept.
    """
    try:
        yield
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        text = settings.hidden(str(reason.str()))
        if reason.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
            raise refused(settings, error) from None
        if reason.code() in NOT_ALLOWED and topic:
            raise access_check.Refused(access_check.lacking(settings, topic, doing)) from None
        if reason.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and topic:
            prefix = topic.rpartition(".")[0]
            raise access_check.Refused(access_check.lacking_group(settings, prefix)) from None
        if reason.code() in SILENCE:
            text = f"no answer within {TIMEOUT_S} s ({text})"
        raise Unreachable(f"Kafka at {settings.bootstrap}: {text}") from None
    except access_check.Silent as error:
        raise Unreachable(str(error)) from None


def admin(settings: ClientSettings) -> AdminClient:
    """An admin client; use it within `failures_named`."""
    return AdminClient(settings.librdkafka(QUIET))


def partitions_of(settings: ClientSettings, topic: str, operation: str = "READ") -> int:
    """The number of partitions of a topic, which this login must be allowed to read or write.

    Raises:
        Unreachable: no answer.
        Refused: the login, a certificate or a missing right; the message says which.
        NoTopics: no such topic; the message says how to create it.
    """
    with failures_named(settings):
        return access_check.topic(settings, topic, operation, TIMEOUT_S)
