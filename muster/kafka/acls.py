"""The Kafka ACLs that each role needs, and no more: the table `ROLES`.

`muster topics create --acls` creates these ACLs, ``docs/security.md`` lists them, `access_check`
explains refusals with them, and the tests run every role with exactly these.

In Kafka's authorizer READ and WRITE imply DESCRIBE, so the table has DESCRIBE only where it is
needed alone. Topic names are literal, so a role for one topic prefix has no right on a longer
prefix. Consumer group ids are prefixed: no client of muster joins a group or commits, but each
librdkafka consumer must have a group id and looks up its coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from muster.protocol.topics import TopicKind, topic_name


class Role(StrEnum):
    """A role of principals. The name is part of an option, as in ``--job-principal``."""

    JOB = "job"
    DISCOVERY = "discovery"
    CLOCK = "clock"
    WORKER = "worker"
    EXPORTER = "exporter"
    VIEWER = "viewer"
    OPERATOR = "operator"
    GOVERNOR = "governor"
    ADMIN = "admin"


class Resource(StrEnum):
    """Kafka's resource types."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Pattern(StrEnum):
    """Kafka's pattern types: how the name of an ACL matches."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Acl(NamedTuple):
    """One operation on one resource."""

    resource: Resource
    name: str
    pattern: Pattern
    operation: str

    def __str__(self) -> str:
        starting = "*" if self.pattern is Pattern.PREFIXED else ""
        return f"{self.operation} on {self.resource} {self.name}{starting}"


CLUSTER_NAME = "kafka-cluster"
"""Kafka's only resource of type Cluster."""

_READ_ALL: Mapping[TopicKind, tuple[str, ...]] = dict.fromkeys(TopicKind, ("READ",))


@dataclass(frozen=True, slots=True)
class Needs:
    """What a role needs.

    Attributes:
        purpose: what has this role, for help and docs.
        topics: kind → operations on the topic of that kind.
        group: operations on consumer groups whose ids begin with the prefix.
        every_topic: operations on all topics with the prefix, future ones included.
        cluster: operations on the cluster itself.
    """

    purpose: str
    topics: Mapping[TopicKind, tuple[str, ...]]
    group: tuple[str, ...] = ("DESCRIBE",)
    every_topic: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()


ROLES: Mapping[Role, Needs] = {
    Role.JOB: Needs(
        "the coordinator (muster run): its Spark executors, its clock and its metrics",
        {
            **dict.fromkeys(TopicKind, ("READ", "WRITE")),
            TopicKind.MEMBERSHIP: ("READ", "WRITE", "DESCRIBE_CONFIGS"),
            TopicKind.HEARTBEATS: ("READ", "WRITE", "DESCRIBE_CONFIGS"),
            TopicKind.CONFIG: ("READ", "DESCRIBE_CONFIGS"),
            TopicKind.LAG: ("READ", "DESCRIBE_CONFIGS"),
        },
    ),
    Role.DISCOVERY: Needs(
        "the coordinator too, where groups declare topics of Kafka as tasks; it also needs DESCRIBE"
        " on these topics, and on the cluster to weigh by bytes",
        {TopicKind.CONFIG: ("WRITE",)},
        group=(),
    ),
    Role.CLOCK: Needs(
        "a further clock beside the coordinator's own (muster clock)",
        {
            TopicKind.CLOCK: ("READ",),
            TopicKind.MEMBERSHIP: ("WRITE",),
            TopicKind.HEARTBEATS: ("READ", "WRITE"),
        },
    ),
    Role.WORKER: Needs(
        "a member of groups (muster worker, the SDK, members in other languages)",
        {
            TopicKind.MEMBERSHIP: ("WRITE",),
            TopicKind.HEARTBEATS: ("WRITE",),
            TopicKind.LAG: ("WRITE",),
            TopicKind.ASSIGNMENTS: ("READ",),
            TopicKind.GROUPS: ("READ",),
        },
    ),
    Role.EXPORTER: Needs(
        "what reports lag of copies on behalf of members",
        {TopicKind.LAG: ("WRITE",)},
        group=(),
    ),
    Role.VIEWER: Needs(
        "commands that only read: groups, explain, plan, replay, decode, doctor, config show",
        _READ_ALL,
        every_topic=("DESCRIBE_CONFIGS",),
    ),
    Role.OPERATOR: Needs(
        "viewers who also configure and drain: config set, drain",
        {**_READ_ALL, TopicKind.CONFIG: ("READ", "WRITE"), TopicKind.MEMBERSHIP: ("READ", "WRITE")},
        every_topic=("DESCRIBE_CONFIGS",),
    ),
    Role.GOVERNOR: Needs(
        "what governs groups of Kafka (muster adopt); with --governed-group and --governed-topic",
        {
            TopicKind.MEMBERSHIP: ("WRITE",),
            TopicKind.CONFIG: ("READ", "WRITE"),
            TopicKind.ASSIGNMENTS: ("READ",),
            TopicKind.GROUPS: ("READ",),
        },
    ),
    Role.ADMIN: Needs(
        "muster topics create, with --acls",
        {},
        group=(),
        every_topic=("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"),
        cluster=("ALTER", "DESCRIBE"),
    ),
}
"""The table."""


def acls_of(role: Role, prefix: str) -> tuple[Acl, ...]:
    """The ACLs of a role for one topic prefix, in the table's order."""
    needs = ROLES[role]
    acls = [
        Acl(Resource.TOPIC, topic_name(kind, prefix), Pattern.LITERAL, operation)
        for kind, operations in needs.topics.items()
        for operation in operations
    ]
    below = f"{prefix}."
    acls += [Acl(Resource.TOPIC, below, Pattern.PREFIXED, name) for name in needs.every_topic]
    acls += [Acl(Resource.GROUP, below, Pattern.PREFIXED, name) for name in needs.group]
    acls += [Acl(Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, name) for name in needs.cluster]
    return tuple(acls)


def governed_acls(
    groups: Iterable[str], topics: Iterable[str], config_topics: Iterable[str]
) -> tuple[Acl, ...]:
    """The ACLs that a governor needs besides those of its role.

    They are on the groups that it governs, on the topics that their consumers read, and on
    `config.storage.topic` of Connect clusters.
    """
    literal = Pattern.LITERAL
    return (
        *(Acl(Resource.GROUP, name, literal, "READ") for name in groups),
        *(Acl(Resource.TOPIC, name, literal, "DESCRIBE") for name in topics),
        *(Acl(Resource.TOPIC, name, literal, "READ") for name in config_topics),
    )
