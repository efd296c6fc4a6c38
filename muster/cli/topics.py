"""Create muster's topics; with --acls also the ACLs that the named principals need.

Topics that exist are checked, never changed; if one differs, the command says how, and its exit
code is 1. No ACL is removed. --dry-run shows what would be created and asks no broker.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from muster.cli.options import (
    add_action,
    add_format,
    add_kafka,
    add_repeatable,
    kafka_settings,
    up_to,
)
from muster.errors import BadInput
from muster.kafka.acl_grants import Grant, create_acls
from muster.kafka.acls import ROLES, Role, acls_of, governed_acls
from muster.kafka.partition_counts import (
    DEFAULT_PARTITIONS,
    MEMBERS_A_PARTITION,
    PARTITIONS_MAX,
    PartitionCounts,
)
from muster.kafka.topic_creation import (
    BROKER_DEFAULT,
    REPLICATION_MAX,
    Outcome,
    Status,
    create,
)
from muster.output import json_line, table
from muster.protocol.topics import TOPICS

_PRINCIPAL = re.compile(r"\w+:.+")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_action(parser, "create", help="create what is missing, check the rest")
    parser.add_argument(
        "--partitions",
        type=up_to(PARTITIONS_MAX),
        metavar="N",
        help=f"partitions of each new topic (default: {DEFAULT_PARTITIONS}); "
        "a group lives in one of them, so more partitions serve more groups side by side",
    )
    parser.add_argument(
        "--members",
        type=up_to(PARTITIONS_MAX * MEMBERS_A_PARTITION),
        metavar="N",
        help="how many members all groups together will have: the assignments get a partition for "
        f"every {MEMBERS_A_PARTITION} of them, because each member reads its whole partition",
    )
    parser.add_argument(
        "--replication-factor",
        type=up_to(REPLICATION_MAX),
        metavar="N",
        default=BROKER_DEFAULT,
        help="copies of each new topic (default: the broker's default.replication.factor)",
    )
    _add_acls(parser)
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Create and check."""
    settings, grants = kafka_settings(args), grants_wanted(args)
    partitions = PartitionCounts(args.partitions, args.members)
    if args.dry_run:
        outcomes = [
            Outcome(t.name(args.topic_prefix), Status.PLANNED, partitions.new(t)) for t in TOPICS
        ]
    else:
        outcomes = create(settings, args.topic_prefix, partitions, args.replication_factor)
        grants = create_acls(settings, grants) if grants else grants
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


def _add_acls(parser: argparse.ArgumentParser) -> None:
    """Add the options that create ACLs."""
    group = parser.add_argument_group(
        "ACLs", "each --ROLE-principal gets only the rights that its role needs; may be repeated"
    )
    group.add_argument("--acls", action="store_true", help="create ACLs as well; none is removed")
    for role, needs in ROLES.items():
        add_repeatable(group, f"--{role}-principal", "User:NAME", needs.purpose)
    for what, meaning in (
        ("group", "a group that governors govern: they may lead it"),
        ("topic", "a topic that consumers of governed groups read: governors may see it"),
        ("config-topic", "config.storage.topic of a governed Connect cluster: governors read it"),
    ):
        add_repeatable(group, f"--governed-{what}", "NAME", meaning)
    group.add_argument(
        "--dry-run", action="store_true", help="print what would be created, without asking Kafka"
    )


def grants_wanted(args: argparse.Namespace) -> list[Grant]:
    """The grants that the arguments ask for, each right of a principal once.

    Raises:
        BadInput: principals without --acls, --acls without principals, or a malformed principal.
    """
    principals_by_role = {role: getattr(args, f"{role}_principal") for role in Role}
    if args.acls != any(principals_by_role.values()):
        raise BadInput("give both --acls and a --ROLE-principal User:NAME, or neither")
    for role, principals in principals_by_role.items():
        for each in principals:
            if not _PRINCIPAL.fullmatch(each):
                raise BadInput(f"--{role}-principal {each!r}: expected TYPE:NAME, as in User:ann")
    grants = [
        Grant(principal, acl)
        for role, principals in principals_by_role.items()
        for principal in principals
        for acl in acls_of(role, args.topic_prefix)
    ]
    of_groups = (args.governed_group, args.governed_topic, args.governed_config_topic)
    if any(of_groups) and not principals_by_role[Role.GOVERNOR]:
        raise BadInput("--governed-… needs a --governor-principal User:NAME")
    grants += [
        Grant(principal, acl)
        for principal in principals_by_role[Role.GOVERNOR]
        for acl in governed_acls(*of_groups)
    ]
    return list(dict.fromkeys(grants))
