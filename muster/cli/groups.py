"""List groups, describe them (state, members, tasks), or release one that is quarantined.

The coordinator quarantines a group whose events ended the process that worked on them; `describe`
says why. `release` lets the group continue; the exit code is 1 if the group fails again.

--format json prints one object per group, one per line; its keys are stable.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from muster.assignor.ignored_settings import ignored_standbys
from muster.cli.options import add_action, add_format, add_kafka, group_id, kafka_settings
from muster.errors import BadInput, ChangedMeanwhile, StillQuarantined, Unreachable
from muster.kafka.client_settings import ClientSettings
from muster.kafka.writer import append
from muster.output import ago, json_line, wall_ms
from muster.protocol.client_tags import GOVERNED
from muster.protocol.events import GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId, as_option
from muster.protocol.records import GroupSnapshot, GroupState, Quarantine
from muster.protocol.snapshot import GroupOutline, outline_of
from muster.protocol.tasks import TaskTable
from muster.protocol.topics import TopicKind, topic_name
from muster.protocol.unknown_names import no_tasks_beside
from muster.published.config_changes import known, replaced
from muster.published.coordinator_last_seen import last_seen_ms, seen_text, signs_text
from muster.published.existing_group import existing, snapshot_of
from muster.published.followed_group import FollowedGroup
from muster.published.holdups import PendingReleases, pending_releases, waits_text
from muster.published.members_last_heard import last_heartbeats
from muster.published.snapshots import (
    Shown,
    configured,
    drains_text,
    history,
    is_deleted,
    newest_outlines,
    newest_snapshots,
)
from muster.published.tables import group_json, list_table, members_table, state_table, tasks_table
from muster.published.unapplied_configs import unapplied
from muster.signing.followed_key_file import KeyFile, add_signing_keys, key_file_of
from muster.streams.coordinator_signs import read_signs

SIGNS_MS = 60_000
"""How far back signs of life are read."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_action(
        parser,
        *("list", "describe", "release"),
        help="list: one row a group. describe: why and since when, and what a group waits for."
        " release: let a quarantined group continue",
    )
    parser.add_argument(
        "--group", type=group_id, metavar="G", help="one group (default: all); release needs it"
    )
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--members", action="store_true", help="describe: one row a member")
    view.add_argument("--tasks", action="store_true", help="describe: one row a task and copy")
    parser.add_argument("--verbose", action="store_true", help="describe: more columns")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def _refuse_views(args: argparse.Namespace) -> None:
    """Check that only `describe` is asked for a view.

    Raises:
        BadInput: another action is; without an error its answer would look like that view.
    """
    views = [name for name in ("members", "tasks", "verbose") if getattr(args, name)]
    if views and args.action != "describe":
        raise BadInput(f"groups {args.action}: --{views[0]} is only for groups describe")


def run(args: argparse.Namespace) -> int:
    """Read the groups and print them, or release one."""
    settings, prefix, now_ms = kafka_settings(args), args.topic_prefix, wall_ms()
    _refuse_views(args)
    if args.action == "release":
        if args.group is None:
            raise BadInput("groups release: give --group G, the quarantined group")
        release(settings, prefix, args.group, key_file_of(args.signing_keys))
        return 0
    is_described = args.action == "describe"
    if not is_described and args.format != "json":
        print(list_table(_outlines(settings, prefix, args.group)))
        return 0
    snapshots, pending = _read(settings, prefix, args.group)
    seen_ms = last_seen_ms(settings, prefix) if is_described else None
    # Heartbeats are read only if shown, because that reads a busy topic's tail.
    shows_heartbeats = is_described and (args.members or args.format == "json")
    heard = last_heartbeats(settings, prefix, snapshots if shows_heartbeats else (), now_ms)
    shown = [Shown(s, heard.get(s.group, {}), seen_ms) for s in snapshots]
    described = {each.group: each for each in snapshots if is_described}
    not_followed = unapplied(settings, prefix, described, described, now_ms)
    if args.format == "json":
        for each in shown:
            owed = [holdup.as_json(now_ms) for holdup in pending.holdups(each.snapshot)]
            config = not_followed.get(each.snapshot.group)
            more = {"owed": owed, "unapplied_config": config and config.as_json()}
            print(json_line({**group_json(each), **more}))
        return 0
    print(_table(shown, args, now_ms))
    if is_described:
        for paragraph in (
            *quarantines(shown, now_ms),
            *(f"\n{config.text(now_ms)}" for config in not_followed.values()),
            *_paragraphs(shown, lambda s: _waits(s, pending, now_ms)),
            *_paragraphs(shown, lambda s: drains_text(s, now_ms)),
            *governed(shown),
        ):
            print(paragraph)
        for hint in hints(shown, lambda: configured(settings, prefix)):
            print(f"\n{hint}")
        print(f"\n{seen_text(seen_ms, now_ms, snapshots)}")
        if signs := read_signs(settings, prefix, now_ms - SIGNS_MS):
            print(signs_text(signs, wall_ms()))
    return 0


