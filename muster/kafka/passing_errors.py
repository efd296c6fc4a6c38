"""Which of Kafka's errors may be over in a moment, so that a reader waits instead of failing."""

from __future__ import annotations

from confluent_kafka import KafkaError

SILENCE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_PASSING = frozenset(
    (
        *SILENCE,
        KafkaError._RESOLVE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
    )
)


def passes(error: KafkaError) -> bool:
    """Whether an error may be over in a moment: a broker is away, or a partition has no leader yet.

    `KafkaError.retriable` says it of errors of transactions only.
    """
    return error.code() in _PASSING and not error.fatal()
