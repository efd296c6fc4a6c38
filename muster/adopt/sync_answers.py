"""Encodes the leader's SyncGroup answers: for consumers, and for workers of Connect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from muster.adopt.join_metadata import CONNECT_PROTOCOLS, SEAT_URL, KafkaMember
from muster.adopt.owned_and_free_tasks import Answer
from muster.kafka.messages import ConnectWorkerAssignment
from muster.protocol.ids import Task


@dataclass(frozen=True, slots=True)
class ConnectLeader:
    """The worker that the governor names as the leader of a Connect cluster.

    That worker makes session keys, and answers REST requests that only a leader may answer.

    Attributes:
        id: its member id in Kafka.
        url: its REST address.
        config_offset: offset of the config topic that each worker reads to before it starts tasks.
    """

    id: str
    url: str
    config_offset: int


def consumers(
    members: Sequence[KafkaMember], answers: Mapping[str, Answer], me: str
) -> dict[str, bytes]:
    """Member id in Kafka → its answer; the governor `me` gets nothing."""
    encoded = {each.id: consumer(answers[each.name].assigned) for each in members}
    return {**encoded, me: consumer(())}


def workers(
    members: Sequence[KafkaMember],
    answers: Mapping[str, Answer],
    me: str,
    protocol: str,
    leader: ConnectLeader | None,
) -> dict[str, bytes]:
    """Member id in Kafka → its answer; the governor `me` gets nothing.

    `answers` are by name; without a worker there is no `leader`.
    """
    leader = leader or ConnectLeader(me, SEAT_URL, -1)
    encoded = {
        each.id: worker(protocol, leader, answers[each.name].added, answers[each.name].revoked)
        for each in members
    }
    return {**encoded, me: worker(protocol, leader, (), ())}


def leader_of(
    members: Sequence[KafkaMember], before: ConnectLeader | None, offset: int
) -> ConnectLeader | None:
    """The leader `before` if it is present, else the first worker by name; None = no workers.

    `offset`: up to which the governor has read the config topic.
    """
    url = before.url if before is not None else None
    candidates = sorted(members, key=lambda member: (member.url != url, member.name))
    if not candidates:
        return None
    offset = max(offset, *(member.config_offset for member in members))
    return ConnectLeader(candidates[0].id, candidates[0].url, offset)


def consumer(assigned: Iterable[Task]) -> bytes:
    """Encode an answer to a consumer: all partitions that it is to have."""
    rows = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_unit(assigned).items()
    ]
    answer = ConsumerProtocolAssignment(version=0, assigned_partitions=rows, user_data=b"")
    return bytes(answer.encode())


def worker(
    protocol: str, leader: ConnectLeader, added: Iterable[Task], revoked: Iterable[Task]
) -> bytes:
    """Encode an answer to a Connect worker: tasks to start (when eager: all) and to stop."""

    def rows(tasks: Iterable[Task]) -> list[Any]:
        row = ConnectWorkerAssignment.ConnectorTasks
        return [row(connector=name, tasks=ns) for name, ns in _by_unit(tasks).items()]

    answer = ConnectWorkerAssignment(
        version=CONNECT_PROTOCOLS[protocol],
        error=0,
        leader=leader.id,
        leader_url=leader.url,
        config_offset=leader.config_offset,
        assigned=rows(added),
        revoked=rows(revoked),
        delay_ms=0,
    )
    return bytes(answer.encode())


def _by_unit(tasks: Iterable[Task]) -> dict[str, list[int]]:
    numbers_by_unit: defaultdict[str, list[int]] = defaultdict(list)
    for task in tasks:
        numbers_by_unit[task.unit].append(task.number)
    return {name: sorted(numbers) for name, numbers in sorted(numbers_by_unit.items())}
