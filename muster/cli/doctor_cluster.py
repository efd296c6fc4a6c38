"""What `muster doctor` looks at in the cluster: brokers, topics and their settings, rights.

A topic that exists but is not what it must be is the quiet kind of trouble: with the wrong
``cleanup.policy`` assignments vanish or pile up, with the wrong timestamps the groups' clocks are
whatever the members' machines say. Nothing is changed here; each finding says what would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    TopicMetadata,
)

from muster import access
from muster.acls import Acl, Pattern, Role, acls_of
from muster.cli.errors import Unreachable
from muster.cli.finding import Finding, Level
from muster.cli.kafka import TIMEOUT_S, admin, failures_named
from muster.clients import ClientSettings
from muster.protocol.topics import TOPICS, Topic

GRAVE = ("cleanup.policy", "message.timestamp.type", "max.message.bytes")
"""Topic settings without which muster does not work; the others cost comfort or disk."""
AT_LEAST = "max.message.bytes"
"""A topic that takes larger records takes ours, too."""


def look(settings: ClientSettings, prefix: str) -> Iterator[Finding]:
    """Everything about the cluster. Ends early when it cannot be reached."""
    try:
        with failures_named(settings):
            access.reach(settings, TIMEOUT_S)
            client = admin(settings)
            listed = client.list_topics(timeout=TIMEOUT_S)
    except (Unreachable, access.Refused) as error:
        action = "check --bootstrap-server and --command-config; is the broker up?"
        yield Finding("kafka", settings.bootstrap, Level.FAIL, str(error), action)
        return
    brokers = len(listed.brokers)
    count = f"{brokers} broker{'s' if brokers != 1 else ''}"
    yield Finding(
        "kafka",
        settings.bootstrap,
        Level.OK,
        f"{count} ({_version(client, listed.controller_id)}); "
        f"client confluent-kafka {confluent_kafka.__version__}, "
        f"librdkafka {confluent_kafka.libversion()[0]}",
    )
    yield from topics(client, listed.topics, prefix, brokers, settings.bootstrap)
    yield from rights(settings, client, prefix)


# ---------------------------------------------------------------- brokers


def _version(client: AdminClient, broker: int) -> str:
    """As far as a broker's settings tell; Kafka's protocol has no word for it."""
    found = _settings(client, ResourceType.BROKER, str(broker))
    if found is None:
        return "settings not readable"
    told = found.get("inter.broker.protocol.version")  # gone with Kafka 4.0
    return f"inter.broker.protocol.version {told.value}" if told is not None else "Kafka 4 or newer"


def _settings(
    client: AdminClient, kind: ResourceType, name: str
) -> Mapping[str, ConfigEntry] | None:
    """Settings of a topic or broker; None where they may not be read."""
    resource = ConfigResource(kind, name)
    (future,) = client.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    try:
        found: Mapping[str, ConfigEntry] = future.result(TIMEOUT_S)
    except KafkaException:
        return None
    return found


# ---------------------------------------------------------------- topics


def topics(
    client: AdminClient,
    listed: Mapping[str, TopicMetadata],
    prefix: str,
    brokers: int,
    bootstrap: str,
) -> Iterator[Finding]:
    """One finding or more for each topic of ours."""
    create = access.create_command(prefix)
    for topic in TOPICS:
        name = topic.name(prefix)
        found = listed.get(name)
        if found is None or not found.partitions:
            yield Finding("topic", name, Level.FAIL, f"does not exist: {topic.purpose}", create)
            continue
        faults = [*_faults(topic, found, brokers, create)]
        entries = _settings(client, ResourceType.TOPIC, name)
        if entries is None:
            faults.append((Level.SKIPPED, "settings may not be read", "grant DESCRIBE_CONFIGS"))
        else:
            found_settings = {key: e.value for key, e in entries.items()}
            faults += differences(topic, name, found_settings, bootstrap)
        for level, what, action in faults:
            yield Finding("topic", name, level, what, action)
        if not faults:
            count = len(found.partitions)
            yield Finding("topic", name, Level.OK, f"{count} partition{'s' if count != 1 else ''}")


def _faults(
    topic: Topic, found: TopicMetadata, brokers: int, create: str
) -> Iterator[tuple[Level, str, str]]:
    if topic.partitions is not None and len(found.partitions) != topic.partitions:
        yield (
            Level.FAIL,
            f"has {len(found.partitions)} partitions, must have {topic.partitions}",
            f"stop the coordinator, delete the topic, {create}",
        )
    leaderless = sorted(p.id for p in found.partitions.values() if p.leader < 0)
    if leaderless:
        yield Level.FAIL, f"partitions {leaderless} have no leader", "bring their brokers back"
    lagging = sorted(p.id for p in found.partitions.values() if len(p.isrs) < len(p.replicas))
    if lagging:
        yield Level.WARN, f"partitions {lagging} are under-replicated", "look at the brokers"
    copies = min(len(p.replicas) for p in found.partitions.values())
    if copies < min(brokers, 2):
        yield (
            Level.WARN,
            "has one copy: what it holds dies with its broker",
            "kafka-reassign-partitions.sh, or create topics with --replication-factor 3",
        )


def differences(
    topic: Topic, name: str, found: Mapping[str, str | None], bootstrap: str
) -> list[tuple[Level, str, str]]:
    """Settings that are not as they must be, the grave ones first."""
    told = []
    for key, wanted in sorted(topic.settings.items(), key=lambda s: (s[0] not in GRAVE, s[0])):
        if _suffices(key, found.get(key), wanted):
            continue
        action = (
            f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
            f"--entity-name {name} --add-config {key}={wanted}"
        )
        level = Level.FAIL if key in GRAVE else Level.WARN
        least = "at least " if key == AT_LEAST else ""
        told.append((level, f"{key} is {found.get(key)}, must be {least}{wanted}", action))
    return told


def _suffices(key: str, found: str | None, wanted: str) -> bool:
    if key == AT_LEAST and found is not None and found.isdigit():
        return int(found) >= int(wanted)
    return found == wanted


# ---------------------------------------------------------------- rights


def rights(settings: ClientSettings, client: AdminClient, prefix: str) -> Iterator[Finding]:
    """What this login may read, and whether anybody may be coordinator and worker."""
    try:
        access.check(settings, Role.VIEWER, (prefix,), TIMEOUT_S)
        yield Finding("rights", "this login", Level.OK, "may read all of it")
    except access.Refused as refusal:
        what = "grant them: muster topics create --acls --viewer-principal …"
        yield Finding("rights", "this login", Level.WARN, str(refusal), what)
    except access.NoTopics:
        pass  # told already
    anything: Any = None  # the library's types do not know that it may be left out
    every = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        bindings = client.describe_acls(every, request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    except KafkaException as error:
        yield Finding("rights", "ACLs", Level.SKIPPED, _unread(error))
        return
    granted = [_granted(b) for b in bindings if b.permission_type is AclPermissionType.ALLOW]
    if not granted:
        what = "there are none: the cluster has no authorizer, or everybody here is a super user"
        yield Finding("rights", "ACLs", Level.SKIPPED, what)
        return
    for role in (Role.JOB, Role.WORKER):
        lacking = missing(acls_of(role, prefix), granted)
        if not lacking:
            yield Finding("rights", f"role {role}", Level.OK, "ACLs grant all it needs")
            continue
        told = ", ".join(str(acl) for acl in lacking[:3])
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        yield Finding(
            "rights",
            f"role {role}",
            Level.WARN,
            f"no ACL grants {told}{more}: only a super user can be one",
            f"{access.create_command(prefix)} --acls --{role}-principal User:NAME",
        )


def _unread(error: KafkaException) -> str:
    told = str(error.args[0].str())
    if error.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED:
        return "the cluster has no authorizer: everybody may do everything"
    return f"may not be read ({told})"


def _granted(binding: AclBinding) -> tuple[str, str, str, str]:
    kind = "CLUSTER" if binding.restype is ResourceType.BROKER else _word(binding.restype)
    pattern, operation = _word(binding.resource_pattern_type), _word(binding.operation)
    return kind, binding.name, pattern, operation


def _word(value: object) -> str:
    """Kafka's word for a member of one of the library's enumerations."""
    return str(getattr(value, "name", value))


def missing(needed: Sequence[Acl], granted: Sequence[tuple[str, str, str, str]]) -> list[Acl]:
    """Rights that no principal has, as far as ACLs tell.

    Args:
        needed: of a role.
        granted: (resource type, name, pattern, operation) of every ACL that allows.
    """
    return [acl for acl in needed if not any(_covers(each, acl) for each in granted)]


def _covers(grant: tuple[str, str, str, str], acl: Acl) -> bool:
    kind, name, pattern, operation = grant
    if kind != acl.resource.upper():
        return False
    implied = ("READ", "WRITE", "DELETE", "ALTER") if acl.operation == "DESCRIBE" else ()
    if operation not in ("ALL", acl.operation, *implied):
        return False
    if pattern == Pattern.PREFIXED:
        return acl.name.startswith(name)
    return name == "*" or (name == acl.name and acl.pattern is Pattern.LITERAL)
