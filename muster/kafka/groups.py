"""Describes groups that Kafka coordinates itself: of consumers, Streams and Connect.

``classic``   consumers whose leader assigns: their metadata at the join, and their assignments
``consumer``  consumers to which the broker assigns (KIP-848)
``streams``   Kafka Streams applications to which the broker assigns (KIP-1071)
``connect``   workers of a Connect cluster: what each runs, and the config it has read

Kafka returns the metadata and assignments of the members of ``classic`` and ``connect`` groups only
while the group is stable. The login needs the right to describe the groups, and no other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from muster.errors import NotFound
from muster.kafka.access_check import Refused
from muster.kafka.client_settings import ClientSettings
from muster.kafka.protocol_client import connected

Client: TypeAlias = Any
"""A `kafka.KafkaAdminClient`..."""
Message: TypeAlias = Any
"""...and a part of an answer; kafka-python's classes have no types."""
ATTEMPTS = 20
PAUSE_S = 0.25
PATIENCE_S = 20.0
"""How long to wait for what Kafka hides of a group that rebalances."""
NO_MEMBER = "muster-no-member"
"""A member id that no member has: those that Kafka and its clients make end with a UUID."""
SEAT_PREFIX = "muster-governor"
"""Prefix of the instance ids of governors (`muster adopt`), by which others recognise them."""


class Kind(StrEnum):
    """The protocol of a group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    STREAMS = "streams"
    CONNECT = "connect"
    OTHER = "other"


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


class Listed(NamedTuple):
    """A group as Kafka lists it; `state`: as Kafka calls it, empty = the broker does not say."""

    group: str
    kind: Kind
    state: str


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """A Connect worker's metadata and assignment.

    Attributes:
        version: of its protocol: 0 = eager, 1 = compatible, 2 = sessioned.
        url: its REST address.
        config_offset: offset in the config topic up to which it had read when it joined.
        running: connector → its tasks on this worker when it joined; task -1 is the connector
            itself. None = the protocol does not say (eager).
        assigned: the same, added to it by the newest round (all of it when eager).
        revoked: taken from it by the newest round.
        leader_url: REST address of the worker that the cluster calls its leader.
        delay_ms: how long the newest round lets lost work wait.
    """

    version: int
    url: str
    config_offset: int
    running: Mapping[str, tuple[int, ...]] | None
    assigned: Mapping[str, tuple[int, ...]]
    revoked: Mapping[str, tuple[int, ...]]
    leader_url: str | None
    delay_ms: int

    def holds(self) -> set[tuple[str, int]]:
        """(connector, task) pairs that it runs once it has applied its assignment."""
        return (_pairs(self.running or {}) - _pairs(self.revoked)) | _pairs(self.assigned)


@dataclass(frozen=True, slots=True)
class StreamsClient:
    """A member of a streams group; tasks are (subtopology, partition) pairs.

    Attributes:
        process: identifies the instance; several members may be of one.
        tags: client tags.
        active, standby, warmup: what it has now.
        ends: how much its changelogs hold: task → sum of offsets. offsets: how much of it the
            member has restored.
    """

    process: str
    tags: Mapping[str, str]
    active: frozenset[tuple[str, int]]
    standby: frozenset[tuple[str, int]]
    warmup: frozenset[tuple[str, int]]
    offsets: Mapping[tuple[str, int], int]
    ends: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group.

    Attributes:
        id: member id, made by the client or the broker.
        instance_id: `group.instance.id`; None = dynamic.
        client_id, host: of its connection.
        rack: where it runs; None = it does not say.
        topics: its subscription; None = unknown.
        pattern: its subscription by pattern (KIP-848); None = by name.
        assigned: partitions it has been given.
        target: partitions it is to have in the end, where the broker says so; None = it does not.
        owned: partitions it had when it joined (cooperative); None = unknown.
        metadata, assignment: the bytes of the classic protocol, empty in others.
        connect, streams: what only members of these kinds have.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: frozenset[Partition] = frozenset()
    target: frozenset[Partition] | None = None
    owned: frozenset[Partition] | None = None
    metadata: bytes = b""
    assignment: bytes = b""
    connect: ConnectWorker | None = None
    streams: StreamsClient | None = None

    @property
    def name(self) -> str:
        """Its name for people: instance id, host:port of its REST address, else member id."""
        place = urlsplit(self.connect.url).netloc if self.connect else None
        return self.instance_id or place or self.id

    @property
    def is_governor(self) -> bool:
        """Whether it is a governor (`muster adopt`), which leads the group and runs no task."""
        return (self.instance_id or "").startswith(SEAT_PREFIX)

    @property
    def is_unreadable(self) -> bool:
        """Whether its metadata or assignment is not of Kafka's protocol: what it has is unknown."""
        return bool(self.metadata) and self.topics is None and self.connect is None


