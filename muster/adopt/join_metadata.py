"""Decodes the JoinGroup metadata of a classic group's members, and encodes the governor's.

Kafka's broker passes this metadata to the group's leader as bytes and does not decode it. A
partition is the task `topic_number`. A connector and its tasks are tasks too; the connector itself
has number -1. `sync_answers.py` encodes the leader's answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata, subscription
from muster.protocol.ids import MEMBER_ID_CHARS_MAX, SEPARATOR, Task
from muster.protocol.tasks import EMPTY, TaskSet

log = logging.getLogger("muster.adopt")

SEAT_URL: Final = "http://muster-governor.invalid/"
"""REST address that a governor gives in a Connect cluster; no worker calls it."""


class Kind(StrEnum):
    """The kind of a group's members: Kafka's protocol type."""

    CONSUMER = "consumer"
    CONNECT = "connect"


CONSUMER_PROTOCOLS: Final = (
    "cooperative-sticky",
    "range",
    "roundrobin",
    "sticky",
    "RoundRobinAssigner",  # KafkaJS
)
"""Assignor names that ordinary clients offer; the encoding is the same for all."""
CONNECT_PROTOCOLS: Final[Mapping[str, int]] = {"sessioned": 2, "compatible": 1, "default": 0}
"""Connect's protocols, best first, and the version of their encoding."""


@dataclass(frozen=True, slots=True)
class KafkaMember:
    """A member of Kafka's group, as it describes itself in JoinGroup.

    Attributes:
        id: member id in Kafka.
        name: member id in muster: its instance id, host and port of a Connect worker, else `id`.
        topics: what a consumer subscribes to; None = a Connect worker.
        owned: tasks that it runs while the group rebalances: none under an eager protocol.
        generation: Kafka generation in which it got `owned`; -1 = unknown.
        rack: where it runs; None = unknown.
        url: REST address of a Connect worker.
        config_offset: offset up to which a worker has read the cluster's config topic.
    """

    id: str
    name: str
    topics: tuple[str, ...] | None = None
    owned: TaskSet = EMPTY
    generation: int = -1
    rack: str | None = None
    url: str = ""
    config_offset: int = -1


def offers(kind: Kind, more: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """A governor's JoinGroup protocols: all that it can answer, each with empty metadata.

    `more`: names of further protocols of consumers.
    """
    if kind is Kind.CONSUMER:
        names = dict.fromkeys((*CONSUMER_PROTOCOLS, *more))
        nothing = ConsumerProtocolSubscription(version=1, topics=[], user_data=b"").encode()
        return [(name, nothing) for name in names]
    empty = partial(ConnectWorkerMetadata, url=SEAT_URL, config_offset=-1, allocation=None)
    return [(name, empty(version=number).encode()) for name, number in CONNECT_PROTOCOLS.items()]


def is_governor(instance_id: str | None) -> bool:
    """Whether a member of this instance id is a governor."""
    return instance_id is not None and instance_id.startswith(SEAT_PREFIX)


def read(kind: Kind, id: str, instance_id: str | None, metadata: bytes) -> KafkaMember:
    """Decode a member's metadata.

    Raises:
        ValueError: the bytes are not of the protocol.
    """
    try:
        if kind is Kind.CONNECT:
            return _worker(id, metadata)
        return _consumer(id, instance_id, metadata)
    except Exception as error:  # kafka-python raises whatever its codec meets
        raise ValueError(f"member {id}: not metadata of Kafka's {kind} protocol: {error}") from None


def read_all(kind: Kind, rows: Iterable[Any], group: str) -> list[KafkaMember]:
    """Decode the members of a group, governors left out, and give each a unique name.

    A member whose metadata cannot be decoded is logged and subscribes to nothing. `rows` are the
    members of kafka-python's answer to JoinGroup.
    """
    members: dict[str, KafkaMember] = {}
    for row in rows:
        if is_governor(row.group_instance_id):
            continue
        try:
            each = read(kind, row.member_id, row.group_instance_id, bytes(row.metadata or b""))
        except ValueError as error:
            log.error("%s; it gets nothing", error, extra={"group": group})
            each = KafkaMember(row.member_id, printable(row.member_id), topics=())
        if each.name in members:
            each = replace(each, name=printable(each.id))
        members[each.name] = each
    return list(members.values())


def _consumer(id: str, instance_id: str | None, metadata: bytes) -> KafkaMember:
    metadata_fields = subscription(metadata)
    owned = (Task(p.topic, n) for p in metadata_fields.owned_partitions or () for n in p.partitions)
    return KafkaMember(
        id,
        printable(instance_id or id),
        topics=tuple(sorted(set(metadata_fields.topics))),
        owned=TaskSet.of(owned),
        generation=metadata_fields.generation_id,
        rack=metadata_fields.rack_id,
    )


def _worker(id: str, metadata: bytes) -> KafkaMember:
    metadata_fields = ConnectWorkerMetadata.decode(metadata)
    owned, generation = EMPTY, -1
    if metadata_fields.allocation:
        running = ConnectWorkerAssignment.decode(bytes(metadata_fields.allocation))
        owned = TaskSet.of(
            Task(row.connector, n, connector=True)
            for row in running.assigned or ()
            for n in row.tasks
        )
    return KafkaMember(
        id,
        printable(urlsplit(metadata_fields.url).netloc or id),
        owned=owned,
        generation=generation,
        url=metadata_fields.url,
        config_offset=metadata_fields.config_offset,
    )


def printable(name: str) -> str:
    """The name as a member id of muster: separators replaced, shortened if it is too long."""
    plain = "".join(c if c.isprintable() and c != SEPARATOR else "_" for c in name)
    return plain[:MEMBER_ID_CHARS_MAX] or "_"