def _read(
    settings: ClientSettings, prefix: str, group: str | None
) -> tuple[list[GroupSnapshot], PendingReleases]:
    """The newest snapshot of one group, or of every group by id, and the releases members owe.

    Raises:
        NotFound: as `existing_group.missing`.
    """
    if group is None:
        snapshots = newest_snapshots(settings, prefix)
        pending = pending_releases(settings, prefix, snapshots)
        return list(snapshots.values()), pending
    pending, last = PendingReleases(), None
    for published in pending.noting(history(settings, prefix, group)):
        last = published.record
    return [existing(settings, prefix, group, last)], pending


def _outlines(settings: ClientSettings, prefix: str, group: str | None) -> list[GroupOutline]:
    """What `list` shows of one group, or of every group by id.

    Raises:
        NotFound: as `existing_group.missing`.
    """
    if group is None:
        return list(newest_outlines(settings, prefix).values())
    return [outline_of(snapshot_of(settings, prefix, group))]


def hints(shown: Sequence[Shown], others: Callable[[], Sequence[str]]) -> list[str]:
    """Advice for each group with members but no tasks, and for standbys that have no effect.

    `others` looks up the names of the groups that have tasks; it is called only if needed.
    """
    bare = [e.snapshot.group for e in shown if e.snapshot.state is GroupState.NOT_READY]
    known = others() if bare else ()
    lines = [no_tasks_beside(group, known) for group in bare]
    for s in (each.snapshot for each in shown):
        ignored = ignored_standbys(s.assignor, s.settings, TaskTable(s.tasks))
        lines += (f"{s.group}: {line}" for line in ignored)
    return lines


def _table(shown: Sequence[Shown], args: argparse.Namespace, now_ms: int) -> str:
    if args.members:
        return members_table(shown, now_ms, args.verbose)
    if args.tasks:
        return tasks_table(shown, args.verbose)
    return state_table(shown, now_ms, args.verbose)


def _paragraphs(
    shown: Sequence[Shown], lines_of: Callable[[GroupSnapshot], list[str]]
) -> Iterator[str]:
    """A paragraph for each group of which there is something to say."""
    for each in shown:
        if lines := lines_of(each.snapshot):
            yield "\n".join([f"\n{each.snapshot.group}:", *lines])


def _waits(snapshot: GroupSnapshot, pending: PendingReleases, now_ms: int) -> list[str]:
    """What the group's waiting tasks wait for, and which member; a quarantined group waits."""
    if snapshot.quarantine is not None:
        return []  # `quarantines` says why; the coordinator fences no member meanwhile
    owed = [holdup.text(now_ms) for holdup in pending.holdups(snapshot)]
    return owed + waits_text(snapshot).splitlines()


def quarantines(shown: Sequence[Shown], now_ms: int) -> list[str]:
    """A paragraph for each group that is quarantined: why, what that means, and what to do."""
    return [
        f"\n{each.snapshot.group}: quarantined {ago(now_ms, quarantine.since_ms)}: "
        f"{quarantine.story}. Its tasks stay where they are, its events become dead letters. "
        f"Correct the cause, then: muster groups release "
        f"{as_option('--group', each.snapshot.group)}"
        for each in shown
        if (quarantine := each.snapshot.quarantine) is not None
    ]


def governed(shown: Sequence[Shown]) -> list[str]:
    """A line for each group whose members are Kafka's own: what ownership means there."""
    return [
        f"\n{each.snapshot.group}: governed by muster adopt: Kafka's session decides what a member "
        "may run, because it has no lease of muster's"
        for each in shown
        if any(GOVERNED in member.tags for member in each.snapshot.members)
    ]


LOOK_EVERY_S = 0.5
TIMEOUT_S = 60.0


def release(settings: ClientSettings, prefix: str, group: str, keys: KeyFile | None) -> None:
    """Release a group, and wait until it continues or fails again.

    Raises:
        BadInput: the group is not quarantined.
        StillQuarantined: it failed again and is quarantined again.
        Unreachable: no coordinator acted within `TIMEOUT_S`.
    """
    with FollowedGroup(settings, prefix, group) as followed:
        before = followed.snapshot().quarantine
        if before is None:
            raise BadInput(f"group {group!r} is not quarantined; see: muster groups describe")
        read = known(settings, prefix, group, keys)
        if read.note:
            print(f"muster groups: {read.note}", file=sys.stderr)
        event: GroupConfig | GroupDeleted = read.config or GroupDeleted(group=GroupId(group))
        place = append(settings, topic_name(TopicKind.CONFIG, prefix), event, keys)
        lost = replaced(settings, prefix, read, event, place)
        if lost:
            raise ChangedMeanwhile(lost)
        print(f"{group}: asked to go on; it was quarantined {ago(wall_ms(), before.since_ms)}")
        _wait_until_released(followed, group, before)
        print(f"{group}: released" + ("" if read.config else "; it has no configuration"))


def _wait_until_released(followed: FollowedGroup, group: str, before: Quarantine) -> None:
    """Wait until the group continues, or is gone."""
    deadline = time.monotonic() + TIMEOUT_S
    now = followed.newest()
    while isinstance(now, GroupSnapshot) and now.quarantine is not None and not is_deleted(now):
        if now.quarantine.since_ms > before.since_ms:
            raise StillQuarantined(f"{group}: failed again: {now.quarantine.story}")
        if time.monotonic() > deadline:
            raise Unreachable(f"{group}: no coordinator answers; see: muster doctor")
        now = followed.newest(LOOK_EVERY_S)