class StreamsUnit(NamedTuple):
    """A subtopology of a Streams application (such as ``0``).

    It reads `sources`, repartition topics included; without `changelogs` it is stateless.
    """

    name: str
    sources: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A group as its coordinator describes it.

    Attributes:
        state: as Kafka calls it.
        assignor: name of what assigns: the protocol its members share, or the broker's assignor;
            empty = not chosen yet.
        epoch: group epoch; None = the classic protocol does not say.
        members: sorted by name.
        subtopologies: of a streams group.
    """

    group: str
    kind: Kind
    state: str
    assignor: str
    epoch: int | None
    members: tuple[Member, ...]
    subtopologies: tuple[StreamsUnit, ...] = field(default=())

    @property
    def is_rebalancing(self) -> bool:
        """Whether it rebalances."""
        return self.state not in ("Stable", "Empty", "Dead")

    @property
    def is_hidden(self) -> bool:
        """Whether Kafka returns only the ids of its members: it rebalances, and a member leads."""
        return self.is_rebalancing and self.kind in (Kind.CLASSIC, Kind.CONNECT)

    def topics(self) -> list[str]:
        """Topics that its members read, as far as their metadata shows, sorted."""
        named = {topic for member in self.members for topic in member.topics or ()}
        held = {part.topic for member in self.members for part in member.assigned}
        read = {topic for unit in self.subtopologies for topic in unit.sources}
        return sorted(named | held | read)


def listed(clients: ClientSettings) -> list[Listed]:
    """Every group that this login may describe, by name.

    Raises:
        BadInput, Unreachable, Refused: as `protocol_client.connected`.
    """
    with connected(clients) as client:
        return listed_with(client)


def describe(clients: ClientSettings, groups: Sequence[str]) -> list[Description]:
    """Describe groups, in the order given.

    Raises:
        NotFound: Kafka knows no such group, or this login may not describe it.
        BadInput, Unreachable, Refused: as `protocol_client.connected`.
    """
    with connected(clients) as client:
        return describe_with(client, groups)


def describe_with(client: Client, groups: Sequence[str]) -> list[Description]:
    """As `describe`, with a client of `protocol_client.connected` that stays open."""
    known = {each.group: each.kind for each in listed_with(client)}
    missing = [group for group in groups if group not in known]
    if missing:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(
            f"Kafka has no group {missing[0]!r}, or this login may not describe it; there are: "
            + (names if len(names) <= 300 else f"{names[:300]}…")
        )
    described: dict[str, Description] = {}
    waiting = dict.fromkeys(groups)
    for attempt in range(ATTEMPTS):
        by_kind: defaultdict[Kind, list[str]] = defaultdict(list)
        for group in waiting:
            by_kind[known[group]].append(group)
        for kind, names_of in by_kind.items():
            described |= client._manager.run(_ask, client, kind, names_of)
        waiting = {group: None for group in waiting if group not in described}
        if not waiting:
            break
        if attempt == ATTEMPTS - 1:
            raise NotFound(f"group {next(iter(waiting))!r}: its coordinator does not describe it")
        time.sleep(PAUSE_S)
    return [described[group] for group in groups]


def describe_stable_with(
    client: Client, groups: Sequence[str], kinds: Iterable[Kind]
) -> list[Description]:
    """As `describe_with`, when no group of these kinds rebalances, at the latest after PATIENCE_S.

    A group that rebalances longer is returned as it is then: see `Description.is_hidden`.
    """
    latest = time.monotonic() + PATIENCE_S
    while True:
        described = describe_with(client, groups)
        hidden = any(each.is_hidden and each.kind in kinds for each in described)
        if not hidden or time.monotonic() >= latest:
            return described
        time.sleep(PAUSE_S)


def listed_with(client: Client) -> list[Listed]:
    """As `listed`, with a client of `protocol_client.connected` that stays open."""
    rows = _patiently(client.list_groups)
    return sorted(
        Listed(
            row["group_id"],
            _kind(row.get("group_type") or "", row["protocol_type"]),
            row.get("group_state") or "",
        )
        for row in rows
    )


def may_join(client: Client, group: str) -> bool:
    """Whether this login has READ on a group, which need not exist. Changes nothing.

    It asks for the removal of a member that no group has: Kafka checks the right before it looks
    for the member. The client is of `protocol_client.connected`.
    """
    import kafka.errors as errors
    from kafka.admin import MemberToRemove

    absent = [MemberToRemove(member_id=NO_MEMBER)]
    try:
        _patiently(lambda: client.remove_group_members(group, absent))
    except errors.GroupAuthorizationFailedError:
        return False
    except errors.UnknownMemberIdError:
        pass  # some brokers answer so if the group does not exist
    return True


def _patiently(ask: Callable[[], Any]) -> Any:  # noqa: ANN401 — what the library returns
    """Call `ask` again while a broker that has just started loads its groups."""
    from kafka.errors import RetriableError

    for _ in range(ATTEMPTS):
        with suppress(RetriableError):
            return ask()
        time.sleep(PAUSE_S)
    return ask()


def _kind(group_type: str, protocol_type: str) -> Kind:
    match group_type.lower(), protocol_type:
        case ("" | "classic", "consumer" | ""):
            return Kind.CLASSIC
        case ("" | "classic", "connect"):
            return Kind.CONNECT
        case ("consumer", _):
            return Kind.CONSUMER
        case ("streams", _):
            return Kind.STREAMS
        case _:
            return Kind.OTHER


async def _ask(client: Client, kind: Kind, groups: list[str]) -> dict[str, Description]:
    """Ask the groups' coordinators; a group whose coordinator is not ready yet is left out."""
    import kafka.errors as errors
    from kafka.protocol.admin import DescribeGroupsRequest

    from muster.kafka import messages

    coordinators: defaultdict[int, list[str]] = defaultdict(list)
    for group, node in (await client._find_coordinator_ids(groups)).items():
        coordinators[node].append(group)
    descriptions: dict[str, Description] = {}
    for node, names in coordinators.items():
        if kind is Kind.CONSUMER:
            request: Any = messages.ConsumerGroupDescribeRequest(names, False)
        elif kind is Kind.STREAMS:
            request = messages.StreamsGroupDescribeRequest(names, False)
        else:
            request = DescribeGroupsRequest(groups=names, include_authorized_operations=False)
        for row in (await client._manager.send(request, node_id=node)).groups:
            error = errors.for_code(row.error_code)
            if error is errors.NoError:
                descriptions[row.group_id] = _READ[kind](row)
            elif issubclass(error, errors.AuthorizationError):
                raise Refused(
                    f"Kafka does not let this login describe {row.group_id!r} or its topics"
                )
            elif not issubclass(error, errors.RetriableError):
                raise error(row.group_id)
            else:
                client._manager.cluster._coordinators.clear()  # ask again where they are
    return descriptions


