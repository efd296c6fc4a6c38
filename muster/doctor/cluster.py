"""Checks the cluster for `muster doctor`: brokers, topics and their settings, rights.

A topic with wrong settings fails silently: with the wrong ``cleanup.policy`` assignments vanish or
pile up; with the wrong timestamp type the groups' clocks follow those of the members' machines.
This module changes nothing; a finding names the command that corrects the fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)

from muster.doctor.finding import Finding, Level
from muster.errors import Unreachable
from muster.kafka import access_check
from muster.kafka.acl_grants import EVERY_ACL
from muster.kafka.acls import Acl, Pattern, Role, acls_of
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import TIMEOUT_S, admin, failures_named
from muster.output import some
from muster.protocol.topics import TOPICS, Topic

GRAVE = ("cleanup.policy", "message.timestamp.type", "max.message.bytes")
"""Topic settings that muster does not work without; a difference in another is a warning."""
AT_LEAST = "max.message.bytes"
"""The setting that may also be larger than required."""


def look(settings: ClientSettings, prefix: str) -> Iterator[Finding]:
    """All findings about the cluster; only one if it cannot be reached."""
    try:
        with failures_named(settings):
            access_check.reach(settings, TIMEOUT_S)
            client = admin(settings)
            listed = client.list_topics(timeout=TIMEOUT_S)
    except (Unreachable, access_check.Refused) as error:
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
    """A broker's version, as far as its settings show it: Kafka's protocol does not carry it."""
    settings = _settings(client, ResourceType.BROKER, str(broker))
    if settings is None:
        return "settings not readable"
    version = settings.get("inter.broker.protocol.version")  # Kafka 4.0 removed it
    return (
        f"inter.broker.protocol.version {version.value}"
        if version is not None
        else "Kafka 4 or newer"
    )


def _settings(
    client: AdminClient, kind: ResourceType, name: str
) -> Mapping[str, ConfigEntry] | None:
    """Settings of a topic or broker; None if they cannot be read."""
    resource = ConfigResource(kind, name)
    (future,) = client.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    try:
        settings: Mapping[str, ConfigEntry] = future.result(TIMEOUT_S)
    except KafkaException:
        return None
    return settings


# ---------------------------------------------------------------- topics


def topics(
    client: AdminClient,
    listed: Mapping[str, TopicMetadata],
    prefix: str,
    brokers: int,
    bootstrap: str,
) -> Iterator[Finding]:
    """One finding or more for each of muster's topics."""
    create = access_check.create_command(prefix)
    for topic in TOPICS:
        name = topic.name(prefix)
        metadata = listed.get(name)
        if metadata is None or not metadata.partitions:
            level = Level.WARN if topic.optional else Level.FAIL
            if _is_hidden(client, name):
                what = f"this login may not see it, or it does not exist: {topic.purpose}"
                yield Finding("topic", name, level, what, f"grant DESCRIBE on it, or {create}")
            else:
                yield Finding("topic", name, level, f"does not exist: {topic.purpose}", create)
            continue
        faults = [*_faults(topic, metadata, brokers, create)]
        entries = _settings(client, ResourceType.TOPIC, name)
        if entries is None:
            faults.append(
                (Level.SKIPPED, "this login may not read its settings", "grant DESCRIBE_CONFIGS")
            )
        else:
            found_settings = {key: e.value for key, e in entries.items()}
            faults += differences(topic, name, found_settings, bootstrap)
        for level, what, action in faults:
            yield Finding("topic", name, level, what, action)
        if not faults:
            count = len(metadata.partitions)
            yield Finding("topic", name, Level.OK, f"{count} partition{'s' if count != 1 else ''}")


def _is_hidden(client: AdminClient, name: str) -> bool:
    """Whether Kafka refuses to say anything about a topic, which need not exist."""
    try:
        error = client.list_topics(name, timeout=TIMEOUT_S).topics[name].error
    except (KafkaException, KeyError):
        return False
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _faults(
    topic: Topic, metadata: TopicMetadata, brokers: int, create: str
) -> Iterator[tuple[Level, str, str]]:
    if topic.partitions is not None and len(metadata.partitions) != topic.partitions:
        yield (
            Level.FAIL,
            f"has {len(metadata.partitions)} partitions, must have {topic.partitions}",
            f"stop the coordinator, delete the topic, {create}",
        )
    leaderless = sorted(p.id for p in metadata.partitions.values() if p.leader < 0)
    if leaderless:
        yield Level.FAIL, f"partitions {leaderless} have no leader", "bring their brokers back"
    lagging = sorted(p.id for p in metadata.partitions.values() if len(p.isrs) < len(p.replicas))
    if lagging:
        yield Level.WARN, f"partitions {lagging} are under-replicated", "look at the brokers"
    copies = min(len(p.replicas) for p in metadata.partitions.values())
    if copies < min(brokers, 2):
        yield (
            Level.WARN,
            "has one replica: its records are lost with its broker",
            "kafka-reassign-partitions.sh, or create topics with --replication-factor 3",
        )


