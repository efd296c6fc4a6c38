"""Set, show or delete a group's configuration: assignor, settings, tasks. Describe every setting.

`set` changes only what its options name. `config show --format json` prints what `config set
--file` reads. Members and the coordinator apply a new configuration at once, without a restart.
`delete` refuses a group that has members, except with --force: then the members stop their tasks in
order and wait for a new configuration. A group that is configured again continues its generations.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from muster.assignor.ignored_settings import ignored_settings
from muster.cli import settings as settings_page
from muster.cli.options import (
    add_action,
    add_format,
    add_kafka,
    add_repeatable,
    group_id,
    kafka_settings,
    key_values,
)
from muster.documents.group_config import FILE_KEYS, Change, as_json, check_fits, merged
from muster.documents.json_files import load, refuse_unknown
from muster.documents.units import parse_task_list
from muster.errors import BadInput, ChangedMeanwhile, InUse, NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.writer import append
from muster.output import json_line, shown, some, table
from muster.protocol.events import GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId, as_option
from muster.protocol.rows import settings_row
from muster.protocol.settings import DEFAULT_ASSIGNOR, SETTINGS
from muster.protocol.tasks import Connector, TaskTable
from muster.protocol.topics import TopicKind, topic_name
from muster.published.config_changes import current, known, replaced
from muster.published.snapshots import history, newest
from muster.signing.followed_key_file import add_signing_keys, key_file_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_action(
        parser,
        *("set", "show", "delete", "describe"),
        help="set: change what the options name, then show. show: print the group's configuration."
        " delete: forget the group. describe: explain every setting, or SETTING",
    )
    parser.add_argument(
        "setting", nargs="?", metavar="SETTING", help="describe: only this setting (default: all)"
    )
    parser.add_argument("--group", type=group_id, metavar="G", help="which group (not: describe)")
    parser.add_argument(
        "--file", metavar="GROUP.json", help='set: {"assignor", "config", "tasks"}, each optional'
    )
    parser.add_argument("--tasks", metavar="TASKS.json", help="set: a list of tasks")
    add_repeatable(
        parser,
        "--topic",
        "T",
        "set: the tasks are the partitions of this topic of Kafka; may be repeated",
    )
    add_repeatable(
        parser,
        "--pattern",
        "REGEX",
        "set: the same for every topic whose whole name matches; may be repeated",
    )
    parser.add_argument(
        "--assignor",
        metavar="A",
        help=f"set: how tasks are placed (default for a new group: {DEFAULT_ASSIGNOR})",
    )
    add_repeatable(
        parser,
        "--config",
        "K=V",
        "set: a setting; K= puts it back to its default; may be repeated",
    )
    parser.add_argument(
        "--force", action="store_true", help="delete: even if the group has members"
    )
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Set, then show; or show; or delete; or describe."""
    if args.action == "describe":
        return describe(args)
    if args.setting is not None or args.group is None:
        fault = f"{shown(args.setting)} is not expected; a setting is given as --config K=V"
        raise BadInput(f"config {args.action}: {'give --group G' if args.group is None else fault}")
    if args.force and args.action != "delete":
        raise BadInput(f"config {args.action}: --force is only for config delete")
    settings, prefix = kafka_settings(args), args.topic_prefix
    if args.action == "set":
        if not _sets(args):
            raise BadInput(
                "nothing to set: give --topic, --file, --tasks, --assignor or --config K=V"
            )
        change = change_from(args)
        keys = key_file_of(args.signing_keys)
        before = known(settings, prefix, args.group, keys)
        group = merged(GroupId(args.group), before.config, change)
        check_fits(group)
        ignored = ignored_settings(group.assignor, group.settings, TaskTable(group.tasks))
        for warning in filter(None, (before.note, *ignored)):
            print(f"muster config: {warning}", file=sys.stderr)
        topic = topic_name(TopicKind.CONFIG, prefix)
        place = append(settings, topic, group, keys)
        lost = replaced(settings, prefix, before, group, place)
        if lost:
            raise ChangedMeanwhile(lost)
    else:
        if _sets(args):
            raise BadInput(f"config {args.action} changes no setting; use: muster config set")
        config = current(settings, prefix, args.group)
        if config is None:
            raise NotFound(f"group {args.group!r} is not configured; see: muster groups list")
        group = config
    if args.action == "delete":
        members = members_of(settings, prefix, group.group)
        if members and not args.force:
            raise InUse(refusal(group.group, members))
        event = GroupDeleted(group=group.group)
        append(
            settings, topic_name(TopicKind.CONFIG, prefix), event, key_file_of(args.signing_keys)
        )
        stop = f"; {some(members)} stop their tasks and wait for a new configuration"
        print(f"{group.group}: deleted{stop if members else ''}")
        return 0
    print(json_line(as_json(group)) if args.format == "json" else as_text(group))
    return 0


