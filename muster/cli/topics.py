"""Create muster's topics; with --acls also the ACLs that let given principals do their part.

Topics that exist are checked, never changed; if one differs, the command says how, and its exit
code is 1. No ACL is removed. --dry-run shows what would be created and asks no broker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicMetadata

from muster.cli import topics_acls
from muster.cli.errors import BadInput
from muster.cli.kafka import RETRY_PAUSE_S, TIMEOUT_S, admin, failures_named
from muster.cli.options import add_format, add_kafka, kafka_settings
from muster.cli.table import json_line, table
from muster.cli.topics_acls import Grant
from muster.kafka import access
from muster.kafka.settings import ClientSettings
from muster.protocol.topics import TOPICS, Topic

DEFAULT_PARTITIONS = 4
BROKER_DEFAULT = -1


class Status(StrEnum):
    """The result for a topic."""

    CREATED = "created"
    FOUND = "ok"
    DIFFERS = "differs"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One topic after the command.

    Attributes:
        topic: full name.
        status: the result.
        partitions: how many it has.
        differences: one line for each setting with a wrong value.
    """

    topic: str
    status: Status
    partitions: int
    differences: tuple[str, ...] = ()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "action", choices=("create",), help="create what is missing, check the rest"
    )
    parser.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help=f"partitions of each new topic (default: {DEFAULT_PARTITIONS}); "
        "a group lives in one of them, so more partitions serve more groups side by side",
    )
    parser.add_argument(
        "--replication-factor",
        type=int,
        metavar="N",
        default=BROKER_DEFAULT,
        help="copies of each new topic (default: the broker's default.replication.factor)",
    )
    topics_acls.configure(parser)
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Create and check."""
    if args.partitions is not None and args.partitions < 1:
        raise BadInput(f"--partitions {args.partitions}: expected 1 or more")
    if args.replication_factor != BROKER_DEFAULT and args.replication_factor < 1:
        raise BadInput(f"--replication-factor {args.replication_factor}: expected 1 or more")
    settings, grants = kafka_settings(args), topics_acls.wanted(args)
    if args.dry_run:
        partitions = args.partitions or DEFAULT_PARTITIONS
        outcomes = [
            Outcome(t.name(args.topic_prefix), Status.PLANNED, t.partitions or partitions)
            for t in TOPICS
        ]
    else:
        outcomes = create(settings, args.topic_prefix, args.partitions, args.replication_factor)
        grants = topics_acls.create(settings, grants) if grants else grants
    (_print_json if args.format == "json" else _print_tables)(outcomes, grants)
    return int(any(o.status is Status.DIFFERS for o in outcomes))


def _print_json(outcomes: Sequence[Outcome], grants: Sequence[Grant]) -> None:
    for o in outcomes:
        shown = {"topic": o.topic, "status": o.status, "partitions": o.partitions}
        print(json_line({**shown, "differences": list(o.differences)}))
    for g in grants:
        named = {"resource": g.acl.resource, "name": g.acl.name, "pattern": g.acl.pattern}
        acl = {"principal": g.principal, **named, "operation": g.acl.operation}
        print(json_line({"acl": acl, "status": g.status}))


def _print_tables(outcomes: Sequence[Outcome], grants: Sequence[Grant]) -> None:
    rows = [(o.topic, o.partitions, o.status, "; ".join(o.differences)) for o in outcomes]
    print(table(("TOPIC", "PARTITIONS", "STATUS", "DIFFERENCES"), rows))
    if grants:
        columns = ("PRINCIPAL", "OPERATION", "RESOURCE", "NAME", "PATTERN", "STATUS")
        acls = [(g.principal, g.acl.operation, *g.acl[:3], g.status) for g in grants]
        print(f"\n{table(columns, acls)}")


def create(
    settings: ClientSettings,
    prefix: str,
    partitions: int | None = None,
    replication_factor: int = BROKER_DEFAULT,
    more: dict[str, str] | None = None,
) -> list[Outcome]:
    """Create the topics that are missing and check those that exist.

    Args:
        settings: how to reach the cluster.
        prefix: of the topic names.
        partitions: of new topics, and what existing ones must have; None = the default for new
            ones, any number for existing ones. Topics with a fixed number keep it.
        replication_factor: of new topics.
        more: topic settings that win over muster's.

    Raises:
        Refused: the login, or no right to create topics.
        Silent, Unreachable: no answer, or the broker refused (too few brokers, for example).
    """
    access.reach(settings, TIMEOUT_S)
    with failures_named(settings, f"{prefix}.*", "CREATE"):
        client = admin(settings)
        missing = {
            t.name(prefix): NewTopic(
                t.name(prefix),
                t.partitions or partitions or DEFAULT_PARTITIONS,
                replication_factor,
                config={**t.settings, **(more or {})},
            )
            for t in TOPICS
            if t.name(prefix) not in client.list_topics(timeout=TIMEOUT_S).topics
        }
        created = _create(client, list(missing.values())) if missing else set()
        return [
            Outcome(t.name(prefix), Status.CREATED, missing[t.name(prefix)].num_partitions)
            if t.name(prefix) in created
            else _checked(client, t, prefix, partitions)
            for t in TOPICS
        ]


def _create(client: AdminClient, topics: list[NewTopic]) -> set[str]:
    """Create topics; returns the names of those that no other client created meanwhile."""
    created: set[str] = set()
    futures = client.create_topics(topics, request_timeout=TIMEOUT_S)
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S)
            created.add(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    _await_leaders(client, [topic.topic for topic in topics])
    return created


def _await_leaders(client: AdminClient, names: list[str]) -> None:
    """Wait until the topics can be used (all leaders elected); at most `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        known = client.list_topics(timeout=TIMEOUT_S).topics
        if all(n in known and _led(known[n]) for n in names) or time.monotonic() > deadline:
            return
        time.sleep(RETRY_PAUSE_S)


def _led(topic: TopicMetadata) -> bool:
    return bool(topic.partitions) and all(p.leader >= 0 for p in topic.partitions.values())


def _checked(client: AdminClient, topic: Topic, prefix: str, partitions: int | None) -> Outcome:
    name = topic.name(prefix)
    resource = ConfigResource(ResourceType.TOPIC, name)
    (future,) = client.describe_configs([resource], request_timeout=TIMEOUT_S).values()
    found = {key: entry.value for key, entry in future.result(TIMEOUT_S).items()}
    count = len(client.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)
    wanted = topic.partitions or partitions
    differences = [
        f"{key} is {found.get(key)}, expected {value}"
        for key, value in topic.settings.items()
        if found.get(key) != value
    ]
    if wanted is not None and count != wanted:
        differences.insert(0, f"partitions is {count}, expected {wanted}")
    status = Status.DIFFERS if differences else Status.FOUND
    return Outcome(name, status, count, tuple(differences))
