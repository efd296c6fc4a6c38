"""Look at a group that Kafka coordinates, and at what muster would do with it. Changes nothing.

Shows the group's owners, how even its load is and what is read from another rack, then
what muster would move and why, and what that would gain. Needs the rights to describe the groups
and their topics; no topics of muster, no Spark. --watch goes on and prints what each rebalance of
the group moved, beside what muster would have moved. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from muster.cli.options import add_changes, add_format, changes, kafka_settings, member_places
from muster.discovery.measured_traffic import Measure
from muster.documents.units import tasks_json
from muster.errors import BadInput, NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.command_options import add_client
from muster.kafka.groups import PATIENCE_S, Kind, listed
from muster.output import json_line, one_line
from muster.protocol.errors import MusterError
from muster.protocol.records import GroupSnapshot
from muster.shadow.group_conversion import to_snapshot
from muster.shadow.group_reader import ShadowedGroup, read_groups
from muster.shadow.placement_figures import figures_of, present
from muster.shadow.rebalance_moves import rebalance
from muster.shadow.report import Shadow, as_json, as_text, line
from muster.whatif import planned

LOOK_EVERY_S = 1.0
_TYPES = {
    "consumer": (Kind.CLASSIC, Kind.CONSUMER, Kind.STREAMS),
    "connect": (Kind.CONNECT,),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--group", metavar="G", action="append", help="a consumer group's id; repeatable"
    )
    which.add_argument(
        "--all", action="store_true", help="every group that this login may describe"
    )
    parser.add_argument("--type", choices=sorted(_TYPES), help="--all: only groups of this type")
    parser.add_argument(
        "--weight",
        choices=[str(measure) for measure in Measure],
        help="weigh partitions by this (default: all alike); not tasks of Connect or Streams",
    )
    parser.add_argument(
        "--connect-url", metavar="URL", help="a Connect worker's REST, to see tasks that do not run"
    )
    add_changes(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="keep reading: a line for every rebalance, until Ctrl-C",
    )
    add_format(parser)
    add_client(parser)


def run(args: argparse.Namespace) -> int:
    """Read the groups once, or, with --watch, again and again."""
    clients = kafka_settings(args)
    change = changes(args)
    groups = _groups(clients, args)
    if not groups:
        print("no group that this login may describe", file=sys.stderr)
        return 0
    if len(groups) > 1 and (change["add"] or change["remove"]):
        raise BadInput("--add-member and --remove-member change one group: give one --group")
    shadowed = read_groups(clients, groups, connect_url=args.connect_url, waits=True)
    for number, each in enumerate(shadowed):
        shadow = _shadow(each, change, args)
        if args.format == "json":
            print(json_line(as_json(shadow)), flush=True)
        else:
            print(("\n" if number else "") + as_text(shadow), flush=True)
    if args.watch:
        _watch(clients, shadowed, change, args)
    return 0


def _groups(clients: ClientSettings, args: argparse.Namespace) -> list[str]:
    if args.group:
        if args.type:
            raise BadInput("--type needs --all: it selects among all groups")
        return list(dict.fromkeys(args.group))
    kinds = _TYPES[args.type] if args.type else tuple(k for kinds in _TYPES.values() for k in kinds)
    return [each.group for each in listed(clients) if each.kind in kinds]


def _shadow(shadowed: ShadowedGroup, change: Mapping[str, Any], args: argparse.Namespace) -> Shadow:
    group = _weighed(shadowed, change, args)
    now = figures_of(shadowed, group, present(group))
    if not shadowed.description.members and not change["add"]:
        return Shadow(shadowed, group, now, None, None, "the group has no members")
    if shadowed.description.is_hidden:
        why = f"the group has been rebalancing for {PATIENCE_S:.0f} s or longer; ask again"
        return Shadow(shadowed, group, now, None, None, why)
    plan = planned(group, **{**change, "assignor": None}, places=member_places(args))
    for warning in plan.pop("warnings", ()):
        print(f"muster shadow: {one_line(warning)}", file=sys.stderr)
    placement = {name: held["active"] for name, held in plan["members"].items()}
    return Shadow(shadowed, group, now, plan, figures_of(shadowed, group, placement))


def _weighed(
    shadowed: ShadowedGroup, change: Mapping[str, Any], args: argparse.Namespace
) -> GroupSnapshot:
    """The group as muster would publish it; with --all one that cannot be weighed ends nothing."""
    if args.weight:
        try:
            measure = Measure(args.weight)
            return to_snapshot(shadowed, measure=measure, assignor=change["assignor"])
        except BadInput as error:
            if args.group:
                raise
            story = f"{error}; each of its tasks counts as 1"
            print(f"muster shadow: {one_line(story)}", file=sys.stderr)
    return to_snapshot(shadowed, assignor=change["assignor"])


def _watch(
    clients: ClientSettings,
    shadowed: list[ShadowedGroup],
    change: Mapping[str, Any],
    args: argparse.Namespace,
) -> None:
    names = [each.description.group for each in shadowed]
    settled: dict[str, GroupSnapshot] = {}
    while True:
        for each in shadowed:
            if not each.description.is_hidden:
                name = each.description.group
                settled[name] = _note(settled.get(name), each, change, args)
        time.sleep(LOOK_EVERY_S)
        try:
            shadowed = read_groups(clients, names, measures=(), connect_url=args.connect_url)
        except NotFound as error:
            if args.group:
                raise
            print(f"muster shadow: {one_line(str(error))}", file=sys.stderr)
            names, shadowed = _remaining(clients, names), []
            if not names:
                return
        except MusterError as error:  # a broker that is away comes back
            if not error.retriable:
                raise
            print(f"muster shadow: {one_line(str(error))}", file=sys.stderr)


def _remaining(clients: ClientSettings, names: Sequence[str]) -> list[str]:
    """Those of the watched groups that Kafka still has; all of them while it does not answer."""
    try:
        there = {each.group for each in listed(clients)}
    except MusterError:
        return list(names)
    return [name for name in names if name in there]


def _note(
    before: GroupSnapshot | None,
    shadowed: ShadowedGroup,
    change: Mapping[str, Any],
    args: argparse.Namespace,
) -> GroupSnapshot:
    """Print what has moved since the settled state before; return the present one."""
    group = to_snapshot(shadowed, assignor=change["assignor"])
    if before is not None and (event := rebalance(before, group)) is not None:
        event["muster_moves"] = _moves(before, group, event, change)
        print(json_line(event) if args.format == "json" else line(event), flush=True)
    return group


def _moves(
    before: GroupSnapshot,
    after: GroupSnapshot,
    event: Mapping[str, Any],
    change: Mapping[str, Any],
) -> int | None:
    """How many owned tasks muster would have moved for the same change of members and tasks."""
    add = [
        {"id": each.id, **({"rack": each.rack} if each.rack else {})}
        for each in after.members
        if each.id in event["joined"]
    ]
    try:
        plan = planned(
            before,
            add=add,
            remove=event["left"],
            config=change["config"],
            tasks=tasks_json(after.tasks),
        )
    except MusterError:
        return None
    return sum(1 for move in plan["moves"] if move["role"] == "active" and move["from"])
