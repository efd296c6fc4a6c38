"""Repeat what the coordinator did with a group's recorded events, and compare the results.

Shows every generation with its cause and the reason of each move. The exit code is 1 if the same
events do not give the same bytes here for every published record. Reads Kafka, or with --file a
file that --save wrote. Signed events need --signing-keys, to tell accepted from refused ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import groupby

from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.errors import NotFound
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.output import json_line
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import INPUTS, TopicKind, topic_name
from muster.published.generations import generation_json, generation_text
from muster.replay.repeat_and_compare import Repeated, Repetition, recording
from muster.replay.saved_records import from_file, save
from muster.signing.followed_key_file import add_signing_keys, key_file_of

_READ = (TopicKind.GROUPS, TopicKind.ASSIGNMENTS, *INPUTS)
"""In the order of reading: when published records are read, the events they name are in Kafka."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument("--file", metavar="FILE", help="replay what --save wrote; no Kafka")
    parser.add_argument("--save", metavar="FILE", help="write what is read to FILE as well")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Read, repeat, compare; 1 if anything differs."""
    group, prefix = GroupId(args.group), args.topic_prefix
    if args.file is not None:
        items = list(from_file(args.file))
    else:
        items = list(_from_kafka(kafka_settings(args), prefix, group))
    if args.save is not None:
        save(args.save, items)
    keys = key_file_of(args.signing_keys)
    taken = recording(items, group, prefix, None if keys is None else keys.current())
    if not taken.published:
        where = args.file or topic_name(TopicKind.GROUPS, prefix)
        raise NotFound(f"no record of group {group!r} in {where}")
    repetition = Repetition(taken)
    steps = list(repetition.steps())
    missing = list(repetition.missing())
    as_lines = _json_lines if args.format == "json" else _text_lines
    for line in as_lines(steps, missing):
        print(line)
    return 1 if missing or any(step.difference for step in steps) else 0


def _from_kafka(settings: ClientSettings, prefix: str, group: GroupId) -> Iterator[Row]:
    for kind in _READ:
        topic = topic_name(kind, prefix)
        key = None if kind is TopicKind.ASSIGNMENTS else key_of(group)  # keyed by member as well
        for row in read(settings, topic, key=key):
            if row.is_of(group):
                yield row


def _generations(steps: Iterable[Repeated]) -> Iterator[tuple[int, GroupSnapshot, list[Repeated]]]:
    """Per generation: when it began (epoch ms), its newest snapshot here, and its records."""
    for _, alike in groupby(steps, key=lambda step: step.made.generation):
        mine = list(alike)
        yield mine[0].published.at_ms, mine[-1].made, mine


def _text_lines(steps: list[Repeated], missing: list[str]) -> Iterator[str]:
    for at_ms, snapshot, mine in _generations(steps):
        yield generation_text(snapshot, snapshot.moves, at_ms)
        for step in mine:
            if step.began:
                gap = step.published.after_gap
                why = "the record before cannot be read" if gap else "older events are gone"
                yield f"{step.published.where}: {why}; the replay begins here\n"
            elif step.difference:
                yield f"{step.published.where}: different, {step.difference}\n"
    yield from (f"different: {text}" for text in missing)
    equal = sum(not step.difference and not step.began for step in steps)
    yield f"{equal} of {len(steps)} records of the group are equal, byte for byte"


def _json_lines(steps: list[Repeated], missing: list[str]) -> Iterator[str]:
    for at_ms, snapshot, mine in _generations(steps):
        differ = [f"{s.published.where}: {s.difference}" for s in mine if s.difference]
        shown = generation_json(snapshot, snapshot.moves, at_ms)
        yield json_line(
            {
                **shown,
                "records": len(mine),
                "began": any(step.began for step in mine),
                "differences": differ,
            }
        )
    if missing:
        yield json_line({"differences": missing})
