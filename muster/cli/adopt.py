"""Govern a classic consumer group or a Connect cluster, without changing its members.

Takes the leader's seat of the group, and answers its rebalances with what the coordinator decides:
`muster groups describe`, `explain`, `plan` and `drain` work for it. SIGTERM, Ctrl-C or
`muster adopt --group G --release` hands the group back; it goes on with its own assignor. The
members' ownership stays Kafka's: they hold no lease of muster.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from muster.adopt import eligibility, join_metadata, rights
from muster.adopt.governed_groups import Governors, beat_ms
from muster.adopt.join_metadata import Kind
from muster.adopt.model import ANSWER_MS, SESSION_MS, Options, Seat
from muster.cli.options import (
    add_kafka,
    add_repeatable,
    check_ms,
    group_id,
    kafka_settings,
    key_value_pairs,
    key_values,
)
from muster.discovery.measured_traffic import Measure
from muster.documents.group_config import Change, check_fits, merged
from muster.errors import BadInput, ChangedMeanwhile, NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.groups import SEAT_PREFIX, describe_with
from muster.kafka.protocol_client import connected
from muster.kafka.writer import append_all
from muster.logs import add_log_format, set_up
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.protocol.tasks import WEIGHT_MAX
from muster.protocol.topics import TopicKind, topic_name
from muster.published.config_changes import known_of_all, replaced_of_all
from muster.signing.followed_key_file import KeyFile, add_signing_keys, key_file_of
from muster.stop_signals import LOOK_S, stop_signals

CONNECT_TOPIC = "connect-configs"
DEFAULTS = {
    # Kafka's own: a member may process for that long before it joins a rebalance.
    "rebalance.timeout.ms": "300000",
    # The governor sends the heartbeats of all members; it may be replaced meanwhile.
    "session.timeout.ms": "45000",
    "heartbeat.interval.ms": "5000",
}
"""Settings of a group that has no configuration in muster yet."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--group",
        type=group_id,
        required=True,
        action="append",
        metavar="G",
        help="a group of Kafka; may be repeated, one process governs hundreds",
    )
    parser.add_argument(
        "--assignor",
        metavar="A",
        help="how tasks are placed (default, for a new group: sticky; of Connect: cooperative,"
        " static with --pin)",
    )
    add_repeatable(
        parser,
        "--config",
        "K=V",
        "a setting of the group, as in muster config set; may be repeated",
    )
    add_repeatable(
        parser,
        "--pin",
        "JOB=WORKER",
        "only this Connect worker (host:port of its REST address) runs this connector or"
        " task; may be repeated, for one job too: another of its workers takes over from the first",
    )
    add_repeatable(
        parser,
        "--expect",
        "WORKER",
        "a Connect worker that --pin may name before it has joined; may be repeated",
    )
    add_repeatable(
        parser,
        "--weight",
        "NAME=N|MEASURE",
        "load of each task of a topic or connector (default: 1); may be repeated. Or bytes,"
        " records or lag: each partition weighs what is measured there",
    )
    parser.add_argument(
        "--config-topic",
        default=CONNECT_TOPIC,
        metavar="T",
        help="config.storage.topic of the Connect workers (default: %(default)s)",
    )
    _add_seat(parser)
    add_log_format(parser)
    add_signing_keys(add_kafka(parser))


