"""Who may do what in Kafka: the least each role needs, as one table.

`ROLES` is the only place that knows it. `muster topics create --acls` creates these ACLs,
``docs/security.md`` prints them, refusals are explained by them (`muster.access`), and the tests
run every role with nothing more.

READ and WRITE bring DESCRIBE with them, as Kafka's authorizer has it, so it stands only where it
is needed alone. Topics are named exactly: a prefix that begins like another one gives nothing
away. Consumer group ids are prefixed: no client of ours joins or commits, but librdkafka asks who
would coordinate the group id that each of its consumers must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from muster.protocol.topics import TopicKind, topic_name


class Role(StrEnum):
    """A principal that needs ACLs. The name is the word in ``--job-principal`` and the like."""

    JOB = "job"
    CLOCK = "clock"
    WORKER = "worker"
    EXPORTER = "exporter"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Resource(StrEnum):
    """What an ACL is about, in Kafka's words."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Pattern(StrEnum):
    """How the name of an ACL is meant, in Kafka's words."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Acl(NamedTuple):
    """One right on one resource, in Kafka's words."""

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
        purpose: who plays it, for help and docs.
        topics: kind → operations, each on the topic of that name.
        group: operations on consumer groups whose ids begin with the prefix.
        every_topic: operations on whatever begins with the prefix, topics to come included.
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
            TopicKind.MEMBERSHIP: ("READ", "WRITE"),
            TopicKind.CONFIG: ("READ",),
            TopicKind.LAG: ("READ",),
            TopicKind.ASSIGNMENTS: ("READ", "WRITE"),
            TopicKind.GROUPS: ("READ", "WRITE"),
            TopicKind.REJECTED: ("READ", "WRITE"),
            TopicKind.CLOCK: ("READ", "WRITE"),
            TopicKind.COORDINATOR: ("READ", "WRITE"),
        },
    ),
    Role.CLOCK: Needs(
        "a further clock beside the coordinator's own (muster clock)",
        {TopicKind.CLOCK: ("READ",), TopicKind.MEMBERSHIP: ("WRITE",)},
    ),
    Role.WORKER: Needs(
        "a member of groups (muster worker, the SDK, members in other languages)",
        {
            TopicKind.MEMBERSHIP: ("WRITE",),
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
    found = [
        Acl(Resource.TOPIC, topic_name(kind, prefix), Pattern.LITERAL, operation)
        for kind, operations in needs.topics.items()
        for operation in operations
    ]
    below = f"{prefix}."
    found += [Acl(Resource.TOPIC, below, Pattern.PREFIXED, each) for each in needs.every_topic]
    found += [Acl(Resource.GROUP, below, Pattern.PREFIXED, each) for each in needs.group]
    found += [Acl(Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, each) for each in needs.cluster]
    return tuple(found)