def differences(
    topic: Topic, name: str, settings: Mapping[str, str | None], bootstrap: str
) -> list[tuple[Level, str, str]]:
    """(level, fault, action) for each setting with a wrong value, those in `GRAVE` first."""
    faults = []
    for key, wanted in sorted(topic.settings.items(), key=lambda s: (s[0] not in GRAVE, s[0])):
        if _suffices(key, settings.get(key), wanted):
            continue
        action = (
            f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics "
            f"--entity-name {name} --add-config {key}={wanted}"
        )
        level = Level.FAIL if key in GRAVE else Level.WARN
        least = "at least " if key == AT_LEAST else ""
        faults.append((level, f"{key} is {settings.get(key)}, must be {least}{wanted}", action))
    return faults


def _suffices(key: str, value: str | None, wanted: str) -> bool:
    if key == AT_LEAST and value is not None and value.isdigit():
        return int(value) >= int(wanted)
    return value == wanted


# ---------------------------------------------------------------- rights


def rights(settings: ClientSettings, client: AdminClient, prefix: str) -> Iterator[Finding]:
    """Whether this login may read the topics, and whether ACLs allow a coordinator and workers."""
    try:
        access_check.check(settings, Role.VIEWER, (prefix,), TIMEOUT_S)
        yield Finding("rights", "this login", Level.OK, "may read all of muster's topics")
    except access_check.Refused as refusal:
        action = f"{access_check.create_command(prefix)} --acls --viewer-principal User:NAME"
        yield Finding("rights", "this login", Level.WARN, str(refusal), action)
    except access_check.NoTopics:
        pass  # the check of the topics reports it
    try:
        bindings = client.describe_acls(EVERY_ACL, request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        is_refused = not bindings and not _may_describe(client)
    except KafkaException as error:
        yield Finding("rights", "ACLs", Level.SKIPPED, _unread(error))
        return
    if is_refused:
        what = "this login may not read them: it lacks DESCRIBE on Cluster kafka-cluster"
        yield Finding("rights", "ACLs", Level.SKIPPED, what)
        return
    granted = [_granted(b) for b in bindings if b.permission_type is AclPermissionType.ALLOW]
    if not granted:
        what = "there are none: every login is a super user"
        yield Finding("rights", "ACLs", Level.SKIPPED, what)
        return
    for role in (Role.JOB, Role.WORKER):
        lacking = missing(acls_of(role, prefix), granted)
        if not lacking:
            yield Finding("rights", f"role {role}", Level.OK, "ACLs grant all it needs")
            continue
        yield Finding(
            "rights",
            f"role {role}",
            Level.WARN,
            f"no ACL grants {some([*map(str, lacking)])}: {_without(lacking, role)}",
            f"{access_check.create_command(prefix)} --acls --{role}-principal User:NAME",
        )


def _without(lacking: Sequence[Acl], role: Role) -> str:
    if all(acl.operation in access_check.DISPENSABLE for acl in lacking):
        return f"the {role} does not check the settings of these topics"
    return f"only a super user can be a {role}"


def _may_describe(client: AdminClient) -> bool:
    """Whether this login may describe the cluster; if not, the client reports that no ACL exists.

    Raises:
        KafkaException: no answer.
    """
    asked = client.describe_cluster(include_authorized_operations=True, request_timeout=TIMEOUT_S)
    return AclOperation.DESCRIBE in (asked.result(TIMEOUT_S).authorized_operations or ())


def _unread(error: KafkaException) -> str:
    reason = str(error.args[0].str())
    if error.args[0].code() == KafkaError.SECURITY_DISABLED:
        return "the cluster has no authorizer, so every login may do everything"
    return f"this login may not read them ({reason})"


def _granted(binding: AclBinding) -> tuple[str, str, str, str]:
    kind = "CLUSTER" if binding.restype is ResourceType.BROKER else _word(binding.restype)
    pattern, operation = _word(binding.resource_pattern_type), _word(binding.operation)
    return kind, binding.name, pattern, operation


def _word(value: object) -> str:
    """Kafka's name for a value of one of the client library's enumerations."""
    return str(getattr(value, "name", value))


def missing(needed: Sequence[Acl], granted: Sequence[tuple[str, str, str, str]]) -> list[Acl]:
    """The needed rights that no ACL grants to any principal.

    `granted`: (resource type, name, pattern, operation) of every ACL that allows.
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