def _add_seat(parser: argparse.ArgumentParser) -> None:
    seat = parser.add_argument_group("the leader's seat")
    how = seat.add_mutually_exclusive_group()
    how.add_argument(
        "--wait",
        action="store_true",
        help="wait until Kafka makes the governor leader (default: let the members leave and join"
        " again)",
    )
    how.add_argument(
        "--stand-by",
        action="store_true",
        help="take the seat when the group has no governor; needs another --instance-id",
    )
    how.add_argument(
        "--release", action="store_true", help="hand the group back, wherever its governor runs"
    )
    seat.add_argument(
        "--fresh",
        choices=tuple(map(str, Kind)),
        metavar="KIND",
        help="the kind of the group's members if it may have none yet: consumer or connect",
    )
    seat.add_argument(
        "--instance-id",
        default=f"{SEAT_PREFIX}-1",
        metavar="ID",
        help=f"group.instance.id of the governor, {SEAT_PREFIX}… (default: %(default)s)",
    )
    add_repeatable(
        seat, "--protocol", "NAME", "name of a custom assignor of the members; may be repeated"
    )
    seat.add_argument(
        "--session-timeout-ms",
        type=int,
        default=SESSION_MS,
        metavar="N",
        help="after N milliseconds without a governor, another member leads (default: %(default)s)",
    )
    seat.add_argument(
        "--answer-timeout-ms",
        type=int,
        default=ANSWER_MS,
        metavar="N",
        help="how many milliseconds a rebalance waits for the coordinator; then the governor"
        " decides with the same assignor (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Govern until SIGTERM, Ctrl-C or a release.

    Raises:
        MusterError: a group could not be governed; one of several only when the others have ended.
    """
    clients = kafka_settings(args)
    if args.release:
        return _release_all(clients, args.group)
    _check(args)
    set_up(args.log_format)
    keys = key_file_of(args.signing_keys)
    governed = wanted(args, clients, keys)
    _govern(Governors(clients, args.topic_prefix, keys, governed, config_topic=args.config_topic))
    return 0


def _release_all(clients: ClientSettings, groups: Sequence[str]) -> int:
    """Hand back every group that has a governor, and print a line for each.

    Raises:
        NotFound: of one or more there was nothing to hand back; the others have been.
    """
    absent = []
    for group in groups:
        try:
            print(_release(clients, group), flush=True)
        except NotFound as error:
            absent.append(str(error))
    if absent:
        raise NotFound("; ".join(absent))
    return 0


def _release(clients: ClientSettings, group: str) -> str:
    """Remove the governors of a group, wherever they run; return a line that names them.

    A governor that is removed before its session ends knows that an operator removed it, and stops.

    Raises:
        NotFound: there is no such group, or no governor in it.
    """
    from kafka.admin import MemberToRemove

    with connected(clients) as client:
        [described] = describe_with(client, [group])
        instance_ids = eligibility.governors(described)
        if not instance_ids:
            raise NotFound(f"no governor is in group {group!r}")
        client.remove_group_members(
            group, [MemberToRemove(group_instance_id=instance) for instance in instance_ids]
        )
    return f"{group}: handed back by {', '.join(instance_ids)}"


def _check(args: argparse.Namespace) -> None:
    if not join_metadata.is_governor(args.instance_id):
        raise BadInput(
            f"--instance-id {args.instance_id!r}: expected a name that begins with"
            f" {SEAT_PREFIX}; governors know each other by it"
        )
    check_ms("--session-timeout-ms", args.session_timeout_ms, least=1)
    check_ms("--answer-timeout-ms", args.answer_timeout_ms, least=1)
    if args.answer_timeout_ms >= args.session_timeout_ms:
        raise BadInput(
            f"--answer-timeout-ms {args.answer_timeout_ms}: expected less than"
            f" --session-timeout-ms {args.session_timeout_ms}"
        )


def wanted(
    args: argparse.Namespace, clients: ClientSettings, keys: KeyFile | None
) -> list[Options]:
    """Examine the groups, configure them in muster, and say how each is governed.

    Raises:
        ChangedMeanwhile: someone else configured a group at the same moment. No seat is taken yet.
        MusterError: a group cannot be governed; then no group has been changed.
    """
    measure, weights = _measure(args.weight)
    pairs = key_value_pairs(args.pin, "--pin", "JOB=WORKER")
    fresh = None if args.fresh is None else Kind(args.fresh)
    rights.check_groups(clients, args.topic_prefix, args.group)
    before = known_of_all(clients, args.topic_prefix, args.group, keys)
    for note in filter(None, (each.note for each in before.values())):
        print(f"muster adopt: {note}", file=sys.stderr)
    known = {group: each.config for group, each in before.items() if each.config is not None}
    groups = eligibility.governable(
        clients,
        args.group,
        fresh=fresh,
        own=None if args.stand_by else args.instance_id,
        configured={group: eligibility.kind_of(config) for group, config in known.items()},
    )
    clusters = [group for group, each in groups.items() if each.kind is Kind.CONNECT]
    if len(clusters) > 1:
        raise BadInput(
            f"{', '.join(clusters)} are Connect clusters, each with a config topic of its own, and"
            " --config-topic names one: start a muster adopt for each"
        )
    is_connect = bool(clusters)
    read = [topic for each in groups.values() for topic in each.topics]
    rights.check_topics(clients, read, [args.config_topic] if is_connect else [])
    if measure is not None and is_connect:
        raise BadInput(f"--weight {measure}: Connect's tasks are not measured; give NAME=N")
    pins = {
        group: eligibility.pins_of(pairs, each, group, args.expect)
        for group, each in groups.items()
    }
    configs = [
        _config(args, known.get(group), group, each.kind, bool(pins[group]))
        for group, each in groups.items()
    ]
    seat = Seat.WAIT if args.wait else Seat.STAND_BY if args.stand_by else Seat.TAKE
    topic = topic_name(TopicKind.CONFIG, args.topic_prefix)
    places = append_all(clients, topic, configs, keys, by=args.instance_id)
    written = list(zip(configs, places, strict=True))
    # Tasks are not chosen: each governor writes those that there are.
    lost = replaced_of_all(clients, args.topic_prefix, before, written, apart_from=("tasks",))
    if lost:
        raise ChangedMeanwhile(f"{lost}; then start muster adopt again")
    return [
        Options(
            group=GroupId(group),
            kind=each.kind,
            config=config,
            configured=place,
            instance_id=args.instance_id,
            seat=seat,
            pins=pins[group],
            weights=weights,
            measure=measure,
            protocols=tuple(p for p in (*args.protocol, each.protocol) if p),
            session_timeout_ms=args.session_timeout_ms,
            answer_timeout_ms=args.answer_timeout_ms,
            beat_ms=beat_ms(len(groups)),
            is_known=group in known,
        )
        for (group, each), config, place in zip(groups.items(), configs, places, strict=True)
    ]


def _config(
    args: argparse.Namespace, old: GroupConfig | None, group: str, kind: Kind, is_pinned: bool
) -> GroupConfig:
    values: dict[str, object] = {**({} if old else DEFAULTS), **key_values(args.config, "--config")}
    default = "sticky" if kind is Kind.CONSUMER else "static" if is_pinned else "cooperative"
    assignor = args.assignor or (default if old is None or is_pinned else None)
    config = merged(GroupId(group), old, Change(assignor, values, None))
    places_connectors = config.assignor in CONNECT_ASSIGNORS
    if places_connectors != (kind is Kind.CONNECT) and ":" not in config.assignor:
        places = "connectors" if kind is Kind.CONSUMER else "partitions"
        raise BadInput(f"assignor {config.assignor!r} places {places}; group {group!r} has none")
    if is_pinned and config.assignor != "static":
        raise BadInput(f"--pin needs the assignor static, not {config.assignor!r}")
    check_fits(config)
    return config


def _measure(words: Sequence[str]) -> tuple[Measure | None, dict[str, float]]:
    """What loads are measured by, and the weights that are given."""
    measures = [word for word in words if word in set(Measure)]
    for word in words:
        if "=" not in word and word not in measures:
            raise BadInput(f"--weight {word}: expected NAME=N, or one of {', '.join(Measure)}")
    if measures and len(words) > 1:
        raise BadInput(f"--weight {' '.join(words)}: expected one measure, or weights NAME=N")
    return (Measure(measures[0]), {}) if measures else (None, _weights(words))


def _weights(pairs: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name, text in key_values(pairs, "--weight").items():
        try:
            weights[name] = float(text)
        except ValueError:
            weights[name] = -1
        if not 0 < weights[name] <= WEIGHT_MAX:
            raise BadInput(f"--weight {name}={text}: expected a number above 0")
    return weights


def _govern(governors: Governors) -> None:
    with stop_signals() as stop:
        try:
            governors.open()
            while governors.are_running() and not stop.wait(LOOK_S):
                pass
            if stop.wait(0):
                logging.getLogger("muster.adopt").info("hands back")
        finally:
            governors.close()
    if governors.failure is not None:
        raise governors.failure
