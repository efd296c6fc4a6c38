"""Empty a member before it is stopped: it gives its tasks away and gets no new ones.

The member stays in the group without tasks. The drain holds until --cancel undoes it, even if the
member leaves and joins again under its member id or instance id. With --wait the command returns
when the member holds no task, so that it can be stopped. The exit code is 1 if the member was
fenced or expired before that, because its process may still run its tasks, and at once if the
coordinator refuses the drain.
"""

from __future__ import annotations

import argparse
import time

from muster.cli.options import add_kafka, check_ms, group_id, kafka_settings, member_id
from muster.errors import BadInput, NotDrained, NotFound, Unreachable
from muster.kafka.writer import Place, append
from muster.protocol.client_tags import GOVERNED
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry
from muster.protocol.topics import TopicKind, topic_name
from muster.protocol.unknown_names import there_are
from muster.published.dead_letters_of_events import DeadLetterOf
from muster.published.followed_group import FollowedGroup
from muster.published.snapshots import Shown, refuses_events
from muster.signing.followed_key_file import add_signing_keys, key_file_of

LOOK_EVERY_S = 0.5
"""Longest wait for a record before the command looks whether its time is over."""
NOT_ASKED = "has not been asked yet: no coordinator has read the drain"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument(
        "--member", type=member_id, required=True, metavar="ID", help="see: muster groups describe"
    )
    parser.add_argument(
        "--cancel", action="store_true", help="undo the drain: the member may get tasks again"
    )
    parser.add_argument("--wait", action="store_true", help="return when the member holds no task")
    parser.add_argument(
        "--timeout-ms",
        type=int,
        default=600_000,
        metavar="N",
        help="with --wait: give up after N milliseconds, exit code 1 (default: %(default)s)",
    )
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Write the drain or its cancellation; with --wait, return when the member is empty."""
    if args.cancel and args.wait:
        raise BadInput("--wait waits until a member is empty, --cancel undoes the drain: give one")
    check_ms("--timeout-ms", args.timeout_ms)
    settings, prefix = kafka_settings(args), args.topic_prefix
    with FollowedGroup(settings, prefix, args.group) as group:
        snapshot = group.snapshot()
        _refuse_unknown(args, snapshot)
        if refusal := refuses_events(snapshot):
            raise NotDrained(refusal)
        order = Drain(group=GroupId(args.group), member=MemberId(args.member), on=not args.cancel)
        topic = topic_name(TopicKind.MEMBERSHIP, prefix)
        place = append(settings, topic, order, key_file_of(args.signing_keys))
        if args.cancel:
            print(f"{args.member}: drain cancelled", flush=True)
            return 0
        print(f"{args.member}: draining, until it is undone with --cancel", flush=True)
        if args.wait:
            with DeadLetterOf(settings, prefix, place) as letter:
                _wait(group, args.member, place, letter, args.timeout_ms)
            print(f"{args.member}: empty")
    return 0


def _refuse_unknown(args: argparse.Namespace, snapshot: GroupSnapshot) -> None:
    known = {m.id for m in snapshot.members}
    departed = {drain.member for drain in snapshot.drains} - known
    accepted = known | departed if args.cancel else known
    if args.member not in accepted:
        raise NotFound(
            f"no member {args.member!r} in group {args.group!r}; there are: "
            f"{there_are(args.member, accepted)}"
        )


def _wait(
    group: FollowedGroup, member: str, order: Place, letter: DeadLetterOf, timeout_ms: int
) -> None:
    """Wait until the member is empty.

    Raises:
        NotDrained: as `still_to_do`, or the drain is a dead letter.
        NotFound: the group was deleted, and nothing of it is left.
        Unreachable: the member is not empty in time, or the topic cannot be read.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    unfinished = still_to_do(group.snapshot(), member, order)
    while unfinished is not None:
        left_s = deadline - time.monotonic()
        if left_s < 0:
            raise Unreachable(f"{member} {unfinished} after {timeout_ms} ms")
        if unfinished == NOT_ASKED and (refused := letter.found()) is not None:
            known = DeadLetter.__members__.get(refused.reason)
            action = f"; {known.action}" if known else ""
            why = f"the coordinator refused the drain, {refused.reason}: {refused.message}{action}"
            raise NotDrained(f"{member}: not drained: {why}")
        unfinished = still_to_do(group.snapshot(min(left_s, LOOK_EVERY_S)), member, order)


def still_to_do(snapshot: GroupSnapshot, member: str, order: Place) -> str | None:
    """Why a member is not empty yet, in words; None = it is empty.

    `order` is where the drain is in the log; an older snapshot does not show it.

    Raises:
        NotDrained: the member was expelled, it left before the drain, the drain was undone, or the
            group was deleted or quarantined.
    """
    if refusal := refuses_events(snapshot):
        raise NotDrained(f"{member}: not drained: {refusal}")
    entry = next((m for m in snapshot.members if m.id == member), None)
    drain = next((k for k in snapshot.drains if k.member == member), None)
    read = {(topic, partition): offset for topic, partition, offset in snapshot.through}
    if read.get((order.topic, order.partition), -1) < order.offset:
        if entry is None and drain is None:
            raise NotDrained(f"{member}: not drained: it left or was expelled before the drain")
        if entry is not None:
            return NOT_ASKED
        # An earlier drain held when it left, so the coordinator refuses this one.
    is_governed = any(GOVERNED in m.tags for m in snapshot.members)
    if drain is not None and drain.expelled and is_governed:
        # Its governor joins for it again and reports what it runs, so nothing is unknown.
        if entry is None:
            return "has not joined again yet"
    elif drain is not None and drain.expelled:
        raise NotDrained(
            f"{member}: expelled, not drained: it was fenced or expired before it was empty, and "
            "its process may still run its tasks. The drain still holds when it returns"
        )
    if entry is None and drain is not None:
        return None  # it stopped all its tasks and left
    # The members of a deleted group may still run its tasks, which its record does not have.
    if entry is None or not entry.draining or snapshot.state is GroupState.DEAD:
        raise NotDrained(f"{member}: not drained: the drain was undone, or the group was deleted")
    held = _held(snapshot, entry)
    return None if held == 0 else f"still holds {held} tasks"


def _held(snapshot: GroupSnapshot, entry: MemberEntry) -> int:
    shown = Shown(snapshot, {})
    tasks = (shown.active(entry), shown.standby(entry), shown.learner(entry))
    return sum(map(len, (*tasks, shown.revoking(entry))))
