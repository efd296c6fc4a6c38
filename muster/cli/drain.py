"""Empty a member before it is stopped: it gives its tasks away and gets no new ones.

The member stays in the group and keeps nothing; --cancel takes the order back. With --wait the
command returns when the member holds nothing any more, for use before a planned stop.
"""

from __future__ import annotations

import argparse
import time

from muster.cli.errors import NotFound, Unreachable
from muster.cli.kafka import append
from muster.cli.options import add_kafka, group_id, kafka_settings, member_id
from muster.cli.snapshots import Shown, snapshot_of
from muster.keyring import add_signing_keys, key_file
from muster.protocol.events import Drain
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind, topic_name

LOOK_EVERY_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument(
        "--member", type=member_id, required=True, metavar="ID", help="see: muster groups describe"
    )
    parser.add_argument("--cancel", action="store_true", help="let it have tasks again")
    parser.add_argument("--wait", action="store_true", help="return when it holds nothing")
    parser.add_argument(
        "--timeout-ms",
        type=int,
        default=600_000,
        metavar="N",
        help="with --wait: give up after this long, exit code 1 (default: %(default)s)",
    )
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Write the order; perhaps wait until it is carried out."""
    settings, prefix = kafka_settings(args), args.topic_prefix
    snapshot = snapshot_of(settings, prefix, args.group)
    if args.member not in {m.id for m in snapshot.members}:
        there = ", ".join(sorted(m.id for m in snapshot.members)) or "none"
        raise NotFound(f"no member {args.member!r} in group {args.group!r}; there are: {there}")
    order = Drain(group=GroupId(args.group), member=MemberId(args.member), on=not args.cancel)
    topic = topic_name(TopicKind.MEMBERSHIP, prefix)
    append(settings, topic, order, key_file(args.signing_keys))
    print(f"{args.member}: {'drain cancelled' if args.cancel else 'draining'}", flush=True)
    deadline = time.monotonic() + args.timeout_ms / 1000
    while args.wait and not args.cancel:
        left = _held(snapshot_of(settings, prefix, args.group), args.member)
        if left == 0:
            print(f"{args.member}: empty")
            break
        if time.monotonic() > deadline:
            raise Unreachable(f"{args.member} still holds {left} tasks after {args.timeout_ms} ms")
        time.sleep(LOOK_EVERY_S)
    return 0


def _held(snapshot: GroupSnapshot, member: str) -> int:
    shown = Shown(snapshot, {})
    for entry in snapshot.members:
        if entry.id == member:
            kept = (shown.active(entry), shown.standby(entry), shown.learner(entry))
            return sum(map(len, (*kept, shown.revoking(entry))))
    return 0
