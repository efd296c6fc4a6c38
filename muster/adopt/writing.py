"""Writes the leader's answers of a round as bytes: for consumers, and for workers of Connect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from muster.adopt.answers import Answer
from muster.adopt.said import CONNECT_PROTOCOLS, SEAT_URL, Said
from muster.kafka.messages import ConnectWorkerAssignment
from muster.protocol.ids import Task


@dataclass(frozen=True, slots=True)
class ConnectLeader:
    """The worker that a Connect cluster is told is its leader, and the config it is to have read.

    It makes session keys, and answers REST requests that only a leader may answer.

    Attributes:
        id: its member id in Kafka.
        url: its REST address.
        config_offset: of the config topic; workers that have not read so far read on first.
    """

    id: str
    url: str
    config_offset: int


def consumers(said: Sequence[Said], given: Mapping[str, Answer], me: str) -> dict[str, bytes]:
    """Member id in Kafka → its answer; the governor `me` gets nothing."""
    answers = {each.id: consumer(given[each.name].assigned) for each in said}
    return {**answers, me: consumer(())}


def workers(
    said: Sequence[Said],
    given: Mapping[str, Answer],
    me: str,
    protocol: str,
    leader: ConnectLeader | None,
) -> dict[str, bytes]:
    """Member id in Kafka → its answer; the governor `me` gets nothing.

    Args:
        said: the workers.
        given: by name.
        me: the governor.
        protocol: the one that the workers share.
        leader: the worker that is to be the leader; None = there is no worker.
    """
    leader = leader or ConnectLeader(me, SEAT_URL, -1)
    answers = {
        each.id: worker(protocol, leader, given[each.name].added, given[each.name].revoked)
        for each in said
    }
    return {**answers, me: worker(protocol, leader, (), ())}


def leader_of(
    said: Sequence[Said], before: ConnectLeader | None, offset: int
) -> ConnectLeader | None:
    """The worker that was the leader before, if it is there; else the first by name.

    Args:
        said: the workers; without any there is no leader.
        before: the leader of the round before.
        offset: up to which the governor has read the config topic.
    """
    url = before.url if before is not None else None
    there = sorted(said, key=lambda member: (member.url != url, member.name))
    if not there:
        return None
    offset = max(offset, *(member.config_offset for member in said))
    return ConnectLeader(there[0].id, there[0].url, offset)


def consumer(assigned: Iterable[Task]) -> bytes:
    """An answer to a consumer: all that it is to have."""
    rows = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in _by_unit(assigned).items()
    ]
    answer = ConsumerProtocolAssignment(version=0, assigned_partitions=rows, user_data=b"")
    return bytes(answer.encode())


def worker(
    protocol: str, leader: ConnectLeader, added: Iterable[Task], revoked: Iterable[Task]
) -> bytes:
    """An answer to a Connect worker: what it is to start (when eager: all), and what to stop."""

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
    found: defaultdict[str, list[int]] = defaultdict(list)
    for task in tasks:
        found[task.unit].append(task.number)
    return {name: sorted(numbers) for name, numbers in sorted(found.items())}
