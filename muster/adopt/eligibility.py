"""Whether a group can be governed, and what it is, before anything is changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from muster.adopt import join_metadata
from muster.adopt.join_metadata import Kind
from muster.errors import BadInput, NotFound
from muster.kafka import groups
from muster.kafka.client_settings import ClientSettings
from muster.kafka.groups import Description
from muster.kafka.protocol_client import connected
from muster.protocol.events import GroupConfig
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.protocol.tasks import Connector
from muster.protocol.unknown_names import there_are

log = logging.getLogger("muster.adopt")

STREAMS_PROTOCOL = "stream"
"""Name of the assignor of Kafka Streams' classic groups."""
_REFUSED: Mapping[groups.Kind, str] = {
    groups.Kind.CONSUMER: (
        "is of the consumer protocol (KIP-848): the broker assigns, no member leads. muster shadow"
        " works; to govern it, start its members with group.protocol=classic"
    ),
    groups.Kind.STREAMS: (
        "is of the streams protocol (KIP-1071): the broker assigns, no member leads. muster shadow"
        " works"
    ),
    groups.Kind.OTHER: "is not a group of consumers or Connect workers: no member assigns there",
}


@dataclass(frozen=True, slots=True)
class GovernableGroup:
    """A group that can be governed.

    Attributes:
        members: their names in muster.
        protocol: the assignor its members share; empty = none yet.
        topics: topics that its consumers read.
        is_moving: whether it rebalances; Kafka then returns only the ids of its members.
    """

    kind: Kind
    members: tuple[str, ...]
    protocol: str
    topics: tuple[str, ...] = ()
    is_moving: bool = False


def governable(
    clients: ClientSettings,
    names: Sequence[str],
    *,
    fresh: Kind | None = None,
    own: str | None = None,
    configured: Mapping[str, Kind] = MappingProxyType({}),
) -> dict[str, GovernableGroup]:
    """Check that groups can be governed; change nothing.

    Args:
        clients: how to reach Kafka.
        names: the groups.
        fresh: the kind of groups that have no members yet; None = each group must have members,
            or be among the `configured`.
        own: instance id of the governor that may be in the group; None = any governor may be.
        configured: the kinds of groups that muster has a configuration of. One of them may be empty
            for a moment, as between two deployments; it must not keep others from being governed.

    Raises:
        NotFound: there is no such group, or it is empty.
        BadInput: it cannot be governed; the message says why and what can be done.
        Refused, Unreachable: of Kafka.
    """
    allowed: dict[str, GovernableGroup] = {}
    with connected(clients) as client:
        existing = {each.group: each for each in groups.listed_with(client)}
        known = [name for name in names if name in existing]
        for name in known:
            if existing[name].kind in _REFUSED:
                raise BadInput(f"group {name!r} {_REFUSED[existing[name].kind]}")
        # a Connect cluster that rebalances hides the names of its workers
        stable = groups.describe_stable_with(client, known, [groups.Kind.CONNECT])
        described = {each.group: each for each in stable}
    for name in names:
        if name not in described or not described[name].members:
            kind = fresh or _kind_without_members(name, described.get(name), configured)
            if kind is None:
                raise NotFound(_absent(name, name in described, sorted(existing)))
            allowed[name] = GovernableGroup(kind, (), "")
        else:
            allowed[name] = _checked(described[name], own)
    return allowed


def kind_of(config: GroupConfig) -> Kind:
    """The kind of the members for which muster has a configuration."""
    places_connectors = any(isinstance(unit, Connector) for unit in config.tasks)
    is_connect = places_connectors or config.assignor in CONNECT_ASSIGNORS
    return Kind.CONNECT if is_connect else Kind.CONSUMER


def _kind_without_members(
    name: str, described: Description | None, configured: Mapping[str, Kind]
) -> Kind | None:
    """The kind of a group that has no members now; None = muster does not know the group."""
    if name not in configured:
        return None
    log.info("has no members now; is governed from when they come", extra={"group": name})
    if described is not None and described.kind is groups.Kind.CONNECT:
        return Kind.CONNECT
    return configured[name]


def is_governed(clients: ClientSettings, group: str) -> bool:
    """Whether a governor is among a group's members.

    Raises:
        Refused, Unreachable: of Kafka.
    """
    try:
        [described] = groups.describe(clients, [group])
    except NotFound:
        return False
    return bool(governors(described))


def governors(described: Description) -> list[str]:
    """Instance ids of the governors in a group."""
    return [str(member.instance_id) for member in described.members if member.is_governor]


def _absent(name: str, is_empty: bool, existing: Sequence[str]) -> str:
    if is_empty:
        return (
            f"group {name!r} has no members now; those that a governor has just let go come back"
            " within a heartbeat: try again. --fresh takes the seat before the first one comes"
        )
    return (
        f"Kafka has no group {name!r}, or this login may not see it (it needs READ on the group);"
        f" there are: {there_are(name, existing)}. --fresh takes the seat before the first one"
        " comes"
    )


def _checked(described: Description, own: str | None) -> GovernableGroup:
    if described.assignor == STREAMS_PROTOCOL:
        raise BadInput(
            f"group {described.group!r} is of Kafka Streams: only a member with its topology can"
            " assign its tasks. muster shadow works"
        )
    present = governors(described)
    others = [each for each in present if own is not None and each != own]
    if others:
        raise BadInput(
            f"group {described.group!r} is governed by {', '.join(others)} already; --stand-by"
            " waits behind it, --release lets it go"
        )
    kind = Kind.CONNECT if described.kind is groups.Kind.CONNECT else Kind.CONSUMER
    followers = (member for member in described.members if not member.is_governor)
    names = tuple(join_metadata.printable(member.name) for member in followers)
    topics = tuple(described.topics()) if kind is Kind.CONSUMER else ()
    return GovernableGroup(kind, names, described.assignor, topics, described.is_hidden)


def pins_of(
    pairs: Sequence[tuple[str, str]],
    found: GovernableGroup,
    group: str,
    expected: Sequence[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Worker → connectors and tasks pinned to it.

    Args:
        pairs: (connector or task, worker), the worker as its REST address or host:port. A job may
            have several: one of them runs it, another takes over when that one is gone.
        found: the group.
        group: its name, for errors.
        expected: workers that may be named though they are not there yet.

    Raises:
        BadInput: pins for consumers, pins to a worker that is neither there nor expected, or
            expected workers without pins.
    """
    if expected and not pairs:
        raise BadInput(f"--expect {expected[0]}: only pins name workers; give --pin, too")
    if pairs and found.kind is not Kind.CONNECT:
        raise BadInput(
            f"--pin: group {group!r} has consumers; connectors and their tasks are pinned"
        )
    pins: dict[str, set[str]] = {}
    if pairs and found.is_moving:
        raise BadInput(
            f"--pin: group {group!r} rebalances, and Kafka does not say who its workers are; try"
            " again when it is stable"
        )
    known = {*found.members, *map(_address, expected)}
    for job, worker in pairs:
        name = _address(worker)
        if name not in known:
            workers = ", ".join(found.members) or "none"
            raise BadInput(
                f"--pin {job}={worker}: no such worker in {group!r}; there are: {workers};"
                f" --expect {name} if it comes later"
            )
        pins.setdefault(name, set()).add(job)
    return {name: tuple(sorted(jobs)) for name, jobs in pins.items()}


def _address(worker: str) -> str:
    """Host and port of a worker, also if its REST address is given."""
    return urlsplit(worker).netloc if "//" in worker else worker.rstrip("/")