# ---------------------------------------------------------------- answers -> descriptions


def _led_by_a_member(
    row: Message, kind: Kind, read: Callable[[bytes, bytes], dict[str, Any]]
) -> Description:
    """A group whose members gave their metadata, and got their assignment, as bytes.

    One member whose bytes cannot be read must not hide all groups (`Member.is_unreadable`).
    """
    members = []
    for each in row.members:
        metadata = bytes(each.member_metadata or b"")
        assignment = bytes(each.member_assignment or b"")
        more: dict[str, Any] = {}
        with suppress(Exception):  # kafka-python raises whatever its codec meets
            more = read(metadata, assignment)
        more |= {"metadata": metadata, "assignment": assignment}
        members.append(_member(each, each.group_instance_id, **more))
    return _description(row, kind, members, row.protocol_data or "")


def _read_consumer(metadata: bytes, assignment: bytes) -> dict[str, Any]:
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    from muster.kafka.messages import subscription

    more: dict[str, Any] = {}
    if metadata:
        subscribed = subscription(metadata)
        more["topics"] = tuple(sorted(subscribed.topics))
        more["rack"] = subscribed.rack_id
        if subscribed.version >= 1 and subscribed.owned_partitions is not None:
            more["owned"] = _partitions(subscribed.owned_partitions)
    if assignment:
        answer = ConsumerProtocolAssignment.decode(assignment)
        more["assigned"] = _partitions(answer.assigned_partitions)
    return more


