"""Fold a group's recorded events again, and compare with what the coordinator published.

Shows every generation with its cause and the reason of each move. The exit code is 1 if the same
events do not give the same bytes here for every published record. Reads Kafka, or with --file a
file that --save wrote. Signed events need --signing-keys, to tell accepted from refused ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from muster.cli.decode import Item
from muster.cli.errors import BadInput, NotFound
from muster.cli.explain import generation_json, generation_text
from muster.cli.fold import Fold, Folded, recording
from muster.cli.kafka import read
from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.table import json_line
from muster.kafka.settings import ClientSettings
from muster.protocol.errors import DecodeError
from muster.protocol.ids import GroupId
from muster.protocol.keys import key_of, parse_key
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import INPUTS, TopicKind, topic_name
from muster.signing.keyring import add_signing_keys, key_file

_READ = (TopicKind.GROUPS, TopicKind.ASSIGNMENTS, *INPUTS)
"""Published records are read first: the inputs that they name are then there to be read."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument("--file", metavar="FILE", help="replay what --save wrote; no Kafka")
    parser.add_argument("--save", metavar="FILE", help="write what is read to FILE as well")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Read, fold, compare; 1 if anything differs."""
    group, prefix = GroupId(args.group), args.topic_prefix
    if args.file is not None:
        items = list(from_file(args.file))
    else:
        items = list(_from_kafka(kafka_settings(args), prefix, group))
    if args.save is not None:
        save(args.save, items)
    keys = key_file(args.signing_keys)
    taken = recording(items, group, prefix, None if keys is None else keys.current())
    if not taken.published:
        raise NotFound(f"no group {group!r} on {topic_name(TopicKind.GROUPS, prefix)}")
    fold = Fold(taken)
    steps = list(fold.steps())
    missing = list(fold.missing())
    as_lines = _json_lines if args.format == "json" else _text_lines
    for line in as_lines(steps, missing):
        print(line)
    return 1 if missing or any(step.difference for step in steps) else 0


def from_file(path: str) -> Iterator[Item]:
    """Read records that `save` wrote.

    Raises:
        BadInput: the file cannot be read, or a line has another form than `save` writes.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield Item(
                key=row["key"].encode(),
                value=None if row["value"] is None else bytes.fromhex(row["value"]),
                topic=str(row["topic"]),
                partition=int(row["partition"]),
                offset=int(row["offset"]),
                at_ms=int(row["timestamp_ms"]),
                signature=bytes.fromhex(row.get("signature", "")),
            )
        except (
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ) as error:  # fmt: skip
            expected = "topic, partition, offset, timestamp_ms, key and value (hexadecimal)"
            raise BadInput(f"{path}, line {number}: expected {expected}: {error!r}") from None


def save(path: str, items: Iterable[Item]) -> None:
    """Write one record per line, its value in hexadecimal; `muster decode --file` reads it too.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        with Path(path).open("w", encoding="utf-8") as stream:
            for item in items:
                row: dict[str, object] = {
                    "topic": item.topic,
                    "partition": item.partition,
                    "offset": item.offset,
                    "timestamp_ms": item.at_ms,
                    "key": (item.key or b"").decode(),
                    "value": None if item.value is None else item.value.hex(),
                }
                if item.signature:
                    row["signature"] = item.signature.hex()
                stream.write(json_line(row) + "\n")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None


def _from_kafka(settings: ClientSettings, prefix: str, group: GroupId) -> Iterator[Item]:
    for kind in _READ:
        topic = topic_name(kind, prefix)
        key = None if kind is TopicKind.ASSIGNMENTS else key_of(group)  # keyed by member as well
        for row in read(settings, topic, key=key):
            if _of_group(row.key, group):
                where = (topic, row.partition, row.offset, row.at_ms)
                yield Item(row.key, row.value, *where, row.signature)


def _of_group(key: bytes | None, group: GroupId) -> bool:
    try:
        return parse_key(key).group == group
    except DecodeError:
        return False


def _generations(steps: Iterable[Folded]) -> Iterator[tuple[int, GroupSnapshot, list[Folded]]]:
    """Per generation: when it began (epoch ms), its newest snapshot here, and its records."""
    mine: list[Folded] = []
    for step in steps:
        if mine and mine[-1].made.generation != step.made.generation:
            yield mine[0].published.at_ms, mine[-1].made, mine
            mine = []
        mine.append(step)
    if mine:
        yield mine[0].published.at_ms, mine[-1].made, mine


def _text_lines(steps: list[Folded], missing: list[str]) -> Iterator[str]:
    for at_ms, snapshot, mine in _generations(steps):
        yield generation_text(snapshot, snapshot.moves, at_ms)
        for step in mine:
            if step.began:
                yield f"{step.published.where}: older events are gone; the replay begins here\n"
            elif step.difference:
                yield f"{step.published.where}: different, {step.difference}\n"
    yield from (f"different: {text}" for text in missing)
    equal = sum(not step.difference and not step.began for step in steps)
    yield f"{equal} of {len(steps)} records of the group are equal, byte for byte"


def _json_lines(steps: list[Folded], missing: list[str]) -> Iterator[str]:
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
