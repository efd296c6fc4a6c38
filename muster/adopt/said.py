"""What the members of a classic group say when they join, and what a governor says.

Kafka's broker hands it on to the group's leader as bytes and does not look into it. A partition is
the task `topic_number`; a connector and its tasks are tasks too, the connector itself with number
-1. `writing.py` has the leader's answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from muster.kafka.groups import SEAT_PREFIX
from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata, subscription
from muster.protocol.ids import Task
from muster.protocol.keys import MEMBER_ID_CHARS_MAX, SEPARATOR
from muster.protocol.tasks import EMPTY, TaskSet

log = logging.getLogger("muster.adopt")

SEAT_URL: Final = "http://muster-governor.invalid/"
"""REST address that a governor gives in a Connect cluster; no worker calls it."""


class Kind(StrEnum):
    """What a group's members are: Kafka's protocol types."""

    CONSUMER = "consumer"
    CONNECT = "connect"


CONSUMER_PROTOCOLS: Final = (
    "cooperative-sticky",
    "range",
    "roundrobin",
    "sticky",
    "RoundRobinAssigner",  # KafkaJS
)
"""Names of assignors that members of ordinary clients offer; the bytes are the same for all."""
CONNECT_PROTOCOLS: Final[Mapping[str, int]] = {"sessioned": 2, "compatible": 1, "default": 0}
"""Connect's protocols, best first, and the version of their bytes."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one member said at JoinGroup.

    Attributes:
        id: member id in Kafka.
        name: member id in muster: its instance id, host and port of a Connect worker, else `id`.
        topics: what a consumer subscribes to; None = a Connect worker.
        owned: what it runs while the group rebalances: nothing under an eager protocol.
        generation: Kafka generation in which it was given `owned`; -1 = unknown.
        rack: where it runs; None = unknown.
        url: REST address of a Connect worker.
        config_offset: offset up to which a worker has read the cluster's config topic.
        keeps: whether the protocol lets a member run on while the group rebalances.
    """

    id: str
    name: str
    topics: tuple[str, ...] | None = None
    owned: TaskSet = EMPTY
    generation: int = -1
    rack: str | None = None
    url: str = ""
    config_offset: int = -1
    keeps: bool = False


def offers(kind: Kind, more: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """What a governor says at JoinGroup: every protocol it can answer, and that it takes nothing.

    Args:
        kind: what the group's members are.
        more: names of further protocols of consumers.
    """
    if kind is Kind.CONSUMER:
        names = dict.fromkeys((*CONSUMER_PROTOCOLS, *more))
        nothing = ConsumerProtocolSubscription(version=1, topics=[], user_data=b"").encode()
        return [(name, nothing) for name in names]
    return [
        (
            name,
            ConnectWorkerMetadata(
                version=version, url=SEAT_URL, config_offset=-1, allocation=None
            ).encode(),
        )
        for name, version in CONNECT_PROTOCOLS.items()
    ]


def is_governor(instance_id: str | None) -> bool:
    """Whether a member of this instance id is a governor."""
    return instance_id is not None and instance_id.startswith(SEAT_PREFIX)


def read(kind: Kind, id: str, instance_id: str | None, metadata: bytes) -> Said:
    """What a member said.

    Raises:
        ValueError: bytes that are not of the protocol.
    """
    try:
        if kind is Kind.CONNECT:
            return _worker(id, metadata)
        return _consumer(id, instance_id, metadata)
    except Exception as error:  # kafka-python raises whatever its codec meets
        raise ValueError(f"member {id} says what is not Kafka's {kind} protocol: {error}") from None


def read_all(kind: Kind, rows: Iterable[Any], group: str) -> list[Said]:
    """What the members of a group said, each under a name of its own; governors say nothing.

    Args:
        kind: what the members are.
        rows: members of kafka-python's answer to JoinGroup.
        group: for the log, where a member is named that cannot be understood. It gets nothing.
    """
    found: dict[str, Said] = {}
    for row in rows:
        if is_governor(row.group_instance_id):
            continue
        try:
            each = read(kind, row.member_id, row.group_instance_id, bytes(row.metadata or b""))
        except ValueError as error:
            log.error("%s; it gets nothing", error, extra={"group": group})
            each = Said(row.member_id, printable(row.member_id), topics=())
        if each.name in found:
            each = replace(each, name=printable(each.id))
        found[each.name] = each
    return list(found.values())


def _consumer(id: str, instance_id: str | None, metadata: bytes) -> Said:
    said = subscription(metadata)
    owned = (Task(p.topic, n) for p in said.owned_partitions or () for n in p.partitions)
    return Said(
        id,
        printable(instance_id or id),
        topics=tuple(sorted(set(said.topics))),
        owned=TaskSet.of(owned),
        generation=said.generation_id,
        rack=said.rack_id,
        keeps=bool(said.owned_partitions),
    )


def _worker(id: str, metadata: bytes) -> Said:
    said = ConnectWorkerMetadata.decode(metadata)
    owned, generation = EMPTY, -1
    if said.allocation:
        running = ConnectWorkerAssignment.decode(bytes(said.allocation))
        owned = TaskSet.of(
            Task(row.connector, n, connector=True)
            for row in running.assigned or ()
            for n in row.tasks
        )
    return Said(
        id,
        printable(urlsplit(said.url).netloc or id),
        owned=owned,
        generation=generation,
        url=said.url,
        config_offset=said.config_offset,
        keeps=said.version > 0,
    )


def printable(name: str) -> str:
    """A name that can be a member id of muster: without separators, not too long."""
    plain = "".join(c if c.isprintable() and c != SEPARATOR else "_" for c in name)
    return plain[:MEMBER_ID_CHARS_MAX] or "_"