def _read_connect_worker(metadata: bytes, assignment: bytes) -> dict[str, Any]:
    from muster.kafka.messages import ConnectWorkerAssignment, ConnectWorkerMetadata

    if not metadata:
        return {}
    worker = ConnectWorkerMetadata.decode(metadata)
    running = None
    if worker.allocation is not None:
        running = _connectors(ConnectWorkerAssignment.decode(bytes(worker.allocation)).assigned)
    answer = ConnectWorkerAssignment.decode(assignment) if assignment else None
    connect = ConnectWorker(
        version=worker.version,
        url=worker.url,
        config_offset=worker.config_offset,
        running=running,
        assigned=_connectors(answer.assigned if answer else ()),
        revoked=_connectors((answer.revoked if answer and answer.version else None) or ()),
        leader_url=answer.leader_url if answer else None,
        delay_ms=answer.delay_ms if answer and answer.version else 0,
    )
    return {"connect": connect}


def _member(each: Message, instance_id: str | None, **more: Any) -> Member:  # noqa: ANN401
    return Member(
        id=each.member_id,
        instance_id=instance_id,
        client_id=each.client_id,
        host=each.client_host.lstrip("/"),
        **more,
    )


def _description(
    row: Message,
    kind: Kind,
    members: list[Member],
    assignor: str,
    epoch: int | None = None,
    subtopologies: tuple[StreamsUnit, ...] = (),
) -> Description:
    return Description(
        group=row.group_id,
        kind=kind,
        state=row.group_state,
        assignor=assignor,
        epoch=epoch,
        members=tuple(sorted(members, key=lambda member: (member.name, member.id))),
        subtopologies=subtopologies,
    )


def _consumer(row: Message) -> Description:
    def held(assignment: Message) -> frozenset[Partition]:
        rows = assignment.topic_partitions
        return frozenset(Partition(row.topic_name, n) for row in rows for n in row.partitions)

    members = [
        _member(
            *(each, each.instance_id),
            rack=each.rack_id,
            topics=tuple(sorted(each.subscribed_topic_names)) or None,
            pattern=each.subscribed_topic_regex or None,
            assigned=held(each.assignment),
            target=held(each.target_assignment),
        )
        for each in row.members
    ]
    return _description(row, Kind.CONSUMER, members, row.assignor_name, row.group_epoch)


def _streams(row: Message) -> Description:
    subtopologies = (row.topology.subtopologies or ()) if row.topology else ()
    units = tuple(
        StreamsUnit(
            each.subtopology_id,
            tuple(sorted({*each.source_topics, *(t.name for t in each.repartition_source_topics)})),
            tuple(sorted(t.name for t in each.state_changelog_topics)),
        )
        for each in subtopologies
    )

    def tasks(rows: Message) -> frozenset[tuple[str, int]]:
        return frozenset((each.subtopology_id, p) for each in rows for p in each.partitions)

    def sums(rows: Message) -> dict[tuple[str, int], int]:
        return {(each.subtopology_id, each.partition): each.offset for each in rows}

    members = [
        _member(
            *(each, each.instance_id),
            rack=each.rack_id,
            streams=StreamsClient(
                process=each.process_id,
                tags={tag.key: tag.value for tag in each.client_tags},
                active=tasks(each.assignment.active_tasks),
                standby=tasks(each.assignment.standby_tasks),
                warmup=tasks(each.assignment.warmup_tasks),
                offsets=sums(each.task_offsets),
                ends=sums(each.task_end_offsets),
            ),
        )
        for each in row.members
    ]
    return _description(row, Kind.STREAMS, members, "", row.group_epoch, units)


_READ: Mapping[Kind, Callable[[Message], Description]] = {
    Kind.CLASSIC: partial(_led_by_a_member, kind=Kind.CLASSIC, read=_read_consumer),
    Kind.OTHER: partial(_led_by_a_member, kind=Kind.CLASSIC, read=_read_consumer),
    Kind.CONNECT: partial(_led_by_a_member, kind=Kind.CONNECT, read=_read_connect_worker),
    Kind.CONSUMER: _consumer,
    Kind.STREAMS: _streams,
}


def _partitions(rows: Iterable[Message]) -> frozenset[Partition]:
    return frozenset(Partition(row.topic, number) for row in rows for number in row.partitions)


def _connectors(rows: Message) -> dict[str, tuple[int, ...]]:
    return {row.connector: tuple(sorted(row.tasks)) for row in rows or ()}


def _pairs(jobs: Mapping[str, tuple[int, ...]]) -> set[tuple[str, int]]:
    return {(connector, task) for connector, tasks in jobs.items() for task in tasks}
