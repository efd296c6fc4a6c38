"""Write a group's map, timeline and reasons into one HTML file, for a post-mortem.

The file needs nothing else: no server, no network. It shows every record of the group that the
topic still holds (or that `muster replay --save` wrote), and can be scrubbed like the console. Of
more than 4,000 records it shows the newest; --since and --until choose others.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable

from muster.cli.options import add_kafka, group_id, kafka_settings
from muster.console.report import history_of, older_left_out, report_html, write_html
from muster.errors import BadInput
from muster.kafka.reader import Row, read
from muster.output import wall_ms
from muster.protocol.keys import key_of
from muster.protocol.topics import TopicKind, topic_name
from muster.replay.saved_records import from_file

UNITS_MS = {"s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument(
        "--since",
        type=span_ms,
        metavar="SPAN",
        help="how far back, e.g. 90s, 30min, 2h, 3d; of a file, before its newest record "
        "(default: everything)",
    )
    parser.add_argument(
        "--until",
        type=span_ms,
        metavar="SPAN",
        help="leave out what is newer, e.g. 2h with --since 5h: three hours (default: nothing)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the HTML file")
    parser.add_argument("--file", metavar="FILE", help="what replay --save wrote; no Kafka")
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Read the group's records and write the file."""
    if args.until is not None and args.since is not None and args.until >= args.since:
        raise BadInput("--until: expected a shorter span than --since, else no time is between")
    prefix, rows = args.topic_prefix, [*_rows(args)]
    history = history_of(rows, prefix, args.group)
    source = args.file or f"{topic_name(TopicKind.GROUPS, prefix)} at {args.bootstrap_server or ''}"
    newest_ms = history.moments[-1].at_ms
    end_ms = newest_ms if args.file else wall_ms()
    since_ms = 0 if args.since is None else end_ms - args.since
    if args.until is not None:
        end_ms -= args.until
        history = history_of(rows, prefix, args.group, end_ms)
    older = older_left_out(history, since_ms)
    if older:
        print(f"muster report: {older}", file=sys.stderr)
    html = report_html(
        history, since_ms=since_ms, made_ms=wall_ms(), source=source.strip(), end_ms=end_ms
    )
    print(write_html(args.output, html))
    return 0


def _rows(args: argparse.Namespace) -> Iterable[Row]:
    if args.file is not None:
        return from_file(args.file)
    topic = topic_name(TopicKind.GROUPS, args.topic_prefix)
    return read(kafka_settings(args), topic, key=key_of(args.group))


def span_ms(text: str) -> int:
    """A span such as ``2h`` in milliseconds."""
    match = re.fullmatch(r"(\d{1,9})\s*(s|min|m|h|d)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a span such as 90s, 30min, 2h or 3d")
    return int(match[1]) * UNITS_MS[match[2]]
