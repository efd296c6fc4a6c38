"""Admin clients that know the leader epochs of their first question, as librdkafka's do."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from muster.kafka import lasting_admin

Place = tuple[str, int]


class FakeCluster:
    """Partitions with an end offset, and how many clients were made to ask for it.

    Attributes:
        ends: place → end offset.
        leaderless: partitions that answer no client.
        clients: number of clients that were made.
    """

    def __init__(self, ends: Mapping[Place, int]) -> None:
        self.ends = dict(ends)
        self.leaderless: set[Place] = set()
        self.clients = 0
        self._epochs = dict.fromkeys(self.ends, 0)

    def connect(self, *_: object, **__: object) -> FakeAdmin:
        """Make a client."""
        self.clients += 1
        return FakeAdmin(self, dict(self._epochs))

    def elect(self, *places: Place) -> None:
        """Give partitions a new leader."""
        for place in places:
            self._epochs[place] += 1

    def end(self, place: Place, known_epoch: int) -> int:
        """The end offset of a partition, for a client that knows this epoch of its leader.

        Raises:
            KafkaException: there is no leader, or it refuses the epoch.
        """
        if place in self.leaderless:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        if self._epochs[place] != known_epoch:
            raise KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        return self.ends[place]


class FakeAdmin:
    """One client; it answers a question about another offset than the end with 0."""

    def __init__(self, cluster: FakeCluster, epochs: Mapping[Place, int]) -> None:
        self._cluster, self._epochs = cluster, epochs

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[SimpleNamespace]]:
        """An answer, or the refusal, for each partition."""
        answers: dict[TopicPartition, Future[SimpleNamespace]] = {}
        newest = type(OffsetSpec.latest())
        for part, spec in asked.items():
            answers[part] = answer = Future()
            place = (part.topic, part.partition)
            try:
                end = self._cluster.end(place, self._epochs[place])
            except KafkaException as error:
                answer.set_exception(error)
            else:
                answer.set_result(SimpleNamespace(offset=end if isinstance(spec, newest) else 0))
        return answers


def fake_cluster(monkeypatch: pytest.MonkeyPatch, ends: Mapping[Place, int]) -> FakeCluster:
    """A cluster that every `LastingAdmin` made from now on asks."""
    cluster = FakeCluster(ends)
    monkeypatch.setattr(lasting_admin, "AdminClient", cluster.connect)
    return cluster