def _sets(args: argparse.Namespace) -> bool:
    """Whether an option says what to set."""
    return any((args.file, args.tasks, args.topic, args.pattern, args.assignor, args.config))


def members_of(settings: ClientSettings, prefix: str, group: str) -> list[str]:
    """Ids of the group's members in its newest record, sorted."""
    snapshots = newest(history(settings, prefix, group)).values()
    return sorted(member.id for snapshot in snapshots for member in snapshot.members)


def refusal(group: str, members: list[str]) -> str:
    """Why a group with members is not deleted, and what to do."""
    return (
        f"group {group!r} has {len(members)} live member{'s' * (len(members) != 1)} "
        f"({some(members)}): stop them first; or give --force: they stop their tasks in order, "
        f"commit, and wait, without tasks, until muster config set {as_option('--group', group)}"
    )


def describe(args: argparse.Namespace) -> int:
    """Print all settings, or one; asks no broker.

    Raises:
        BadInput: no setting of that name, or a group is named, whose settings these are not.
    """
    if args.group is not None:
        raise BadInput(
            "config describe explains settings, of no group; what a group has: "
            f"muster config show {as_option('--group', args.group)}"
        )
    if args.setting is not None:
        setting = settings_page.one(args.setting)
        is_json = args.format == "json"
        print(json_line(asdict(setting)) if is_json else settings_page.as_text(setting))
    elif args.format == "json":
        for each in settings_page.described():
            print(json_line(asdict(each)))
    else:
        print(settings_page.as_table(settings_page.described()))
    return 0


def change_from(args: argparse.Namespace) -> Change:
    """The change that the arguments ask for; options win over the file.

    Raises:
        BadInput: a file cannot be read or is malformed, or an option is.
    """
    file = load(args.file) if args.file else {}
    if not isinstance(file, dict):
        raise BadInput(f"{args.file}: expected an object with {', '.join(FILE_KEYS)}")
    refuse_unknown(file, FILE_KEYS, args.file)
    config = file.get("config", {})
    if not isinstance(config, dict):
        raise BadInput(f"{args.file}: config: expected an object of settings")
    topics = [{"topic": name} for name in args.topic]
    topics += [{"pattern": pattern} for pattern in args.pattern]
    if topics and args.tasks:
        raise BadInput("--tasks lists all tasks: write the topics and patterns into that file")
    tasks = topics or (load(args.tasks) if args.tasks else file.get("tasks"))
    if isinstance(tasks, dict) and set(tasks) == {"tasks"}:
        tasks = tasks["tasks"]
    assignor = args.assignor or file.get("assignor")
    if assignor is not None and not (isinstance(assignor, str) and assignor):
        raise BadInput(f"{args.file}: assignor: expected a name")
    settings = {**config, **key_values(args.config, "--config")}
    if not args.tasks and tasks is None:
        return Change(assignor, settings, None)
    return Change(assignor, settings, *parse_task_list(tasks))


def as_text(group: GroupConfig) -> str:
    """Tables: the group, its settings, its tasks; its topics if it has some."""
    size = sum(unit.size for unit in group.tasks)
    head = table(("GROUP", "ASSIGNMENT-STRATEGY", "#TASKS"), [(group.group, group.assignor, size)])
    settings_shown = settings_row(group.settings, group.assignor)
    rows = [
        (s.key, getattr(group.settings, s.field), "set" if s.key in settings_shown else "default")
        for s in SETTINGS
    ]
    units = [
        (u.name, "connector", u.size, None, u.weight)
        if isinstance(u, Connector)
        else (u.name, "subtopology", u.size, u.stateful, "by task" if u.weights else u.weight)
        for u in group.tasks
    ]
    columns = ("NAME", "KIND", "#TASKS", "STATEFUL", "WEIGHT")
    parts = [head, table(("SETTING", "VALUE", "SOURCE"), rows)]
    if units or not group.sources:
        parts.append(table(columns, units))
    if group.sources:
        topics = [
            (
                each.pattern or each.topics,
                "pattern" if each.pattern else "topic",
                each.unit or None if each.co_partitioned else None,
                each.stateful,
                each.measure or each.weight,
                each.racks,
            )
            for each in group.sources
        ]
        names = ("TOPICS", "KIND", "TOGETHER-AS", "STATEFUL", "WEIGHT", "RACKS")
        parts.append(table(names, topics))
    return "\n\n".join(parts)
